"""The comparison of predicted and measured completion times, as `plait fidelity` and the demo print it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from plait.core.words import counted, duration

if TYPE_CHECKING:
    from plait.outlook.coverage import HeldShare
    from plait.outlook.fidelity import Fidelity, JobFidelity

#: Columns of a comparison: first what was predicted, then what was given.
FIDELITY_HEADS = ("job", ">predicted", ">measured", ">error", ">given: start", ">iterations", ">each alone", ">end")


def fidelity_row(job: JobFidelity, name: str = "") -> list[str]:
    """A row with one job's predicted and measured completion time, and the inputs of the prediction."""
    return [
        name or job.id, f"{job.predicted_s:.2f} s", f"{job.measured_s:.2f} s", f"{job.error:+.1%}",
        f"{job.start_s:.2f} s", f"{job.iterations:,.0f}", f"{1000 * job.iteration_s:.1f} ms{'*' * job.own_pace}",
        f"{job.end_s:.2f} s",
    ]  # fmt: skip


def fidelity_lines(found: Fidelity) -> list[str]:
    """Lines on which values were measured, which were predicted, and which are missing."""
    from plait.outlook.fidelity import PREDICTED, TAKEN

    lines = [
        f"{found.policy}; the largest error is {found.worst:.1%}",
        f"as measured: {TAKEN}",
        f"predicted: {PREDICTED}",
    ]
    if any(job.own_pace for job in found.jobs):
        lines.append("* never profiled alone: its pace is that of this very run, so it is no proof")
    if found.failures:
        lines.append(f"{counted(found.failures, 'attempt')} failed, which the simulator does not foresee")
    if found.lost_gpu_s:
        lines.append(f"work lost to stops and failures: {duration(found.lost_gpu_s)} on a GPU")
    if found.left_out:
        lines.append(f"left out, as they did not finish: {counted(found.left_out, 'job')}")
    return lines


def coverage_lines(shares: Mapping[str, HeldShare]) -> list[str]:
    """Lines on how often intervals held, of all forecasts and of forecasts that were corrected by enough others."""
    lines = ["each submission is forecast at its first decision, with what was known then"]
    if not any(share.count for share in shares.values()):
        return [*lines, "no job with a forecast has started or finished yet, so there is nothing to score"]
    for what, share in shares.items():
        if math.isnan(share.wide):
            lines.append(f"{what}: none")
            continue
        lines.append(
            f"{what}: {counted(share.count, 'forecast')}; intervals of one in two held {share.half:.0%}, "
            f"of four in five {share.wide:.0%}; the median of the latter is {duration(share.width_s)} wide"
        )
    return [*lines, "corrected: made after 40 others had come"]
