"""Demonstrations without a live cluster: the simulated one, and the figures of the one of aggregation as text."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from plait.cli.commands.network.cluster_view import ina_lines, show_cluster
from plait.cli.experiments import network_demo
from plait.cli.experiments import simulated_demo as demo
from plait.cli.experiments.network_demo import DemoWorld, Look
from plait.cli.experiments.simulated_demo import ADAPTIVE, BLOCKS, JOBS, NO_GUESTS, NO_PROFILES, Figures
from plait.live.api.cluster import NetworkJob, NetworkOfCluster
from plait.traces.canonical import read_canonical
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


#: Columns and lines of a screen on which the demo is read.
COLUMNS, LINES = 100, 50


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """The lines that the demo prints, and its folder; with fewer jobs than the demo has."""
    folder, out = tmp_path_factory.mktemp("demo") / "out", io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out):
        patch.setattr(demo, "COUNT", 30)
        patch.setattr(demo, "ADAPTIVE_COUNT", 3)
        patch.setattr(demo, "ADAPTIVE_LOAD", None)
        demo.demonstrate_simulated(folder)
    return out.getvalue().splitlines(), folder


def test_the_demo_fits_a_screen(shown):
    lines, folder = shown
    assert max(len(line) for line in lines if str(folder) not in line) <= COLUMNS
    assert len(lines) <= LINES
    answers = ("Order: ", "Interleaving: ", "Goodput: ", "Guests: ")
    assert [line.split(" ")[0] + " " for line in lines if line.startswith(answers)] == list(answers)


def test_each_run_is_in_the_report_once_and_the_traces_can_be_used_again(shown):
    _, folder = shown
    runs = {run for block in BLOCKS for run in block.runs}
    rows = json.loads((folder / "results.json").read_text())
    assert {(row["policy"], row["trace"]) for row in rows} == runs
    assert len(rows) == len(runs)
    assert (folder / "report.html").stat().st_size > 50_000
    table = read_canonical(folder / JOBS)
    assert set(table["job_class"]) == {"guaranteed", "opportunistic"}
    assert len(read_canonical(folder / ADAPTIVE)) == 3


def test_jobs_differ_only_in_what_the_table_says():
    jobs = dict(demo.batches(demo.traces()))
    whole, bare, one_class = jobs[JOBS], jobs[NO_PROFILES], jobs[NO_GUESTS]
    assert np.isnan(bare.stage_s).all()
    assert not np.isnan(whole.stage_s).any()
    for other in (bare, one_class):
        for name in ("submit_s", "gpus", "iterations", "iteration_s"):
            assert np.array_equal(getattr(whole, name), getattr(other, name)), name
    assert np.array_equal(whole.stage_s, one_class.stage_s)
    classes = [len(set(batch.column("job_class").tolist())) for batch in (whole, bare, one_class)]
    assert classes == [2, 2, 1]


def test_sentences_state_the_ratios_of_their_tables():
    runs = [run for block in BLOCKS for run in block.runs]
    figures = {run: Figures(*(60.0 * (1 + i) * (2 + k) for k in range(6))) for i, run in enumerate(dict.fromkeys(runs))}
    order, turns, goodput, guests = (block.sentences(figures) for block in BLOCKS)

    def ratio(new, old, name="mean_s"):
        return f"{getattr(figures[new], name) / getattr(figures[old], name):.2f}"

    assert re.findall(r"\d\.\d\d", order) == [ratio((p, JOBS), ("fifo", JOBS)) for p in ("tiresias-l", "srtf")]
    names = ("mean_s", "p99_s", "last_s")
    expected = [ratio((p, JOBS), (p, NO_PROFILES), name) for p in ("muri-l", "muri-s") for name in names]
    assert re.findall(r"\d\.\d\d", turns) == expected
    assert re.findall(r"\d\.\d\d", goodput) == [ratio(("pollux", ADAPTIVE), ("tiresias-l", ADAPTIVE))]
    to_backfill = [
        ratio(("antman", JOBS), ("fifo-backfill", JOBS), n) for n in ("mean_s", "guaranteed_s", "opportunistic_s")
    ]
    assert re.findall(r"\d\.\d\d", guests) == [*to_backfill, ratio(("antman", JOBS), ("antman", NO_GUESTS))]


def test_means_by_class_are_those_of_the_jobs():
    summary = {"avg_jct_s": 4.0, "p99_jct_s": 9.0, "makespan_s": 20.0, "gpu_utilisation": 0.5}
    result = SimpleNamespace(summary=summary, jobs={"jct_s": np.array([1.0, 2.0, 9.0])})
    figures = Figures.of(result, np.array([False, True, True]))
    assert (figures.guaranteed_s, figures.opportunistic_s) == (1.0, 5.5)
    assert np.isnan(Figures.of(result, None).opportunistic_s)
