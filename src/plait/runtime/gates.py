"""Stage gates decide when a job may use a resource that it shares with the others of its group.

    null      at once; counts only                     alone, or resources to spare
    tokens    one job a slot, in order, by quantum     default                                   (`TokenGate`)
    barrier   lock step: in slot s turn i has resource (s + i) mod k                              (`BarrierGate`)

The agent creates the files of a group and writes the place of each process to control.json; the process opens its gate:

    group = make_group(folder, "tokens", members, version=3)              # members: job, turn, world size
    control = {"version": 8, "epoch": 2, "group": group.control(job=12, rank=0)}
    gate = open_gate(control, page)                                       # in the process
    gate.enter(Resource.GPU); ...; gate.leave(Resource.GPU)

The entry "group" of control.json: {"id", "dir", "index" of the member, "rank", "gate", "version", "quantum_s",
"lease_s", "rest_s", "capacities": [4], "members": [{"job", "turn", "world"}]}; without it, or null, the job is alone.

Gates only pace; they never protect. If a gate fails (files gone, a newer plan, a wait without end), the job continues
without one.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from plait.core.resources import Resource
from plait.runtime.group_files import (
    ACTIVE,
    ASKED,
    AWAY,
    BELL,
    FREED,
    GONE,
    IN_STAGE,
    INSIDE,
    OPENED,
    PID,
    RANK_BELL,
    RANK_PID,
    SLOT,
    STATE,
    TARGET,
    Group,
    GroupError,
    GroupMember,
    GroupPage,
    K,
    LockFiles,
    come_alive,
    group_of,
    make_group,
    remove_group,
)
from plait.runtime.page import GATES, Page
from plait.runtime.stage_gate import DEFAULT_TIMEOUT_S, GateError, GateStats, GateTimeout, NullGate, StageGate

# The gang rule: GPU and network are granted to all processes of a job together.
#
# Tokens taken rank by rank would deadlock: rank 0 of A holds node 1 and waits in a collective for rank 1, which waits
# for node 2, held by B, whose other rank waits for node 1. So rank 0 takes the token for all: it waits until its peers
# have arrived (meanwhile they hold nothing that others need), takes the token, opens, and returns the token when all
# have left. The n-th stage of a peer belongs to the n-th opening; a peer that comes late finds it open and enters.
#
# Gates only pace, so every wait here is limited: a rank that waits longer than its patience for another one, which may
# be in a different part of the program (evaluation on rank 0 only), continues and counts from the newest opening.

GANG = (Resource.GPU, Resource.NETWORK)
PATIENCE_S = 1.0
#: Seconds after which a sleeping member of a group looks again, and a thread in the queue of a resource.
_LOOK_S, _QUEUE_LOOK_S = 0.02, 0.005


class Gang:
    """One process of a job with several, by the job's words in the group's page."""

    def __init__(self, page: GroupPage, files: LockFiles, index: int, rank: int, world_size: int) -> None:
        """Join as rank `rank` of `world_size` of member `index`; `page` and `files` are the group's."""
        self._page, self._files, self._index, self._rank = page, files, index, rank
        self._opened = page.at.member(index) + OPENED
        self._ranks = [page.at.rank(index, r) for r in range(world_size)]
        self._own = self._ranks[rank]
        self._patience = [PATIENCE_S] * len(Resource)
        for word in range(ASKED, INSIDE + len(Resource)):
            page.words[self._own + word] = 0
        if rank:  # a peer that starts after its rank 0 takes the next opening
            for r in Resource:
                page.words[self._own + ASKED + r] = page.words[self._opened + r]
        page.words[self._own + RANK_PID] = os.getpid()

    def _until(self, done: object, until_s: float) -> bool:
        """Sleep until `done()`; returns False if it is not true by `until_s`."""
        bell = self._own + RANK_BELL
        while True:
            seen = self._page.bells.read(bell)
            if done():  # type: ignore[operator]
                return True
            left = until_s - time.monotonic()
            if left <= 0 or self._page.stale:
                return False
            self._page.bells.wait(bell, seen, min(left, _LOOK_S))

    def _peers(self) -> list[tuple[int, int]]:
        """Living peers that have joined: (rank, first word)."""
        words = self._page.words
        return [
            (r, at)
            for r, at in enumerate(self._ranks)
            if r != self._rank and words[at + RANK_PID] and not self._files.is_free(f"alive-{self._index}-{r}.lock")
        ]

    def gather(self, r: int, until_s: float) -> bool:
        """On rank 0, before it takes the token: wait until all peers have arrived, at most for its patience."""
        words, peers = self._page.words, self._peers()

        def asked() -> bool:
            opened = words[self._opened + r]
            return all(words[at + ASKED + r] > opened or words[at + INSIDE + r] for _, at in peers)

        begin = time.monotonic()
        while not self._until(asked, min(until_s, time.monotonic() + 5 * _LOOK_S, begin + self._patience[r])):
            peers = self._peers()  # without peers that died meanwhile
            if time.monotonic() >= min(until_s, begin + self._patience[r]) or self._page.stale:
                self._patience[r] /= 2  # they may never come; the full patience returns when they do
                return False
        self._patience[r] = PATIENCE_S
        return True

    def open(self, r: int) -> None:
        """On rank 0, with the token: let the peers in."""
        self._page.words[self._opened + r] += 1
        for at in self._ranks[1:]:
            self._page.bells.ring(at + RANK_BELL)

    def gone(self, r: int, until_s: float) -> None:
        """On rank 0, before it returns the token: wait until all peers have left."""
        words = self._page.words
        while True:
            inside = [at for _, at in self._peers() if words[at + INSIDE + r]]
            look = min(until_s, time.monotonic() + 5 * _LOOK_S)
            if self._until(lambda inside=inside: not any(words[at + INSIDE + r] for at in inside), look):
                return
            if time.monotonic() >= until_s or self._page.stale:
                return

    def enter(self, r: int, until_s: float) -> None:
        """On a peer: wait for the opening of this stage, at most for its patience or until rank 0 ends."""
        words, own = self._page.words, self._own
        ask = words[own + ASKED + r] = words[own + ASKED + r] + 1
        self._page.bells.ring(self._ranks[0] + RANK_BELL)
        leader = f"alive-{self._index}-0.lock"
        patient_until = 0.0
        while not self._until(lambda: words[self._opened + r] >= ask, min(until_s, time.monotonic() + 5 * _LOOK_S)):
            now = time.monotonic()
            # Patience runs only while rank 0 does not wait for the token.
            if words[self._ranks[0] + ASKED + r] > words[self._opened + r]:
                patient_until = 0.0
            elif not patient_until:
                patient_until = now + PATIENCE_S
            elif now >= patient_until:
                break
            if now >= until_s or self._page.stale or self._files.is_free(leader):
                break
        words[own + INSIDE + r] = 1
        words[own + ASKED + r] = words[self._opened + r]

    def leave(self, r: int) -> None:
        """On a peer: leave the stage."""
        self._page.words[self._own + INSIDE + r] = 0
        self._page.bells.ring(self._ranks[0] + RANK_BELL)

    def announce(self, r: int) -> None:
        """On rank 0: announce the next opening, so that peers are patient."""
        self._page.words[self._own + ASKED + r] = self._page.words[self._opened + r] + 1


