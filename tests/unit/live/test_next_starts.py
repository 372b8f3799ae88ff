"""The queue as arrays, and forecasts of what starts now and after the next ends, against the policy."""

import math
from typing import Any

import numpy as np
import pytest

from plait.control.controller import Controller
from plait.control.messages import JobFinished, JobSubmitted, ReplanDue
from plait.control.snapshot import of_active, snapshot
from plait.core.cluster import Cluster
from plait.core.jit import plain
from plait.core.jobs import Checkpoints, JobBatch, JobSpec, Phase
from plait.core.resources import StageProfile
from plait.grouping.interference import PairReports
from plait.live.scheduler.explain.durations import ENOUGH, POOLS, History, Unknown, draw, residual, script_of
from plait.live.scheduler.explain.list_schedule import PREEMPT, STRICT, play
from plait.live.scheduler.explain.next_starts import Release, next_starts, started
from plait.policies.catalog import make_policy
from reference.plain_list_schedule import Queue, Waiter

POLICIES = ("fifo", "plait", "tiresias-l", "srsf", "muri-l", "drf", "antman", "fifo-backfill:quota=a=6/b=6")


def spec(i: int, gpus: int, rng: Any, **more: Any) -> JobSpec:
    kept = Checkpoints.NEVER if rng.random() < 0.5 else Checkpoints.ON_STOP
    return JobSpec(
        id=f"j{i}", gpus=gpus, iterations=100.0, iteration_s=1.0, project="ab"[int(rng.integers(2))],
        checkpoints=kept, **more,
    )  # fmt: skip


def filled(policy: str, seed: int) -> tuple[Controller, Any, dict[int, float]]:
    """Jobs on three nodes of three GPUs, some of which have ended since, so that what is free is spread."""
    rng = np.random.default_rng(seed)
    controller = Controller(make_policy(policy), Cluster.parse("3x3"))
    at_s = 0.0
    for i in range(12):
        at_s += 1.0
        one = spec(i, int(rng.choice([1, 1, 1, 2])), rng, submit_s=at_s)
        controller.handle(JobSubmitted(at_s, i, JobBatch.of([one])))
        controller.handle(ReplanDue(at_s))
        running = np.flatnonzero(controller.job_store.columns["phase"][: i + 1] == int(Phase.RUNNING))
        if len(running) and rng.random() < 0.4:
            at_s += 1.0
            controller.handle(JobFinished(at_s, rng.choice(running, size=1), np.array([at_s])))
            controller.handle(ReplanDue(at_s))
    return controller, rng, {i: float(rng.uniform(5.0, 50.0)) for i in range(12)}


@pytest.mark.parametrize("policy", POLICIES)
def test_a_new_job_starts_now_in_a_forecast_if_the_policy_starts_it_now(policy: str) -> None:
    found = set()
    for seed in range(12):
        controller, rng, left_s = filled(policy, seed)
        before = snapshot(controller)
        new = spec(99, int(rng.choice([1, 2, 3])), rng, submit_s=controller.now_s)
        release = next_starts(controller, left_s, new)[-1]
        assert snapshot(controller) == before
        copy, _ = of_active(controller)
        number = copy.job_store.count
        copy.handle(JobSubmitted(copy.now_s, number, JobBatch.of([new])))
        copy.handle(ReplanDue(copy.now_s))
        runs = bool(copy.job_store.columns["phase"][number] == int(Phase.RUNNING))
        assert release.now == runs, (seed, release)
        assert runs or release.ends >= 1 or release.due_s > 0
        found.add(runs)
    assert found == {True, False}


def test_a_job_waits_for_the_ends_after_which_it_fits() -> None:
    controller = Controller(make_policy("fifo-backfill"), Cluster.parse("2x2"))
    rng = np.random.default_rng(0)
    specs = [spec(i, 1, rng) for i in range(4)] + [spec(4, 2, rng)]
    controller.handle(JobSubmitted(0.0, 0, JobBatch.of(specs)))
    controller.handle(ReplanDue(0.0))
    nodes = controller.cluster.gpu_node[controller.running.gpus]
    order = controller.running.jobs.tolist()
    first, second = (next(job for job, node in zip(order, nodes, strict=True) if node == one) for one in (0, 1))
    rest = [job for job in order if job not in (first, second)]
    left_s = {first: 1.0, second: 2.0, rest[0]: 30.0, rest[1]: 40.0, 4: 5.0}
    release = next_starts(controller, left_s)[4]
    assert (release.ends, release.now) == (3, False)  # two free GPUs are on two nodes
    assert "node" in next_starts(controller, left_s, spec(5, 2, rng))[-1].reason or release.reason


