"""Costs of the GPUs of the live cluster: for every GPU, hour by hour, its holder.

Conventions, as in simulations (`plait.control.metrics`):
  a node is paid for from the time it joined until it left after a notice, or was forgotten, also while it is lost or
  drained: all of it is GPUs x hours x price
  at every moment a GPU belongs to the jobs that hold it, in equal parts; else it is idle, or down while its node takes
  no work
  money of jobs includes lost work, and GPUs that they held and did not use, which are also shown apart
"""

import json
import math
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from plait.control.prices import Prices
from plait.core.resources import CPU_KIND
from plait.live.api.costs import CostRow, Costs, Part
from plait.live.api.jobs import JobRow
from plait.live.service.usage import Measured, Usages
from plait.live.store import Store

#: Entries of the log that change the set of nodes.
NODE_ENTRIES = ("NodeJoined", "NodeLost", "NodeLeaving", "NodeForgotten")
#: Answers of the same period are the same for so many seconds.
FRESH_S = 10.0
#: A job and an attempt of it; a node and its number of a GPU.
Try = tuple[int, int]
Gpu = tuple[str, int]


@dataclass
class Stay:
    """A node from its arrival to its end, with the periods in which it took work; infinite ends are still to come."""

    node: str
    kind: str
    gpus: int
    from_s: float
    to_s: float = math.inf
    up: list[tuple[float, float]] = field(default_factory=list)
    leaving: bool = False

    def ready(self, at_s: float) -> None:
        """It takes work."""
        self.leaving = False
        if not self.up or self.up[-1][1] <= at_s:
            self.up.append((at_s, math.inf))

    def away(self, at_s: float) -> None:
        if self.up and self.up[-1][1] == math.inf:
            self.up[-1] = (self.up[-1][0], at_s)


class Stays:
    """The nodes of a log, entry by entry."""

    def __init__(self) -> None:
        self.all: list[Stay] = []
        self.seq = 0
        self._here: dict[str, Stay] = {}

    def read(self, seq: int, entry: Mapping[str, Any]) -> None:
        """Take one of `NODE_ENTRIES`, in order."""
        self.seq, at_s, kind = seq, float(entry["at_s"]), entry["type"]
        name = entry["node"]["id"] if kind == "NodeJoined" else entry["node"]
        if kind == "NodeJoined" and entry["node"].get("gpu_kind") == CPU_KIND:
            return  # GPUs are what costs
        stay = self._here.get(name)
        if kind == "NodeJoined":
            hardware = entry["node"].get("gpu_kind", "gpu"), int(entry["node"]["gpus"])
            if stay is not None and (stay.kind, stay.gpus) != hardware:
                self._end(stay, at_s)
                stay = None
            if stay is None:
                stay = self._here[name] = Stay(name, *hardware, at_s)
                self.all.append(stay)
            stay.ready(at_s)
        elif stay is not None:
            stay.away(at_s)
            if kind == "NodeForgotten" or (kind == "NodeLost" and stay.leaving):
                self._end(stay, at_s)
            elif kind == "NodeLeaving":
                stay.leaving = bool(entry["leaving"])

    def _end(self, stay: Stay, at_s: float) -> None:
        stay.away(at_s)
        stay.to_s = at_s
        self._here.pop(stay.node, None)


@dataclass(frozen=True)
class Held:
    """An attempt: its GPUs, when it had them (`to_s` infinite if it still has), seconds of its work that are lost."""

    attempt: Try
    gpus: tuple[Gpu, ...]
    from_s: float
    to_s: float
    lost_s: float = 0.0


@dataclass
class Bill:
    """GPU-seconds and money of a period. `jobs` and `lost` are by attempt; the parts add up to the total."""

    from_s: float
    to_s: float
    total: list[float] = field(default_factory=lambda: [0.0, 0.0])
    idle: list[float] = field(default_factory=lambda: [0.0, 0.0])
    down: list[float] = field(default_factory=lambda: [0.0, 0.0])
    jobs: dict[Try, list[float]] = field(default_factory=lambda: defaultdict(lambda: [0.0, 0.0]))
    lost: dict[Try, list[float]] = field(default_factory=dict)


