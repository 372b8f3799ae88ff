"""Two runs of the same jobs, job by job: who gained and who lost, by user and project, and by name."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from plait.advice.effects import Change, changes
from plait.advice.page import change_section
from plait.core.errors import InputError, suggest
from plait.core.words import counted
from plait.report.sections import sections_page

NEEDED = ("id", "jct_s", "state", "user", "project")
#: Jobs that are named on either side.
NAMED = 10
#: A smaller difference of a completion time is none, seconds.
SAME_S = 1e-6


@dataclass(frozen=True)
class Pair:
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
        """The answer in a sentence."""
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


def compare_files(before: Path, after: Path) -> Pair:
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
    return Pair(
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


def pair_page(pair: Pair) -> str:
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


def worst(pair: Pair) -> Sequence[Change]:
    """At most `NAMED` jobs that lose, the largest loss first."""
    return [job for job in pair.jobs[:NAMED] if job.after_s > job.before_s + SAME_S]


def best(pair: Pair) -> Sequence[Change]:
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