def test_starts_are_moved_to_where_decisions_allow_them() -> None:
    starts_s = np.array([[5.0, 0.0, 7.0, math.inf], [1.0, 9.0, 7.0, math.inf]])
    ends_s = np.array([[3.0, 6.0, 9.0], [2.0, 4.0, 8.0]])
    found = started(starts_s, ends_s, [Release(), Release(2), None, Release(9)])
    assert found.tolist() == [[0.0, 6.0, 7.0, math.inf], [0.0, 9.0, 7.0, math.inf]]
    assert started(starts_s[:, :1], ends_s[:, :0], [Release(1, 2.0)]).tolist() == [[5.0], [2.0]]


def test_a_forecast_learns_nothing_of_jobs_that_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its jobs go on as they are expected to, which is no measurement of their speed together."""
    cpu, gpu = StageProfile.of(cpu=0.9, gpu=0.1), StageProfile.of(gpu=0.9, cpu=0.1)
    controller = Controller(make_policy("plait:guests=0"), Cluster.parse("1x1"))
    jobs = [JobSpec(id=f"j{i}", gpus=1, iterations=9e3, iteration_s=1.0, profile=(cpu, gpu)[i % 2]) for i in range(4)]
    controller.handle(JobSubmitted(0.0, 0, JobBatch.of(jobs)))
    controller.handle(ReplanDue(0.0))
    assert any(len(group.members) > 1 for group in controller.plan.groups)
    learnt: list[object] = []
    monkeypatch.setattr(PairReports, "note", lambda *report: learnt.append(report))
    next_starts(controller, {i: 50.0 + i for i in range(4)})
    assert not learnt


def whole(*values: int) -> Any:
    return np.array(values, dtype=np.int64)


def run(
    jobs: list[tuple[int, float, int]], capacity: Any, how: int = 0, probes: list[tuple[int, int]] | None = None,
    mask: Any = None, kernel: Any = play,
) -> tuple[list[float], list[float], list[float]]:  # fmt: skip
    """Jobs as (GPUs, seconds, place); probes as (before which job, GPUs)."""
    n, kinds = len(jobs), len(capacity)
    starts, ends, asked = kernel(
        whole(*(j[0] for j in jobs)), np.full(n, (1 << kinds) - 1) if mask is None else mask,
        whole(*(j[2] for j in jobs)), np.zeros(n, dtype=np.int64), np.array([[j[1] for j in jobs]]).reshape(1, n),
        capacity, how, whole(*(p[0] for p in probes or ())), whole(*(p[1] for p in probes or ())),
        np.full(len(probes or ()), (1 << kinds) - 1), True,
    )  # fmt: skip
    return starts[0].tolist(), ends[0].tolist(), asked[0].tolist()


def test_a_job_starts_when_enough_gpus_have_come_free() -> None:
    jobs = [(4, 10.0, 0), (4, 30.0, 0), (8, 5.0, -1)]
    assert run(jobs, whole(8)) == ([0.0, 0.0, 30.0], [10.0, 30.0, 35.0], [])


@pytest.mark.parametrize(("how", "small_s"), [(0, 0.0), (STRICT, 15.0)])
def test_small_jobs_pass_large_ones_unless_it_is_strict(how: int, small_s: float) -> None:
    jobs = [(4, 10.0, 0), (8, 5.0, -1), (1, 2.0, -1)]
    assert run(jobs, whole(8), how)[0] == [0.0, 10.0, small_s]


def test_a_job_ahead_takes_the_gpus_of_those_behind_it_where_it_may() -> None:
    jobs = [(8, 5.0, -1), (4, 10.0, 0), (4, 30.0, 0)]
    assert run(jobs, whole(8), PREEMPT) == ([0.0, 0.0, 0.0], [5.0, 15.0, 35.0], [])
    assert run(jobs, whole(8)) == ([30.0, 0.0, 0.0], [35.0, 10.0, 30.0], [])


def test_a_probe_says_when_and_takes_nothing() -> None:
    jobs = [(4, 10.0, 0), (4, 30.0, 0), (8, 5.0, -1)]
    without = run(jobs, whole(8))
    starts, ends, asked = run(jobs, whole(8), probes=[(2, 4), (3, 4), (3, 8), (3, 9)])
    assert (starts, ends) == without[:2]
    assert asked == [10.0, 10.0, 35.0, np.inf]


def test_each_gang_is_of_one_kind() -> None:
    jobs = [(3, 10.0, 0), (3, 20.0, 1), (3, 5.0, -1), (5, 1.0, -1)]
    assert run(jobs, whole(4, 4))[0] == [0.0, 0.0, 10.0, np.inf]
    assert run(jobs, whole(4, 4), mask=whole(3, 3, 2, 3))[0][2] == 20.0


def test_an_empty_queue_starts_a_probe_at_once() -> None:
    assert run([], whole(4), probes=[(0, 4), (0, 5)]) == ([], [], [0.0, np.inf])


@pytest.mark.parametrize("how", [0, STRICT, PREEMPT])
def test_kernel_and_reference_agree(how: int) -> None:
    rng = np.random.default_rng(how)
    for _ in range(60):
        kinds, n = int(rng.integers(1, 4)), int(rng.integers(1, 24))
        capacity = rng.integers(4, 12, size=kinds)
        gpus, mask = rng.integers(1, 9, size=n), rng.integers(1, 1 << kinds, size=n)
        left_s = rng.integers(1, 12, size=(1, n)).astype(float)
        place, free = np.full(n, -1), capacity.copy()
        for i in rng.permutation(n).tolist():
            k = int(rng.integers(kinds))
            if mask[i] >> k & 1 and gpus[i] <= free[k] and rng.random() < 0.7:
                place[i], free[k] = k, free[k] - gpus[i]
        stays = (rng.random(n) < 0.2).astype(np.int64)
        at = np.sort(rng.integers(0, n + 1, size=4))
        asked, allowed = rng.integers(1, 9, size=4), rng.integers(1, 1 << kinds, size=4)
        found = play(gpus, mask, place, stays, left_s, capacity, how, at, asked, allowed, True)
        twin = plain(play)(gpus, mask, place, stays, left_s, capacity, how, at, asked, allowed, True)
        jobs = [
            Waiter(int(g), _bits(m), float(s), int(p), bool(y))
            for g, m, s, p, y in zip(gpus, mask, left_s[0], place, stays, strict=True)
        ]
        probes = [(int(a), Waiter(int(g), _bits(m), 1.0)) for a, g, m in zip(at, asked, allowed, strict=True)]
        Queue(jobs, capacity.tolist(), how, probes).play()
        assert found[0][0].tolist() == [job.start_s for job in jobs]
        assert found[1][0].tolist() == [job.end_s for job in jobs]
        assert found[2][0].tolist() == [probe.start_s for _, probe in probes]
        for mine, its in zip(found, twin, strict=True):
            np.testing.assert_array_equal(mine, its)


def _bits(mask: int) -> list[int]:
    return [k for k in range(8) if int(mask) >> k & 1]


# -- what is left of jobs, drawn from those that ended ----------------------------------------------------


def unknown(user: str = "ann", name: str = "net", gpus: int = 1, **values: float) -> Unknown:
    given = {"ran_s": 0.0, "left_s": np.nan, "stated_s": np.nan, "limit_s": np.nan, **values}
    return Unknown([user], [name], np.array([gpus]), *(np.array([one]) for one in given.values()))


def history(*rows: tuple[str, str, int, float]) -> History:
    found = History()
    for row in rows:
        found.add(*row)
    return found


def test_the_longer_it_has_run_the_more_is_left() -> None:
    rng, known = np.random.default_rng(1), np.sort(np.random.default_rng(2).pareto(1.0, 2000) + 1)
    medians = [float(np.median(residual(known, np.full(500, ran), rng.random((20, 500))))) for ran in (0.5, 4, 20)]
    assert medians == sorted(medians)
    assert medians[2] == pytest.approx(20.0, rel=0.25)  # of a Pareto law with exponent 1 as much again is left


def test_the_draws_cover_the_distribution_that_they_are_from() -> None:
    durations = np.random.default_rng(3).lognormal(5, 1, 300)
    known = history(*(("ann", "net", 1, float(s)) for s in durations))
    left, words = draw(unknown(), known, 400)
    assert words == ["300 ended jobs of the same user, name and size"]
    assert np.quantile(left, [0.1, 0.5, 0.9]) == pytest.approx(np.quantile(durations, [0.1, 0.5, 0.9]), rel=0.15)


@pytest.mark.parametrize(
    ("job", "words"),
    [
        (("ann", "net", 1), "5 ended jobs of the same user, name and size"),
        (("ann", "net", 8), "5 ended jobs of the same user and name"),
        (("ann", "other", 1), "5 ended jobs of the same user and size"),
        (("ann", "other", 8), "5 ended jobs of the same user"),
        (("ben", "net", 1), "10 ended jobs of the same size"),
        (("ben", "", 8), "10 jobs that ended"),
    ],
)
def test_the_closest_pool_with_enough_jobs_counts(job: tuple[str, str, int], words: str) -> None:
    known = history(*([("ann", "net", 1, 10.0)] * ENOUGH), *([("eve", "old", 1, 90.0)] * ENOUGH))
    assert draw(unknown(*job), known, 8)[1] == [words]


def test_progress_goes_first_then_what_was_stated_then_nothing() -> None:
    left, words = draw(unknown(left_s=100.0), History(), 50)
    assert words == ["its own progress"]
    assert np.median(left) == pytest.approx(100.0, rel=0.1)
    left, words = draw(unknown(stated_s=1000.0), History(), 200)
    assert words[0].startswith("what it stated, give or take")
    assert np.median(left) == pytest.approx(1000.0, rel=0.15)
    assert draw(unknown(), History(), 4)[1][0].startswith("a wide guess")


def test_statements_are_as_wrong_as_they_were_before() -> None:
    known = History()
    for i in range(40):
        known.add("ann", f"job {i}", 1, 2000.0 + i, 1000.0)
    left, words = draw(unknown(stated_s=50.0), known, 100)
    assert words == ["what it stated, as far off as the user's last 40 statements were"]
    assert np.median(left) == pytest.approx(100.0, rel=0.1)


@pytest.mark.parametrize(
    ("command", "gpus", "words", "middle_s"),
    [
        ("python net.py --lr 1", 2, "3 ended jobs of the same user, command and size", 20.0),
        ("python net.py --lr 9", 2, "4 ended jobs of the same user, script and size", 20.0),
        ("python net.py --lr 9", 4, "4 ended jobs of the same user and script", 20.0),
        ("python other.py", 2, "7 ended jobs of the same user, name and size", 900.0),
    ],
)
def test_three_runs_of_a_script_say_more_than_many_other_jobs(
    command: str, gpus: int, words: str, middle_s: float
) -> None:
    known = History()
    for i, run in enumerate(["python net.py --lr 1"] * 3 + ["python net.py --lr 2"]):
        known.add("ann", "net", 2, 19.0 + i, command=run)
    for other in ("python a.py", "python b.py", "python -c pass"):
        known.add("ann", "net", 2, 900.0, command=other)
        known.add("ben", "net", 2, 900.0, command="python net.py --lr 1")
    nothing = np.full(1, np.nan)
    job = Unknown(["ann"], ["net"], np.array([gpus]), np.zeros(1), nothing, nothing, nothing, [command])
    left, said = draw(job, known, 400)
    assert said == [words]
    low, middle, high = np.quantile(left, [0.1, 0.5, 0.9])
    if middle_s < 100:
        assert middle == pytest.approx(middle_s, rel=0.25)
        assert low > middle_s / 6
        assert high < middle_s * 5


def test_a_run_without_a_known_duration_says_nothing_of_its_script() -> None:
    known = History()
    for _ in range(3):
        known.add("ann", "", 1, 0.0, command="python net.py")
    assert known.closest("ann", "", 1, "python net.py")[0] == len(POOLS) - 1


@pytest.mark.parametrize(
    ("command", "script"),
    [
        ("/venv/bin/python3.11 -u train.py 3", "train.py"),
        ("accelerate launch --config a.yaml fit.py", "fit.py"),
        ("python -m torch.distributed.run --nproc 2 t.py --x", "t.py"),
        ("bash -c 'sleep 3'", "bash -c 'sleep 3'"),
        ("./a.out 1 2", "./a.out"),
        ("julia fit.jl 3", "fit.jl"),
        ("nohup nice -n 5 python fit.py", "fit.py"),
        ("", ""),
    ],
)
def test_the_script_of_a_command(command: str, script: str) -> None:
    assert script_of(command) == script


def test_same_seed_same_draws() -> None:
    known = history(*(("ann", "net", 1, float(s)) for s in range(1, 30)))
    np.testing.assert_array_equal(draw(unknown(), known, 10, 3)[0], draw(unknown(), known, 10, 3)[0])
