"""Interleaving on paced devices, each job a process: the gates against jobs one after the other, and what a gate costs.

    python benchmarks/bench_gates.py [--quick]
    python benchmarks/bench_gates.py --drawn 50    # predicted against measured paces of drawn groups; ten minutes

Mixes in units of 50 ms on storage, CPU, GPU, network: M4 = four jobs with 2 units on a different resource and 1 on the
others; M2 = two jobs whose bottlenecks are two slots apart; G4 = four jobs that need the GPU, where nothing can be
gained. Seconds are wall time until all jobs have ended, including start and end phases. Devices are clocks, so a busy
host changes them little.
"""

from __future__ import annotations

import itertools
import math
import multiprocessing
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import common
from common import Figure
from paced import UNIT_S, one_after_the_other, play

from plait.core.resources import Resource
from plait.runtime.gate_choice import BEFORE_NETWORK, best_turns, choose_gate, paces, token_paces
from plait.runtime.gates import BarrierGate, Group, GroupMember, NullGate, StageGate, TokenGate, make_group

MIXES = {
    "M4": [(2, 1, 1, 1), (1, 2, 1, 1), (1, 1, 2, 1), (1, 1, 1, 2)],
    "M2": [(2, 0.5, 1, 0.5), (0.5, 1, 2, 0.5)],
    "G4": [(0.5, 0.5, 2, 0.5)] * 4,
}
#: Jobs of 1.75 and 4.75 units; the long one nearly fills the GPU, the short one needs it for 14 or 29 % of its time.
UNEQUAL = {
    "pair 14 %": ((0.5, 0.5, 0.25, 0.5), (0.25, 0.25, 4.0, 0.25)),
    "pair 29 %": ((0.5, 0.25, 0.5, 0.5), (0.25, 0.25, 4.0, 0.25)),
}
ALTERNATIVE = "one after the other, own prefetch"
WALL = "s"


def median(runs: int, work: Callable[[], float]) -> float:
    """The median of so many runs."""
    return statistics.median(work() for _ in range(runs))


def mix_figures(name: str, runs: int, iterations: int) -> list[Figure]:
    """All modes on one mix; the gate that would be chosen is marked and compared with the best of the others."""
    mix = MIXES[name]
    turns, round_units = best_turns(mix)
    chosen = choose_gate(mix).gate
    modes = {
        "no gate": {},
        "no gate, own prefetch": {"prefetch": True},
        "barrier, best turns": {"gate": "barrier", "turns": turns},
        "tokens, own prefetch": {"gate": "tokens", "prefetch": True},
    }
    taken = {mode: median(runs, lambda how=how: play(mix, iterations, **how).seconds) for mode, how in modes.items()}
    alone = median(runs, lambda: one_after_the_other(mix, iterations))
    best = min(taken.values())
    figures = [Figure(f"{name}: {ALTERNATIVE}", alone, runs, unit=WALL)]
    for mode, seconds in taken.items():
        goal = note = ""
        if mode.startswith(chosen):
            goal = "goal >= 2.0 x" if name == "M4" else "goal <= 1.05 x the best mode"
            note = f"the chosen gate, {seconds / best:.3f} x the best mode"
        figures.append(Figure(f"{name}: {mode}", seconds, runs, alone / seconds, ALTERNATIVE, goal, note, WALL))
    steady = median(runs, lambda: play(mix, 2 * iterations, **modes["barrier, best turns"]).steady_s)
    formula = round_units * UNIT_S
    what = f"{name}: an iteration at the barrier"
    note = f"{steady / formula:.3f} x formula (3)"
    figures.append(Figure(what, steady, runs, formula / steady, "formula (3)", "goal <= 1.05 x", note, WALL))
    return figures


