"""Forecasts as lines: starts and ends as intervals, what blocks a job, what would be cheaper or sooner."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from plait.core.words import counted, duration

if TYPE_CHECKING:
    from plait.cli.render.console import Printer
    from plait.control.metrics import RunResult
    from plait.live.api.explain import ComparedQueues, JobOutlook, MovedJob, SubmissionOutlook, Times
    from plait.outlook.coverage import HeldShare
    from plait.outlook.fidelity import Fidelity, JobFidelity


def between(times: Times | None) -> str:
    """A start or an end in words.

    >>> from plait.live.api.explain import Times
    >>> between(Times(middle_s=0.0, half_s=[0.0, 0.0], wide_s=[0.0, 0.4]))
    'now'
    >>> between(Times(middle_s=90, half_s=[60, 120], wide_s=[30, None]))
    'in 1 min 0 s to 2 min 0 s (one in two), in 30.0 s or later (four in five)'
    """
    if times is None or times.middle_s is None:
        return "not with the nodes and jobs that are there now"
    wide = times.wide_s
    if wide[1] is not None and wide[1] < 1:
        return "now"
    return f"{_span(times.half_s)} (one in two), {_span(wide)} (four in five)"


def _span(ends: Sequence[float | None]) -> str:
    low, high = (None if end is None else duration(end) for end in ends)
    if high is None:
        return f"in {low} or later"
    return f"in {low}" if low == high else f"in {low} to {high}"


def forecast_lines(found: JobOutlook) -> list[str]:
    """Start and end of a job that is there, with what they are from."""
    lines = [] if found.start is None else [f"  starts {between(found.start)}"]
    lines.append(f"  ends   {between(found.end)}")
    lines.append(f"  its duration is drawn from {found.duration}")
    return lines + [f"  assumed: {text}" for text in found.assumptions]


def what_if_lines(found: SubmissionOutlook) -> list[str]:
    """The answer about a job that is not submitted."""
    blocked, hours = found.blocked_by, found.gpu_hours
    gpus = f"{found.gpus} GPU{'s' * (found.gpus != 1)}"
    lines = [f"nothing is submitted; with {gpus} it would be at place {found.place} of {found.waiting} that wait"]
    lines.append(f"  starts {between(found.start)}")
    lines.append(f"  ends   {between(found.end)}, after {_hours(hours)} GPU-hours")
    lines.append(f"  blocked: {blocked.text}")
    lines += [f"    {one.text}" for one in blocked.jobs]
    for one in found.variants:
        option = f" ({one.option})" if one.option else ""
        lines.append(f"  {one.text}{option}: {', '.join(one.gains)}")
        if one.change == "later":
            continue
        end = "; its pace is what the others leave" if one.end is None else f"; ends {between(one.end)}"
        lines.append(f"    starts {between(one.start)}{end}; {_hours(one.gpu_hours)} GPU-hours")
    lines.append(f"  its duration is drawn from {found.duration}")
    return lines + [f"  assumed: {text}" for text in found.assumptions]


def _hours(hours: Sequence[float]) -> str:
    """GPU-hours as the range of four in five.

    >>> _hours([1.0, 2.0, 4.0]), _hours([0.001, 0.001, 0.001])
    ('1 to 4', '0.001')
    """
    low, _, high = (f"{h:.3g}" for h in hours)
    return low if low == high else f"{low} to {high}"


def choice_lines(found: ComparedQueues) -> list[str]:
    """The queue under another choice."""
    counts, totals = found.counts, found.totals
    lines = [f"{found.choice}, instead of what is now ({found.policy}); nothing is changed"]
    if not totals.jobs:
        return [*lines, "  no job waits or runs"]
    lines.append(f"  {counts.gain} end sooner, {counts.lose} later, {counts.same} as now")
    for word, row in (
        ("mean time to the end", totals.mean_end_hours),
        ("the queue is empty after", totals.empty_hours),
    ):
        assert row is not None  # there are jobs
        lines.append(f"  {word}: {_middle(row.now)} now, {_middle(row.then)} then; {change_words(row.change)}")
    lines.append(f"  GPUs: {totals.gpus[0]} now, {totals.gpus[1]} then")
    for title, rows, count in (("gain", found.gain, counts.gain), ("lose", found.lose, counts.lose)):
        if rows:
            lines.append(f"  {title}:" + (f" (the first {len(rows)} of {count})" if count > len(rows) else ""))
            lines += [f"    {choice_row(row)}" for row in rows]
    return lines + [f"  assumed: {text}" for text in found.assumptions]


def choice_row(row: MovedJob) -> str:
    """One job that gains or loses."""
    gpus = f"{row.gpus} GPU{'s' * (row.gpus != 1)}"
    state = "waits" if row.waits else "runs"
    return f"{row.id} of {row.user} ({gpus}, {state}): {change_words(row.hours)}"


def change_words(hours: Sequence[float | None]) -> str:
    """A change of hours: the middle, and where four in five lie.

    >>> change_words([-3.0, -2.5, -2.0, -1.0, 0.5]), change_words([1, 2, None, None, None])
    ('2 h 0 min sooner (four in five: 3 h 0 min sooner to 30 min 0 s later)', 'never ends')
    >>> change_words([0.0, 0.0, 0.0, 0.0, 0.0])
    'as now'
    """
    low, _, middle, _, high = hours
    if middle is None or low is None:
        return "never ends" if middle is None else "ends, and did not before"
    early, late = _shift(low), _shift(high)
    return _shift(middle) if early == late else f"{_shift(middle)} (four in five: {early} to {late})"


def _shift(hours: float | None) -> str:
    if hours is None:
        return "never"
    if abs(hours) < 1 / 3600:
        return "as now"
    return f"{duration(3600 * abs(hours))} {'sooner' if hours < 0 else 'later'}"


def _middle(hours: Sequence[float | None]) -> str:
    return "never" if hours[2] is None else duration(3600 * hours[2])


# The comparison in a terminal: as many figures as there is room for.

#: Figures that go first when there is no room for all: the last one goes first.
LEAST_NEEDED = (
    "p50_jct_s", "preemptions", "avg_slowdown", "unfair_share", "max_fairness", "avg_queue_length", "gpu_busy",
)  # fmt: skip


def print_comparison(results: Sequence[RunResult], printer: Printer) -> bool:
    """Print the table without the figures that do not fit; whether there were any."""
    from plait.control.compare import compare  # with NumPy, which lines about a job do without
    from plait.report.metrics import METRICS
    from plait.report.tables import comparison_table, known

    chosen = there = known(compare(results), [m for m in METRICS if m.main])
    table = comparison_table(results, chosen)
    for name in reversed(LEAST_NEEDED):
        if printer.fits(table):
            break
        chosen = [m for m in chosen if m.key != name]
        table = comparison_table(results, chosen)
    if not printer.fits(table):
        fitting = chosen[:1]
        for metric in chosen[1:]:
            if printer.fits(comparison_table(results, [*fitting, metric])):
                fitting.append(metric)
        chosen, table = fitting, comparison_table(results, fitting)
    printer.print(table)
    return len(chosen) < len(there)


# The comparison of predicted and measured completion times, as `plait fidelity` and the demo print it.

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
