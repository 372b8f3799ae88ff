"""The jobs that a switch and its server have, brought in line with what the service asks for."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from plait.core.errors import InputError
from plait.live.agent.network.plane_processes import PlaneProcesses
from plait.live.protocol.wire import Lease, LeaseSeen


class Leases:
    """What one incarnation of a switch has; it begins with nothing, and only its agent changes it."""

    def __init__(self, processes: PlaneProcesses) -> None:
        """Of processes that have just started."""
        self._processes = processes
        self.has: dict[int, Lease] = {}

    def settle(self, wanted: Collection[Lease]) -> str:
        """Free, register and move jobs until the switch serves `wanted`; returns the first refusal, "" if none.

        What is freed goes first, so that its memory and its number are there for others. Raises `OSError` if a process
        does not answer.
        """
        by_wire, trouble = {lease.wire: lease for lease in wanted}, ""
        for wire in list(self.has):
            if wire not in by_wire or _member(by_wire[wire]) != _member(self.has[wire]):
                self._free(wire)
        for wire, lease in by_wire.items():
            try:
                self._serve(lease, self.has.get(wire))
            except InputError as error:
                trouble = trouble or str(error)
                self._free(wire)
        return trouble

    def seen(self) -> tuple[float, list[LeaseSeen]]:
        """Aggregators in use, and what the switch has counted of each job. Raises `OSError`, `InputError`."""
        counted = self._processes.switch.control.statistics()
        rows: Mapping[int, Mapping[str, Any]] = {int(row["job"]): row for row in counted["jobs"]}
        found = []
        for wire, lease in self.has.items():
            row = rows.get(wire, {})
            counts = (float(row.get(name, 0)) for name in ("held", "packets_in", "collided", "aggregated"))
            found.append(LeaseSeen(lease.job, lease.epoch, *counts))
        return float(counted["held"]), found

    def _serve(self, lease: Lease, before: Lease | None) -> None:
        switch = self._processes.switch.control
        # Dedicated slots complete every sum, and a server takes no such job.
        planes = [switch] if lease.options["protocol"] == "switchml" else [self._processes.server.control, switch]
        if before is None:
            for plane in planes:
                plane.register(lease.wire, lease.name, lease.workers, lease.options, lease.token)
        if before is None or _region(before) != _region(lease):
            for plane in planes:
                plane.region(lease.wire, lease.offset, lease.size, lease.epoch, str(lease.options["index"]))
        if before is None or before.priority != lease.priority:
            switch.priority(lease.wire, lease.priority or None)
        self.has[lease.wire] = lease

    def _free(self, wire: int) -> None:
        self.has.pop(wire, None)
        for plane in (self._processes.switch.control, self._processes.server.control):
            try:
                plane.free(wire)
            except InputError:
                continue  # it does not have the job: it was refused there


def _member(lease: Lease) -> tuple[object, ...]:
    """What a job is registered with; another of it is another job."""
    return lease.job, lease.token, lease.workers, tuple(sorted(lease.options.items()))


def _region(lease: Lease) -> tuple[int, int, int]:
    return lease.offset, lease.size, lease.epoch