def unequal_figures(name: str, runs: int, for_s: float) -> list[Figure]:
    """Two jobs of unequal length: parts of their speed alone, and the sum, for each gate."""
    pair = UNEQUAL[name]
    solo = [play([row], 0, for_s=for_s).ends_s[0] for row in pair]
    rates = [len(ends) / ends[-1] for ends in solo]

    def speeds(**how: object) -> tuple[float, float]:
        both = play(pair, 0, for_s=for_s, **how).ends_s  # type: ignore[arg-type]
        one, other = (len(ends) / ends[-1] / rate for ends, rate in zip(both, rates, strict=True))
        return one, other

    figures = []
    for mode, how, goal in (
        ("no gate", {}, ""),
        ("tokens for whole stages", {"gate": "tokens", "quantum_s": 1e6}, ""),
        ("tokens, quantum 10 ms", {"gate": "tokens"}, "goal sum >= 1.7 and >= no gate"),
    ):
        seen = sorted((speeds(**how) for _ in range(runs)), key=sum)[runs // 2]
        note = f"short job {seen[0]:.2f}, long job {seen[1]:.2f} of their speed alone"
        figures.append(
            Figure(f"unequal {name}: {mode}", for_s, runs, sum(seen), "one after the other", goal, note, WALL)
        )
    return figures


def _pass_on(gate: StageGate, count: int) -> list[float]:
    """Seconds of each entering and leaving."""
    taken = []
    for _ in range(count):
        begin = time.perf_counter()
        gate.enter(Resource.GPU)
        gate.leave(Resource.GPU)
        taken.append(time.perf_counter() - begin)
    return taken


def _pair(group: Group, gate: type[TokenGate] | type[BarrierGate], count: int) -> list[float]:
    """The same with another process that does the same: each passing goes to the other and back."""
    fork = multiprocessing.get_context("fork")
    other = fork.Process(target=lambda: _pass_on(gate(group, 1), 4 * count))
    other.start()
    own = gate(group, 0)
    _pass_on(own, count // 4)
    taken = _pass_on(own, count)
    own.close()
    other.kill()
    other.join()
    return taken


def cost_figures(count: int) -> list[Figure]:
    """What a stage mark costs, free and contended."""
    folder = Path(tempfile.mkdtemp(dir="/dev/shm" if os.path.isdir("/dev/shm") else None))
    try:
        members = [GroupMember(0, 0), GroupMember(1, 1)]
        tokens = make_group(folder / "t", "tokens", members, version=1)
        barrier = make_group(folder / "b", "barrier", members, version=1)
        nothing = statistics.median(_pass_on(NullGate(), count))
        free = statistics.median(_pass_on(TokenGate(tokens, 0), count))
        figures = []
        for what, seconds, goal in (
            ("null gate, in and out", nothing, "goal < 15 us"),
            ("token, in and out, free", free, "goal <= 50 us"),
            ("token, in and out, two processes at it", statistics.median(_pair(tokens, TokenGate, count)), ""),
            ("barrier, a round of two processes", statistics.median(_pair(barrier, BarrierGate, count)), ""),
        ):
            figures.append(Figure(f"{what}, p50", seconds * 1e6, 1, goal=goal, note=f"of {count:,}", unit="us"))
        return figures
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def drawn(groups: int, seed: int = 0) -> None:
    """Print the error of predicted iterations for drawn groups with stages of 0.2 to 6 units.

    Of the groups at tokens half have loaders that work ahead, and half yield points.
    """
    draw, errors = random.Random(seed), dict[str, list[float]]()
    for number in range(groups):
        gate = ("tokens", "tokens", "barrier")[number % 3]
        prefetch = gate == "tokens" and draw.random() < 0.5  # a barrier is for one thread of each job
        quantum_s = draw.choice((0.01, math.inf))
        mix = [
            tuple(round(math.exp(draw.uniform(math.log(0.2), math.log(6))), 1) for _ in Resource)
            for _ in range(draw.choice((2, 3, 4)))
        ]
        stage_s = [[units * UNIT_S for units in row] for row in mix]
        alone = [max(sum(row[:2]), sum(row[2:])) if prefetch else sum(row) for row in stage_s]
        turns = best_turns(stage_s)[0]
        predicted = paces(gate, stage_s, alone, turns) if gate == "barrier" else token_paces(stage_s, alone, quantum_s)
        how = {"turns": turns} if gate == "barrier" else {"quantum_s": min(quantum_s, 1e6), "before": BEFORE_NETWORK}
        for_s = min(16.0, max(4.0, 40 * max(predicted)))
        played = play(mix, 0, gate=gate, prefetch=prefetch, for_s=for_s, **how)
        held = "for whole stages" if quantum_s == math.inf else "for a quantum of 10 ms"
        kind = gate if gate == "barrier" else f"tokens {held}"
        for ends, expected_s in zip(played.ends_s, predicted, strict=True):
            settled = [end for end in ends if end >= 0.15 * for_s]
            errors.setdefault(kind, []).append((settled[-1] - settled[0]) / (len(settled) - 1) / expected_s - 1)
    print("| gate | jobs | error in the median | 95 of 100 jobs at most |\n|---|---:|---:|---:|")
    for kind, found in {**dict(sorted(errors.items())), "all": list(itertools.chain(*errors.values()))}.items():
        ordered = sorted(map(abs, found))
        cells = [f"{100 * error:.1f} %" for error in (statistics.median(ordered), ordered[int(0.95 * len(found))])]
        print(f"| {kind} | {len(found)} | {' | '.join(cells)} |")


def main(options: Sequence[str]) -> None:
    """Measure and print."""
    if "--drawn" in options:
        drawn(int(options[options.index("--drawn") + 1]))
        return
    quick = "--quick" in options
    runs, iterations = (1, 6) if quick else (3, 10)
    figures = cost_figures(2_000 if quick else 10_000)
    for name in MIXES:
        figures += mix_figures(name, runs, iterations)
    for name in UNEQUAL:
        figures += unequal_figures(name, runs, 2.0 if quick else 4.0)
    common.show(figures)


if __name__ == "__main__":
    main(sys.argv[1:])
