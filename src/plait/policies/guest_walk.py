"""The walk of AntMan's global scheduler over jobs and GPUs, for thousands of both; `antman.py` defines its rules.

Many jobs at once are columns of NumPy; only jobs that may start are looked at one by one. The same walk, a job and a
GPU at a time, is `tests/reference/guest_walk.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import NamedTuple

import numpy as np

from plait.core.arrays import FloatArray, IntArray
from plait.core.compile_policy import either
from plait.policies import guest_walk_kernels as kernels
from plait.policies.guest_walk_kernels import (
    BYTES,
    CLOSED,
    CORES,
    GPUS,
    GUEST,
    GUESTS,
    HI,
    JOBS,
    KEPT,
    KIND,
    KINDS,
    LENDS,
    LO,
    LOAD,
    MOVED,
    NODE,
    POSITION,
    PROJECT,
    PROMOTED,
    STARTS,
    STATUS,
    STAYS,
    TAKEN,
    THERE,
    UP,
    USE,
)

#: Results for a job. It starts as a host; a guest becomes the host of its GPUs; it waits with a reservation; until its
#: project's quota has room; for more than its project may ever have; because too few GPUs are free of hosts and
#: reservations; as a guest, because too few GPUs are open to it. Between them, a guest that continues elsewhere,
#: starts, and one that loses its room to a host and finds none elsewhere: `MOVED`, `GUEST` and `DISPLACED`.
HOLDS, OVER_QUOTA, ABOVE_QUOTA, BEHIND, UNSHARED = range(6, 11)

#: GPUs that plain Python looks at for one unit of the work after which a kernel is compiled (`compile_policy`): in
#: 0.5 ms, five times the unit, because these kernels take several times as long to compile as others.
GPUS_A_UNIT = 300
#: CPU seconds to compile one of the kernels.
COMPILE_CPU_S = 3


class WalkJobs(NamedTuple):
    """Jobs, a row each.

    `whole` (n, 11): the request: GPUS of KINDS (a bit mask) for PROJECT; it holds `held[LO:HI]` if it runs; flags KEPT
    (may not be moved), STALLED (should be), LENDS (will be a guest if it cannot be a host, so nothing is reserved for
    it); its POSITION among all. Results: STATUS, and how many GPUs were THERE for it. `amounts` (n, 5 + resources of
    nodes): BYTES of memory of each of its GPUs, START_BYTES: the memory that it would start with elsewhere, which
    replaces BYTES once it has to leave; from USE on the parts of the time that it keeps a GPU, storage and cores busy
    when alone; from CORES on its `demands`. `left_s` (n,): known seconds until a job that runs or starts now has ended,
    infinite if unknown; `room_s` (n,): until it has ended or makes room for jobs ahead of it; `level` (n,): its queue:
    jobs of later ones stay behind. `given`: GPUs by row that a job starts on, moves to, or that are reserved for it,
    ascending; a result.
    """

    whole: IntArray
    amounts: FloatArray
    left_s: FloatArray
    room_s: FloatArray
    level: IntArray
    held: IntArray
    given: dict[int, IntArray]


class Devices(NamedTuple):
    """GPUs and nodes, a row each, at a moment of the walk.

    `whole` (gpus, 4): NODE; CLOSED: has a host, is reserved, or its node is down; JOBS on it, GUESTS among them.
    `amounts` (gpus, 5): CAPACITY in bytes, infinite where not known; TAKEN bytes of jobs and contexts; from LOAD on the
    parts of time that its jobs use of it, and of its storage and cores. `nodes` (nodes, 5): its GPUs are FIRST to
    before END, of KIND, in RACK, UP or not. `spare` (nodes, resources): of `Cluster.node_spare`.
    """

    whole: IntArray
    amounts: FloatArray
    nodes: IntArray
    spare: FloatArray


class GuestRules(NamedTuple):
    """A GPU takes guests below `limit` and up to `most` of them; `context` bytes come with each process.

    `kinds` and `racks`: how many there are. `backfill`: whether jobs start on GPUs reserved for others if that delays
    none of these.
    """

    limit: float
    most: int
    context: float
    kinds: int
    racks: int
    backfill: bool


class Lists(NamedTuple):
    """Rows of jobs. `hosts` and `guests` run, the latter in their order; `asking` are waiting candidates for guests.

    `queue[first[t]:first[t + 1]]`: candidates of project t for hosts, best first; guests among them would be promoted.
    `holders` have a reservation and go first. `stoppable`: hosts that make room for jobs ahead of them, last first.
    """

    hosts: IntArray
    guests: IntArray
    asking: IntArray
    queue: IntArray
    first: IntArray
    holders: IntArray
    stoppable: IntArray


class Projects(NamedTuple):
    """GPUs that projects may have: `quota` by kind, `total` of all kinds; usage is compared with `share`."""

    quota: FloatArray
    total: FloatArray
    share: FloatArray


def walk(
    lists: Lists, projects: Projects, jobs: WalkJobs, devices: Devices, rules: GuestRules, measured: FloatArray
) -> IntArray:  # fmt: skip
    """Fill in the results of the jobs; return the rows of candidates for hosts in the order of their turn.

    `measured` (gpus,): use of GPUs with jobs whose own use is not known, NaN elsewhere; it counts where no job starts.
    """
    floor = _Floor(jobs, devices, rules)
    turns = _Hosts(floor, lists, projects).admit()
    admit_guests(floor, lists, measured)
    return turns


class _Floor:
    """Jobs on GPUs at a moment of the walk."""

    def __init__(self, jobs: WalkJobs, devices: Devices, rules: GuestRules) -> None:
        self.jobs, self.devices, self.rules = jobs, devices, rules

    def seat_running(self, lists: Lists, used: FloatArray) -> tuple[IntArray, IntArray]:
        """Put hosts, and guests that may not be moved, on their GPUs; GPUs without hosts by kind and by node.

        `used` (projects, kinds) gets the GPUs of hosts.
        """
        jobs, devices = self.jobs, self.devices
        call = either(kernels.seat_running, _work(len(jobs.held) + len(devices.whole)), COMPILE_CPU_S)
        return call(
            lists.hosts, lists.guests, jobs.whole, jobs.amounts, jobs.held, self.rules.context, devices.whole,
            devices.amounts, devices.nodes, devices.spare, used,
        )  # fmt: skip

    def become_host(self, row: int, gpus: IntArray) -> None:
        whole, amounts, ask = self.devices.whole, self.devices.amounts, self.jobs.amounts[row]
        np.subtract.at(self.devices.spare, whole[gpus, NODE], ask[CORES:])
        amounts[gpus, TAKEN] += ask[BYTES] + self.rules.context
        amounts[gpus, LOAD:] += ask[USE:CORES]
        whole[gpus, JOBS] += 1
        whole[gpus, CLOSED] += 1

    def held_by(self, row: int) -> IntArray:
        return self.jobs.held[self.jobs.whole[row, LO] : self.jobs.whole[row, HI]]

    def kind_of(self, gpus: IntArray) -> int:
        return int(self.devices.nodes[self.devices.whole[gpus[0], NODE], KIND])

    def release(self, row: int, column: int) -> None:
        """Take a guest (`column` GUESTS) or a host (CLOSED) off its GPUs."""
        whole, amounts, ask, gpus = self.devices.whole, self.devices.amounts, self.jobs.amounts[row], self.held_by(row)
        np.add.at(self.devices.spare, whole[gpus, NODE], ask[CORES:])
        amounts[gpus, TAKEN] -= ask[BYTES] + self.rules.context
        amounts[gpus, LOAD:] -= ask[USE:CORES]
        whole[gpus, JOBS] -= 1
        whole[gpus, column] -= 1

    def start_host(self, row: int, need: int, kinds: int, free: IntArray) -> tuple[int, IntArray]:
        """The best GPUs of one of `kinds` (a bit mask): that kind and the GPUs. The host starts there if it gets all.

        `free` (nodes,): GPUs without hosts and reservations; the host's GPUs are subtracted.
        """
        devices, rules, out = self.devices, self.rules, np.empty(need, dtype=np.int64)
        kind, got = either(kernels.start_host, _work(len(devices.whole)), COMPILE_CPU_S)(
            need, self.jobs.amounts[row], rules.context, kinds, rules.racks, devices.whole, devices.amounts,
            devices.nodes, devices.spare, free, out,
        )  # fmt: skip
        out = out[:got]
        out.sort()
        return int(kind), out


class _Hosts:
    """The turns of the candidates for hosts."""

    def __init__(self, floor: _Floor, lists: Lists, projects: Projects) -> None:
        self.floor, self.lists = floor, lists
        self.quota, self.total, self.share = (column.tolist() for column in projects)
        self.closed = [False] * len(self.total)  # no job of the project can start any more, whatever its request
        used = np.zeros((len(self.total), floor.rules.kinds))
        free, self.free_on = floor.seat_running(lists, used)
        self.used, self.free = used.tolist(), free.tolist()
        self.claimed = np.zeros_like(used).tolist()  # GPUs that jobs ahead wait for
        jobs = floor.jobs
        self.holds: list[int] = []  # rows with a reservation
        self.claimants: dict[int, _Claim] = {}  # the first job of each project that waits for its quota
        self.stoppable: list[int] = lists.stoppable.tolist()
        self.promotable = int((jobs.whole[lists.queue, HI] > jobs.whole[lists.queue, LO]).sum())
        self.done = np.zeros(len(jobs.whole), dtype=np.bool_)
        self.order: list[IntArray | list[int]] = []

    def admit(self) -> IntArray:
        """Serve jobs in turn while any can start; returns the rows of the queue in that order."""
        queue, first, whole = self.lists.queue, self.lists.first.tolist(), self.floor.jobs.whole
        for row in self.lists.holders.tolist():
            self._turn(row)
        heads = first[:-1]
        turns = [self._key(t, heads[t]) for t in range(len(heads)) if heads[t] < first[t + 1]]
        heapify(turns)
        while turns and (self.promotable + sum(self.free) > 0 or self.stoppable):
            mine, _, t = heappop(turns)
            if self.closed[t]:
                heads[t] = self._skip(heads[t], first[t + 1], mine, turns)
            else:
                self._turn(int(queue[heads[t]]))
                heads[t] += 1
            if heads[t] < first[t + 1]:
                heappush(turns, self._key(t, heads[t]))
        rest = queue[~self.done[queue]]  # nothing was left when their turn would have come
        whole[rest[whole[rest, HI] == whole[rest, LO]], STATUS] = BEHIND
        in_turn: IntArray = np.concatenate([*self.order, rest]).astype(np.int64)
        if self.floor.rules.backfill and (self.holds or self.claimants):
            self._backfill(in_turn)
        return in_turn

    def _key(self, t: int, at: int) -> tuple[float, int, int]:
        """The project that uses least of its share goes first; at equal ones whose job is first."""
        return sum(self.used[t]) / self.share[t], int(self.floor.jobs.whole[self.lists.queue[at], POSITION]), t

    def _skip(self, lo: int, hi: int, mine: float, turns: list[tuple[float, int, int]]) -> int:
        """Skip the turns of a closed project until another one's, all at once; return where its queue continues."""
        whole = self.floor.jobs.whole
        rows = self.lists.queue[lo:hi]
        if turns and turns[0][0] == mine:
            rows = rows[: max(int(np.searchsorted(whole[rows, POSITION], turns[0][1])), 1)]
        new = ~self.done[rows]
        if not sum(self.free):  # until the last one that could be promoted
            promotable = np.cumsum(new & (whole[rows, HI] > whole[rows, LO]))
            end = int(np.searchsorted(promotable, self.promotable)) + 1
            rows, new = rows[:end], new[:end]
        end, rows = lo + len(rows), rows[new]
        self.done[rows] = True
        self.order.append(rows)
        waits = whole[rows, HI] == whole[rows, LO]
        self.promotable -= int((~waits).sum())
        self._over_quota(rows[waits])
        return end

    def _over_quota(self, rows: IntArray) -> None:
        """Jobs of one project wait for its quota, or can never have it."""
        if len(rows):
            whole = self.floor.jobs.whole
            ever = np.array([self._ever(*ask) >= 0 for ask in whole[rows][:, [PROJECT, GPUS, KINDS]].tolist()])
            whole[rows, STATUS] = np.where(ever, OVER_QUOTA, ABOVE_QUOTA)

    def _ever(self, t: int, need: int, kinds: int) -> int:
        """The first kind of which the project may have as many; -1 if none."""
        for kind, quota in enumerate(self.quota[t]):
            if (kinds >> kind) & 1 and need <= min(quota, self.total[t]):
                return kind
        return -1

    def _turn(self, row: int) -> None:
        """The turn of one job, unless it had it: start, promote, reserve, or wait."""
        if self.done[row]:
            return
        self.done[row] = True
        self.order.append([row])
        need, t, kinds, lo, hi = self.floor.jobs.whole[row, :KEPT].tolist()
        allowed = self._allowed(t, need, kinds, self.claimed[t])
        if hi > lo:
            self.promotable -= 1
            if hi - lo == need:
                kind = self.floor.kind_of(self.floor.held_by(row))
                if allowed[kind]:
                    self._promote(row, t, kind)
        elif self.stoppable and not self._behind_reservation(row) and self._stop_for(row, t, need, kinds):
            pass
        elif not any(allowed):
            # Claim GPUs for a job that its project's quota has no room for now
            whole, ever = self.floor.jobs.whole, self._ever(t, need, kinds)
            whole[row, STATUS] = OVER_QUOTA if ever >= 0 else ABOVE_QUOTA
            if ever >= 0 and not whole[row, LENDS]:
                self._wait_first(t, ever, need)
                self._claim(t, ever, need)
        else:
            self._place(row, t, need, allowed)

    def _allowed(self, t: int, need: int, kinds: int, claimed: list[float]) -> list[bool]:
        """For each GPU kind, whether the quota of project `t` leaves `need` GPUs after use and `claimed`."""
        used, quota = self.used[t], self.quota[t]
        in_all = sum(used) + sum(claimed) + need <= self.total[t]
        return [
            in_all and (kinds >> kind) & 1 == 1 and used[kind] + claimed[kind] + need <= quota[kind]
            for kind in range(len(quota))
        ]

    def _wait_first(self, t: int, kind: int, need: int) -> None:
        """Note a job of project `t` that waits for its quota, unless there is one ahead of it."""
        claimed = self.claimed[t]
        self.claimants.setdefault(t, _Claim(kind, sum(claimed) + need, claimed[kind] + need, any(claimed)))

    def _claim(self, t: int, kind: int, need: int) -> None:
        self.claimed[t][kind] += need
        used, claimed, quota = self.used[t], self.claimed[t], self.quota[t]
        self.closed[t] = sum(used) + sum(claimed) + 1 > self.total[t] or all(
            u + c + 1 > q for u, c, q in zip(used, claimed, quota, strict=True)
        )

    def _place(self, row: int, t: int, need: int, allowed: list[bool]) -> None:
        """Start a job that its quota allows, reserve for it, or let it wait behind others."""
        floor, whole = self.floor, self.floor.jobs.whole
        room = max(free for free, may in zip(self.free, allowed, strict=True) if may)
        whole[row, STATUS], whole[row, THERE] = BEHIND, room
        if room == 0:
            return
        mask = sum(1 << kind for kind, may in enumerate(allowed) if may)
        kind, gpus = self._start(row, t, need, mask)
        whole[row, THERE] = len(gpus)
        if whole[row, STATUS] != STARTS and kind >= 0 and not whole[row, LENDS]:
            whole[row, STATUS], floor.jobs.given[row] = HOLDS, gpus
            floor.devices.whole[gpus, CLOSED] = 1
            self.holds.append(row)
            self._claim(t, kind, need)
            self._close(kind, gpus)

    def _start(self, row: int, t: int, need: int, mask: int) -> tuple[int, IntArray]:
        """Start a job if it finds all GPUs of one of the kinds in `mask`; the kind and the GPUs that it found."""
        floor = self.floor
        kind, gpus = floor.start_host(row, need, mask, self.free_on)
        if kind >= 0 and len(gpus) == need:
            floor.jobs.whole[row, STATUS], floor.jobs.given[row] = STARTS, gpus
            self.used[t][kind] += need
            self.free[kind] -= need
        return kind, gpus

    def _close(self, kind: int, gpus: IntArray) -> None:
        """GPUs of a kind have got a host or a reservation."""
        self.free[kind] -= len(gpus)
        np.subtract.at(self.free_on, self.floor.devices.whole[gpus, NODE], 1)

    def _open(self, kind: int, gpus: IntArray) -> None:
        """GPUs of a kind have lost their host or their reservation."""
        self.free[kind] += len(gpus)
        np.add.at(self.free_on, self.floor.devices.whole[gpus, NODE], 1)

    def _promote(self, row: int, t: int, kind: int) -> None:
        """Make a guest the host of its GPUs, if they have none and are not reserved."""
        floor = self.floor
        gpus = floor.held_by(row)
        if floor.devices.whole[gpus, CLOSED].any():
            return
        if floor.jobs.whole[row, KEPT]:
            floor.release(row, GUESTS)
        else:
            floor.devices.whole[gpus, GUESTS] -= 1
        floor.become_host(row, gpus)
        floor.jobs.whole[row, STATUS] = PROMOTED
        self.used[t][kind] += len(gpus)
        self._close(kind, gpus)

    def _behind_reservation(self, row: int) -> bool:
        """Whether GPUs are reserved for a job ahead of this one, which needs GPUs of hosts that are stopped."""
        position = self.floor.jobs.whole[:, POSITION]
        return any(position[other] < position[row] for other in self.holds)

    def _stop_for(self, row: int, t: int, need: int, kinds: int) -> bool:
        """Stop as few hosts behind a job as it needs to start, last ones first; none if that is not enough."""
        whole = self.floor.jobs.whole

        def mask() -> int:
            allowed = self._allowed(t, need, kinds, self.claimed[t])
            return sum(1 << kind for kind, may in enumerate(allowed) if may and self.free[kind] >= need)

        if mask():
            return False
        stopped: list[int] = []
        for other in self.stoppable:
            if mask() or whole[other, POSITION] < whole[row, POSITION]:
                break
            if whole[other, PROJECT] == t or (kinds >> self.floor.kind_of(self.floor.held_by(other))) & 1:
                self._stop(other)
                stopped.append(other)
        if stopped and mask():
            for other in stopped[::-1]:
                self._go_on(other)
                if mask():
                    stopped.remove(other)
                else:
                    self._stop(other)
            self._start(row, t, need, mask())
        if whole[row, STATUS] != STARTS:
            for other in stopped:
                self._go_on(other)
            return False
        whole[stopped, STATUS] = BEHIND
        self.stoppable = [other for other in self.stoppable if other not in stopped]
        return True

    def _stop(self, row: int) -> None:
        gpus = self.floor.held_by(row)
        kind = self.floor.kind_of(gpus)
        self.floor.release(row, CLOSED)
        self.used[self.floor.jobs.whole[row, PROJECT]][kind] -= len(gpus)
        self._open(kind, gpus)

    def _go_on(self, row: int) -> None:
        """Undo `_stop`."""
        gpus = self.floor.held_by(row)
        kind = self.floor.kind_of(gpus)
        self.floor.become_host(row, gpus)
        self.used[self.floor.jobs.whole[row, PROJECT]][kind] += len(gpus)
        self._close(kind, gpus)

    def _backfill(self, turns: IntArray) -> None:
        """Start jobs behind reservations and claims where that delays none of these, by what is known.

        A job passes if it has ended before the reserved GPUs are complete, or leaves enough for then. One that takes
        quota that others of its project claim passes only if it has ended before they can start. The first reservation
        of a kind keeps a GPU, because jobs with reservations go first from then on.
        """
        floor, jobs, whole = self.floor, self.floor.jobs, self.floor.jobs.whole
        status = self.floor.jobs.whole[turns, STATUS]
        hosts: IntArray = turns[(status == STARTS) | (status == PROMOTED)]
        ends = _Ends(floor, np.concatenate([self.lists.hosts, hosts]))
        holds, quota_s = self._reopen(ends), dict[int, float]()
        for row in turns[np.isin(whole[turns, STATUS], (BEHIND, OVER_QUOTA))].tolist():
            if sum(self.free) <= len(holds) and not self.stoppable:
                break
            need, t, kinds = whole[row, :LO].tolist()
            allowed = self._allowed(t, need, kinds, [0.0] * len(self.free))
            if not any(allowed):
                if not whole[row, LENDS] and (ever := self._ever(t, need, kinds)) >= 0:
                    self._wait_first(t, ever, need)
                continue
            spare = [False] if t in self.claimants else self._allowed(t, need, kinds, self.claimed[t])
            if spare != allowed:
                if t not in quota_s:
                    quota_s[t] = self._claims_s(ends, t, holds)
                if not _by(jobs.left_s[row], quota_s[t]):
                    continue
            mask = yielding = 0
            for kind, may in enumerate(allowed):
                hold, free = holds.get(kind), self.free[kind]
                if may and (need <= free if hold is None else need < free and hold.admits(jobs, row, need)):
                    mask |= 1 << kind
                if may and hold is not None and hold.in_time(jobs, row):
                    yielding |= 1 << kind
            if mask:
                kind, _ = self._start(row, t, need, mask)
                if whole[row, STATUS] == STARTS and kind in holds and not holds[kind].in_time(jobs, row):
                    holds[kind].more -= need
            elif yielding and self.stoppable:
                self._stop_for(row, t, need, yielding)
        for row in self.holds:
            gpus = jobs.given[row]
            jobs.given[row] = gpus[floor.devices.whole[gpus, CLOSED] == 0]

    def _reopen(self, ends: _Ends) -> dict[int, _Hold]:
        """Open reserved GPUs again; by kind, when the first reservation is complete."""
        holds: dict[int, _Hold] = {}
        for row in self.holds:
            gpus = self.floor.jobs.given[row]
            kind, missing = self.floor.kind_of(gpus), float(self.floor.jobs.whole[row, GPUS] - len(gpus))
            if kind in holds:
                holds[kind].more = 0.0
            else:
                position = int(self.floor.jobs.whole[row, POSITION])
                holds[kind] = _Hold(int(self.floor.jobs.level[row]), *ends.when(missing, kind=kind, behind=position))
            self.floor.devices.whole[gpus, CLOSED] = 0
            self._open(kind, gpus)
        return holds

    def _claims_s(self, ends: _Ends, t: int, holds: Mapping[int, _Hold]) -> float:
        """Seconds until the first of the jobs of a project that claim some of its quota can start."""
        whole, given = self.floor.jobs.whole, self.floor.jobs.given
        times = [holds[self.floor.kind_of(given[row])].at_s for row in self.holds if whole[row, PROJECT] == t]
        if t in self.claimants:
            claim, used = self.claimants[t], self.used[t]
            in_all, _ = ends.when(sum(used) + claim.in_all - self.total[t], project=t)
            of_kind, _ = ends.when(used[claim.kind] + claim.of_kind - self.quota[t][claim.kind], claim.kind, t)
            if not (claim.behind and math.isinf(max(in_all, of_kind))):  # else one with a reservation is first
                times.append(max(in_all, of_kind))
        return min(times) if times and max(times) < math.inf else math.inf


