"""Real trainings that adapt, on CPU slots under `pollux`: sizes change, no sample is lost, nothing is learnt worse."""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from adaptive_world import LIMITS, SCRIPT, Outcome, Paced, losses_of_fixed, samples_of, serve

from plait.core.goodput import THETA, Estimate
from plait.live.backends.local import ElasticLocal
from plait.live.client.client import Client
from plait.live.layout import Layout
from plait.testing import Cluster, leaks

pytestmark = pytest.mark.engines

SAMPLES, TESTS = 512, Path(__file__).parents[1]


def paced(at_s: float, epochs: int, *, adaptive: bool = True, most_gpus: int = 2) -> Paced:
    return Paced(at_s, epochs, adaptive=adaptive, most_gpus=most_gpus, samples=SAMPLES, spread=3.0)


def run(home: Path, jobs: list[Paced], slots: int, interval_s: float) -> tuple[Outcome, list[int]]:
    """Jobs to their end, and what must always hold; also the numbers of those that have grown."""
    policy = f"pollux:interval_s={2 * interval_s:g},restart_s={interval_s:g}"
    result = serve(home, jobs, policy, slots=slots, interval_s=interval_s)
    assert [job.state for job in result.jobs] == ["finished"] * len(jobs)
    assert leaks(Layout(home.resolve())) == []
    assert result.difference is None, str(result.difference)
    for i, job in enumerate(jobs):
        epochs = samples_of(home.parent / "home-out", i)
        *whole, last = (epochs[epoch] for epoch in range(len(epochs)))
        assert all(len(samples) == SAMPLES and set(samples.values()) == {1} for samples in whole)
        assert set(last.values()) == {1}
        assert len(epochs) >= job.epochs  # as much progress at larger batches takes more samples
        assert len(last) == SAMPLES or job.adaptive
        assert result.sizes[i][0] == 1
        assert job.adaptive or result.sizes[i] == [1]
    for i, job in enumerate(jobs):
        expected = losses_of_fixed(job.epochs, SAMPLES, job.spread)
        assert abs(result.losses[i] - expected.mean()) < 5 * expected.std(), (i, result.losses[i])
    grown = [i for i in range(len(jobs)) if max(result.sizes[i]) > 1]
    # Where other processes take the cores a fit may say of one job that larger batches take as much longer: not of all.
    assert not grown or max(max(result.batches[i]) for i in grown) > LIMITS.initial
    for i in grown:
        known = result.estimates[i]
        assert (known[:THETA] >= 0).all()
        assert known[Estimate.RESTART_S] > 0  # measured, not NaN; how long a restart takes is the machine's affair
    return result, grown


def test_trainings_grow_as_slots_become_free_and_see_each_sample_once(tmp_path: Path) -> None:
    jobs = [paced(0.0, 16), paced(0.5, 4, adaptive=False), paced(1.0, 12)]
    _, grown = run(tmp_path / "home", jobs, slots=4, interval_s=2.0)
    assert grown


def keep_until(cluster: Cluster, true: Callable[[Client], bool]) -> None:
    """Keep the cluster up until this is so."""
    give_up_s = time.monotonic() + 300.0
    with cluster.client() as client:
        while not true(client):
            assert time.monotonic() < give_up_s, (client.nodes(), client.jobs())
            cluster.maintain()
            time.sleep(0.1)


def events(client: Client, kind: str) -> list[dict[str, Any]]:
    return [row["event"] for row in client.all_events() if row["event"]["type"] == kind]


