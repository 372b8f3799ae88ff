"""Counters of a switch or server and of its jobs, as the control socket answers them."""

from __future__ import annotations

from typing import Any

from plait.live.dataplane.members import Member
from plait.live.dataplane.server_plane import ServerPlane
from plait.live.dataplane.switch_plane import SwitchPlane
from plait.network.protocol.server import SERVER_JOB
from plait.network.protocol.switch import SWITCH_JOB
from plait.runtime.network.datagrams import BatchSocket

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
    """Counters of one job."""
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
