"""Three trainings that adapt and two that do not on eight CPU slots: `pollux` against Tiresias on the same submissions.

    python benchmarks/bench_adaptive_live.py [--quick]

Takes 25 minutes; `--quick` takes three, most of them for restarts.

Real processes, real checkpoints, gradients reduced by gloo; each pass sleeps for a given time, so two cores are
enough. Tiresias gives jobs the slots they ask for, one as `plait submit` does by default, or two; their batch adapts
there, too. Seconds count from submission to end. The simulator's prediction comes from the log of the run, by the
throughput and gradient noise that jobs measured and the measured costs of starts and stops (`plait fidelity`). The
table also has the cost of a restart, whether each pass used every sample once, and the loss on held-out data.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import common
import numpy as np
from common import Figure

sys.path.insert(0, str(common.ROOT / "tests" / "live"))

from adaptive_world import Outcome, Paced, samples_of, serve

from plait.core.goodput import Estimate

QUICK = "--quick" in sys.argv
SLOTS, INTERVAL_S, SAMPLES = 8, 3.0, 1024
#: Epochs of progress are so many times as many.
LENGTH = 3 if QUICK else 24


def trainings(gpus: int) -> list[Paced]:
    """The jobs; those that adapt ask for `gpus` slots and take up to all."""

    def paced(at_s: float, epochs: int, adaptive: bool, asked: int) -> Paced:
        return Paced(at_s * LENGTH, epochs * LENGTH, adaptive, asked, SLOTS, SAMPLES, spread=3.0)

    return [
        paced(0.0, 6, True, gpus), paced(0.7, 3, False, 1), paced(1.3, 4, True, gpus), paced(1.7, 2, False, 2),
        paced(2.3, 5, True, gpus),
    ]  # fmt: skip


def run(policy: str, gpus: int) -> Outcome:
    """All jobs to their end; every sample must have come once in a pass."""
    jobs = trainings(gpus)
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        result = serve(home, jobs, policy, slots=SLOTS, interval_s=INTERVAL_S, deadline_s=3600.0)
        for number, job in enumerate(jobs):
            epochs = samples_of(home.parent / "home-out", number)
            counts = [samples for _, samples in sorted(epochs.items())]
            once = all(set(samples.values()) == {1} for samples in counts)
            whole = all(len(samples) == SAMPLES for samples in counts[: -1 if job.adaptive else None])
            assert once, f"job {number}: a sample came twice in a pass"
            assert whole, f"job {number}: a sample was left out of a pass"
    assert result.difference is None, str(result.difference)
    return result


def figures() -> list[Figure]:
    """Run all, compare."""
    pollux = run(f"pollux:interval_s={2 * INTERVAL_S:g},restart_s={2 * INTERVAL_S:g}", 1)
    out = _of("pollux", pollux)
    for gpus in (1,) if QUICK else (1, 2):
        other = run("tiresias-l", gpus)
        ratio = float(other.jct_s.mean() / pollux.jct_s.mean())
        out += _of(f"tiresias-l, {gpus} slot{'s' * (gpus > 1)} asked", other)
        out.append(
            Figure(
                f"mean completion under pollux, {gpus} asked there", float(pollux.jct_s.mean()), 1, ratio,
                "under Tiresias", "faster than Tiresias", unit="s",
            )
        )  # fmt: skip
    return out


def _of(name: str, result: Outcome) -> list[Figure]:
    """What is to be said of one run."""
    assert result.foretold is not None
    jobs = result.foretold.jobs
    foretold, measured = (float(np.mean([getattr(j, f"{word}_s") for j in jobs])) for word in ("predicted", "measured"))
    sizes = ", ".join("-".join(map(str, each)) for each in result.sizes)
    fixed = [loss for loss, sizes in zip(result.losses, result.batches, strict=True) if not sizes]
    adaptive = [loss for loss, sizes in zip(result.losses, result.batches, strict=True) if sizes]
    out = [
        Figure(
            f"{name}: mean completion", measured, 1, foretold / measured, "foretold by the simulator", "within 15 %",
            f"sizes {sizes}", unit="s",
        ),
        Figure(
            f"{name}: loss of those that adapt", float(np.mean(adaptive)), 1, float(np.mean(fixed) / np.mean(adaptive)),
            "of those that do not", "within noise", unit="",
        ),
    ]  # fmt: skip
    costs = _known(result.estimates[:, Estimate.RESTART_S])
    if costs:
        out.append(
            Figure(f"{name}: a restart", float(np.mean(costs)), 1, note=f"{result.restarts} of five jobs", unit="s")
        )
    return out


def _known(column: Sequence[float]) -> list[float]:
    return [value for value in column if value == value]


if __name__ == "__main__":
    common.show(figures())
