"""Numbers and words of the pages: what templates show of the answers of the API."""

from __future__ import annotations

import math
import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from plait.core.words import counted, duration, number
from plait.live.notes import time_of_day

#: Hues that the jobs of a map have; a job keeps its own.
HUES = 10
_NUMBERS = re.compile(r"\d+(?:[.,]\d+)*")
_PLURALS = re.compile(r"# (\w+?)s\b")
_NAMES = re.compile(r"\bj-\d+\b|\bn\d+\b")


class Fields(dict[str, Any]):
    """An answer of the API whose optional fields may be absent: they read as None.

    >>> Fields({"state": "running"})["left_s"] is None
    True
    """

    def __missing__(self, name: str) -> None:
        """No such field."""


def ago(now_s: float, at_s: Any, *, seconds: bool = False) -> str:
    """The time of day at which something was, and how long ago.

    >>> ago(100.0, 25.0).partition(", ")[2], ago(100.0, None)
    ('1 min 15 s ago', '-')
    """
    at = number(at_s)
    if math.isnan(at):
        return "-"
    date_s, ago_s = time.time(), max(now_s - at, 0.0)
    return f"{time_of_day(date_s - ago_s, date_s, seconds=seconds)}, {duration(ago_s)} ago"


def size(count: Any) -> str:
    """Bytes for people.

    >>> size(17179869184), size(512), size(None)
    ('16.0 GiB', '512 B', '-')
    """
    left = number(count)
    if math.isnan(left):
        return "-"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if left < 1024:
            return f"{left:.0f} B" if unit == "B" else f"{left:.1f} {unit}"
        left /= 1024
    return f"{left:.1f} TiB"


def share(job: Mapping[str, Any]) -> float | None:
    """The done part of a job's work, 0..1; None if its total is unknown."""
    adaptive = job.get("adaptive") or {}
    done, total = number(adaptive.get("progress")), number(adaptive.get("total_progress"))
    if math.isnan(total):
        done, total = number(job.get("iterations_done")), number(job.get("iterations") or job.get("total_steps"))
    if math.isnan(total) or total <= 0:
        return None
    return min(max(done, 0.0) / total, 1.0) if math.isfinite(done) else 0.0


def hue(job: str) -> int:
    """The hue of a job in maps and timelines, 0 to `HUES` - 1; neighbours in the queue differ.

    >>> hue("j-3"), hue("j-13"), hue("other")
    (3, 3, 0)
    """
    digits = job.removeprefix("j-")
    return int(digits) % HUES if digits.isdigit() else 0


@dataclass(frozen=True)
class Reason:
    """Why some jobs wait: the words of one, how many have the same but for numbers, and the oldest of them."""

    text: str
    count: int
    jobs: tuple[str, ...] = ()


def reasons(jobs: Iterable[Mapping[str, Any]]) -> list[Reason]:
    """Why jobs wait, most frequent first; jobs with the same reason but for numbers are one.

    >>> words = {3: "needs 4 GPUs, 1 is free", 2: "needs 2 GPUs, 1 is free"}
    >>> found = reasons({"number": number, "reason": text} for number, text in words.items())
    >>> [(one.text, one.count, one.jobs) for one in found]
    [('needs 2 GPUs, 1 is free', 2, ('j-2', 'j-3'))]
    """
    alike: dict[str, list[tuple[int, str]]] = defaultdict(list)
    shapes: dict[str, str] = {}
    for job in jobs:
        text = job["reason"] or "no reason is recorded"
        if (shape := shapes.get(text)) is None:
            shape = shapes[text] = _PLURALS.sub(r"# \1", _NUMBERS.sub("#", _NAMES.sub("#", text)))
        alike[shape].append((job["number"], text))
    found = []
    for some in sorted(alike.values(), key=len, reverse=True):
        oldest = sorted(some)[:3]
        found.append(Reason(oldest[0][1], len(some), tuple(f"j-{job}" for job, _ in oldest)))
    return found


@dataclass
class Holder:
    """One user: the GPUs held and the jobs that run and wait."""

    user: str
    gpus: int = 0
    running: int = 0
    waiting: int = 0


def holders(running: Iterable[Mapping[str, Any]], waiting: Iterable[Mapping[str, Any]]) -> list[Holder]:
    """Who holds how many GPUs, most first, of the jobs that run and wait."""
    found: dict[str, Holder] = {}
    for job in running:
        one = found.setdefault(job["user"], Holder(job["user"]))
        one.gpus += len({(place["node"], place["gpu"]) for place in job.get("places") or ()}) or job["gpus"]
        one.running += 1
    for user, count in Counter(job["user"] for job in waiting).items():
        found.setdefault(user, Holder(user)).waiting = count
    return sorted(found.values(), key=lambda one: (-one.gpus, -one.waiting, one.user))


@dataclass
class Recent:
    """Decisions of the policy within some seconds, from entries of the log."""

    seconds: float
    decisions: int = 0
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def text(self) -> str:
        """In one sentence."""
        if not self.decisions:
            return "started and stopped nothing"
        parts = [
            text for name, text in (
                ("started", f"started {counted(self.counts['started'], 'attempt')}"),
                ("stopped", f"stopped {counted(self.counts['stopped'], 'attempt')}"),
                ("changed", f"changed {counted(self.counts['changed'], 'group')}"),
            ) if self.counts[name]
        ]  # fmt: skip
        ends = [f"{self.counts[name]:,} {name}" for name in ("finished", "failed", "cancelled") if self.counts[name]]
        said = ", ".join(parts or ["started and stopped nothing"]) + (f"; jobs: {', '.join(ends)}" if ends else "")
        return said + (f"; {counted(self.counts['retried'], 'failure')} retried" if self.counts["retried"] else "")


_ENDS = {"JobFinished": "finished", "JobFailed": "failed", "JobCancelled": "cancelled"}


def recent(entries: Iterable[Mapping[str, Any]], now_s: float, within_s: float) -> Recent:
    """Count the decisions of the last `within_s` seconds in entries of the log."""
    kept = [entry for entry in entries if now_s - entry["at_s"] <= within_s]
    found = Recent(within_s)
    for entry in kept:
        event = entry["event"]
        if name := _ENDS.get(event.get("type")):
            name = "retried" if event.get("again") else name
            found.counts[name] += len(event.get("jobs", [event.get("job")]))
        if entry["commands"]:
            found.decisions += 1
        for command in entry["commands"]:
            kind = command.get("type")
            if kind == "Launch":
                found.counts["started"] += sum(len(group["jobs"]) for group in command["groups"])
            elif kind == "Stop":
                found.counts["stopped"] += len(command.get("jobs", ()))
            elif kind == "Adjust":
                found.counts["changed"] += len(command["groups"])
    return found
