"""Numbers and words of the pages: what templates show of the answers of the API."""

import math
import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from plait.core.words import counted, duration, in_unit, number
from plait.live.notes import time_of_day
from plait.live.scheduler.explain.resources import IDLE

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
class CountedReason:
    """Why some jobs wait: the words of one, how many have the same but for numbers, and the oldest of them."""

    text: str
    count: int
    jobs: tuple[str, ...] = ()


def reasons(jobs: Iterable[Mapping[str, Any]]) -> list[CountedReason]:
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
        found.append(CountedReason(oldest[0][1], len(some), tuple(f"j-{job}" for job, _ in oldest)))
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


# Intervals of forecasts as small drawings: a wide band for four in five, a narrow one for one in two, a middle.

#: Width of a drawing; what never comes lies at its right end.
BAND_WIDTH = 240.0


@dataclass(frozen=True)
class Band:
    """Positions from the left: of the wide band, of the narrow one, and of the middle."""

    wide: tuple[float, float]
    half: tuple[float, float]
    middle: float


def horizon_s(times: Iterable[Mapping[str, Any] | None]) -> float:
    """The latest of these moments, seconds from now; at least one second.

    >>> horizon_s([{"middle_s": 5.0, "half_s": [4.0, 6.0], "wide_s": [1.0, None]}, None])
    6.0
    """
    said: list[float] = [
        s for one in times if one for s in (one["middle_s"], *one["half_s"], *one["wide_s"]) if s is not None
    ]
    return max([1.0, *said])


def band(times: Mapping[str, Any], most_s: float) -> Band:
    """Where the intervals of a start or an end lie if the right end is `most_s` seconds from now.

    >>> band({"middle_s": 5.0, "half_s": [4.0, 6.0], "wide_s": [0.0, None]}, 10.0)
    Band(wide=(0.0, 240.0), half=(96.0, 144.0), middle=120.0)
    """

    def at(s: float | None) -> float:
        return BAND_WIDTH if s is None else round(min(s / most_s, 1.0) * BAND_WIDTH, 1)

    def both(ends: Sequence[float | None]) -> tuple[float, float]:
        return at(ends[0]), at(ends[1])

    return Band(both(times["wide_s"]), both(times["half_s"]), at(times["middle_s"]))


# Resource use of a job over time, for the page of the job.

#: Points of a chart at most.
USAGE_POINTS = 240


@dataclass(frozen=True)
class UsageRow:
    """A series in words: its chart, what it is, and its least, mean, most and last value."""

    chart: str
    text: str
    values: tuple[str, ...]


def usage_charts(usage: Mapping[str, Any]) -> dict[str, Any]:
    """Data of the charts: series as a list, since an order of names would be lost on the way."""
    return {"interval_s": usage["interval_s"], "series": list(usage["series"].values())}


def usage_rows(usage: Mapping[str, Any]) -> list[UsageRow]:
    """A row for each series of an answer of `GET /v1/jobs/{id}/usage`.

    >>> one = {"unit": "share", "text": "mean", "chart": "GPU", "values": [0.5, None, 1.0]}
    >>> usage_rows({"series": {"gpu_utilisation": one}})[0].values
    ('50 %', '75 %', '100 %', '100 %')
    """
    found = []
    for one in usage["series"].values():
        known = [value for value in map(number, one["values"]) if not math.isnan(value)]
        if known:
            figures = min(known), math.fsum(known) / len(known), max(known), known[-1]
            found.append(UsageRow(one["chart"], one["text"], tuple(in_unit(value, one["unit"]) for value in figures)))
    return found


# Holders of GPUs over time, as data for the timelines that pages draw on a canvas, and for their tables.
#
# Each is {from, to, lanes, bars}: seconds of the service; a lane is a GPU, or a node. A bar is [lane, start, end, text,
# look, other]: the look is a state, or the hue of a job as in maps; `other` is true of a neighbour, drawn narrow below
# the job or node of the page. Running attempts end now.

#: A job on more GPUs has a lane a node.
MOST_GPUS = 32

Placement = Mapping[str, Any]


def timeline(job: Mapping[str, Any], now_s: float, others: Sequence[Placement] = ()) -> dict[str, Any]:
    """The attempts of a job, lanes in the order of their first use, and which `others` held the same GPUs."""
    gpus = {(rank["node"], rank["gpu"]) for one in job["attempts"] for rank in one["ranks"]}
    whole_nodes = len(gpus) > MOST_GPUS
    lanes: dict[str, int] = {}
    bars: list[list[Any]] = []
    for one in job["attempts"]:
        used = dict.fromkeys(
            rank["node"] if whole_nodes else f"{rank['node']} GPU {rank['gpu']}" for rank in one["ranks"]
        )
        text = f"{one['epoch']} {one['state']}"
        rows = [lanes.setdefault(name, len(lanes)) for name in used]
        bars += [[row, *_span(one, now_s), text, one["state"], False] for row in rows]
    end_s = job["ended_s"] or now_s
    for other in others:
        begin, end = _span(other, now_s)
        begin, end = max(begin, job["created_s"]), min(end, end_s)
        used = dict.fromkeys(node if whole_nodes else f"{node} GPU {gpu}" for node, gpu in other["gpus"])
        bars += [[lanes[name], begin, end, other["job"], other["state"], True] for name in used if name in lanes]
    return {"from": job["created_s"], "to": end_s, "lanes": list(lanes), "bars": bars}