def bill(stays: Iterable[Stay], held: Iterable[Held], rates: Mapping[str, float], from_s: float, to_s: float) -> Bill:
    """Divide every GPU of the period among jobs, idle and down. `rates`: money per GPU-hour by kind, 0 if missing."""
    out = Bill(from_s, to_s)
    holders: dict[Gpu, list[tuple[float, float, Try]]] = defaultdict(list)
    lasted: dict[Try, Held] = {}
    for one in held:
        lasted[one.attempt] = one
        for gpu in one.gpus:
            holders[gpu].append((one.from_s, one.to_s, one.attempt))
    for stay in stays:
        begin, end = max(stay.from_s, from_s), min(stay.to_s, to_s)
        if begin < end:
            rate = rates.get(stay.kind, 0.0) / 3600
            for number in range(stay.gpus):
                _divide(out, rate, begin, end, stay.up, holders.get((stay.node, number), ()))
    for attempt, parts in out.jobs.items():
        one = lasted[attempt]
        length_s = min(one.to_s, to_s) - one.from_s
        if one.lost_s > 0 and length_s > 0 and from_s < one.to_s <= to_s:  # it was lost at the end
            within_s = min(one.to_s, to_s) - max(one.from_s, from_s)
            share = min(one.lost_s / within_s, 1.0) if within_s > 0 else 0.0
            out.lost[attempt] = [share * part for part in parts]
    return out


def _divide(
    out: Bill, rate: float, begin: float, end: float, up: Sequence[tuple[float, float]],
    held: Sequence[tuple[float, float, Try]],
) -> None:  # fmt: skip
    """One GPU of a node, from `begin` to `end`, at `rate` money a second."""
    changes: list[tuple[float, int, Try | None]] = []
    for since, until in up:
        changes += [(max(since, begin), 1, None), (min(until, end), -1, None)]
    for since, until, holder in held:
        if since < end and until > begin:
            changes += [(max(since, begin), 1, holder), (min(until, end), -1, holder)]
    changes.sort(key=lambda one: one[0])
    here: dict[Try, int] = {}
    ready, last = 0, begin
    for at_s, step, attempt in [*changes, (end, 0, None)]:
        at_s = min(max(at_s, begin), end)
        if (passed := at_s - last) > 0:
            _add(out.total, passed, rate)
            for one in here:
                _add(out.jobs[one], passed / len(here), rate)
            if not here:
                _add(out.idle if ready else out.down, passed, rate)
            last = at_s
        if attempt is None:
            ready += step
        elif (count := here.get(attempt, 0) + step) > 0:
            here[attempt] = count
        else:
            here.pop(attempt, None)


def _add(part: list[float], seconds: float, rate: float) -> None:
    part[0] += seconds
    part[1] += seconds * rate


