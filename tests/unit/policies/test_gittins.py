"""Gittins indices of learnt sizes against plain ones, and promotion under contention."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.control.controller import Controller
from plait.control.job_store import JobStore
from plait.control.messages import Command, Event, Launch, Stop
from plait.core.cluster import Cluster
from plait.core.jobs import JobBatch, JobTable
from plait.core.plan import NO_GROUPS
from plait.core.policy import View
from plait.policies.catalog import make_policy
from plait.policies.gittins import ByGittins, CensoredSizes, Distribution, LearntIndex
from plait.policies.tiresias import TICK_S
from plait.sim.run import simulate
from plait.sim.world import make_world
from sampling import examples

SIZES = st.lists(st.sampled_from([0.5, 1.0, 2.0, 3.0, 4.0, 7.0, 8.0, 30.0, 64.0, 1e4]), min_size=1, max_size=30)
STEPS = st.lists(st.integers(0, 20), max_size=30)


def plain_supremum(of: Distribution, service: np.ndarray) -> list[float]:
    """The largest G(a, D) over all knots ahead, one by one."""
    ahead = [[of.index(np.array([a]), k - a)[0] for k in of.knots if k > a] for a in service]
    return [max(values, default=0.0) for values in ahead]


@settings(max_examples=examples(150), deadline=None)
@given(SIZES, STEPS, st.floats(0.1, 1e3))
def test_censored_sizes_agree_with_kaplan_meier(sizes: list[float], steps: list[int], quantum: float) -> None:
    departed = np.sort(np.array(sizes))
    counts = np.bincount(np.array(steps, dtype=np.int64), minlength=1)
    used = np.flatnonzero(counts)
    at = np.exp2(used / 2)
    learnt = CensoredSizes(departed, np.concatenate([[0.0], np.cumsum(departed)]), at, counts[used])
    plain = Distribution.kaplan_meier(departed, np.repeat(at, counts[used]))
    x = np.concatenate([departed, at, departed - 0.25, [0.0, 5.0, 1e5]])
    above, area = learnt(x)
    assert above == pytest.approx(plain.above(x), rel=1e-12, abs=1e-14)
    assert area == pytest.approx(plain.integral(x), rel=1e-12)
    for d in (quantum, np.inf):
        assert learnt.index(x, d) == pytest.approx(plain.index(x, d), rel=1e-9, abs=1e-13)
    assert learnt.distribution().supremum(x) == pytest.approx(plain_supremum(plain, x), rel=1e-9, abs=1e-13)


def test_sizes_are_sorted_as_they_come() -> None:
    job_store, rng = JobStore(), np.random.default_rng(0)
    n = 300
    job_store.append(batch_of(n, 0), 0.0)
    job_store.columns["attained_gpu_s"][:n] = np.where(rng.random(n) < 0.1, 0.0, rng.exponential(100, n))
    for left in np.array_split(rng.permutation(n), 7):
        job_store.depart(left)
        for count in (job_store.departures, job_store.departures // 2, job_store.departures // 10 * 10):
            sizes, sums = job_store.departed_sizes(count)
            some = job_store.departed_gpu_s(count)
            assert sizes.tolist() == np.sort(some[some > 0]).tolist()
            assert sums.tolist() == [0.0, *np.cumsum(sizes).tolist()]


def batch_of(n: int, seed: int) -> JobBatch:
    rng = np.random.default_rng(seed)
    return JobBatch(
        {
            "id": [str(i) for i in range(n)],
            "submit_s": np.sort(rng.uniform(0, 60 * n, n)),
            "gpus": rng.choice([1, 2], n),
            "iterations": np.ceil(rng.exponential(90, n)),
            "iteration_s": np.ones(n),
        }
    )


def test_learning_looks_at_every_departure_once(monkeypatch: pytest.MonkeyPatch) -> None:
    original, looked_at = JobStore.departed_gpu_s, []

    def counting(self: JobStore, count: int, first: int = 0) -> np.ndarray:
        found = original(self, count, first)
        looked_at.append(len(found))
        return found

    monkeypatch.setattr(JobStore, "departed_gpu_s", counting)
    policy = make_policy("tiresias-g:thresholds=50/300,every=10")
    run = simulate(batch_of(600, 1), Cluster.parse("1x2"), policy, make_world("ideal"))
    assert run.controller.job_store.departures == 600
    assert 500 < sum(looked_at) <= 600


def test_continuous_gittins_runs_the_job_that_is_likeliest_to_end_soonest_at_every_moment(tmp_path: Path) -> None:
    """Sizes are 4, 8 or 12: a job that has received 8 is sure to end within 4 and goes before a new one."""
    (tmp_path / "sizes").write_text("4\n8\n12\n")
    policy = make_policy(f"2d-gittins:sizes={tmp_path / 'sizes'}")
    jobs, quantum = batch_of(6, 0), policy.quantum_s  # type: ignore[attr-defined]
    job_store = JobStore()
    job_store.append(jobs, 0.0)
    job_store.columns["attained_gpu_s"][:6] = [0.0, 4.0, 8.0, 11.0, 12.0, 40.0]
    view = View(0.0, Cluster.parse("1x2"), JobTable(job_store.columns, np.arange(6), 0.0, 0.0, job_store), NO_GROUPS)
    best = plain_supremum(Distribution.of_samples([4, 8, 12]), np.array([0.0, 4, 8, 11, 12, 40]))
    order = sorted(range(6), key=lambda i: (-best[i], i))
    assert policy.ranked(view).tolist() == order == [3, 2, 1, 0, 4, 5]  # type: ignore[attr-defined]
    assert quantum == 360
    assert make_policy("2d-gittins").order == ByGittins(LearntIndex(quantum=0.0))  # type: ignore[attr-defined]


def test_quantum_changes_what_a_learnt_index_does() -> None:
    n = 150

    def ends(policy: str) -> list[float]:
        run = simulate(batch_of(n, 2), Cluster.parse("1x2"), make_policy(policy), make_world("ideal"))
        return run.controller.job_store.columns["end_s"][:n].tolist()  # type: ignore[no-any-return]

    usual = ends("tiresias-g:every=5,thresholds=1000")
    assert ends("tiresias-g:every=5,thresholds=1000,quantum=20") != usual
    assert ends("tiresias-g:every=5,thresholds=1000,quantum=0") != usual
    assert ends("tiresias-g:every=5,thresholds=1000,quantum=1000") == usual


def jobs(n: int, seed: int) -> JobBatch:
    """More work than four GPUs do while jobs arrive; sizes over two orders of magnitude."""
    rng = np.random.default_rng(seed)
    gpus, work = rng.choice([1, 1, 2, 4], n), np.round(np.exp(rng.normal(5, 1.5, n))) + 1
    return JobBatch(
        {
            "id": [f"j{i}" for i in range(n)],
            "submit_s": np.sort(rng.uniform(0, (gpus * work).sum() / 4 / 1.3, n)),
            "gpus": gpus,
            "iterations": work,
            "iteration_s": np.ones(n),
        }
    )


def shortest_runs_s(policy: str, batch: JobBatch) -> tuple[list[float], int]:
    """How long jobs ran that were stopped, ascending, and the number of promotions."""
    since: dict[int, float] = {}
    found: list[float] = []

    def observe(controller: Controller) -> Callable[[Event, Sequence[Command]], None]:
        def step(event: Event, commands: Sequence[Command]) -> None:
            for command in commands:
                if isinstance(command, Stop):
                    found.extend(event.at_s - since[job] for job in command.jobs.tolist())
                elif isinstance(command, Launch):
                    since.update((m.job, event.at_s) for group in command.groups for m in group.members)

        return step

    run = simulate(batch, Cluster.parse("1x4"), make_policy(policy), make_world("ideal"), observe=observe)
    job_store = run.controller.job_store
    return sorted(found), int(job_store.columns["promotions"][: job_store.count].sum())


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("options", ["guard=off,knob=1", "guard=off,knob=2,within=submit", "knob=1,floor_s=100"])
def test_nobody_runs_for_a_tick(options: str, seed: int) -> None:
    stopped_after_s, promotions = shortest_runs_s(f"tiresias-l:thresholds=400/900,{options}", jobs(90, seed))
    assert promotions > 10
    assert not [t for t in stopped_after_s if t < 2 * TICK_S]