def test_nodes_come_and_go_as_the_policy_values_jobs_and_no_sample_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One training is worth two nodes, two jobs are worth one: then the second node is emptied and given back."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(TESTS / "contract"), str(SCRIPT.parent)]))
    out = tmp_path / "out"
    out.mkdir()
    options = {"policy": "resizing:Resizing", "round": 0.5, "most-gpus": 4, "price": 2.0}
    elastic = ElasticLocal(most=2, idle_s=1.0, delay_s=0.5)
    begin_s = time.monotonic()
    world = Cluster(tmp_path / "home", nodes=1, slots=2, options=options, elastic=elastic)
    with world as cluster, cluster.client() as client:
        long, short = paced(0.0, 1000, adaptive=False), paced(0.0, 30, most_gpus=4)
        training = client.submit([short.request(out, 1000.0)])[0].id
        keep_until(cluster, lambda c: c.job(training).gpus == 4 and (c.job(training).iterations_done or 0) > 5)
        other = client.submit([long.request(out, 1000.0)])[0].id
        keep_until(cluster, lambda c: len(c.nodes()) == 1 and c.job(training).gpus == 1)
        client.cancel(other)
        keep_until(cluster, lambda c: len(c.nodes()) == 2)
        keep_until(cluster, lambda c: c.job(training).state == "finished" and len(c.nodes()) == 1)
        assert [len(events(client, kind)) for kind in ("NodeDrained", "NodeForgotten")] == [2, 2]
        sizes = [len(attempt.ranks) for attempt in client.job(training).attempts]
        costs = client.costs()
        assert sizes[:3] == [1, 4, 1]
        assert 0 < costs.total.gpu_h < 4 * (time.monotonic() - begin_s) / 3600
        assert costs.total.cost == pytest.approx(2 * costs.total.gpu_h, rel=1e-3)
    *whole, _ = samples_of(out, 0).values()
    assert all(len(samples) == SAMPLES and set(samples.values()) == {1} for samples in whole)


def test_a_training_takes_another_plan_on_more_slots_and_learns_as_with_a_fixed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 20 GB a slot states take 16 with one rank, which leaves room for a third of the batch at a time."""
    monkeypatch.setenv("PYTHONPATH", str(TESTS / "contract"))
    script, fixed = TESTS / "unit/training/scripts/planned_resize.py", {"initial": 24, "most": 24, "accumulation": True}
    files = [tmp_path / f"{name}.jsonl" for name in ("fixed", "planned")]
    common = {"workdir": str(tmp_path), "profile": {"gpu": 1.0}, "min_gpus": 1, "env": {"PACE_S": "4"}}
    batches = (fixed, fixed | {"parameters": 10**9, "example_bytes": 5 * 10**8})
    jobs = [
        common | {"command": [sys.executable, str(script), str(file), "0"], "batch": batch, "max_gpus": most}
        for most, file, batch in zip((1, 2), files, batches, strict=True)
    ]
    options = {"policy": "resizing:Resizing", "round": 0.5, "estimates": 1}
    world = Cluster(tmp_path / "home", nodes=1, slots=2, options=options, slot_memory_gb=20.0)
    with world as cluster, cluster.client() as client:
        alone, name = (row.id for row in client.submit(jobs))
        keep_until(cluster, lambda c: any(e["goodput"][0][0] for e in events(c, "GoodputReported") if e["jobs"] == [1]))
        Path(f"{files[0]}.hurry").touch()
        keep_until(cluster, lambda c: c.job(alone).state == "finished" and c.job(name).gpus == 2)
        Path(f"{files[1]}.hurry").touch()
        keep_until(cluster, lambda c: c.job(name).state == "finished")
        plans = [event["limits"] for event in events(client, "AttemptBegan") if event.get("limits")]
    assert plans[0] != plans[1]
    alike, made = ([json.loads(line) for line in file.read_text().splitlines()] for file in files)
    assert {tuple(row[:2]) for row in made} == {(i + 1, plan["zero_stage"]) for i, plan in enumerate(plans)}
    assert {row[4] for row in made if row[0] == 1} == {2}
    assert [len(plans), len(made), plans[0]["most_local"]] == [2, 20, 8]
    assert [row[5] for row in made] == pytest.approx([row[5] for row in alike], rel=1e-4)


@pytest.mark.slow
@pytest.mark.skipif("PLAIT_SLOW" not in os.environ, reason="takes minutes; set PLAIT_SLOW=1")
def test_three_adaptive_and_two_fixed_trainings_share_a_cluster(tmp_path: Path) -> None:
    """Those that adapt start on one slot each and take what is left; simulated, all end about when they did."""
    jobs = [
        paced(0.0, 80, most_gpus=8), paced(4.0, 60, adaptive=False), paced(8.0, 60, most_gpus=8),
        paced(10.0, 40, adaptive=False), paced(14.0, 70, most_gpus=8),
    ]  # fmt: skip
    result, grown = run(tmp_path / "home", jobs, slots=8, interval_s=3.0)
    assert grown == [0, 2, 4]
    assert all(max(result.batches[i]) > LIMITS.initial for i in grown)
    assert max(max(sizes) for sizes in result.sizes) >= 4
    predicted, measured = (
        sum(getattr(job, name) for job in result.foretold.jobs) for name in ("predicted_s", "measured_s")
    )
    assert abs(predicted / measured - 1) < 0.15
