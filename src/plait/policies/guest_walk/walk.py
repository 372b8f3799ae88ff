"""The walk of AntMan's global scheduler over jobs and GPUs, for thousands of both; `antman.py` says what it decides.

Many jobs at once are columns of NumPy; only jobs that may start are looked at one by one. The same walk, a job and a
GPU at a time, is `tests/reference/guest_walk.py`.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import NamedTuple

import numpy as np

from plait.core.arrays import FloatArray, IntArray
from plait.core.compile_policy import either
from plait.policies.guest_walk import kernels as k
from plait.policies.guest_walk.kernels import (
    BYTES,
    CLOSED,
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
    USE,
)

#: What becomes of a job. It starts as a host; a guest becomes the host of its GPUs; it waits with a reservation; until
#: its project's quota has room; for more than its project may ever have; because too few GPUs are free of hosts and
#: reservations; as a guest, because too few GPUs are open to it. Between them, a guest that goes on elsewhere, starts,
#: and one that a host leaves no room for and that finds none elsewhere: `MOVED`, `GUEST` and `DISPLACED`.
HOLDS, OVER_QUOTA, ABOVE_QUOTA, BEHIND, UNSHARED = range(6, 11)

#: GPUs that plain Python looks at for one unit of the work after which a kernel is compiled (`compile_policy`): in
#: 0.5 ms, five times the unit, because these kernels take several times as long to compile as others.
GPUS_A_UNIT = 300
#: What compiling one of the kernels takes, seconds of CPU time.
COMPILE_CPU_S = 3


class Jobs(NamedTuple):
    """Jobs, a row each.

    `whole` (n, 11): what a job asks for: GPUS of KINDS (a bit mask) for PROJECT; it holds `held[LO:HI]` if it runs;
    flags KEPT (may not be moved), STALLED (should be), LENDS (will be a guest if it cannot be a host, so nothing is
    reserved for it); its POSITION among all. Results: STATUS, and how many GPUs were THERE for it. `amounts` (n, 5):
    CORES and HOST_BYTES for each of its GPUs, BYTES of GPU memory, USE: the part of the time that it keeps a GPU busy
    when alone, and START_BYTES: the memory that it would start with elsewhere, in place of BYTES once it has to leave.
    `given`: GPUs by row that a job starts on, moves to, or that are reserved for it, ascending; a result.
    """

    whole: IntArray
    amounts: FloatArray
    held: IntArray
    given: dict[int, IntArray]


class Devices(NamedTuple):
    """GPUs and nodes, a row each, at a moment of the walk.

    `whole` (gpus, 4): NODE; CLOSED: has a host, is reserved, or its node is down; JOBS on it, GUESTS of those.
    `amounts` (gpus, 3): CAPACITY in bytes, infinite where not known; TAKEN bytes of jobs and contexts; LOAD: the parts
    of time that its jobs use. `nodes` (nodes, 5): its GPUs are FIRST to before END, of KIND, in RACK, UP or not.
    `spare` (nodes, 2): CORES and HOST_BYTES.
    """

    whole: IntArray
    amounts: FloatArray
    nodes: IntArray
    spare: FloatArray


class Rules(NamedTuple):
    """A GPU takes guests below `limit` and up to `most` of them; `context` bytes come with each process.

    `kinds` and `racks`: how many there are.
    """

    limit: float
    most: int
    context: float
    kinds: int
    racks: int


class Lists(NamedTuple):
    """Rows of jobs. `hosts` and `guests` run, the latter in their order; `asking` are those that would be guests.

    `queue[first[t]:first[t + 1]]`: those of project t that want to be hosts, best first; guests among them would be
    promoted. `holders` have a reservation.
    """

    hosts: IntArray
    guests: IntArray
    asking: IntArray
    queue: IntArray
    first: IntArray
    holders: IntArray


class Projects(NamedTuple):
    """GPUs that projects may have: `quota` by kind, `total` of all kinds; usage is compared with `share`."""

    quota: FloatArray
    total: FloatArray
    share: FloatArray


def walk(
    lists: Lists, projects: Projects, jobs: Jobs, devices: Devices, rules: Rules, measured: FloatArray
) -> IntArray:  # fmt: skip
    """Fill in what becomes of the jobs; returns the rows of those who want to be hosts in the order of their turn.

    `measured` (gpus,): use of GPUs with jobs whose own use is not known, NaN elsewhere; it counts where no job starts.
    """
    floor = _Floor(jobs, devices, rules)
    turns = _Hosts(floor, lists, projects).admit()
    admit_guests(floor, lists, measured)
    return turns


class _Floor:
    """Jobs on GPUs at a moment of the walk."""

    def __init__(self, jobs: Jobs, devices: Devices, rules: Rules) -> None:
        self.jobs, self.devices, self.rules = jobs, devices, rules

    def seat_running(self, lists: Lists, used: FloatArray) -> tuple[IntArray, IntArray]:
        """Put hosts, and guests that may not be moved, on their GPUs; GPUs without hosts by kind and by node.

        `used` (projects, kinds) gets the GPUs of hosts.
        """
        jobs, devices = self.jobs, self.devices
        call = either(k.seat_running, _work(len(jobs.held) + len(devices.whole)), COMPILE_CPU_S)
        return call(
            lists.hosts, lists.guests, jobs.whole, jobs.amounts, jobs.held, self.rules.context, devices.whole,
            devices.amounts, devices.nodes, devices.spare, used,
        )  # fmt: skip

    def become_host(self, row: int, gpus: IntArray) -> None:
        """Put a guest on `gpus` as their host."""
        whole, amounts, ask = self.devices.whole, self.devices.amounts, self.jobs.amounts[row]
        np.subtract.at(self.devices.spare, whole[gpus, NODE], ask[:BYTES])
        amounts[gpus, TAKEN] += ask[BYTES] + self.rules.context
        amounts[gpus, LOAD] += ask[USE]
        whole[gpus, JOBS] += 1
        whole[gpus, CLOSED] += 1

    def release(self, row: int) -> None:
        """Take a guest off its GPUs."""
        whole, amounts, ask = self.devices.whole, self.devices.amounts, self.jobs.amounts[row]
        gpus = self.jobs.held[self.jobs.whole[row, LO] : self.jobs.whole[row, HI]]
        np.add.at(self.devices.spare, whole[gpus, NODE], ask[:BYTES])
        amounts[gpus, TAKEN] -= ask[BYTES] + self.rules.context
        amounts[gpus, LOAD] -= ask[USE]
        whole[gpus, JOBS] -= 1
        whole[gpus, GUESTS] -= 1

    def start_host(self, row: int, need: int, kinds: int, free: IntArray) -> tuple[int, IntArray]:
        """The best GPUs of one of `kinds` (a bit mask): that kind and the GPUs. The host starts there if it gets all.

        `free` (nodes,): GPUs without hosts and reservations; those on which the host starts go off.
        """
        devices, rules, out = self.devices, self.rules, np.empty(need, dtype=np.int64)
        kind, got = either(k.start_host, _work(len(devices.whole)), COMPILE_CPU_S)(
            need, self.jobs.amounts[row], rules.context, kinds, rules.racks, devices.whole, devices.amounts,
            devices.nodes, devices.spare, free, out,
        )  # fmt: skip
        out = out[:got]
        out.sort()
        return int(kind), out


class _Hosts:
    """The turns of those who want to be hosts."""

    def __init__(self, floor: _Floor, lists: Lists, projects: Projects) -> None:
        self.floor, self.lists = floor, lists
        self.quota, self.total, self.share = (column.tolist() for column in projects)
        self.closed = [False] * len(self.total)  # nobody of the project can start any more, whatever it asks for
        used = np.zeros((len(self.total), floor.rules.kinds))
        free, self.free_on = floor.seat_running(lists, used)
        self.used, self.free = used.tolist(), free.tolist()
        self.claimed = np.zeros_like(used).tolist()  # GPUs that jobs ahead wait for
        jobs = floor.jobs
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
        while turns and self.promotable + sum(self.free) > 0:
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
        return np.concatenate([*self.order, rest]).astype(np.int64)

    def _key(self, t: int, at: int) -> tuple[float, int, int]:
        """The project that uses least of its share goes first; at equal ones whose job is first."""
        return sum(self.used[t]) / self.share[t], int(self.floor.jobs.whole[self.lists.queue[at], POSITION]), t

    def _skip(self, lo: int, hi: int, mine: float, turns: list[tuple[float, int, int]]) -> int:
        """The turns of a closed project until another one's, all at once; where its queue goes on."""
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
        used, claimed, quota = self.used[t], self.claimed[t], self.quota[t]
        in_all = sum(used) + sum(claimed) + need <= self.total[t]
        allowed = [
            in_all and (kinds >> kind) & 1 == 1 and used[kind] + claimed[kind] + need <= quota[kind]
            for kind in range(len(quota))
        ]
        if hi > lo:
            self.promotable -= 1
            if hi - lo == need:
                node = self.floor.devices.whole[self.floor.jobs.held[lo], NODE]
                kind = int(self.floor.devices.nodes[node, KIND])
                if allowed[kind]:
                    self._promote(row, t, kind)
        elif not any(allowed):
            self._wait_for_quota(row, t, need, kinds)
        else:
            self._place(row, t, need, allowed)

    def _wait_for_quota(self, row: int, t: int, need: int, kinds: int) -> None:
        """Claim GPUs for a job that its project's quota has no room for now."""
        whole, ever = self.floor.jobs.whole, self._ever(t, need, kinds)
        whole[row, STATUS] = OVER_QUOTA if ever >= 0 else ABOVE_QUOTA
        if ever >= 0 and not whole[row, LENDS]:
            self._claim(t, ever, need)

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
        kind, gpus = floor.start_host(row, need, mask, self.free_on)
        whole[row, THERE] = len(gpus)
        if kind >= 0 and len(gpus) == need:
            whole[row, STATUS], floor.jobs.given[row] = STARTS, gpus
            self.used[t][kind] += need
            self.free[kind] -= need
        elif kind >= 0 and not whole[row, LENDS]:
            whole[row, STATUS], floor.jobs.given[row] = HOLDS, gpus
            floor.devices.whole[gpus, CLOSED] = 1
            self._claim(t, kind, need)
            self._close(kind, gpus)

    def _close(self, kind: int, gpus: IntArray) -> None:
        """GPUs of a kind have got a host or a reservation."""
        self.free[kind] -= len(gpus)
        np.subtract.at(self.free_on, self.floor.devices.whole[gpus, NODE], 1)

    def _promote(self, row: int, t: int, kind: int) -> None:
        """Make a guest the host of its GPUs, if they have none and are not reserved."""
        floor = self.floor
        gpus = floor.jobs.held[floor.jobs.whole[row, LO] : floor.jobs.whole[row, HI]]
        if floor.devices.whole[gpus, CLOSED].any():
            return
        if floor.jobs.whole[row, KEPT]:
            floor.release(row)
        else:
            floor.devices.whole[gpus, GUESTS] -= 1
        floor.become_host(row, gpus)
        floor.jobs.whole[row, STATUS] = PROMOTED
        self.used[t][kind] += len(gpus)
        self._close(kind, gpus)


def admit_guests(floor: _Floor, lists: Lists, measured: FloatArray) -> None:
    """Guests stay where hosts leave room; those without room or time, then those that wait: on the least used GPUs."""
    jobs, devices, rules = floor.jobs, floor.devices, floor.rules
    whole = jobs.whole
    if jobs.given and not np.isnan(measured).all():
        measured = measured.copy()
        measured[np.concatenate(list(jobs.given.values()))] = np.nan
    call = either(k.keep_guests, _work(len(jobs.held) + len(devices.whole)), COMPILE_CPU_S)
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
    either(k.start_guests, _work(tries * len(devices.whole)), COMPILE_CPU_S)(
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
