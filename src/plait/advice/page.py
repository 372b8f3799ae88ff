"""Advice as a page: the recommendation, how far the simulation can be trusted, and who gains and loses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from plait.advice.advise import Advice
from plait.advice.effects import Change, Effect
from plait.core.words import counted
from plait.report.metrics import show
from plait.report.sections import Section, sections_page

#: Owners in a table; those who gain and lose most.
MOST = 40
_HEADS = {
    "mean_jct_s": ("Mean JCT", "h", 3600.0, "Submission to completion, mean."),
    "p95_jct_s": ("p95 JCT", "h", 3600.0, "95th percentile of completion time."),
    "p99_jct_s": ("p99 JCT", "h", 3600.0, "99th percentile of completion time."),
    "mean_wait_s": ("Mean wait", "h", 3600.0, "Time without GPUs, mean."),
    "p95_wait_s": ("p95 wait", "h", 3600.0, "95th percentile of time without GPUs."),
    "p99_wait_s": ("p99 wait", "h", 3600.0, "99th percentile of time without GPUs."),
    "idle_gpu_h": ("Idle", "GPU h", 1.0, "GPU-hours that no job had, from the first submission to the last end."),
    "cost": ("Cost", "", 1.0, "All GPUs, from the first submission to the last end."),
}
_TITLES = {"policy": "Policies", "size": "Cluster sizes", "quota": "Quotas"}


def advice_page(advice: Advice, title: str) -> str:
    """The page as text; a function of its arguments. `title` names the history."""
    sections = [_fit(advice)]
    for kind, heading in _TITLES.items():
        effects = advice.of_kind(kind)
        if effects:
            sections.append(_ranked(heading, effects, advice))
    best = next((one for one in advice.of_kind("policy") if one.final), None)
    for word, changes in () if best is None else (("project", best.projects), ("user", best.users)):
        if best is not None and len(changes) > 1:
            sections.append(_owners(word, best, changes))
    facts = [f"{len(advice.past.jobs):,} jobs", f"{advice.past.cluster.gpus} GPUs",
             f"{advice.simulated:,} jobs simulated"]  # fmt: skip
    return sections_page(sections, title=f"Advice from {title}", brand="advice", facts=facts,
                         lead=" ".join(advice.sentences))  # fmt: skip


def _columns(heads: Sequence[tuple[str, str, str]]) -> list[dict[str, Any]]:
    return [{"label": label, "unit": unit, "meaning": meaning} for label, unit, meaning in heads]


def _cell(text: str, interval: str = "") -> dict[str, Any]:
    return {"text": text, "best": False, "interval": interval}


def _fit(advice: Advice) -> Section:
    fit = advice.fit
    columns = _columns(
        [("Mean JCT", "h", "Submission to completion, mean."), ("Mean wait", "h", "To the first start.")]
    )
    rows = [
        {"label": label, "cells": [_cell(show(jct_s, 3600.0)), _cell(show(wait_s, 3600.0))]}
        for label, jct_s, wait_s in (
            ("what happened", fit.recorded_s, fit.recorded_queue_s),
            (f"{fit.choice.policy}, simulated", fit.simulated_s, fit.simulated_queue_s),
        )
    ]
    said = "as given" if fit.given else "the closest of those tried"
    notes = [
        f"Taken as used: {fit.choice.policy} ({said}); {fit.error:+.1%} off, over {counted(fit.jobs, 'job')}.",
        *(f"Tried, too: {policy}, {error:+.1%} off." for policy, error in fit.others),
        *(f"Assumed: {remark}." for remark in advice.past.remarks),
        *(f"Not simulated: {gap}." for gap in advice.past.gaps),
    ]
    return Section("What was used, simulated", columns=columns, rows=rows, notes=notes, heads=("",), short="Trust")


def _ranked(heading: str, effects: Sequence[Effect], advice: Advice) -> Section:
    names = [name for name in _HEADS if name != "cost" or advice.prices is not None]
    heads = [("Change", "%", "Mean completion time against what was used, on the same jobs; 95 % interval.")]
    heads += [(_HEADS[name][0], _HEADS[name][1], _HEADS[name][3]) for name in names]
    heads += [("Jobs", "", "Jobs that were compared.")]
    rows = [{"label": _label(one), "cells": _cells(one, names)} for one in effects]
    notes = ["In brackets: the change against what was used, on the same jobs. Choices with fewer jobs left earlier."]
    if any(one.choice.oracle for one in effects):
        notes.append("* knows the run time of jobs, which users would have to give: a bound, not a recommendation.")
    return Section(heading, columns=_columns(heads), rows=rows, notes=notes, heads=("Choice",))


def _label(one: Effect) -> str:
    return one.choice.label + (" *" if one.choice.oracle else "")


def _cells(one: Effect, names: Sequence[str]) -> list[dict[str, Any]]:
    interval = "" if math.isnan(one.low) else f"{100 * one.low:+.0f} to {100 * one.high:+.0f}"
    cells = [_cell(f"{100 * one.change:+.1f}" if math.isfinite(one.change) else "–", interval)]
    for name in names:
        value, before = one.figures[name], one.before[name]
        ratio = f" ({value / before - 1:+.0%})".replace("%", " %") if before > 0 and math.isfinite(value) else ""
        cells.append(_cell(show(value, _HEADS[name][2]) + ratio))
    return [*cells, _cell(f"{one.jobs:,}")]


def _owners(word: str, best: Effect, changes: Sequence[Change]) -> Section:
    """Everybody, or those who lose most and gain most."""
    shown = list(changes) if len(changes) <= MOST else [*changes[: MOST // 2], *changes[-MOST // 2 :]]
    heads = [("Jobs", "", "Jobs compared."), ("As it was", "h", "Mean completion time."),
             (best.choice.label, "h", "Mean completion time."), ("Change", "%", "Longer is more than 0.")]  # fmt: skip
    rows = [{"label": one.name or f"no {word}", "cells": [
        _cell(f"{one.jobs:,}"), _cell(show(one.before_s, 3600.0)), _cell(show(one.after_s, 3600.0)),
        _cell(f"{100 * one.ratio:+.1f}" if math.isfinite(one.ratio) else "–"),
    ]} for one in shown]  # fmt: skip
    left = len(changes) - len(shown)
    notes = [f"{left} between them are left out; the JSON has all."] if left else []
    title = f"Who loses and who gains, by {word}"
    return Section(
        title, columns=_columns(heads), rows=rows, notes=notes, heads=(word.capitalize(),), short=f"By {word}"
    )


def summary_rows(advice: Advice) -> list[dict[str, str]]:
    """The ranked choices for a terminal: choice, change, interval, p99, loser and jobs, as texts."""
    rows = []
    for kind in _TITLES:
        for one in advice.of_kind(kind):
            owners = one.projects if len(one.projects) > 1 else one.users
            worst = owners[0] if owners else None
            rows.append({
                "kind": kind,
                "choice": _label(one),
                "mean": show(one.figures["mean_jct_s"], 3600.0),
                "change": f"{one.change:+.1%}",
                "interval": "" if math.isnan(one.low) else f"{one.low:+.0%} to {one.high:+.0%}",
                "p99": show(one.figures["p99_jct_s"], 3600.0),
                "idle": show(one.figures["idle_gpu_h"]),
                "cost": show(one.figures["cost"]) if "cost" in one.figures else "",
                "worst": "" if worst is None else f"{worst.name or '-'} {worst.ratio:+.0%}",
                "jobs": f"{one.jobs:,}",
            })  # fmt: skip
    return rows
