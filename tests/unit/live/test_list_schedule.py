"""The queue as arrays: the kernel against its plain reference, and queues whose answer is known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from plait.core.jit import plain
from plait.live.scheduler.explain.list_schedule import PREEMPT, STRICT, play
from reference.plain_list_schedule import Queue, Waiter


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
