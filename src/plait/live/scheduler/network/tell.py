"""Notes that tell ranks about in-network aggregation: one for each version of their grant files.

They learn of a region once the switch reports that it serves it, and keep their grant until then. An attempt is not
assigned before there is a first version, so a grant at launch is used from the first step on; a switch that does not
answer delays it by at most `PATIENCE_S`.
"""

from __future__ import annotations

import math
from dataclasses import replace

from plait.live.protocol.wire import Exchange, SwitchSeen
from plait.live.scheduler.context import Context
from plait.live.scheduler.leases import attempt_of, why_not
from plait.live.scheduler.network.orders import window_of
from plait.live.scheduler.network.switches import network_of, serving_node
from plait.live.scheduler.records.attempts import Attempt
from plait.live.scheduler.records.network import Leased
from plait.live.scheduler.records.notes import NumbersSpent, RanksMoved, RanksTold

#: Seconds that the start of an attempt waits at most until a switch serves its region.
PATIENCE_S = 5.0
#: Seconds for which a switch may refuse a region before the job goes by gloo and leaves what it has: two jobs of which
#: each waits for memory of the other would wait for ever.
REFUSED_S = 30.0
#: Numbers of packets of 2^32 after which a job is registered again: far from the end, for that takes some buckets.
MANY_NUMBERS = 2**31


def tell(ctx: Context) -> None:
    """Record a note for each attempt whose ranks are to know something else than they do."""
    state = ctx.state
    for number, attempt in ((job.number, attempt) for job, attempt in state.attempts if attempt.networked):
        before = state.network.told.get(number)
        before = before if before is not None and before.epoch == attempt.epoch else None
        if before is not None:
            _moved(ctx, attempt, before)
        wanted = _wanted(ctx, number, attempt, before)
        if wanted is None:
            continue
        wanted = replace(wanted, version=1 if before is None else before.version + 1)
        if before is None or replace(wanted, version=before.version, at_s=before.at_s) != before:
            ctx.record(wanted)


def _moved(ctx: Context, attempt: Attempt, told: RanksTold) -> None:
    """Record that all ranks have left what they had before, and that they need other numbers for packets."""
    book = ctx.state.network
    said = [None if rank.seen is None else rank.seen.exchange or Exchange() for rank in attempt.ranks]
    # A rank that has found no grant yet uses none; the version of a rank that has not reported since the service
    # started is unknown.
    if not all(one is not None and (one.version < 0 or one.version >= told.version) for one in said):
        return
    former, lease = book.former.get(attempt.job), book.leases.get(attempt.job)
    if former is not None:
        if not told.granted or told.lease != former.epoch:
            ctx.record(RanksMoved(ctx.now_s, attempt.job, told.version))
        return
    many = any(one is not None and one.version >= 0 and one.numbers >= MANY_NUMBERS for one in said)
    if many and lease is not None and told.granted and told.lease == lease.epoch and not lease.spent:
        ctx.record(NumbersSpent(ctx.now_s, attempt.job, lease.since))


def due_s(ctx: Context) -> float:
    """When an attempt has waited long enough for its switch; infinite if none waits."""
    waits = [
        attempt.began_s + PATIENCE_S
        for job, attempt in ctx.state.attempts
        if waits_for_word(ctx, attempt) and job.number not in ctx.state.network.told
    ]
    return min(waits, default=math.inf)


def waits_for_word(ctx: Context, attempt: Attempt) -> bool:
    """Whether an attempt must not be assigned yet: its ranks would know nothing."""
    told = ctx.state.network.told.get(attempt.job)
    return attempt.networked and attempt.stop is None and (told is None or told.epoch != attempt.epoch)


def _wanted(ctx: Context, number: int, attempt: Attempt, before: RanksTold | None) -> RanksTold | None:
    """The grant that the ranks should have, with no version yet; None to leave them theirs."""
    now_s = ctx.now_s
    lease = ctx.state.network.leases.get(number)
    if lease is None:
        return RanksTold(now_s, number, attempt.epoch, 0, False, _why(ctx, number, attempt))
    node = serving_node(ctx, lease.grant.switch)
    seen = None if node is None else node.switch
    if node is not None and seen is not None and _serves(seen, lease):
        return _granted(ctx, lease, attempt, node.address, seen)
    refused = refusal(seen, lease)
    if before is None and not refused and now_s < attempt.began_s + PATIENCE_S:
        return None
    if refused and (before is None or now_s >= lease.begun_s + REFUSED_S):
        why = f"switch {lease.grant.switch} refuses its region: {refused}"
        return RanksTold(now_s, number, attempt.epoch, 0, False, why)
    if before is not None and (node is not None or not before.granted):
        return None  # the switch is about to serve the new region
    why = f"switch {lease.grant.switch} does not serve its region yet"
    return RanksTold(now_s, number, attempt.epoch, 0, False, why)


def _serves(seen: SwitchSeen, lease: Leased) -> bool:
    return any((one.job, one.epoch) == (lease.job, lease.epoch) and not one.refused for one in seen.leases)


def refusal(seen: SwitchSeen | None, lease: Leased) -> str:
    """Why a switch does not serve a lease; "" if it does, or has not tried yet."""
    mine = [] if seen is None else [one for one in seen.leases if (one.job, one.epoch) == (lease.job, lease.epoch)]
    return mine[0].refused if mine else ""


def _granted(ctx: Context, lease: Leased, attempt: Attempt, address: str, seen: SwitchSeen) -> RanksTold:
    network = network_of(ctx)
    assert network is not None
    switch, grant = network.switch(lease.grant.switch), lease.grant
    ports = [seen.data_port] + ([seen.server_port] if seen.server_port else [])
    whole = not grant.size
    return RanksTold(
        ctx.now_s, lease.job, attempt.epoch, 0, True, grant.reason, grant.switch, address, ports, lease.epoch,
        grant.offset, switch.usable if whole else grant.size, grant.priority, switch.usable,
        lease.options, lease.wire, lease.since, window_of(lease),
    )  # fmt: skip


def _why(ctx: Context, number: int, attempt: Attempt) -> str:
    """Why an attempt has no lease, in words."""
    controller = ctx.state.in_charge
    if attempt.stop is not None:
        return "it has a request to stop"
    mine = [grant for grant in controller.grants if grant.job == number]
    if mine and attempt_of(ctx.state, number) is not None:
        return why_not(attempt) or "its grant has not begun"
    note = controller.network_reason(number) or "no memory of a switch is granted to it"
    return note.removeprefix("not aggregated: ")
