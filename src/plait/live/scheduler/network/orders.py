"""Instructions for agents about aggregation: the switch that one serves with its leases, and the files of ranks."""

from __future__ import annotations

import hashlib
import hmac

from plait.core.cluster import Switch
from plait.live.layout import job_name
from plait.live.protocol.requests import ina_of
from plait.live.protocol.wire import Lease, SwitchOrder
from plait.live.scheduler.context import Context
from plait.live.scheduler.network.switches import network_of
from plait.live.scheduler.records.attempts import Attempt, JobRecord
from plait.live.scheduler.records.network import Leased, NetworkBook
from plait.runtime.network.grant import TOKEN_BYTES, NetworkGrant

#: Largest window of a job, packets, and jobs at once, that an aggregation server has room for.
MOST_WINDOW, MOST_SERVED = 1024, 32


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
        leases = [_lease(ctx, one, switch) for one in served(book) if one.grant.switch == name]
        found[serving.node] = SwitchOrder(
            name, record.address, switch.usable, switch.payload_bytes, MOST_WINDOW, MOST_SERVED, leases
        )
    return found


def served(book: NetworkBook) -> list[Leased]:
    """Leases that switches serve: current ones, and former ones for which a switch knows the job by another number."""
    kept = [one for job, one in book.former.items() if job not in book.leases or book.leases[job].wire != one.wire]
    return [*book.leases.values(), *kept]


def grant_of_ranks(ctx: Context, job: JobRecord, attempt: Attempt) -> NetworkGrant | None:
    """The grant that the ranks of an attempt may use, as they know it; None where the cluster has no network."""
    told = ctx.state.network.told.get(job.number)
    if not attempt.networked or told is None or told.epoch != attempt.epoch:
        return None
    if not told.granted:
        return NetworkGrant(told.version, False, told.reason)
    ports, options = [int(port) for port in told.ports], dict(told.options or {})
    return NetworkGrant(
        told.version, True, told.reason, told.wire, token_of(ctx, attempt, told.since),
        len(attempt.ranks), (told.address, ports[0]), (told.address, ports[1]) if len(ports) > 1 else None, told.switch,
        options, told.offset, told.size, told.lease, told.priority, told.slots, told.window,
    )  # fmt: skip


def token_of(ctx: Context, attempt: Attempt, since: int) -> str:
    """The secret of an attempt for its switch: it is not in the log, and every service of a home derives the same.

    Where the job is registered again, its packets are numbered from 0 again. Then it has another secret, so that ranks
    that do not know this yet cannot put packets with their former numbers among the new ones.
    """
    said = f"{attempt.job}:{attempt.epoch}:{since}".encode()
    return hmac.new(ctx.secret, said, hashlib.sha256).hexdigest()[: 2 * TOKEN_BYTES]


def window_of(lease: Leased) -> int:
    """Packets that a rank may have outstanding; 0: as the options have it."""
    return min(lease.grant.window, MOST_WINDOW)


def _lease(ctx: Context, lease: Leased, switch: Switch) -> Lease:
    attempt = ctx.state.jobs[lease.job].attempt
    assert attempt is not None, "a lease is of an attempt"
    grant, ttl_s = lease.grant, ina_of(ctx.state.jobs[lease.job].request).ttl_s
    former = ctx.state.network.former.get(lease.job)
    moving = former is not None and former is not lease and former.wire == lease.wire
    return Lease(
        lease.job, lease.wire, job_name(lease.job), token_of(ctx, attempt, lease.since),
        len(attempt.ranks), lease.epoch, grant.offset, grant.size or switch.usable, grant.priority, ttl_s or 0.0,
        dict(lease.options), window_of(lease), moving,
    )  # fmt: skip