def of_node(gpus: int, placements: Sequence[Placement], now_s: float, most_s: float) -> dict[str, Any]:
    """Which jobs held the GPUs of a node, in the last `most_s` seconds."""
    begin_s = max(min((one["started_s"] for one in placements), default=now_s), now_s - most_s)
    bars = []
    for one in placements:
        begin, end = _span(one, now_s)
        look = f"h{hue(one['job'])}"
        bars += [[gpu, max(begin, begin_s), end, one["job"], look, False] for _, gpu in one["gpus"] if gpu < gpus]
    return {"from": begin_s, "to": now_s, "lanes": [f"GPU {gpu}" for gpu in range(gpus)], "bars": bars, "ago": True}


def neighbours(job: Mapping[str, Any], others: Sequence[Placement], now_s: float) -> list[tuple[Placement, str, float]]:
    """The ones of `others` next to an attempt of the job: where, "GPU" if they shared one, and for how many seconds."""
    found = []
    for other in others:
        begin, end = _span(other, now_s)
        where, beside_s = "", 0.0
        for one in job["attempts"]:
            first, last = _span(one, now_s)
            both_s = min(end, last) - max(begin, first)
            mine = {(rank["node"], rank["gpu"]) for rank in one["ranks"]}
            if both_s <= 0 or not {node for node, _ in other["gpus"]} & {node for node, _ in mine}:
                continue
            beside_s += both_s
            shared = any((node, gpu) in mine for node, gpu in other["gpus"])
            where = "GPU" if shared or where == "GPU" else "node"
        if where:
            found.append((other, where, beside_s))
    return sorted(found, key=lambda one: (one[1] != "GPU", -one[2]))


def _span(one: Mapping[str, Any], now_s: float) -> tuple[float, float]:
    end_s = now_s if one["ended_s"] is None else one["ended_s"]
    return one["started_s"], max(end_s, one["started_s"])


# Nodes as a map: a small drawing of each node, its GPUs coloured by the job that holds them.

#: States of silent nodes: the last reports of their GPUs are out of date.
UNHEARD = ("suspect", "lost", "left")
#: The side of a GPU, and from one to the next, in units of the drawing; GPUs in a row.
SIDE, STEP, ROW = 12, 14, 8


@dataclass(frozen=True)
class NodeDrawing:
    """One node: `paths` are (class, path of SVG) by colour; `text` has the same in words."""

    id: str
    state: str
    width: int
    height: int
    paths: tuple[tuple[str, str], ...]
    text: str


def node_drawings(nodes: Sequence[Mapping[str, Any]]) -> list[NodeDrawing]:
    """A drawing of each node of an answer of `GET /v1/nodes`; nodes that have left are not in it.

    A GPU without a holder is `free`; one whose holder uses less than `IDLE` of it is hollow; on a shared one the second
    job has the lower right half.
    """
    return [_drawing(node) for node in nodes if not node["gone"]]


def _drawing(node: Mapping[str, Any]) -> NodeDrawing:
    held, busy = node["gpu_jobs"], utilisation(node)
    paths: dict[str, list[str]] = {}
    idle = 0
    for gpu, jobs in enumerate(held):
        x, y = gpu % ROW * STEP + 1, gpu // ROW * STEP + 1
        square = f"M{x} {y}h{SIDE}v{SIDE}h-{SIDE}z"
        if not jobs:
            paths.setdefault("free", []).append(square)
            continue
        if number(busy[gpu]) < IDLE and node["state"] not in UNHEARD:
            idle += 1
            square += f"m3 3v{SIDE - 6}h{SIDE - 6}v-{SIDE - 6}z"
        paths.setdefault(f"h{hue(jobs[0])}", []).append(square)
        if len(jobs) > 1:
            paths.setdefault(f"h{hue(jobs[1])}", []).append(f"M{x + SIDE} {y}v{SIDE}h-{SIDE}z")
    count = len(held)
    return NodeDrawing(
        node["id"], node["state"], STEP * min(max(count, 1), ROW), STEP * max(-(-count // ROW), 1),
        tuple((name, "".join(each)) for name, each in paths.items()), _words(node, idle),
    )  # fmt: skip


def _words(node: Mapping[str, Any], idle: int) -> str:
    text = f"{node['id']}, {node['state']}: {node['gpus_used']} of {counted(node['gpus'], 'GPU')} held"
    jobs = node["jobs"]
    if jobs:
        text += f" by {', '.join(jobs[:8])}" + (f" and {len(jobs) - 8} more" if len(jobs) > 8 else "")
    waiting = node.get("reserved_for") or {}
    if waiting:
        text += f"; {len(waiting)} held for {', '.join(sorted(set(waiting.values())))}"
    return text + (f"; {idle} held but idle" if idle else "")


def utilisation(node: Mapping[str, Any]) -> list[float | None]:
    """How busy each GPU of a node is, 0..1: its mean of the last 10 s, else its last reading; None if not known."""
    usage, count = node["usage"], len(node["gpu_jobs"])
    out: list[float | None] = [None] * count
    for name in ("gpus", "means"):
        for gpu, one in enumerate(usage.get(name) or ()):
            value = number(one.get("utilisation"))
            if gpu < count and value == value:
                out[gpu] = value
    return out


def idle_gpus(nodes: Sequence[Mapping[str, Any]]) -> int:
    """GPUs that a job holds and hardly uses."""
    return sum(
        bool(jobs) and busy is not None and busy < IDLE
        for node in nodes
        if not node["gone"] and node["state"] not in UNHEARD
        for jobs, busy in zip(node["gpu_jobs"], utilisation(node), strict=True)
    )
