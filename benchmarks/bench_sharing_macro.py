"""The macro model of a shared GPU beside the micro model: 18 patterns and random ones, with the law and with the gate.

    python benchmarks/bench_sharing_macro.py [--random 50] [--seconds 600] [--seeds 3] [--guests]

One line per pattern, quantum and mode: the part of the slack, the part of the whole GPU and the guaranteed slowdown of
each model, as means over seeds from a cold start; random patterns alternate between the law and the gate. `--guests`:
two and three opportunistic jobs instead of one. The last lines count the cells within 15 % and name the worst. The
section on the macro model in docs/explanation/sharing-law.md has these figures; the defaults take half an hour.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence

from sharing_rows import QUANTA_S, drawn

from plait.sharing.macro_model import estimate
from plait.sim.gpu import PATTERNS, Mode, Opportunistic, Pattern, Phase, Scenario, Variation, run
from plait.sim.gpu.scenario import STEP_CV

GOAL = 0.15


def main() -> None:
    """The table and its summary, in Markdown."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--random", type=int, default=50)
    parser.add_argument("--guests", action="store_true")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    seconds, seeds = args.seconds, range(1, args.seeds + 1)
    cells = [(p, q, mode) for p in PATTERNS.values() for q in QUANTA_S for mode in _modes(p)]
    cells += [(p, q, _modes(p)[i % len(_modes(p))]) for i, (p, q) in enumerate(drawn(args.random, 17))]
    print("| step (GPU+host ms) | q ms | | micro: slack | GPU | slowdown | macro: slack | GPU | slowdown | off by |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    offs: list[tuple[float, float, float, str]] = []
    micro_s = macro_s = 0.0
    for number, (pattern, quantum_s, mode) in enumerate(cells):
        guests = 2 + number % 2 if args.guests else 1
        begin_s = time.process_time()
        shares, slowdown = _micro(pattern, quantum_s, mode, guests, seconds, seeds)
        micro_s, begin_s = micro_s + time.process_time() - begin_s, time.process_time()
        macro = estimate(pattern.load, quantum_s, gated=mode is Mode.GATE, guests=guests, seconds=seconds, counted=True)
        macro_s += time.process_time() - begin_s
        micro, slack = statistics.fmean(shares), pattern.slack
        off = macro.slack_share / micro - 1.0
        spread = statistics.stdev(shares) / micro if len(shares) > 1 else 0.0
        offs.append(
            (abs(off), abs(macro.slack_share - micro) * slack, spread, f"{pattern.name}, {quantum_s * 1e3:.3g} ms")
        )
        print(
            f"| {pattern.name} | {quantum_s * 1e3:.3g} | {mode.name.lower()} | {micro:.3f} | {micro * slack:.3f} "
            f"| {slowdown:.3f} | {macro.slack_share:.3f} | {macro.slack_share * slack:.3f} | {macro.slowdown:.3f} "
            f"| {off:+.1%} |"
        )
        sys.stdout.flush()
    _summary(offs)
    print(f"CPU seconds: micro {micro_s:.0f}, macro {macro_s:.1f}, for {len(cells)} cells")


def _modes(pattern: Pattern) -> tuple[Mode, ...]:
    """The gate changes nothing where all gaps have host work in them."""
    return (Mode.LAW, Mode.GATE) if pattern.stages < pattern.gaps else (Mode.LAW,)


def _micro(
    pattern: Pattern, quantum_s: float, mode: Mode, guests: int, seconds: float, seeds: Sequence[int]
) -> tuple[list[float], float]:
    jobs = tuple(Opportunistic(f"o{i}", quantum_s) for i in range(guests))
    phase = Phase(pattern, variation=Variation(cv=STEP_CV))
    done = [run(Scenario((phase,), jobs, seconds), mode, seed) for seed in seeds]
    return [outcome.slack_share() for outcome in done], statistics.fmean(outcome.slowdown() for outcome in done)


def _summary(offs: list[tuple[float, float, float, str]]) -> None:
    within = sum(off <= GOAL for off, *_ in offs)
    print(f"\n{within} of {len(offs)} within {GOAL:.0%}; median {statistics.median(o[0] for o in offs):.1%}")
    print(f"part of the GPU: worst {max(o[1] for o in offs):.3f}, mean {statistics.fmean(o[1] for o in offs):.4f}")
    print("worst (the spread of the micro model over its seeds in brackets):")
    for off, gpu, spread, name in sorted(offs, reverse=True)[:8]:
        print(f"  {name}: {off:.1%}, {gpu:.3f} of the GPU ({spread:.0%})")


if __name__ == "__main__":
    main()