def _by(left_s: float, at_s: float) -> bool:
    """Whether an end is known to come in `at_s` seconds; infinite: unknown."""
    return bool(left_s <= at_s < math.inf)


class _Claim(NamedTuple):
    """GPUs that a waiting job and the jobs ahead of it claim, in all and of its kind; whether there are some ahead."""

    kind: int
    in_all: float
    of_kind: float
    behind: bool


@dataclass
class _Hold:
    """The first reservation of a kind: complete in `at_s` seconds, with so many GPUs `more` than it needs."""

    level: int  # of the job that it is for
    at_s: float
    more: float

    def in_time(self, jobs: WalkJobs, row: int) -> bool:
        """Whether a job that starts now is known to leave its GPUs before the reservation is complete."""
        behind = jobs.level[row] > self.level
        return _by(jobs.room_s[row] if behind else jobs.left_s[row], self.at_s)

    def admits(self, jobs: WalkJobs, row: int, need: int) -> bool:
        """Whether a job may start on `need` reserved GPUs."""
        return self.in_time(jobs, row) or need <= self.more


class _Ends:
    """Known ends of hosts."""

    def __init__(self, floor: _Floor, rows: IntArray) -> None:
        """`rows` of hosts; stopped hosts, and hosts whose nodes are down, make no room."""
        jobs, devices = floor.jobs, floor.devices
        rows = rows[jobs.whole[rows, STATUS] != BEHIND]
        starts = jobs.whole[rows, STATUS] == STARTS
        first = np.empty(len(rows), dtype=np.int64)
        first[~starts] = jobs.held[jobs.whole[rows[~starts], LO]]
        first[starts] = [jobs.given[row][0] for row in rows[starts].tolist()]
        node = devices.whole[first, NODE]
        up = devices.nodes[node, UP] == 1
        rows, self.kind = rows[up], devices.nodes[node[up], KIND]
        self.left_s, self.room_s, self.gpus = jobs.left_s[rows], jobs.room_s[rows], jobs.whole[rows, GPUS]
        self.position, self.project = jobs.whole[rows, POSITION], jobs.whole[rows, PROJECT]

    def when(self, missing: float, kind: int = -1, project: int = -1, behind: float = math.inf) -> tuple[float, float]:
        """Seconds until hosts of a kind and project (-1: all) leave `missing` GPUs, and how many more they leave then.

        Hosts `behind` a position make room for it. Infinite and none if that is unknown.
        """
        if missing <= 0:
            return 0.0, -missing
        some = ((self.kind == kind) | (kind < 0)) & ((self.project == project) | (project < 0))
        left_s = np.where(self.position > behind, self.room_s, self.left_s)[some]
        order = np.argsort(left_s, kind="stable")
        left_s, gpus = left_s[order], np.cumsum(self.gpus[some][order])
        at = int(np.searchsorted(gpus, missing))
        if at == len(gpus) or math.isinf(left_s[at]):
            return math.inf, 0.0
        last = int(np.searchsorted(left_s, left_s[at], side="right")) - 1
        return float(left_s[at]), float(gpus[last] - missing)


