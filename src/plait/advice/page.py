"""Advice as a page: the recommendation, how far the simulation can be trusted, and who gains and loses."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from plait.advice.advise import Advice
from plait.advice.effects import Change, Effect, losers
from plait.core.words import counted
from plait.report.metrics import show
from plait.report.sections import Section, sections_page

#: Owners in a table; the largest gains and losses.
MOST = 40
#: Columns of figures; other percentiles are in the JSON, so that a table fits 1,200 pixels.
_HEADS = {
    "mean_jct_s": ("Mean JCT", "h", 3600.0, "Submission to completion, mean."),
    "p99_jct_s": ("p99 JCT", "h", 3600.0, "99th percentile of completion time."),
    "mean_wait_s": ("Mean wait", "h", 3600.0, "Time without GPUs, mean."),
    "idle_gpu_h": ("Idle", "GPU h", 1.0, "GPU-hours that no job had, from the first submission to the last end."),
    "cost": ("Cost", "", 1.0, "All GPUs, from the first submission to the last end."),
}
#: Text of tables for choices that were compared on fewer jobs than the others.
LEFT_EARLY = (
    "Choices of fewer jobs left the comparison early and come last, best first among themselves; of them only changes "
    "are shown, because other figures would be of other jobs."
)
_TITLES = {"policy": "Policies", "size": "Cluster sizes", "quota": "Quotas"}


def advice_page(advice: Advice, title: str) -> str:
    """The page as text; a function of its arguments. `title` names the history."""
    sections = [_fit(advice)]
    for kind, heading in _TITLES.items():
        effects = advice.of_kind(kind)
        if effects:
            sections.append(_ranked(heading, effects, advice))
    finals = [one for one in advice.of_kind("policy") if one.final]
    best = next((one for one in finals if not one.choice.oracle), next(iter(finals), None))  # as in the recommendation
    for word, changes in () if best is None else (("project", best.projects), ("user", best.users)):
        if best is not None and len(changes) > 1:
            sections.append(change_section(word, changes, ("As it was", best.choice.label)))
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
    return Section("Policy in use, simulated", columns=columns, rows=rows, notes=notes, heads=("",), short="Trust")


def _ranked(heading: str, effects: Sequence[Effect], advice: Advice) -> Section:
    names = [name for name in _HEADS if name != "cost" or advice.prices is not None]
    heads = [("Change", "%", "Mean completion time against what was used, on the same jobs; 95 % interval.")]
    heads += [(_HEADS[name][0], _HEADS[name][1], _HEADS[name][3]) for name in names]
    heads += [("Jobs", "", "Jobs that were compared.")]
    rows = [{"label": _label(one), "cells": _cells(one, names, advice)} for one in effects]
    whole = advice.whole
    if whole is not None:
        used = [_cell(show(whole.before[name], _HEADS[name][2])) for name in names]
        label = f"{advice.fit.choice.policy}, as it was"
        rows.insert(0, {"label": label, "cells": [_cell(""), *used, _cell(_jobs(whole, advice))]})
    notes = ["In brackets: the change against what was used, on the same jobs, all simulated. Best first."]
    if not all(advice.whole_sample(one) for one in effects):
        notes.append(LEFT_EARLY)
    if any(one.choice.oracle for one in effects):
        notes.append("* knows the run time of jobs, which users would have to give: a bound, not a recommendation.")
    return Section(heading, columns=_columns(heads), rows=rows, notes=notes, heads=("Choice",))


def _jobs(one: Effect, advice: Advice) -> str:
    """How many jobs were compared, of the jobs of the choices in the last round."""
    whole = advice.whole
    return f"{one.jobs:,}" if whole is None or advice.whole_sample(one) else f"{one.jobs:,} of {whole.jobs:,}"


def _label(one: Effect) -> str:
    return one.choice.label + (" *" if one.choice.oracle else "")


def _cells(one: Effect, names: Sequence[str], advice: Advice) -> list[dict[str, Any]]:
    interval = "" if math.isnan(one.low) else f"{100 * one.low:+.0f} to {100 * one.high:+.0f}"
    cells = [_cell(f"{100 * one.change:+.1f}" if math.isfinite(one.change) else "–", interval)]
    for name in names:
        value, before = one.figures[name], one.before[name]
        ratio = f"({value / before - 1:+.0%})".replace("%", " %") if before > 0 and math.isfinite(value) else ""
        # Next to each other they need more than the width of a page.
        comparable = advice.whole_sample(one)
        cells.append(_cell(show(value, _HEADS[name][2]), ratio) if comparable else _cell(ratio or "–"))
    return [*cells, _cell(_jobs(one, advice))]


def change_section(word: str, changes: Sequence[Change], names: tuple[str, str], title: str = "") -> Section:
    """All changes, or the largest losses and gains. `names`: of the two sides; `word`: what a row is."""
    shown = list(changes) if len(changes) <= MOST else [*changes[: MOST // 2], *changes[-MOST // 2 :]]
    heads = [("Jobs", "", "Jobs compared."), (names[0], "h", "Mean completion time."),
             (names[1], "h", "Mean completion time."), ("Change", "%", "Longer is more than 0.")]  # fmt: skip
    rows = [{"label": one.name or f"no {word}", "cells": [
        _cell(f"{one.jobs:,}"), _cell(show(one.before_s, 3600.0)), _cell(show(one.after_s, 3600.0)),
        _cell(f"{100 * one.ratio:+.1f}" if math.isfinite(one.ratio) else "–"),
    ]} for one in shown]  # fmt: skip
    left = len(changes) - len(shown)
    notes = [f"{left} between them are left out; the JSON has all."] if left else []
    return Section(
        title or f"Who loses and who gains, by {word}", columns=_columns(heads), rows=rows, notes=notes,
        heads=(word.capitalize(),), short=title or f"By {word}",
    )  # fmt: skip


def summary_rows(advice: Advice) -> list[dict[str, str]]:
    """The ranked choices for a terminal, after what was used: choice, change, interval, p99, loser and jobs, as texts.

    Of choices that left the comparison early only the change is there: other figures are of fewer jobs.
    """
    rows, whole = [], advice.whole
    if whole is not None:
        rows.append({
            "kind": "", "choice": f"{advice.fit.choice.policy}, as it was", "change": "", "interval": "", "worst": "",
            **_absolute(whole.before), "jobs": _jobs(whole, advice),
        })  # fmt: skip
    for kind in _TITLES:
        for one in advice.of_kind(kind):
            owners = one.projects if len(one.projects) > 1 else one.users
            worst = next(iter(losers(owners)), None)
            rows.append({
                "kind": kind,
                "choice": _label(one),
                **_absolute(one.figures if advice.whole_sample(one) else None),
                "change": f"{one.change:+.1%}",
                "interval": "" if math.isnan(one.low) else f"{one.low:+.0%} to {one.high:+.0%}",
                "worst": "nobody" if worst is None else f"{worst.name or '-'} {worst.ratio:+.0%}",
                "jobs": _jobs(one, advice),
            })  # fmt: skip
    return rows


def _absolute(figures: Mapping[str, float] | None) -> dict[str, str]:
    """Figures that compare only on the same jobs; empty without any."""
    if figures is None:
        return dict.fromkeys(("mean", "p99", "idle", "cost"), "")
    return {
        "mean": show(figures["mean_jct_s"], 3600.0), "p99": show(figures["p99_jct_s"], 3600.0),
        "idle": show(figures["idle_gpu_h"]), "cost": show(figures["cost"]) if "cost" in figures else "",
    }  # fmt: skip