# The barrier gate: in slot s the job with turn i may use resource (s + i) mod k, and all slots end together.
#
# Each member has a counter in the group's page, the slot that it has reached; it may enter slot s when all others have
# reached s, too. A stage on resource r moves the counter to the next slot in which r belongs to this job, so slots that
# a job does not use cost no time. Turns may be any distance apart, and a slot may have no user.
#
# The barrier does not wait for members that have not joined yet, that have left, that have died (their lock is free;
# waiting members check every 20 ms), or that stay longer than `lease_s` in one stage or `rest_s` between stages. A
# member that joins, again or for the first time, takes the current slot and begins in its next own one. Turns differ,
# so it blocks no other member, and none waits for it to catch up.

_SPINS = 20


class BarrierGate:
    """The barrier of a group for one process of a member; forked children pass.

    Stages do not overlap. A separate thread may leave the network stage a little later; the next stage waits for it.
    In a job of several processes rank 0 keeps the slots; its peers follow it on GPU and network and are free otherwise.
    """

    def __init__(self, group: Group, index: int, rank: int = 0) -> None:
        """Open the gate of `group` as process `rank` of member `index`; it joins at its first stage."""
        self.stats, self.reason, self.version = GateStats(), "", group.version
        self._page, self._files, self._index, self._rank = GroupPage(group), LockFiles(group.files), index, rank
        come_alive(self._files, index, rank)
        world_size = group.members[index].world_size
        self._gang = Gang(self._page, self._files, index, rank, world_size) if world_size > 1 else None
        self._words, self._own = self._page.words, self._page.at.member(index)
        self._others = [(i, self._page.at.member(i)) for i in range(len(group.members)) if i != index]
        self._turn = group.members[index].turn
        self._closed, self._pid, self._began, self._inside = False, os.getpid(), 0.0, -1
        self._holder, self._outside = 0, threading.Condition()
        #: Last observed (slot, in_stage) of each member that we wait for, and since when, in monotonic seconds.
        self._seen: dict[int, tuple[tuple[int, int], float]] = {}
        if rank == 0:
            self._words[self._own + STATE] = AWAY
            self._words[self._own + PID] = os.getpid()

    @property
    def kind(self) -> str:
        return "none" if self._closed or self._page.stale else "barrier"

    def _passes(self) -> bool:
        return self._closed or os.getpid() != self._pid or self._page.stale

    def enter(self, resource: Resource, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """Wait for the next slot in which the resource belongs to this job; raises `GateTimeout`."""
        r, begin = int(resource), time.perf_counter()
        if os.getpid() == self._pid:
            if self._inside >= 0 and not self._left_elsewhere(timeout_s):
                name = Resource(self._inside).name
                raise GateError(f"a stage on {resource.name} inside one on {name}; at a barrier leave that first")
            try:
                if not self._passes():
                    self._take(r, timeout_s)
            except GateTimeout:
                self.stats.timeouts += 1
                raise
            except OSError as error:
                self._give_up(error)
            finally:
                self.stats.waited_s[r] += time.perf_counter() - begin
            self._holder, self._inside = threading.get_ident(), r
        self._began = time.perf_counter()

    def _left_elsewhere(self, timeout_s: float) -> bool:
        """Wait for the thread that is about to leave the network; false if it is not that."""
        if self._inside != Resource.NETWORK or self._holder == threading.get_ident():
            return False
        with self._outside:
            return self._outside.wait_for(lambda: self._inside < 0, timeout_s)

    def _take(self, r: int, timeout_s: float) -> None:
        until = time.monotonic() + timeout_s
        gang = self._gang if r in GANG else None
        if self._rank:
            if gang is not None:
                gang.enter(r, until)
            return
        if gang is not None:
            gang.announce(r)
            gang.gather(r, until)
        words, own = self._words, self._own
        if words[own + STATE] != ACTIVE:
            self._join()
        at = words[own + SLOT]
        slot = at + (r - self._turn - at) % K
        words[own + TARGET] = slot + 1
        words[own + SLOT] = slot
        self._wake()
        for _ in range(_SPINS):
            if self._behind(slot) is None:
                break
        else:
            self._sleep(r, slot, until, timeout_s)
        words[own + TARGET] = 0
        words[own + IN_STAGE] = r + 1
        if gang is not None:
            gang.open(r)

    def _join(self) -> None:
        words, own = self._words, self._own
        words[own + IN_STAGE] = 0
        while True:
            now = min((words[at + SLOT] for _, at in self._others if words[at + STATE] == ACTIVE), default=0)
            if words[own + STATE] == ACTIVE and words[own + SLOT] >= now:
                return
            words[own + SLOT] = now
            words[own + STATE] = ACTIVE  # and check again: the others may have advanced meanwhile

    def _behind(self, slot: int) -> int | None:
        """Index of a member that has not reached the slot; None if all have."""
        words = self._words
        for i, at in self._others:
            if words[at + SLOT] < slot and words[at + STATE] == ACTIVE:
                return i
        return None

    def _sleep(self, r: int, slot: int, until: float, timeout_s: float) -> None:
        bell, bells = self._own + BELL, self._page.bells
        while True:
            seen = bells.read(bell)
            behind = self._behind(slot)
            if behind is None or self._page.stale:
                return
            now = time.monotonic()
            if now >= until:
                raise self._timeout(r, behind, timeout_s)
            bells.wait(bell, seen, min(until - now, _LOOK_S))
            for i, at in self._others:
                if self._words[at + SLOT] < slot and self._words[at + STATE] == ACTIVE:
                    self._judge(i, at)

    def _judge(self, i: int, at: int) -> None:
        """Exclude a member that we wait for, if it is dead or makes no progress."""
        words, group, now = self._words, self._page.group, time.monotonic()
        if self._files.is_free(f"alive-{i}-0.lock"):
            state = GONE
        else:
            target = words[at + TARGET]
            if target and any(words[o + SLOT] < target - 1 and words[o + STATE] == ACTIVE for _, o in self._others):
                self._seen.pop(i, None)  # it waits for another member itself
                return
            doing = words[at + SLOT], words[at + IN_STAGE]
            was, since = self._seen.get(i, (None, now))
            if was != doing:
                self._seen[i] = doing, now
                return
            if now - since < (group.lease_s if doing[1] else group.rest_s):
                return
            state = AWAY
        words[at + STATE] = state
        self._seen.pop(i, None)
        self._wake()

    def _wake(self) -> None:
        """Wake the members that may enter their slot now."""
        words, own = self._words, self._own
        waiting = [at for _, at in self._others if words[at + TARGET]]
        if not waiting:
            return
        everybody = [at for _, at in self._others if words[at + STATE] == ACTIVE]
        if words[own + STATE] == ACTIVE:
            everybody.append(own)
        reached = min((words[at + SLOT] for at in everybody), default=0)
        for at in waiting:
            if words[at + TARGET] - 1 <= reached:
                self._page.bells.ring(at + BELL)

    def leave(self, resource: Resource) -> None:
        """End the stage of this job in the slot."""
        r = int(resource)
        if os.getpid() != self._pid or self._inside != r:
            return
        try:
            gang = self._gang if r in GANG else None
            if self._rank:
                if gang is not None:
                    gang.leave(r)
            elif not self._passes():
                if gang is not None:
                    try:
                        gang.gone(r, time.monotonic() + self._page.group.lease_s)
                    except OSError as error:
                        self._give_up(error)
                self._words[self._own + IN_STAGE] = 0
                if self._words[self._own + STATE] == ACTIVE:
                    self._words[self._own + SLOT] += 1
                self._wake()
        finally:  # only here, so that no two threads move the slot
            self.stats.stages[r] += 1
            self.stats.inside_s[r] += time.perf_counter() - self._began
            with self._outside:
                self._inside = -1
                self._outside.notify_all()

    def _give_up(self, error: OSError) -> None:
        """Continue without a gate: the files of the group are gone."""
        self._closed, self.reason = True, f"group {self._page.group.folder.name}: {error}"

    def yield_point(self, before: Callable[[], None] | None = None) -> None:
        """Do nothing: slots end with the stage."""

    def drop(self) -> None:
        """Let the others continue without this job until its next stage."""
        if self._rank == 0 and not self._passes():
            self._words[self._own + TARGET] = self._words[self._own + IN_STAGE] = 0
            self._words[self._own + STATE] = AWAY
            self._wake()

    def close(self) -> None:
        """Leave the group for good."""
        if os.getpid() == self._pid:
            self.drop()
        self._closed = True
        self._files.close()

    def _timeout(self, r: int, behind: int, waited_s: float) -> GateTimeout:
        at, group = self._page.at.member(behind), self._page.group
        pid, stage = self._words[at + PID], self._words[at + IN_STAGE]
        doing = f"on {Resource(stage - 1).name}" if stage else "between stages"
        job = group.members[behind].job
        return GateTimeout(Resource(r), group.folder.name, waited_s, f"job {job} (pid {pid}) is still {doing}", pid)


# The token gate: as many jobs on a resource as it has slots, first come, first served, for a quantum at a time.
#
# Each slot is a flock, so the death of a holder frees its slot and no two jobs hold the same one. The queue is in the
# group's page: each waiting thread has a row with the resource it needs and since when, and the oldest tries the lock.
# The order is advisory: a slot that stays free for 20 ms, because the oldest thread is stopped, goes to any thread that
# checks. A row belongs to the thread that holds its lock, so rows of dead threads are recognised and reused.
#
# **The quantum** protects a job with short stages from the pace of one with long stages. At a yield point a holder that
# has used it up queues again if another thread waits whose stage is expected to take less than half of the rest of its
# own. Among stages of about the same length, giving way in the middle would only delay both: for four jobs with one
# bottleneck each it costs half of the gain of interleaving. A stage that is the first of its kind, or longer than
# usual, is expected to last as long again as it has.

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
                bells.wait(bell, seen, min(left, _QUEUE_LOOK_S))
            else:
                time.sleep(min(left, _QUEUE_LOOK_S))  # more threads than rows: this one has no place in the queue
            for row in ahead:
                # Remove a dead thread from the queue; the lock of its row makes us the only writer
                name = f"row-{row}.lock"
                if self.files.lock(name):
                    self.words[self.at.want + row] = 0
                    self.files.unlock(name)

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

    def _timeout(self, r: int, waited_s: float) -> GateTimeout:
        group = self.page.group
        first = self.at.slots[r]
        stamps = [s for s in self.words[first : first + group.capacities[r]].tolist() if s]
        who = [f"job {group.members[s & 0xFFFF].job} (pid {s >> 16})" for s in stamps]
        holder = "held by " + ", ".join(who) if who else "its holder is not known"
        return GateTimeout(Resource(r), group.folder.name, waited_s, holder, stamps[0] >> 16 if stamps else 0)


class TokenGate:
    """Tokens of a group for one process of a member; each of its threads and forked children queues separately.

    In a job of several processes, rank 0 takes GPU and network for all (see `Gang`).
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


__all__ = [
    "DEFAULT_TIMEOUT_S",
    "GATES",
    "BarrierGate",
    "GateError",
    "GateStats",
    "GateTimeout",
    "Group",
    "GroupError",
    "GroupMember",
    "NullGate",
    "StageGate",
    "TokenGate",
    "make_group",
    "open_gate",
    "remove_group",
]


def open_gate(control: Mapping[str, Any], page: Page | None = None) -> StageGate:
    """Open the gate of `control`, the contents of control.json; if that fails, the null gate with a `reason`.

    Writes the gate in effect, and the version of its plan, to `page`.
    """
    entry = control.get("group")
    gate: StageGate = NullGate()
    if entry and entry.get("gate", "none") != "none":
        try:
            group = group_of(entry)
            index, rank = int(entry.get("index", 0)), int(entry.get("rank", 0))
            if not (0 <= index < len(group.members) and 0 <= rank < group.members[index].world_size):
                raise GroupError(f"group {group.folder.name} has no process {rank} of member {index}")
            gate = (TokenGate if group.gate == "tokens" else BarrierGate)(group, index, rank)
        except (GroupError, OSError) as error:
            gate = NullGate(str(error))
    if page is not None:
        page.gate = GATES.index(gate.kind)
        page.gate_version = gate.version if gate.version else int((entry or {}).get("version", 0))
    return gate
