"""What the ranks of a job get to know of in-network aggregation: one note for each version of their grant files.

They learn of a region once the switch says that it serves it, and keep what they have until then. An attempt is not
assigned before there is a first version, so what is granted at launch is used from the first step on; a
switch that does not answer holds it up for `PATIENCE_S` at most.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from plait.live.protocol.wire import SwitchSeen
from plait.live.scheduler.context import Context, Step
from plait.live.scheduler.network.leases import attempt_of, why_not
from plait.live.scheduler.network.orders import options_of
from plait.live.scheduler.network.switches import network_of, serving_node
from plait.live.scheduler.records.attempts import Attempt
from plait.live.scheduler.records.network import Leased
from plait.live.scheduler.records.notes import RanksTold

#: Seconds that the start of an attempt waits at most until a switch serves its region.
PATIENCE_S = 5.0


def tell(ctx: Context, now_s: float) -> Iterator[Step]:
    """A note for each attempt whose ranks are to know something else than they do."""
    state = ctx.state
    for number in sorted(state.live):
        attempt = state.jobs[number].live
        if attempt is None or not attempt.networked:
            continue
        before = state.network.told.get(number)
        before = before if before is not None and before.epoch == attempt.epoch else None
        wanted = _wanted(ctx, number, attempt, before, now_s)
        if wanted is None:
            continue
        wanted = replace(wanted, version=1 if before is None else before.version + 1)
        if before is None or replace(wanted, version=before.version, at_s=before.at_s) != before:
            yield wanted


def due_s(ctx: Context) -> float:
    """When an attempt has waited long enough for its switch; infinite if none waits."""
    told, jobs = ctx.state.network.told, ctx.state.jobs
    waits = [
        attempt.began_s + PATIENCE_S
        for number in ctx.state.live
        if (attempt := jobs[number].live) is not None and waits_for_word(ctx, attempt) and number not in told
    ]
    return min(waits, default=math.inf)


def waits_for_word(ctx: Context, attempt: Attempt) -> bool:
    """Whether an attempt must not be assigned yet: its ranks would know nothing."""
    told = ctx.state.network.told.get(attempt.job)
    return attempt.networked and attempt.stop is None and (told is None or told.epoch != attempt.epoch)


def _wanted(ctx: Context, number: int, attempt: Attempt, before: RanksTold | None, now_s: float) -> RanksTold | None:
    """What the ranks are to know, with no version yet; None to leave them with what they know."""
    lease = ctx.state.network.leases.get(number)
    if lease is None:
        return RanksTold(now_s, number, attempt.epoch, 0, False, _why(ctx, number, attempt))
    node = serving_node(ctx, lease.grant.switch)
    seen = None if node is None else node.switch
    if node is not None and seen is not None and _serves(seen, lease):
        return _granted(ctx, lease, attempt, node.address, seen, now_s)
    if before is None and now_s < attempt.began_s + PATIENCE_S:
        return None
    if before is not None and (node is not None or not before.granted):
        return None  # the switch is about to serve the new region
    why = f"switch {lease.grant.switch} does not serve its region yet"
    return RanksTold(now_s, number, attempt.epoch, 0, False, why)


def _serves(seen: SwitchSeen, lease: Leased) -> bool:
    return any((one.job, one.epoch) == (lease.job, lease.epoch) for one in seen.leases)


def _granted(ctx: Context, lease: Leased, attempt: Attempt, address: str, seen: SwitchSeen, now_s: float) -> RanksTold:
    network = network_of(ctx)
    assert network is not None
    switch, grant = network.switch(lease.grant.switch), lease.grant
    ports = [seen.data_port] + ([seen.server_port] if seen.server_port else [])
    whole = not grant.size
    return RanksTold(
        now_s, lease.job, attempt.epoch, 0, True, grant.reason, grant.switch, address, ports, lease.epoch,
        grant.offset, switch.usable if whole else grant.size, grant.priority, switch.usable,
        options_of(ctx, lease, switch),
    )  # fmt: skip


def _why(ctx: Context, number: int, attempt: Attempt) -> str:
    """Why an attempt has no lease, in words."""
    controller = ctx.state.controller
    assert controller is not None
    if attempt.stop is not None:
        return "it was asked to stop"
    mine = [grant for grant in controller.grants if grant.job == number]
    if mine and attempt_of(ctx.state, number) is not None:
        return why_not(ctx.state, number, attempt) or "its grant has not begun"
    note = controller.network_reason(number) or "no memory of a switch is granted to it"
    return note.removeprefix("not aggregated: ")
