"""What agents are asked to do for aggregation: the switch that one serves with its leases, and the files of ranks."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping
from typing import Any

from plait.core.cluster import Switch
from plait.live.layout import job_name
from plait.live.protocol.requests import ina_of
from plait.live.protocol.wire import Lease, SwitchOrder
from plait.live.scheduler.context import Context
from plait.live.scheduler.live_policy import system_of
from plait.live.scheduler.network.leases import wire_number
from plait.live.scheduler.network.switches import network_of
from plait.live.scheduler.records.attempts import Attempt, JobRecord
from plait.live.scheduler.records.network import Leased
from plait.runtime.network.grant import TOKEN_BYTES, NetworkGrant

#: System whose rules go with an addressing mode where neither job nor policy names one.
_OF_MODE = {"dedicated": "switchml", "hybrid_region": "inalloc", "hybrid_modulo": "inalloc"}
#: Largest window of a job, packets, and jobs at once, that an aggregation server has room for.
MOST_WINDOW, MOST_SERVED = 1024, 32
#: Timeouts of ranks, seconds: those of the systems are for hardware; a software switch may wait for a core that long.
RTO_S, FIRST_RTO_S = 10e-3, 50e-3
_SYSTEMS = ("switchml", "atp", "a2tp", "esa", "inalloc")


def switch_orders(ctx: Context) -> dict[str, SwitchOrder]:
    """By node: the switch that its agent is to serve, and all leases on it."""
    network, book = network_of(ctx), ctx.state.network
    found: dict[str, SwitchOrder] = {}
    if network is None:
        return found
    for name, serving in book.serving.items():
        record = ctx.state.nodes.get(serving.node)
        if record is None or name not in network.names:
            continue
        switch = network.switch(name)
        leases = [_lease(ctx, one, switch) for one in book.leases.values() if one.grant.switch == name]
        found[serving.node] = SwitchOrder(
            name, record.address, switch.usable, switch.payload_bytes, MOST_WINDOW, MOST_SERVED, leases
        )
    return found


def grant_of_ranks(ctx: Context, job: JobRecord, attempt: Attempt) -> NetworkGrant | None:
    """What the ranks of an attempt may use, as they know it; None where the cluster has no network."""
    told = ctx.state.network.told.get(job.number)
    if not attempt.networked or told is None or told.epoch != attempt.epoch:
        return None
    if not told.granted:
        return NetworkGrant(told.version, False, told.reason)
    ports, options = [int(port) for port in told.ports], dict(told.options or {})
    return NetworkGrant(
        told.version, True, told.reason, wire_number(job.number), token_of(ctx, attempt, options),
        len(attempt.ranks), (told.address, ports[0]), (told.address, ports[1]) if len(ports) > 1 else None, told.switch,
        options, told.offset, told.size, told.lease, told.priority, told.slots,
    )  # fmt: skip


def token_of(ctx: Context, attempt: Attempt, options: Mapping[str, Any]) -> str:
    """The secret of an attempt for its switch: nobody reads it in the log, and every service of a home has the same.

    With other options the job is registered again, and its packets are numbered from 0 again. Then it has another
    secret, so that ranks that do not know this yet cannot put packets with their former numbers among the new ones.
    """
    said = f"{attempt.job}:{attempt.epoch}:{json.dumps(dict(options), sort_keys=True)}".encode()
    return hmac.new(ctx.secret, said, hashlib.sha256).hexdigest()[: 2 * TOKEN_BYTES]


def options_of(ctx: Context, lease: Leased, switch: Switch) -> dict[str, Any]:
    """The options of the protocol of a lease: system, addressing, payload, window, timeouts."""
    asked = ina_of(ctx.state.jobs[lease.job].request)
    system = asked.protocol or system_of(ctx.state.policy)
    if system not in _SYSTEMS or (system == "switchml") != (lease.grant.mode == "dedicated"):
        system = _OF_MODE.get(lease.grant.mode, "esa" if lease.grant.priority else "atp")
    found: dict[str, Any] = {
        "protocol": system, "index": lease.grant.mode, "payload_bytes": switch.payload_bytes,
        "rto_s": RTO_S, "first_rto_s": FIRST_RTO_S,
    }  # fmt: skip
    if lease.grant.window:
        found["window"] = min(lease.grant.window, MOST_WINDOW)
    return found


def _lease(ctx: Context, lease: Leased, switch: Switch) -> Lease:
    attempt = ctx.state.jobs[lease.job].attempt
    assert attempt is not None, "a lease is of an attempt"
    grant, ttl_s = lease.grant, ina_of(ctx.state.jobs[lease.job].request).ttl_s
    options = options_of(ctx, lease, switch)
    return Lease(
        lease.job, wire_number(lease.job), job_name(lease.job), token_of(ctx, attempt, options),
        len(attempt.ranks), lease.epoch, grant.offset, grant.size or switch.usable, grant.priority, ttl_s or 0.0,
        options,
    )  # fmt: skip
