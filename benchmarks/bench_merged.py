"""Merged jobs against jobs in processes of their own, at the same gates on the same paced devices.

    python benchmarks/bench_merged.py [--quick]

Processes should be within 5 % of threads, since taking turns needs no merging. `bench_gpu.py` measures what merging may
save on a GPU (context switches, memory). This benchmark also measures how late a thread wakes that shares the
interpreter's lock.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Sequence

import common
from bench_gates import MIXES, WALL, median
from common import Figure
from paced import Device, Played, _plain, _prefetching, play

from plait.core.resources import Resource
from plait.runtime.gate_choice import best_turns
from plait.runtime.stage_gate import NullGate
from plait.training.job import Job
from plait.training.merged import InterleavePlan, jobs, run_merged


def play_merged(
    mix: Sequence[Sequence[float]],
    iterations: int,
    *,
    gate: str = "none",
    turns: Sequence[int] | None = None,
    prefetch: bool = False,
) -> Played:
    """As `paced.play`, each job a thread of this process."""
    devices = [Device() for _ in Resource]
    ends: dict[int, list[float]] = {}
    timeouts = [0]
    begin = time.monotonic() + 0.2  # all threads are there by then

    def job_of(index: int) -> object:
        def work(job: Job) -> None:
            own = job.control.gate(NullGate())  # type: ignore[attr-defined]
            assert own.kind == gate, own.reason
            time.sleep(max(0.0, begin - time.monotonic()))
            run = _prefetching if prefetch else _plain
            ends[index] = [e - begin for e in run(own, mix[index], iterations, float("inf"), devices, 0.0)]
            timeouts[0] += own.stats.timeouts
            own.close()

        return work

    results = run_merged(
        [job_of(i) for i in range(len(mix))], InterleavePlan(gate, None if turns is None else tuple(turns))
    )
    bad = [r for r in results if r.state != "finished"]
    assert not bad, bad
    return Played(tuple(tuple(ends[i]) for i in range(len(mix))), timeouts[0])


def mix_figures(name: str, runs: int, iterations: int) -> list[Figure]:
    """One mix at each gate: processes, then threads."""
    mix = MIXES[name]
    turns, _ = best_turns(mix)
    modes = {
        "barrier": {"gate": "barrier", "turns": turns},
        "tokens, own prefetch": {"gate": "tokens", "prefetch": True},
    }
    figures = []
    for mode, how in modes.items():
        apart = median(runs, lambda how=how: play(mix, iterations, **how).seconds)
        merged = median(runs, lambda how=how: play_merged(mix, iterations, **how).seconds)
        figures.append(Figure(f"{name}: {mode}, merged", merged, runs, unit=WALL))
        note = f"{apart / merged:.3f} x merged"
        figures.append(
            Figure(f"{name}: {mode}, processes", apart, runs, merged / apart, "merged", "goal within 5 %", note, WALL)
        )
    return figures


def waking_figures(count: int) -> list[Figure]:
    """How late a thread wakes beside one that computes in Python, at two switch intervals."""
    figures = []
    for what, interval_s in (("Python's 5 ms", 0.005), ("merged jobs' 0.5 ms", jobs.SWITCH_S)):
        late: list[float] = []
        done = [False]

        def sleeper(
            job: Job, interval_s: float = interval_s, late: list[float] = late, done: list[bool] = done
        ) -> None:
            sys.setswitchinterval(interval_s)
            for _ in range(count):
                begin = time.perf_counter()
                time.sleep(0.002)
                late.append(time.perf_counter() - begin - 0.002)
            done[0] = True

        def spinner(job: Job, done: list[bool] = done) -> None:
            while not done[0]:
                sum(range(1000))

        run_merged([sleeper, spinner], InterleavePlan("none"))
        p95 = statistics.quantiles(late, n=20)[-1]
        note = f"p95 {p95 * 1e3:.2f} ms, of {count}"
        figures.append(Figure(f"waking beside Python, {what}", statistics.median(late) * 1e3, 1, note=note, unit="ms"))
    return figures


def main(options: Sequence[str]) -> None:
    """Measure and print."""
    quick = "--quick" in options
    runs, iterations = (1, 6) if quick else (3, 10)
    figures = waking_figures(100 if quick else 500)
    for name in MIXES:
        figures += mix_figures(name, runs, iterations)
    common.show(figures)


if __name__ == "__main__":
    main(sys.argv[1:])
