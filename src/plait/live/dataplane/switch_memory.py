"""The aggregators of a switch as memory of jobs: who is registered, and who may use which of them.

Start at `SwitchMemory.region`.
"""

from __future__ import annotations

import numpy as np

from plait.core.errors import InputError
from plait.live.dataplane.members import MOST_JOBS, Members
from plait.network.protocol.options import Options
from plait.network.protocol.switch import HELD, grant, make_switch, register, release, retire

#: A time that never comes.
NEVER = 1 << 62


class SwitchMemory:
    """A switch, its jobs and their regions.

    `priorities`: by job, overriding the ones in packets, -1 for none; `shared`: the jobs that share aggregators;
    `max_age_ns`: the age at which an incomplete aggregator is freed.
    """

    def __init__(self, aggregators: int, payload_bytes: int, max_age_s: float = 0.0) -> None:
        if not 1 <= aggregators <= 1 << 24:
            raise InputError(f"{aggregators} aggregators; a switch has 1 to {1 << 24}")
        self.switch = make_switch(aggregators, MOST_JOBS, payload_bytes // 4)
        self.members = Members(payload_bytes)
        self.priorities = np.full(MOST_JOBS, -1, dtype=np.int16)
        self.shared: list[int] = []
        self.max_age_ns = NEVER
        self._max_age_s = max_age_s

    def register(self, job: int, name: str, n_workers: int, options: Options, token: bytes) -> bool:
        """Make a job known, without memory yet; False if it was, with the same values. Raises `InputError`."""
        if not self.members.add(job, name, n_workers, options, token):
            return False
        register(self.switch, job, self.members.get(job).expected, n_workers, options.rules)
        self.priorities[job] = -1
        self._look()
        return True

    def free(self, job: int) -> int:
        """Forget a job and drop what it holds; returns how many aggregators that were. Raises `InputError`."""
        self.members.remove(job)
        held = int(self.switch.jobs[job]["held"])
        release(self.switch, job)
        self._look()
        return held

    def _look(self) -> None:
        """Know again which jobs share aggregators, and for how long they may hold one."""
        sharing = [one for one in self.members if not one.dedicated]
        self.shared = [one.job for one in sharing]
        self.max_age_ns = min((one.options.max_age_ns for one in sharing), default=NEVER)
        if sharing and self._max_age_s:
            self.max_age_ns = round(1e9 * self._max_age_s)

    def region(self, job: int, offset: int, size: int, epoch: int) -> None:
        """Let packets of an epoch use `size` aggregators from `offset` on; packets of the previous epoch keep theirs.

        Raises `InputError` for a region that is not there, or that another job has where one of both has slots of its
        own.
        """
        member, there = self.members.get(job), len(self.switch.table)
        if offset < 0 or size < 0 or offset + size > there:
            raise InputError(f"job {job}: region of {size} aggregators from {offset} on; the switch has {there}")
        if member.dedicated and size < 2:
            raise InputError(f"job {job}: {size} dedicated slots; a job needs 2 or more, twice its window")
        for other in self.members:
            for at, (first, many) in other.regions.items():
                meets = other is not member and max(first, offset) < min(first + many, offset + size)
                if meets and (member.dedicated or other.dedicated):
                    raise InputError(
                        f"job {job}: aggregators {offset} to {offset + size - 1} are in use by job {other.job} "
                        f"({other.name}, epoch {at}), and dedicated slots are not shared; drain or free that first"
                    )
        for former in [one for one in member.regions if one not in (epoch, epoch - 1)]:
            del member.regions[former]
            grant(self.switch, job, 0, 0, former)  # of the other parity where epochs were left out
            if member.dedicated:
                retire(self.switch, job, former)
        member.regions[epoch] = offset, size
        grant(self.switch, job, offset, size, epoch)

    def withdraw(self, job: int, epoch: int | None) -> list[int]:
        """Take the memory of a job, or of one of its epochs, back: packets of that epoch claim nothing more.

        Dedicated slots are dropped; returns the aggregators that are still held. Raises `InputError`.
        """
        member = self.members.get(job)
        for one in [epoch] if epoch is not None else list(member.regions):
            if member.regions.pop(one, None) is not None:
                grant(self.switch, job, 0, 0, one)
            if member.dedicated:
                retire(self.switch, job, one)
        table = self.switch.table
        mine = (table["key"] >= 0) & (table["key"] >> 32 == job)
        if epoch is not None:
            mine &= table["epoch"] == epoch & 255
        found: list[int] = np.flatnonzero(mine).tolist()
        return found

    def priority(self, job: int, priority: int | None) -> None:
        """Give all packets of a job this priority here; None: the priority in the packets. Raises `InputError`."""
        self.members.get(job)
        if priority is not None and not 0 <= priority <= 255:
            raise InputError(f"job {job}: priority {priority}; it takes 0 to 255")
        self.priorities[job] = -1 if priority is None else priority

    @property
    def held(self) -> int:
        """Aggregators that are not free."""
        return int(self.switch.info[HELD])
