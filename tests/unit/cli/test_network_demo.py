"""The demo of in-network aggregation: its figures as text; the whole of it with PLAIT_SLOW."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from plait.cli.commands.network.cluster_view import ina_lines, show_cluster
from plait.cli.experiments import network_demo
from plait.cli.experiments.network_demo import World

INA: dict[str, Any] = {
    "granted": True, "switch": "leaf0",
    "region": {"offset": 64, "size": 128, "mode": "hybrid_modulo", "exclusive": True},
    "epoch": 2, "protocol": "inalloc", "window": 64, "priority": None, "mode_used": "aggregation", "bits_per_s": 4.4e7,
    "aggregated_share": 0.9, "fallback_share": 0.05, "gloo_share": 0.01, "resend_share": 0.0, "timeouts": 3.0,
    "reason": "128 aggregators, as it asks for",
}  # fmt: skip


def test_the_tables_of_the_demo_say_who_had_what(capsys: pytest.CaptureFixture[str]) -> None:
    ended = {"deadline": {"state": "finished", "jct_s": 12.34}}
    network_demo._show([World("alone", "fifo:ina=inalloc", [4.0, 8.0], {"deadline": INA}, ended)])
    said = capsys.readouterr().out
    assert "128 from 64" in said
    assert "44 Mb/s" in said
    assert "12.3 s" in said
    assert "alone: 6.0 of 48 aggregators held in the mean, 8 at most; deadline 5.0 % fallback." in said


def test_explain_says_what_a_job_has_what_it_uses_and_why() -> None:
    assert ina_lines(INA) == [
        "  aggregation: 128 from 64 of leaf0, inalloc, epoch 2",
        "    a switch adds its gradients up: 44 Mb/s a rank, fallback 5.0 %, by gloo 1.0 % so far",
    ]
    by_gloo = {**INA, "granted": False, "region": None, "mode_used": "gloo", "reason": "switch leaf0 was lost"}
    assert ina_lines(by_gloo) == [
        "  aggregation: no memory of a switch: switch leaf0 was lost",
        "    its gradients go by gloo: 44 Mb/s a rank, fallback 5.0 %, by gloo 1.0 % so far",
    ]


def test_status_of_a_cluster_names_switches_jobs_and_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    show_cluster({"network": None})
    assert "declare one with: plait up --network" in capsys.readouterr().out
    switch = {
        "switch": "leaf0", "state": "lost", "node": None, "aggregators": 1024, "granted": 128, "held": 0.0,
        "restarts": 1, "jobs": [{"id": "j-3"}], "trouble": "its server did not start",
    }  # fmt: skip
    found = {
        "network": "single-switch",
        "policy": "fifo",
        "grants": False,
        "switches": [switch],
        "jobs": [{"id": "j-3", **INA}],
    }
    show_cluster(found)
    said = capsys.readouterr().out
    assert "policy fifo grants no memory of switches: choose one with ina=" in said
    for word in ("leaf0", "lost", "its server did not start", "j-3", "128 from 64", "5.0 %", "as it asks for"):
        assert word in said


@pytest.mark.engines
@pytest.mark.skipif(os.environ.get("PLAIT_SLOW") != "1", reason="takes two minutes; set PLAIT_SLOW=1")
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="agents need Linux")
def test_the_demo_shows_both_worlds(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    network_demo.demonstrate_network(tmp_path, None)
    worlds = json.loads((tmp_path / "network.json").read_text())
    assert [world["policy"] for world in worlds] == ["fifo:ina=atp", "fifo:ina=inalloc"]
    assert all(one["state"] == "finished" for world in worlds for one in world["ended"].values())
    assert worlds[0]["jobs"]["deadline"]["fallback_share"] > worlds[1]["jobs"]["deadline"]["fallback_share"]
    assert (tmp_path / "network.html").is_file()


def test_doctor_says_which_switches_are_lost_and_when_a_policy_grants_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from plait.cli.commands import doctor
    from plait.live.client.client import Client

    answers: dict[str, Any] = {"switches": [], "grants": True, "policy": "fifo"}
    monkeypatch.setenv("PLAIT_URL", "http://127.0.0.1:1")
    monkeypatch.setattr(Client, "at", classmethod(lambda *_: Answers(answers)))
    assert list(doctor.switches(str(tmp_path))) == []
    answers["switches"] = [{"switch": "leaf0", "state": "lost", "trouble": "its server did not start"}]
    (lost,) = doctor.switches(str(tmp_path))
    assert (lost.state, lost.found) == (doctor.WARNING, "leaf0 is lost: its server did not start")
    answers["switches"][0]["state"] = "up"
    answers["grants"] = False
    (idle,) = doctor.switches(str(tmp_path))
    assert idle.found == "policy fifo grants no memory of them"
    answers["grants"] = True
    assert [one.state for one in doctor.switches(str(tmp_path))] == [doctor.OK]


class Answers:
    """A client whose service says this of its network."""

    def __init__(self, network: dict[str, Any]) -> None:
        self.said = network

    def __enter__(self) -> Answers:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def network(self) -> dict[str, Any]:
        return self.said
