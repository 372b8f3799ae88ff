"""The token gate: as many jobs on a resource as it has slots, first come, first served, for a quantum at a time.

Each slot is a flock, so the death of a holder frees its slot and no two jobs hold the same one. The queue is in the
group's page: each waiting thread has a row with the resource it needs and since when, and the oldest tries the lock.
The order is advisory: a slot that stays free for 20 ms, because the oldest thread is stopped, goes to any thread that
checks. A row belongs to the thread that holds its lock, so rows of dead threads are recognised and reused.

**The quantum** protects a job with short stages from the pace of one with long stages. At a yield point a holder that
has used it up queues again if another thread waits whose stage is expected to take less than half of the rest of its
own. Among stages of about the same length, giving way in the middle would only delay both: for four jobs with one
bottleneck each it costs half of the gain of interleaving. A stage that is the first of its kind, or longer than usual,
is expected to last as long again as it has.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections.abc import Callable

from plait.core.resources import Resource
from plait.runtime.gang import GANG, Gang
from plait.runtime.group_files import FREED, Group, GroupPage, K, LockFiles, come_alive
from plait.runtime.stage_gate import DEFAULT_TIMEOUT_S, GateError, GateStats, GateTimeout

_LOOK_S = 0.005
_IDLE_NS = 20_000_000


class _Thread:
    """One thread of a member: its row in the queue, its descriptors, and the slots that it holds."""

    def __init__(self, page: GroupPage, index: int) -> None:
        self.page, self.index, self.words, self.at = page, index, page.words, page.at
        self.files, self.row = LockFiles(page.group.files), -1
        self.held: dict[int, tuple[int, float]] = {}  # resource -> slot, since when (monotonic)
        self.served_s = [0.0] * K  # of the current stage, before it gave way
        self.usual_s: list[float | None] = [None] * K  # how long a stage holds the resource
        self.stamp = os.getpid() << 16 | index

    def waiting(self, r: int) -> list[tuple[int, int]]:
        """(since when, row) of all threads that wait for `r`, oldest first."""
        words, at = self.words, self.at
        want = words[at.want : at.want + at.rows].tolist()
        if r + 1 not in want:
            return []
        return sorted((words[at.since + i], i) for i, w in enumerate(want) if w == r + 1)

    def try_slots(self, r: int) -> bool:
        """Take a free slot of `r`; returns whether there was one."""
        for slot in range(self.page.group.capacities[r]):
            if self.files.lock(f"token-{r}-{slot}.lock"):
                self.words[self.at.slots[r] + slot] = self.stamp
                self.held[r] = slot, time.monotonic()
                return True
        return False

    def take(self, r: int, timeout_s: float) -> None:
        """Wait for a slot of `r`; raises `GateTimeout`."""
        if self.waiting(r) or not self.try_slots(r):
            self._queue(r, timeout_s)

    def left_s(self, r: int, held_s: float) -> float:
        """Expected remaining seconds of the stage on `r`, which has held it for `held_s`."""
        had = self.served_s[r] + held_s
        usual = self.usual_s[r] or 0.0
        return usual - had if usual > had else had

    def gives_way(self, r: int, held_s: float) -> bool:
        """True if a thread waits for `r` whose stage is much shorter than the rest of this one."""
        left = self.left_s(r, held_s)
        needs = [self.words[self.at.need + row] for _, row in self.waiting(r)]
        return any(0 <= need / 1e9 < left / 2 for need in needs)

    def ended(self, r: int) -> None:
        """Note the end of the stage on `r` and update its usual duration; recent stages count most."""
        usual, took = self.usual_s[r], self.served_s[r]
        self.usual_s[r], self.served_s[r] = took if usual is None else 0.7 * usual + 0.3 * took, 0.0

    def release(self, r: int) -> None:
        """Free the slot of `r` and wake the oldest thread that waits for it."""
        slot, since = self.held.pop(r)
        self.served_s[r] += time.monotonic() - since
        self.words[self.at.slots[r] + slot] = 0
        self.words[FREED + r] = time.monotonic_ns()
        self.files.unlock(f"token-{r}-{slot}.lock")
        self._wake(r)

    def _wake(self, r: int) -> None:
        for _, row in self.waiting(r)[:1]:
            self.page.bells.ring(self.at.bell + row)

    def _queue(self, r: int, timeout_s: float) -> None:
        if self.row < 0:
            self._claim_row()
        words, begin = self.words, time.monotonic_ns()
        if self.row >= 0:
            usual = self.usual_s[r]
            words[self.at.need + self.row] = -1 if usual is None else int(self.left_s(r, 0.0) * 1e9)
            words[self.at.since + self.row], words[self.at.want + self.row] = begin, r + 1
        try:
            self._wait(r, begin, timeout_s)
        finally:
            if self.row >= 0:
                words[self.at.want + self.row] = 0
            if r in self.held and self.page.group.capacities[r] > 1:
                self._wake(r)  # another slot may be free as well

    def _wait(self, r: int, begin: int, timeout_s: float) -> None:
        bell, bells = self.at.bell + self.row, self.page.bells
        while True:
            seen = bells.read(bell) if self.row >= 0 else 0
            ahead = [row for since, row in self.waiting(r) if (since, row) < (begin, self.row)]
            if len(ahead) < self.page.group.capacities[r] and self.try_slots(r):
                return
            if ahead and self._overtake(r):
                return
            left = timeout_s - (time.monotonic_ns() - begin) / 1e9
            if left <= 0:
                raise self._timeout(r, (time.monotonic_ns() - begin) / 1e9)
            if self.page.stale:
                return
            if self.row >= 0:
                bells.wait(bell, seen, min(left, _LOOK_S))
            else:
                time.sleep(min(left, _LOOK_S))  # more threads than rows: this one has no place in the queue
            for row in ahead:
                self._clear_if_dead(row)

    def _overtake(self, r: int) -> bool:
        """Take a slot that stays free although an older thread waits for it."""
        words = self.words
        if time.monotonic_ns() - words[FREED + r] < _IDLE_NS or not self.try_slots(r):
            return False
        if time.monotonic_ns() - words[FREED + r] < _IDLE_NS:  # freed just now: it belongs to the oldest thread
            self.release(r)
            return False
        return True

    def _claim_row(self) -> None:
        for row in range(self.at.rows):
            if self.files.lock(f"row-{row}.lock"):
                self.row = row
                self.words[self.at.want + row], self.words[self.at.owner + row] = 0, self.stamp
                return

    def _clear_if_dead(self, row: int) -> None:
        """Remove a dead thread from the queue; the lock of its row makes us the only writer."""
        name = f"row-{row}.lock"
        if self.files.lock(name):
            self.words[self.at.want + row] = 0
            self.files.unlock(name)

    def _timeout(self, r: int, waited_s: float) -> GateTimeout:
        group = self.page.group
        first = self.at.slots[r]
        stamps = [s for s in self.words[first : first + group.capacities[r]].tolist() if s]
        who = [f"job {group.members[s & 0xFFFF].job} (pid {s >> 16})" for s in stamps]
        holder = "held by " + ", ".join(who) if who else "its holder is not known"
        return GateTimeout(Resource(r), group.folder.name, waited_s, holder, stamps[0] >> 16 if stamps else 0)


class TokenGate:
    """Tokens of a group for one process of a member; each of its threads and forked children queues separately.

    In a job of several processes, rank 0 takes GPU and network for all (see `gang`).
    """

    def __init__(self, group: Group, index: int, rank: int = 0) -> None:
        """Join `group` as process `rank` of member `index`; raises `GroupError` if its files belong to another plan."""
        self.stats, self.reason, self.version = GateStats(), "", group.version
        self._page, self._files, self._index = GroupPage(group), LockFiles(group.files), index
        come_alive(self._files, index, rank)
        world_size = group.members[index].world_size
        self._rank = rank
        self._gang = Gang(self._page, self._files, index, rank, world_size) if world_size > 1 else None
        self._local, self._threads, self._closed = threading.local(), weakref.WeakSet[_Thread](), False
        self._pid = os.getpid()

    @property
    def kind(self) -> str:
        """Tokens, or none once the plan has been replaced."""
        return "none" if self._closed or self._page.stale else "tokens"

    def _thread(self) -> _Thread:
        found: _Thread | None = getattr(self._local, "thread", None)
        if found is None or self._local.pid != os.getpid():  # a forked child has lost its parent's descriptors
            found = self._local.thread = _Thread(self._page, self._index)
            self._local.pid, self._local.began = os.getpid(), {}
            self._threads.add(found)
        return found

    def enter(self, resource: Resource, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """Wait for the resource; raises `GateTimeout`, or `GateError` for a stage inside one of a later resource.

        A thread that holds the GPU may also take the network, but not vice versa, or two jobs could deadlock.
        """
        thread, r = self._thread(), int(resource)
        if thread.held and r <= max(thread.held):
            names = [Resource(h).name for h in thread.held]
            raise GateError(f"a stage on {resource.name} inside one on {names[-1]}; leave that first, or swap the two")
        begin = time.perf_counter()
        try:
            if not (self._closed or self._page.stale):
                self._take(thread, r, timeout_s)
        except GateTimeout:
            self.stats.timeouts += 1
            raise
        except OSError as error:
            self._give_up(error)
        finally:
            now = time.perf_counter()
            self.stats.waited_s[r] += now - begin
        self._local.began[r] = now

    def _take(self, thread: _Thread, r: int, timeout_s: float) -> None:
        gang = self._gang if r in GANG and os.getpid() == self._pid else None
        until = time.monotonic() + timeout_s
        if gang is None:
            thread.take(r, timeout_s)
        elif self._rank:
            gang.enter(r, until)
        else:
            gang.announce(r)
            gang.gather(r, until)
            thread.take(r, max(0.0, until - time.monotonic()))
            gang.open(r)

    def _give_up(self, error: OSError) -> None:
        """Continue without a gate: the files of the group are gone."""
        self._closed, self.reason = True, f"group {self._page.group.folder.name}: {error}"

    def leave(self, resource: Resource) -> None:
        """Release the resource to the thread that has waited longest."""
        thread, r = self._thread(), int(resource)
        began = self._local.began.pop(r, None)
        if began is None:
            return
        gang = self._gang if r in GANG and os.getpid() == self._pid else None
        if gang is not None and self._rank:
            gang.leave(r)
        elif r in thread.held:
            if gang is not None:
                try:
                    gang.gone(r, time.monotonic() + self._page.group.lease_s)
                except OSError as error:
                    self._give_up(error)
            thread.release(r)
            thread.ended(r)
        self.stats.stages[r] += 1
        self.stats.inside_s[r] += time.perf_counter() - began

    @property
    def quantum_s(self) -> float:
        """Seconds that a stage runs at least before it gives way."""
        return self._page.group.quantum_s

    def yield_point(self, before: Callable[[], None] | None = None) -> None:
        """Queue again if the quantum is used up and a shorter stage waits; jobs of several processes never do.

        `before` is called first, and only in that case.
        """
        thread = self._thread()
        if not thread.held:
            return
        r, (_, since) = max(thread.held.items())
        if self._gang is not None and r in GANG:
            return
        held_s = time.monotonic() - since
        if held_s < self._page.group.quantum_s or not thread.gives_way(r, held_s):
            return
        if before is not None:
            before()
        begin = time.perf_counter()
        thread.release(r)
        self.stats.yields += 1
        try:
            thread.take(r, self._page.group.lease_s)
        except GateTimeout:
            self.stats.timeouts += 1  # continue without a token: a yield point never fails
        except OSError as error:
            self._give_up(error)
        waited = time.perf_counter() - begin
        self.stats.waited_s[r] += waited
        self._local.began[r] += waited

    def drop(self) -> None:
        """Release everything that this thread holds."""
        thread = self._thread()
        for r in sorted(thread.held, reverse=True):
            self.leave(Resource(r))

    def close(self) -> None:
        """Release everything that any thread holds."""
        self._closed = True
        for thread in list(self._threads):
            for r in list(thread.held):
                with contextlib.suppress(KeyError, OSError):  # its own thread may release it at the same time
                    thread.release(r)
            thread.files.close()
            thread.row = -1
        self._files.close()


class WorkerTokens(TokenGate):
    """Tokens for a loader worker: a process whose start and end do not change the membership."""

    def __init__(self, group: Group, index: int) -> None:
        """Queue for member `index`; the job's process keeps the lock that shows that it lives."""
        self.stats, self.reason, self.version = GateStats(), "", group.version
        self._page, self._files, self._index, self._rank = GroupPage(group), LockFiles(group.files), index, 0
        self._gang = None  # storage and CPU are granted to each process separately
        self._local, self._threads, self._closed = threading.local(), weakref.WeakSet(), False
        self._pid = os.getpid()