class Billing:
    """The costs of a service, from its store and its measurements."""

    def __init__(self, store: Store, usages: Usages, prices: Prices | None) -> None:
        """Nothing is read yet. Without `prices` there are GPU-hours and no money."""
        self.prices = prices
        self._store, self._usages, self._stays = store, usages, Stays()
        self._known: dict[float, tuple[float, Costs]] = {}
        self._lock = threading.Lock()

    def of(self, hours: float, now_s: float) -> Costs:
        """The period of so many hours until now, from the beginning of its first hour; the same for some seconds."""
        with self._lock:
            known = self._known.get(hours)
            if known is not None and time.monotonic() - known[0] <= FRESH_S:
                return known[1]
            found = self._of(hours, now_s)
            self._known[hours] = time.monotonic(), found
            while len(self._known) > 20:
                del self._known[next(iter(self._known))]
            return found

    def _of(self, hours: float, now_s: float) -> Costs:
        for seq, text in self._store.entries_of(NODE_ENTRIES, self._stays.seq):
            self._stays.read(seq, json.loads(text))
        from_s = max((now_s - 3600 * hours) // 3600 * 3600, 0.0)
        rows = self._store.attempts_since(from_s)
        held = [
            Held(
                (job.number, one.epoch),
                tuple({(rank.node, rank.gpu): None for rank in one.ranks}),
                one.started_s or 0.0,
                math.inf if one.ended_s is None else one.ended_s,
                one.lost_work_s or 0.0,
            )
            for job, one in rows
        ]
        stays = [stay for stay in self._stays.all if stay.to_s > from_s]
        rates, unpriced = self._rates(stay.kind for stay in stays)
        found = bill(stays, held, rates, from_s, now_s)
        jobs = _of_jobs(found, self._usages.measured(from_s), {job.number: job for job, _ in rows})
        priced = self.prices is not None
        first_s = min((stay.from_s for stay in stays), default=now_s)
        return Costs(
            currency=self.prices.currency if self.prices else "",
            prices=dict(self.prices.per_gpu_h) if self.prices else None,
            unpriced=unpriced,
            from_s=round(max(from_s, first_s), 3),
            now_s=round(now_s, 3),
            total=_part(found.total, priced),
            jobs=_part(_sum(found.jobs.values()), priced),
            idle=_part(found.idle, priced),
            down=_part(found.down, priced),
            **_use(jobs, priced),
            lost=_part(_sum(found.lost.values()), priced),
            by_user=_grouped(jobs, "user", priced),
            by_project=_grouped(jobs, "project", priced),
            by_job=_grouped(jobs, "id", priced),
        )

    def _rates(self, kinds: Iterable[str]) -> tuple[dict[str, float], list[str]]:
        """Money per GPU-hour of each kind, and kinds that have none although others do."""
        known = sorted(set(kinds))
        if self.prices is None:
            return dict.fromkeys(known, 0.0), []
        unpriced = self.prices.missing(known)
        return {kind: self.prices.of(kind) for kind in known if kind not in unpriced}, unpriced


@dataclass(frozen=True)
class _JobCosts:
    """A job: whose it is, and its parts in GPU-seconds and money. `held_idle` is None if nothing of it was measured."""

    id: str
    user: str
    project: str
    held: list[float]
    lost: list[float]
    held_idle: list[float] | None
    unmeasured: list[float]


def _of_jobs(found: Bill, measured: Mapping[int, Measured], rows: Mapping[int, JobRow]) -> list[_JobCosts]:
    """The costs of each job. Use is counted from sample to sample: at most what it held."""
    held: dict[int, list[float]] = {}
    lost: dict[int, list[float]] = {}
    for (number, epoch), parts in found.jobs.items():
        held[number] = _sum([held.get(number, [0.0, 0.0]), parts])
        lost[number] = _sum([lost.get(number, [0.0, 0.0]), found.lost.get((number, epoch), [0.0, 0.0])])
    out = []
    for number, parts in held.items():
        idle_gpu_s, known_gpu_s = measured.get(number, Measured())
        idle, known = (min(s / parts[0], 1.0) if parts[0] > 0 else 0.0 for s in (idle_gpu_s, known_gpu_s))
        row = rows[number]
        held_idle = [idle * part for part in parts] if known_gpu_s > 0 else None
        unmeasured = [(1.0 - known) * part for part in parts]
        out.append(_JobCosts(row.id, row.user, row.project, parts, lost[number], held_idle, unmeasured))
    return out


def _grouped(jobs: Iterable[_JobCosts], name: str, priced: bool) -> list[CostRow]:
    """Sums over jobs of one user, project or name, largest first."""
    groups: dict[str, list[_JobCosts]] = defaultdict(list)
    for job in jobs:
        groups[getattr(job, name)].append(job)
    rows = [
        CostRow(
            held=_part(_sum(one.held for one in some), priced),
            lost=_part(_sum(one.lost for one in some), priced),
            **_use(some, priced),
            user=some[0].user if name in ("id", "user") else None,
            project=some[0].project if name in ("id", "project") else None,
            id=key if name == "id" else None,
        )
        for key, some in groups.items()
    ]
    return sorted(rows, key=lambda row: (-(row.held.cost or 0.0), -row.held.gpu_h, getattr(row, name)))


def _use(jobs: Sequence[_JobCosts], priced: bool) -> dict[str, Any]:
    """Of what these jobs held: what was idle, None if nothing of it was measured, and what was not measured."""
    idle = [one.held_idle for one in jobs if one.held_idle is not None]
    unmeasured = _part(_sum(one.unmeasured for one in jobs), priced)
    return {"held_idle": _part(_sum(idle), priced) if idle else None, "unmeasured": unmeasured}


def _sum(parts: Iterable[Sequence[float]]) -> list[float]:
    all_parts = list(parts)
    return [math.fsum(one[0] for one in all_parts), math.fsum(one[1] for one in all_parts)]


def _part(part: Sequence[float], priced: bool) -> Part:
    return Part(round(part[0] / 3600, 6), round(part[1], 6) if priced else None)
