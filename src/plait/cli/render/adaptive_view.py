"""Display of jobs whose batch adapts: their GPUs and how many they may have, batch, goodput, restarts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from plait.core.words import duration, number


def gpus_cell(job: Mapping[str, Any]) -> object:
    """GPUs now and between which bounds, for tables.

    >>> gpus_cell({"gpus": 4, "adaptive": {"min_gpus": 1, "max_gpus": 8}}), gpus_cell({"gpus": 4})
    ('4 of 1-8', 4)
    """
    adaptive = job.get("adaptive") or {}
    least, most = adaptive.get("min_gpus"), adaptive.get("max_gpus")
    return job["gpus"] if least == most else f"{job['gpus']} of {least}-{most}"


def pace_text(job: Mapping[str, Any]) -> str:
    """Batch and goodput in a few words; empty for a job that has not reported them.

    >>> pace_text({"adaptive": {"batch_size": 512.0, "goodput": 1234.5, "efficiency": 0.831}})
    'batch 512, 1,234/s useful (83%)'
    """
    adaptive = job.get("adaptive") or {}
    batch, goodput = number(adaptive.get("batch_size")), number(adaptive.get("goodput"))
    if math.isnan(batch):
        return ""
    text = f"batch {batch:,.0f}"
    return text if math.isnan(goodput) else f"{text}, {_rate(goodput)} useful ({number(adaptive['efficiency']):.0%})"


def rows(job: Mapping[str, Any]) -> list[tuple[str, object]]:
    """Lines of `plait show`."""
    adaptive = job.get("adaptive")
    if not adaptive:
        return []
    limits = adaptive["limits"]
    out: list[tuple[str, object]] = [
        ("sizes", f"{adaptive['min_gpus']} to {adaptive['max_gpus']} GPUs"),
        ("batches", _bounds(limits)),
    ]
    batch, goodput = adaptive.get("batch_size"), adaptive.get("goodput")
    if batch:
        out.append(("batch now", f"{batch:,.0f}"))
    if goodput:
        out.append(("goodput", f"{_rate(goodput)} useful, {adaptive['efficiency']:.0%} of what it takes in"))
    out.append(("restarts", restarts_text(adaptive)))
    if adaptive.get("difference"):
        out.append(("note", adaptive["difference"]))
    if adaptive.get("not_finite"):
        out.append(("not finite", adaptive["not_finite"]))
    return out


def restarts_text(adaptive: Mapping[str, Any]) -> str:
    """How often it was restarted and what that cost it.

    >>> restarts_text({"restarts": 3, "restart_s": 4.21}), restarts_text({"restarts": 0, "restart_s": None})
    ('3, about 4.2 s of training each', 'none measured yet')
    """
    if not adaptive.get("restarts"):
        return "none measured yet"
    return f"{adaptive['restarts']}, about {duration(adaptive['restart_s'])} of training each"


def batch_text(attempt: Mapping[str, Any]) -> str:
    """The last batch of an attempt; empty where it was not reported.

    >>> batch_text({"batch_size": 1234.0}), batch_text({"batch_size": None})
    ('1,234', '')
    """
    batch = number(attempt.get("batch_size"))
    return "" if math.isnan(batch) else f"{batch:,.0f}"


def explanation_lines(found: Mapping[str, Any]) -> list[str]:
    """Lines of `plait explain`: what it has, and what other sizes would bring by its own fit; what it had, if over."""
    adaptive, sizes = found.get("adaptive"), found.get("sizes")
    if not adaptive or not sizes:
        return _had_lines(found.get("attempts") or ())
    held = len(found.get("gpus") or ())
    lines = []
    if now := pace_text(found):
        lines.append(f"  adapts: {_gpus(held)} of {adaptive['min_gpus']} to {adaptive['max_gpus']}, {now}")
    if not sizes["at"]:
        lines.append("  it has not fitted its own throughput yet, so its goodput is taken to grow as its GPUs do")
    lines += _by_fit(sizes["at"], held)
    if sizes["cap"] < adaptive["max_gpus"]:
        lines.append(f"  {_cap_text(adaptive['limits'], sizes)}")
    if sizes.get("next_s") is not None:
        lines.append(f"  sizes are chosen again in {duration(sizes['next_s'])}")
    if adaptive.get("restarts"):
        lines.append(f"  restarts: {restarts_text(adaptive)}; another size has to be worth it")
    if adaptive.get("difference"):
        lines.append(f"  note: {adaptive['difference']}")
    if adaptive.get("not_finite"):
        lines.append(f"  not finite: {adaptive['not_finite']}")
    return lines


def _had_lines(attempts: Sequence[Mapping[str, Any]]) -> list[str]:
    """Which sizes a job had that has ended, one attempt after the other."""
    texts = []
    for attempt in attempts:
        batch = batch_text(attempt)
        lasted = duration(number(attempt["ended_s"]) - attempt["started_s"])
        texts.append(f"{_gpus(attempt['gpus'])} for {lasted}" + (f" (batch {batch} in the end)" if batch else ""))
    return [f"  it had {', '.join(texts)}"] if texts else []


def _cap_text(limits: Mapping[str, Any], sizes: Mapping[str, Any]) -> str:
    """Why a job may not have as many GPUs as it could use."""
    cap, profiled = sizes["cap"], sizes["profiled"]
    if cap >= limits["most"] // limits["least_local"]:
        return f"at most {_gpus(cap)}: a batch of {limits['most']:,} feeds no more, {limits['least_local']:,} a GPU"
    if profiled and cap == 2 * profiled:
        return f"at most {_gpus(cap)} for now: twice as many as it has measured itself on"
    if profiled:
        return f"at most {_gpus(cap)} for now: it has measured itself on {_gpus(profiled)}"
    return f"at most {_gpus(cap)} for now: it is new, and gets more once it has measured itself"


def _gpus(count: int) -> str:
    return f"{count} GPU{'s' * (count != 1)}"


def _by_fit(at: list[dict[str, Any]], held: int) -> list[str]:
    own = next((row["goodput"] for row in at if row["gpus"] == held), None)
    if not at:
        return []
    texts = []
    for row in at:
        worth = f"{row['goodput'] / own:.2g} times" if own else _rate(row["goodput"])
        texts.append(f"{row['gpus']}: {worth} (batch {row['batch_size']:,})")
    against = f", against {_gpus(held)}" if own else ""
    return [f"  by its own fit, GPUs and the most they give, each with its best batch{against}: {', '.join(texts)}"]


def _bounds(limits: Mapping[str, Any]) -> str:
    text = f"{limits['initial']:,} to {limits['most']:,} examples, {limits['least_local']:,} to "
    return text + f"{limits['most_local']:,} a GPU" + (", may accumulate" if limits.get("accumulation") else "")


def _rate(per_s: float) -> str:
    return f"{per_s:,.0f}/s" if per_s >= 100 else f"{per_s:.3g}/s"