def admit_guests(floor: _Floor, lists: Lists, measured: FloatArray) -> None:
    """Guests stay where hosts leave room; guests without room or time, then waiting ones: on the least used GPUs."""
    jobs, devices, rules = floor.jobs, floor.devices, floor.rules
    whole = jobs.whole
    if jobs.given and not np.isnan(measured).all():
        measured = measured.copy()
        measured[np.concatenate(list(jobs.given.values()))] = np.nan
    call = either(kernels.keep_guests, _work(len(jobs.held) + len(devices.whole)), COMPILE_CPU_S)
    moves, count = call(
        lists.guests, whole, jobs.amounts, jobs.held, rules.context, rules.limit, rules.most, measured, devices.whole,
        devices.amounts, devices.nodes, devices.spare, rules.kinds,
    )  # fmt: skip
    asking = lists.asking[whole[lists.asking, STATUS] != STARTS]
    rows = np.concatenate([moves, asking])
    if len(rows):
        _start_guests(floor, rows, count)
    waits = (whole[asking, STATUS] == STAYS) | (whole[asking, STATUS] == BEHIND)
    whole[asking[waits], STATUS] = UNSHARED


def _start_guests(floor: _Floor, rows: IntArray, count: IntArray) -> None:
    """Put guests on GPUs, all or nothing; `count` (kinds,): open GPUs."""
    jobs, devices, rules = floor.jobs, floor.devices, floor.rules
    out = np.empty(int(jobs.whole[rows, GPUS].sum()), dtype=np.int64)
    tries = 1 + min(int((jobs.whole[rows, GPUS] <= count.max()).sum()), int(count.sum()))
    either(kernels.start_guests, _work(tries * len(devices.whole)), COMPILE_CPU_S)(
        rows, jobs.whole, jobs.amounts, jobs.held, rules.context, rules.limit, rules.most, devices.whole,
        devices.amounts, devices.nodes, devices.spare, count, out,
    )  # fmt: skip
    status, filled = jobs.whole[rows, STATUS], 0
    for row in rows[(status == GUEST) | (status == MOVED)].tolist():
        gpus = out[filled : filled + int(jobs.whole[row, GPUS])]
        gpus.sort()
        jobs.given[row] = gpus
        filled += len(gpus)


def _work(gpus: int) -> int:
    """Looking at so many GPUs, in the unit of `compile_policy`."""
    return 1 + gpus // GPUS_A_UNIT
