"""The requests of a control socket: checked, carried out on a switch or a server, answered.

Start at `answer`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

from plait.core.errors import InputError, suggest
from plait.live.dataplane.faults import LinkFault
from plait.live.dataplane.members import Member
from plait.live.dataplane.server_plane import ServerPlane
from plait.live.dataplane.switch_plane import SwitchPlane
from plait.network.protocol.options import Options, preset
from plait.network.protocol.server import SERVER_JOB
from plait.network.protocol.switch import SWITCH_JOB
from plait.runtime.network.datagrams import BatchSocket

Plane = SwitchPlane | ServerPlane
_REQUIRED = object()


class Operations:
    """Requests that one process can execute. `stopping` is set by the request to end."""

    def __init__(self, name: str, plane: Plane, socket: BatchSocket, control: str) -> None:
        self.name, self.plane, self.socket, self.control = name, plane, socket, control
        self.started_ns = time.monotonic_ns()
        self.stopping = False

    def ready(self) -> dict[str, Any]:
        """The line that the process prints when it is ready."""
        kind = "switch" if isinstance(self.plane, SwitchPlane) else "server"
        return {kind: self.name, "data": list(self.socket.address[:2]), "control": self.control}

    def answer(self, line: bytes) -> dict[str, Any]:
        """Carry out the request of a line; never raises."""
        try:
            request = json.loads(line)
            if not isinstance(request, dict):
                raise InputError(f"a request is a JSON object with op, not {type(request).__name__}")
            known = {name[3:]: name for name in dir(self) if name.startswith("do_")}
            op = str(request.get("op"))
            if op not in known:
                raise InputError(f"op {op!r} does not exist; {suggest(op, known)}")
            found: dict[str, Any] = getattr(self, known[op])(request)
        except (InputError, ValueError) as error:  # also of JSON with a number of too many digits
            return {"ok": False, "error": str(error)}
        except RecursionError:
            return {"ok": False, "error": "the request is nested too deeply; a request is a JSON object with op"}
        return {"ok": True, **found}

    def do_status(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Description of the process and its jobs."""
        jobs = [
            {"job": one.job, "name": one.name, "workers": one.n_workers, "greeted": one.greeted}
            for one in self.plane.members
        ]
        up_s = (time.monotonic_ns() - self.started_ns) / 1e9
        return {**self.ready(), **plane_statistics(self.plane, self.socket), "uptime_s": round(up_s, 3), "jobs": jobs}

    def do_statistics(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Counters of all jobs, or of one."""
        job = _whole(request, "job", None)
        members = list(self.plane.members) if job is None else [self.plane.members.get(job)]
        jobs = [job_statistics(self.plane, one) for one in members]
        return {**self.ready(), **plane_statistics(self.plane, self.socket), "jobs": jobs}

    def do_register(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Make a job known."""
        job = _whole(request, "job")
        try:
            token = bytes.fromhex(str(request.get("token", "")))
        except ValueError as error:
            raise InputError(f"job {job}: token {request.get('token')!r} is not hexadecimal") from error
        name = str(request.get("name", f"job-{job}"))
        self.plane.register(job, name, _whole(request, "expected_workers"), _options(request, job), token)
        return {}

    def do_free(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Forget a job."""
        return {"held": self.plane.free(_whole(request, "job"))}

    def do_region(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Give a job memory."""
        job, mode = _whole(request, "job"), request.get("mode")
        uses = self.plane.members.get(job).options.mode.name.lower()
        if mode is not None and mode != uses:
            raise InputError(f"job {job}: mode {mode!r}; it was registered with {uses}, free and register it first")
        offset, size = _whole(request, "offset"), _whole(request, "size")
        self.plane.region(job, offset, size, _whole(request, "epoch"), _whole(request, "window", 0))
        return {}

    def do_priority(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Set the priority of a job's packets."""
        plane, prio = self._switch("priority"), _whole(request, "prio")
        plane.memory.priority(_whole(request, "job"), None if prio == -1 else prio)
        return {}

    def do_drain(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Take memory back."""
        plane, job, epoch = self._switch("drain"), _whole(request, "job", None), _whole(request, "epoch", None)
        members: list[Member] = list(plane.members) if job is None else [plane.members.get(job)]
        return {"held": sum(plane.drain(one.job, epoch, time.monotonic_ns()) for one in members)}

    def do_fault(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Inject faults."""
        rates = {name: _number(request, name) for name in ("loss", "delay_s", "duplicate", "reorder")}
        fault = LinkFault(**rates, seed=_whole(request, "seed", 0))
        self.plane.faults.set(str(request.get("direction")), _whole(request, "job", None), fault)
        return {}

    def do_measure(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Measure processor time by stage from here on."""
        self.plane.clock.start()
        return {}

    def do_stop(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """End the process."""
        self.stopping = True
        return {}

    def _switch(self, op: str) -> SwitchPlane:
        if not isinstance(self.plane, SwitchPlane):
            raise InputError(f"op {op!r}: this is a server, which has no aggregators; ask the switch")
        return self.plane


def _whole(request: Mapping[str, Any], name: str, absent: Any = _REQUIRED) -> Any:
    value = request.get(name, absent)
    if value is absent and absent is not _REQUIRED:
        return absent
    if isinstance(value, bool) or not isinstance(value, int):
        given = "missing" if value is _REQUIRED else f"{value!r}"
        raise InputError(f"op {request.get('op')!r}: {name} is {given}; it takes a whole number")
    if abs(value) >= 1 << 62:
        given = f"an integer of {len(str(abs(value)))} digits"
        raise InputError(f"op {request.get('op')!r}: {name} is {given}; it takes a number below 2^62")
    return value


def _number(request: Mapping[str, Any], name: str) -> float:
    value = request.get(name, 0.0)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InputError(f"op {request.get('op')!r}: {name} is {value!r}; it takes a number")
    return float(value)


def _options(request: Mapping[str, Any], job: int) -> Options:
    given = request.get("options")
    if not isinstance(given, dict) or not isinstance(given.get("protocol"), str):
        raise InputError(f"job {job}: options are {given!r}; they take an object with protocol")
    try:
        return preset(**given)
    except InputError as error:
        raise InputError(f"job {job}: {error}") from error


# -- counters of a switch or server and of its jobs, as the control socket answers them ------------------------------

#: Counters of a job at a switch, and at a server, in the order of their records.
SWITCH_COUNTERS = SWITCH_JOB.names[SWITCH_JOB.names.index("held") :] if SWITCH_JOB.names else ()
SERVER_COUNTERS = SERVER_JOB.names[SERVER_JOB.names.index("results") :] if SERVER_JOB.names else ()


def plane_statistics(plane: SwitchPlane | ServerPlane, socket: BatchSocket) -> dict[str, Any]:
    """Memory, batches, drops, faults, and processor seconds by stage if they are measured."""
    dropped = plane.dropped
    found: dict[str, Any] = {
        "payload": plane.members.payload_bytes,
        "malformed": dropped.malformed, "foreign": dropped.foreign, "refused": dropped.refused,
        "unsent": socket.unsent, "kernel_drops": socket.kernel_drops(),
        "receives": socket.receives, "sends": socket.sends, "batches": plane.batches,
        "faults": plane.faults.counters(),
        "stages_s": {name: ns / 1e9 for name, ns in plane.clock.spent.items()} if plane.clock.on else None,
    }  # fmt: skip
    if isinstance(plane, SwitchPlane):
        server = None if plane.server is None else list(plane.server[:2])
        return {**found, "aggregators": len(plane.switch.table), "held": plane.memory.held, "server": server}
    return {**found, "window": plane.window, "places": len(plane.server.jobs)}


def job_statistics(plane: SwitchPlane | ServerPlane, member: Member) -> dict[str, Any]:
    traffic = member.traffic
    found = {
        "job": member.job, "name": member.name, "workers": member.n_workers, "greeted": member.greeted,
        "protocol": member.options.protocol, "mode": member.options.mode.name.lower(),
        "regions": {str(epoch): list(region) for epoch, region in member.regions.items()},
        "connected": member.heard_ns is not None,
        "packets_in": traffic.packets_in, "bytes_in": traffic.bytes_in,
        "packets_out": traffic.packets_out, "bytes_out": traffic.bytes_out,
    }  # fmt: skip
    if isinstance(plane, SwitchPlane):
        row, priority = plane.switch.jobs[member.job], int(plane.memory.priorities[member.job])
        counters = {name: int(row[name]) for name in SWITCH_COUNTERS}
        return {**found, **counters, "priority": None if priority < 0 else priority}
    place = plane.row_of[member.job]
    row = plane.server.jobs[place]
    return {**found, **{name: int(row[name]) for name in SERVER_COUNTERS}, "open": plane.open_sums(place)}
