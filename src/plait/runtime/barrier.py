"""The barrier gate: in slot s the job with turn i may use resource (s + i) mod k, and all slots end together.

Each member has a counter in the group's page, the slot that it has reached; it may enter slot s when all others have
reached s, too. A stage on resource r moves the counter to the next slot in which r belongs to this job, so slots that a
job does not use cost no time. Turns may be any distance apart, and a slot may have no user.

The barrier does not wait for members that have not joined yet, that have left, that have died (their lock is free;
waiting members check every 20 ms), or that stay longer than `lease_s` in one stage or `rest_s` between stages. A member
that joins, again or for the first time, takes the current slot and begins in its next own one. Turns differ, so it
blocks no other member, and none waits for it to catch up.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

from plait.core.resources import Resource
from plait.runtime.gang import GANG, Gang
from plait.runtime.group_files import (
    ACTIVE,
    AWAY,
    BELL,
    GONE,
    IN_STAGE,
    PID,
    SLOT,
    STATE,
    TARGET,
    Group,
    GroupPage,
    K,
    LockFiles,
    come_alive,
)
from plait.runtime.stage_gate import DEFAULT_TIMEOUT_S, GateError, GateStats, GateTimeout

_LOOK_S = 0.02
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
        """Barrier, or none once the plan has been replaced."""
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
        self._reach(r, until, timeout_s)
        if gang is not None:
            gang.open(r)

    def _reach(self, r: int, until: float, timeout_s: float) -> None:
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

    def _join(self) -> None:
        """Join in the current slot."""
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
            self._end_slot(self._gang if r in GANG else None, r)
        finally:  # only here, so that no two threads move the slot
            self.stats.stages[r] += 1
            self.stats.inside_s[r] += time.perf_counter() - self._began
            with self._outside:
                self._inside = -1
                self._outside.notify_all()

    def _end_slot(self, gang: Gang | None, r: int) -> None:
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
