"""Jobs on the command line: how they adapt, what they share, use and cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import typer

from plait.cli.connection import print_json, print_table
from plait.core.words import duration, gpu_hours, in_unit, number
from plait.live.notes import note

if TYPE_CHECKING:
    from plait.live.api.costs import CostRow, Costs, Part, UsageOfJob
    from plait.live.api.explain import Explanation, SizeOption, SizeOptions
    from plait.live.api.jobs import AdaptiveJob, BatchBounds, JobAttempt, JobRow, SharingOfJob


def gpus_cell(job: JobRow) -> object:
    """GPUs now and between which bounds, for tables: 4, or `4 of 1-8`."""
    adaptive = job.adaptive
    if adaptive is None or adaptive.min_gpus == adaptive.max_gpus:
        return job.gpus
    return f"{job.gpus} of {adaptive.min_gpus}-{adaptive.max_gpus}"


def pace_text(adaptive: AdaptiveJob | None) -> str:
    """Batch and goodput in a few words, `batch 512, 1,234/s useful (83%)`; empty where they were not reported."""
    if adaptive is None:
        return ""
    batch, goodput = number(adaptive.batch_size), number(adaptive.goodput)
    if math.isnan(batch):
        return ""
    text = f"batch {batch:,.0f}"
    return text if math.isnan(goodput) else f"{text}, {_rate(goodput)} useful ({number(adaptive.efficiency):.0%})"


def adaptive_rows(adaptive: AdaptiveJob) -> list[tuple[str, object]]:
    """Lines of `plait show`."""
    out: list[tuple[str, object]] = [
        ("sizes", f"{adaptive.min_gpus} to {adaptive.max_gpus} GPUs"),
        ("batches", _bounds(adaptive.limits)),
    ]
    batch, goodput = adaptive.batch_size, adaptive.goodput
    if batch:
        out.append(("batch now", f"{batch:,.0f}"))
    if goodput:
        out.append(("goodput", f"{_rate(goodput)} useful, {number(adaptive.efficiency):.0%} of what it takes in"))
    out.append(("restarts", restarts_text(adaptive)))
    if adaptive.difference:
        out.append(("note", adaptive.difference))
    if adaptive.not_finite:
        out.append(("not finite", adaptive.not_finite))
    return out


def restarts_text(adaptive: AdaptiveJob) -> str:
    """How often it was restarted and what that cost it."""
    if not adaptive.restarts:
        return "none measured yet"
    return f"{adaptive.restarts}, about {duration(adaptive.restart_s)} of training each"


def batch_text(attempt: JobAttempt) -> str:
    """The last batch of an attempt; empty where it was not reported."""
    batch = number(attempt.batch_size)
    return "" if math.isnan(batch) else f"{batch:,.0f}"


def adaptive_lines(found: Explanation) -> list[str]:
    """Lines of `plait explain`: what it has, and what other sizes would bring by its own fit; what it had, if over."""
    adaptive, sizes = found.adaptive, found.sizes
    held = len(found.gpus or ())
    if sizes and not adaptive:
        again = [] if sizes.next_s is None else [f"  sizes are chosen again in {duration(sizes.next_s)}"]
        return _by_fit(sizes.at, held, sizes.profiled) + again
    if not adaptive or not sizes:
        attempts = found.attempts or ()
        texts = []
        for attempt in attempts:
            batch = batch_text(attempt)
            lasted = duration(number(attempt.ended_s) - number(attempt.started_s))
            texts.append(f"{_gpus(attempt.gpus)} for {lasted}" + (f" (batch {batch} in the end)" if batch else ""))
        return [f"  it had {', '.join(texts)}"] if texts else []
    lines = []
    if now := pace_text(adaptive):
        lines.append(f"  adapts: {_gpus(held)} of {adaptive.min_gpus} to {adaptive.max_gpus}, {now}")
    if not sizes.at:
        lines.append("  it has not fitted its own throughput yet, so its goodput is taken to grow as its GPUs do")
    lines += _by_fit(sizes.at, held)
    if sizes.cap < adaptive.max_gpus:
        lines.append(f"  {_cap_text(adaptive.limits, sizes)}")
    if sizes.next_s is not None:
        lines.append(f"  sizes are chosen again in {duration(sizes.next_s)}")
    if adaptive.restarts:
        lines.append(f"  restarts: {restarts_text(adaptive)}; another size has to be worth it")
    if adaptive.difference:
        lines.append(f"  note: {adaptive.difference}")
    if adaptive.not_finite:
        lines.append(f"  not finite: {adaptive.not_finite}")
    return lines


def _cap_text(limits: BatchBounds, sizes: SizeOptions) -> str:
    """Why a job may not have as many GPUs as it could use."""
    cap, profiled = sizes.cap, sizes.profiled
    if cap >= limits.most // limits.least_local:
        return f"at most {_gpus(cap)}: a batch of {limits.most:,} feeds no more, {limits.least_local:,} a GPU"
    if profiled and cap == 2 * profiled:
        return f"at most {_gpus(cap)} for now: twice as many as it has measured itself on"
    if profiled:
        return f"at most {_gpus(cap)} for now: it has measured itself on {_gpus(profiled)}"
    return f"at most {_gpus(cap)} for now: it is new, and gets more once it has measured itself"


def _gpus(count: int) -> str:
    return f"{count} GPU{'s' * (count != 1)}"


def _by_fit(at: Sequence[SizeOption], held: int, profiled: int = 0) -> list[str]:
    own = next((row.goodput for row in at if row.gpus == held), None)
    if not at:
        return []
    texts = []
    for row in at:
        worth = f"{row.goodput / own:.2g} times" if own else _rate(row.goodput)
        texts.append(f"{row.gpus}: {worth}" + (f" (batch {row.batch_size:,})" if row.batch_size else ""))
    against = f", against {_gpus(held)}" if own else ""
    if not at[0].batch_size:
        source = "as it measured itself" if profiled else "as models like the shipped ones, until it has been measured"
        return [f"  GPUs and iterations a second with its fixed batch, {source}{against}: {', '.join(texts)}"]
    return [f"  by its own fit, GPUs and the most they give, each with its best batch{against}: {', '.join(texts)}"]


def _bounds(limits: BatchBounds) -> str:
    text = f"{limits.initial:,} to {limits.most:,} examples, {limits.least_local:,} to "
    return text + f"{limits.most_local:,} a GPU" + (", may accumulate" if limits.accumulation else "")


def _rate(per_s: float) -> str:
    return f"{per_s:,.0f}/s" if per_s >= 100 else f"{per_s:.3g}/s"


# How jobs that share GPUs with guests, or as guests, are shown.


def where_text(how: SharingOfJob | None) -> str:
    """Text of a list behind the nodes of a job; empty for a job that shares no GPUs as guest or host."""
    if how is None:
        return ""
    hosts, guests = _names(how, guest=False), _names(how, guest=True)
    if not how.guest:
        return f"host of {', '.join(guests)}"
    text = f"guest of {', '.join(hosts)}" if hosts else "guest"
    if how.action == "pause":
        return f"{text}, paused"
    if how.share is None:
        return text
    if how.throttled and how.share == 0:
        return f"{text}, frozen"
    text = f"{text}, share {how.share:.2f}"
    if not how.throttled:
        return text
    return f"{text}, throttled" + ("" if how.duty is None else f" (ran {how.duty:.2f})")


def sharing_rows(how: SharingOfJob) -> list[tuple[str, object]]:
    """The lines of one job, by what they are called."""
    neighbours = [f"{one.job} on {one.gpu}{' (guest)' if one.guest else ''}" for one in how.beside]
    out: list[tuple[str, object]] = [("runs as", "guest" if how.guest else "host of guests")]
    out += [("shares with", ", ".join(neighbours))] if neighbours else []
    if how.guest and how.share is not None:
        out.append(("share", f"{how.share:.2f} of the GPU's time"))
    if how.throttled:
        by = "the freezer of its control group" if how.throttled == "cgroup" else "SIGSTOP and SIGCONT"
        ran = "" if how.duty is None else f"; it ran for {how.duty:.2f} of the last 10 s"
        out.append(("throttled by", f"{by}, since it does not pace itself{ran}"))
    if how.limit_bytes:
        out.append(("memory limit", f"{how.limit_bytes / 1e9:.1f} GB"))
    if how.action not in (None, "run"):
        out.append(("instruction", how.action))
    return out


def _names(how: SharingOfJob, *, guest: bool) -> list[str]:
    return list(dict.fromkeys(one.job for one in how.beside if one.guest is guest))


# Use of a job over time, as lines of text: a small chart a series.

#: Characters of a chart.
WIDTH = 48
_BARS = "▁▂▃▄▅▆▇█"


def usage_rows(usage: UsageOfJob) -> list[list[object]]:
    """A row a series: its chart, name, chart of characters, and its least, mean, most and last value."""
    out: list[list[object]] = []
    for one in usage.series.values():
        values = [number(value) for value in one.values]
        known = [value for value in values if not math.isnan(value)]
        if known:
            figures = (min(known), math.fsum(known) / len(known), max(known), known[-1])
            out.append([one.chart, one.text, sparkline(values), *(in_unit(value, one.unit) for value in figures)])
    return out


def rank_rows(usage: UsageOfJob) -> list[list[object]]:
    """A row a process that runs now."""
    units = {"gpu_utilisation": "share", "gpu_memory_bytes": "bytes", "cpus": "cores", "memory_bytes": "bytes"}
    units |= {"read_bytes_s": "bytes/s", "written_bytes_s": "bytes/s"}
    return [
        [one.rank, one.node, one.gpu, *(in_unit(number(getattr(one, name)), unit) for name, unit in units.items())]
        for one in usage.ranks
    ]


def headline(usage: UsageOfJob) -> str:
    """For how long it was measured, and how much of its GPUs it held idle."""
    if not usage.series:
        return "nothing has been measured yet; a job that runs is measured every 5 s"
    points = max(len(one.values) for one in usage.series.values())
    text = f"over {duration(points * usage.interval_s)}, one point every {duration(usage.interval_s)}"
    if usage.known_gpu_s > 0:
        idle, known = usage.idle_gpu_s, usage.known_gpu_s
        text += f"; of {known / 3600:.3g} GPU-hours measured {100 * idle / known:.1f} % idle (less than 5 % busy)"
    return text


def sparkline(values: Sequence[float], width: int = WIDTH) -> str:
    """Values as bars from 0 to the largest; a blank where nothing is known.

    >>> sparkline([0.0, 1.0, float("nan"), 7.0])
    '▁▂ █'
    """
    if len(values) > width:
        cuts = [round(i * len(values) / width) for i in range(width + 1)]
        values = [_mean(values[a:b]) for a, b in pairwise(cuts)]
    most = max((value for value in values if not math.isnan(value)), default=0.0)
    scale = (len(_BARS) - 1) / most if most > 0 else 0.0
    return "".join(" " if math.isnan(value) else _BARS[round(max(value, 0.0) * scale)] for value in values)


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return math.fsum(known) / len(known) if known else math.nan


# The costs of the cluster, as text: by user, project and job.

#: Share of what was held from which on a part that was not measured is named.
PARTLY = 0.05


def money(part: Part | None, currency: str) -> str:
    """The cost of a part, or its GPU-hours where prices are missing.

    >>> from plait.live.api.costs import Part
    >>> money(Part(2.0, cost=5.0), "EUR"), money(Part(2.5, cost=None), ""), money(None, "EUR")
    ('5.00 EUR', '2.50 GPU-hours', 'not measured')
    """
    if part is None:
        return "not measured"
    if part.cost is None:
        return f"{gpu_hours(part.gpu_h)} GPU-hours"
    return f"{part.cost:,.2f} {currency}".strip()


def cost_text(bill: Costs) -> str:
    """All of a period in one sentence."""
    currency = bill.currency
    parts = ", ".join(f"{name} {money(getattr(bill, name), currency)}" for name in ("jobs", "idle", "down"))
    of_jobs = _of_jobs(bill, bill.jobs, currency)
    span = duration(bill.now_s - bill.from_s)
    return f"{money(bill.total, currency)} in the last {span}: {parts}; of jobs: {of_jobs}"


def cost_rows(bill: Costs) -> list[tuple[str, object]]:
    """Rows of `plait show`: what one job held, and what of that was idle or lost."""
    (row,) = bill.by_job[:1]
    name = "held" if bill.prices is None else "cost"
    text = _of_jobs(row, row.held, bill.currency)
    return [(name, f"{money(row.held, bill.currency)}, of which {text}")]


def _of_jobs(row: Costs | CostRow, held: Part, currency: str) -> str:
    """Of what jobs held: what was idle, as far as that was measured, and what is lost."""
    idle, unmeasured = row.held_idle, row.unmeasured
    partly = f" ({money(unmeasured, currency)} not measured)"
    text = money(idle, currency) + (partly if idle and unmeasured.gpu_h > PARTLY * held.gpu_h else "")
    return f"held but idle: {text}, lost work: {money(row.lost, currency)}"


def note_unpriced(bill: Costs) -> None:
    """Note which GPU kinds count as free because their price is missing."""
    if bill.unpriced:
        note(f"no price for GPU kind {', '.join(bill.unpriced)}, which counts as free: plait up --price KIND=PRICE")


def print_costs(bill: Costs, *, as_json: bool) -> None:
    """All of an answer of `GET /v1/costs`."""
    if as_json:
        print_json(bill)
        return
    typer.echo(cost_text(bill))
    note_unpriced(bill)
    priced = bill.prices is not None
    for name, key, holders in (
        ("project", "project", bill.by_project),
        ("user", "user", bill.by_user),
        ("job", "id", bill.by_job),
    ):
        rows = [
            [getattr(row, key), gpu_hours(row.held.gpu_h), *([money(row.held, bill.currency)] if priced else [])]
            + [money(part, bill.currency) for part in (row.held_idle, row.lost)]
            for row in holders
        ]
        if rows:
            typer.echo("")
            held = (">GPU-hours held", ">cost") if priced else (">GPU-hours held",)
            print_table((name, *held, ">held but idle", ">lost work"), rows, "")
