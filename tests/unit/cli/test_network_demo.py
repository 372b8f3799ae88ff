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
from plait.cli.experiments.network_demo import DemoWorld, Look
from plait.live.api.cluster import NetworkJob, NetworkOfCluster
from sample_answers import sample

INA: dict[str, Any] = {
    "granted": True, "switch": "leaf0",
    "region": {"offset": 64, "size": 128, "mode": "hybrid_modulo", "exclusive": True},
    "epoch": 2, "protocol": "inalloc", "window": 64, "priority": None, "mode_used": "aggregation",
    "trouble": None, "bits_per_s": 4.4e7,
    "aggregated_share": 0.9, "fallback_share": 0.05, "gloo_share": 0.01, "resend_share": 0.0, "timeouts": 3.0,
    "reason": "128 aggregators, as it asks for",
}  # fmt: skip


def ina(**changes: Any) -> NetworkJob:
    return sample(NetworkJob, **INA | changes)


def test_the_tables_and_the_page_of_the_demo_say_who_had_what_at_one_moment(capsys: pytest.CaptureFixture[str]) -> None:
    """The other job has all of the memory once the first one has ended; what they had together is shown."""
    shared = ina(region={"offset": 0, "size": 20, "mode": "hybrid_region", "exclusive": False})
    alone = ina(region={"offset": 0, "size": 48, "mode": "hybrid_region", "exclusive": False})
    looks = [
        Look(0.5, 0.0, {}), Look(1.0, 4.0, {"deadline": ina(), "other": shared}),
        Look(1.5, 8.0, {"deadline": ina(), "other": shared}), Look(2.0, 30.0, {"other": alone}),
    ]  # fmt: skip
    ended = {"deadline": {"state": "finished", "jct_s": 12.34}, "other": {"state": "finished", "jct_s": 20.0}}
    world = DemoWorld("small", "fifo:ina=inalloc", looks, {"deadline": ina(), "other": alone}, ended)
    network_demo._show([world])
    said, page = capsys.readouterr().out, network_demo.page([world])
    for text in ("128 from 64", "20 from 0, shared", "44 Mb/s", "12.3 s"):
        assert text in said
        assert text in page
    assert "48 from 0" not in said
    assert "6.0 of 48 aggregators held in the mean while both exchanged gradients, 8 at most; deadline 5.0 %" in said
    assert page.count("<polyline") == 3  # occupancy, and what each job may use


def test_explain_says_what_a_job_has_what_it_uses_and_why() -> None:
    assert ina_lines(ina()) == [
        "  aggregation: 128 from 64 of leaf0, inalloc, epoch 2",
        "    a switch adds its gradients up: 44 Mb/s a rank, fallback 5.0 %, by gloo 1.0 % so far",
    ]
    by_gloo = ina(granted=False, region=None, mode_used="gloo", reason="switch leaf0 was lost")
    assert ina_lines(by_gloo) == [
        "  aggregation: no memory of a switch: switch leaf0 was lost",
        "    its gradients go by gloo: 44 Mb/s a rank, fallback 5.0 %, by gloo 1.0 % so far",
    ]


def test_status_of_a_cluster_names_switches_jobs_and_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    show_cluster(sample(NetworkOfCluster, network=None))
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
    show_cluster(sample(NetworkOfCluster, **found))
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
    assert all(max(look["held"] for look in world["looks"]) > 0 for world in worlds)
    assert (tmp_path / "network.html").is_file()
    assert (tmp_path / "network-jobs.html").is_file()


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

    def network(self) -> NetworkOfCluster:
        return sample(NetworkOfCluster, **self.said)
