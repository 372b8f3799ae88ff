"""The jobs of a switch and its server, brought in line with the service's order."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from plait.core.errors import InputError
from plait.live.agent.network.plane_processes import PlaneProcesses
from plait.live.dataplane.control import SwitchControl
from plait.live.protocol.wire import Lease, LeaseSeen

#: Offset, size and window.
Region = tuple[int, int, int]


class Leases:
    """Leases of one incarnation of a switch; it begins with none, and only its agent changes them."""

    def __init__(self, processes: PlaneProcesses) -> None:
        """Of processes that have just started."""
        self._processes = processes
        #: Jobs that are registered, by their number on the wire, with the regions of their epochs.
        self.has: dict[int, Lease] = {}
        self._regions: dict[int, dict[int, Region]] = {}
        self._wanted: list[Lease] = []
        self._refused: dict[int, str] = {}

    def settle(self, wanted: Collection[Lease]) -> str:
        """Free, register and move jobs until the switch serves `wanted`; returns the first refusal, "" if none.

        Freed memory and numbers come first, so that they are available to others. A job whose other region is refused
        keeps its present one. Raises `OSError` if a process does not answer.
        """
        self._wanted, self._refused = list(wanted), {}
        by_wire = {lease.wire: lease for lease in wanted}
        for wire in list(self.has):
            if wire not in by_wire or _member(by_wire[wire]) != _member(self.has[wire]):
                self._free(wire)
        for wire in self.has:
            self._drain(by_wire[wire])
        for wire, lease in by_wire.items():
            try:
                self._serve(lease)
            except InputError as error:
                self._refused[wire] = str(error)
        return next(iter(self._refused.values()), "")

    def seen(self) -> tuple[float, list[LeaseSeen]]:
        """Aggregators in use, and of each job what the switch has counted, or why it does not serve its region.

        Raises `OSError`, `InputError`.
        """
        counted = self._processes.switch.control.statistics()
        rows: Mapping[int, Mapping[str, Any]] = {int(row["job"]): row for row in counted["jobs"]}
        found = []
        for lease in self._wanted:
            row = rows.get(lease.wire, {})
            held, came, collided, done = (
                float(row.get(name, 0)) for name in ("held", "packets_in", "collided", "aggregated")
            )
            why = self._refused.get(lease.wire, "")
            found.append(LeaseSeen(lease.job, lease.epoch, held, came, collided, done, why))
        return float(counted["held"]), found

    def _drain(self, lease: Lease) -> None:
        """Take back the memory of epochs that no rank uses any more."""
        regions = self._regions[lease.wire]
        if not lease.moving:
            for epoch in [one for one in regions if one != lease.epoch]:
                self._processes.switch.control.drain(lease.wire, epoch)
                del regions[epoch]

    def _serve(self, lease: Lease) -> None:
        """Register a job, or move it; raises `InputError` if it is refused."""
        switch, wire = self._processes.switch.control, lease.wire
        planes = self._planes(lease)
        if wire not in self.has:
            self._register(lease, planes)
        regions, region = self._regions[wire], (lease.offset, lease.size, lease.window)
        if regions.get(lease.epoch) != region:
            for plane in reversed(planes):  # the switch first, for it may refuse
                mode = str(lease.options["index"])
                plane.region(wire, lease.offset, lease.size, lease.epoch, mode, lease.window or None)
            for epoch in [one for one in regions if one != lease.epoch - 1]:
                del regions[epoch]
            regions[lease.epoch] = region
        if self.has[wire].priority != lease.priority:
            switch.priority(wire, lease.priority or None)
        self.has[wire] = lease

    def _register(self, lease: Lease, planes: Collection[SwitchControl]) -> None:
        try:
            for plane in planes:
                plane.register(lease.wire, lease.name, lease.workers, lease.options, lease.token)
        except InputError:
            self._free(lease.wire)
            raise
        self.has[lease.wire] = replace(lease, priority=-1)
        self._regions[lease.wire] = {}

    def _planes(self, lease: Lease) -> list[SwitchControl]:
        """Dedicated slots complete every sum, and a server takes no such job."""
        switch = self._processes.switch.control
        return [switch] if lease.options["protocol"] == "switchml" else [self._processes.server.control, switch]

    def _free(self, wire: int) -> None:
        self.has.pop(wire, None)
        self._regions.pop(wire, None)
        for plane in (self._processes.switch.control, self._processes.server.control):
            try:
                plane.free(wire)
            except InputError:
                continue  # it does not have the job: it was refused there


def _member(lease: Lease) -> tuple[object, ...]:
    """The registration of a job; a different one is a different job."""
    return lease.job, lease.token, lease.workers, tuple(sorted(lease.options.items()))
