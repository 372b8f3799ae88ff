"""Advice as a page: the recommendation, how far the simulation can be trusted, and who gains and loses.

Two runs of the same jobs, job by job: who gained and who lost, by user and project, and by name.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from plait.core.errors import InputError, suggest
from plait.core.words import counted
from plait.outlook.advice import Advice, Change, Effect, changes, losers
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
    for word, changed in () if best is None else (("project", best.projects), ("user", best.users)):
        if best is not None and len(changed) > 1:
            sections.append(change_section(word, changed, ("As it was", best.choice.label)))
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


NEEDED = ("id", "jct_s", "state", "user", "project")
#: Jobs that are named on either side.
NAMED = 10
#: A smaller difference of a completion time is none, seconds.
SAME_S = 1e-6


@dataclass(frozen=True)
class RunPair:
    """Run B beside run A, over the jobs that finished in both.

    `figures`: mean, p50 and p99 of completion times, seconds. `gained` and `lost`: jobs that B completes sooner and
    later. Of `users`, `projects` and `jobs` the largest loss comes first. `left_out`: jobs of A and of B that did not
    finish, or are not in the other run.
    """

    names: tuple[str, str]
    figures: Mapping[str, Change]
    gained: int
    lost: int
    users: tuple[Change, ...]
    projects: tuple[Change, ...]
    jobs: tuple[Change, ...]
    left_out: tuple[int, int]

    @property
    def sentence(self) -> str:
        mean, total = self.figures["mean"], len(self.jobs)
        text = (
            f"{self.names[1]} against {self.names[0]}, {counted(total, 'job')}: mean completion time "
            f"{mean.ratio:+.1%}; {self.gained:,} sooner, {self.lost:,} later, {total - self.gained - self.lost:,} alike"
        )
        if any(self.left_out):
            text += f"; left out, not finished in both: {self.left_out[0]:,} and {self.left_out[1]:,}"
        return f"{text}."

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "runs": list(self.names), "jobs": len(self.jobs), "gained": self.gained, "lost": self.lost,
            "left_out": list(self.left_out),
            "figures": {name: one.to_json() for name, one in self.figures.items()},
            "users": [one.to_json() for one in self.users], "projects": [one.to_json() for one in self.projects],
            "by_job": [one.to_json() for one in self.jobs],
        }  # fmt: skip


def compare_files(before: Path, after: Path) -> RunPair:
    """The comparison of two files of `plait simulate --jobs-csv`.

    Raises `InputError` naming file, line and column where they cannot be read, or have no finished job in common.
    """
    old, new = _finished(before), _finished(after)
    ids = [name for name in old.done if name in new.done]
    if not ids:
        hint = "were they written from the same trace?"
        raise InputError(f"{before} and {after} have no finished job in common; {hint}")
    a, b = (np.array([run.done[name][0] for name in ids]) for run in (old, new))
    owners = [np.array([old.done[name][i] for name in ids], dtype=object) for i in (1, 2)]
    jobs = [Change(name, 1, float(x), float(y)) for name, x, y in zip(ids, a, b, strict=True)]
    names = (before.stem, after.stem) if before.stem != after.stem else (str(before), str(after))
    return RunPair(
        names=names,
        figures={
            "mean": Change("mean", len(ids), float(a.mean()), float(b.mean())),
            **{f"p{q}": Change(f"p{q}", len(ids), *np.percentile([a, b], q, axis=1).tolist()) for q in (50, 99)},
        },
        gained=int((b < a - SAME_S).sum()),
        lost=int((b > a + SAME_S).sum()),
        users=changes(owners[0], a, b),
        projects=changes(owners[1], a, b),
        jobs=tuple(sorted(jobs, key=lambda job: (job.before_s - job.after_s, job.name))),
        left_out=(old.jobs - len(ids), new.jobs - len(ids)),
    )


def pair_page(pair: RunPair) -> str:
    """The comparison as a self-contained page; a function of its argument."""
    sections = [change_section("", tuple(pair.figures.values()), pair.names, "Completion times")]
    for word, owners in (("project", changed(pair.projects)), ("user", changed(pair.users))):
        if owners:
            sections.append(change_section(word, owners, pair.names))
    for title, jobs in (("Jobs that lose most", worst(pair)), ("Jobs that gain most", best(pair))):
        if jobs:
            sections.append(change_section("job", jobs, pair.names, title))
    title = f"{pair.names[1]} against {pair.names[0]}"
    return sections_page(sections, title=title, brand="comparison", lead=pair.sentence)


def changed(owners: Sequence[Change]) -> Sequence[Change]:
    """Owners who gain or lose; none where all jobs have one owner."""
    return [one for one in owners if abs(one.after_s - one.before_s) > SAME_S] if len(owners) > 1 else []


def worst(pair: RunPair) -> Sequence[Change]:
    """At most `NAMED` jobs that lose, the largest loss first."""
    return [job for job in pair.jobs[:NAMED] if job.after_s > job.before_s + SAME_S]


def best(pair: RunPair) -> Sequence[Change]:
    """At most `NAMED` jobs that gain, the largest gain first."""
    return [job for job in pair.jobs[: -NAMED - 1 : -1] if job.after_s < job.before_s - SAME_S]


@dataclass(frozen=True)
class _Run:
    """Finished jobs by id: completion time (seconds), user, project; and the number of all jobs."""

    done: Mapping[str, tuple[float, str, str]]
    jobs: int


def _finished(path: Path) -> _Run:
    try:
        with open(path, encoding="utf-8", newline="") as file:
            rows = csv.DictReader(file)
            header = rows.fieldnames or []
            if missing := [name for name in NEEDED if name not in header]:
                hint = f"{suggest(missing[0], header)}; write it with plait simulate --jobs-csv"
                raise InputError(f"{path}:1: column {missing[0]} is missing; {hint}")
            done: dict[str, tuple[float, str, str]] = {}
            jobs = 0
            for row in rows:
                jobs += 1
                if row["state"] != "finished":
                    continue
                if row["id"] in done:
                    raise InputError(f"{path}:{rows.line_num}: job {row['id']} occurs twice")
                done[row["id"]] = (_seconds(row["jct_s"], path, rows.line_num), row["user"], row["project"])
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: not readable as a table of jobs: {error}") from error
    return _Run(done, jobs)


def _seconds(cell: str | None, path: Path, line: int) -> float:
    try:
        value = float(cell or "")
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0.0):
        raise InputError(f"{path}:{line}: column jct_s must be seconds of at least 0, got {cell!r}")
    return value
