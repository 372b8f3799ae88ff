"""Display of jobs whose batch adapts: their GPUs and how many they may have, batch, goodput, restarts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from plait.core.words import duration, number

if TYPE_CHECKING:
    from plait.live.api.explain import Explanation, SizeOption, SizeOptions
    from plait.live.api.jobs import AdaptiveJob, BatchBounds, JobAttempt, JobRow


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


def rows(adaptive: AdaptiveJob) -> list[tuple[str, object]]:
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


def explanation_lines(found: Explanation) -> list[str]:
    """Lines of `plait explain`: what it has, and what other sizes would bring by its own fit; what it had, if over."""
    adaptive, sizes = found.adaptive, found.sizes
    if not adaptive or not sizes:
        return _had_lines(found.attempts or ())
    held = len(found.gpus or ())
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


def _had_lines(attempts: Sequence[JobAttempt]) -> list[str]:
    """Which sizes a job had that has ended, one attempt after the other."""
    texts = []
    for attempt in attempts:
        batch = batch_text(attempt)
        lasted = duration(number(attempt.ended_s) - number(attempt.started_s))
        texts.append(f"{_gpus(attempt.gpus)} for {lasted}" + (f" (batch {batch} in the end)" if batch else ""))
    return [f"  it had {', '.join(texts)}"] if texts else []


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


def _by_fit(at: Sequence[SizeOption], held: int) -> list[str]:
    own = next((row.goodput for row in at if row.gpus == held), None)
    if not at:
        return []
    texts = []
    for row in at:
        worth = f"{row.goodput / own:.2g} times" if own else _rate(row.goodput)
        texts.append(f"{row.gpus}: {worth} (batch {row.batch_size:,})")
    against = f", against {_gpus(held)}" if own else ""
    return [f"  by its own fit, GPUs and the most they give, each with its best batch{against}: {', '.join(texts)}"]


def _bounds(limits: BatchBounds) -> str:
    text = f"{limits.initial:,} to {limits.most:,} examples, {limits.least_local:,} to "
    return text + f"{limits.most_local:,} a GPU" + (", may accumulate" if limits.accumulation else "")


def _rate(per_s: float) -> str:
    return f"{per_s:,.0f}/s" if per_s >= 100 else f"{per_s:.3g}/s"
