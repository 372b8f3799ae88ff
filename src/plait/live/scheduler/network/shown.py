"""The network for people: switches, who serves them, what jobs have of them, and how jobs exchange gradients."""

from __future__ import annotations

from msgspec import structs

from plait.core.network_grants import NetworkGrant
from plait.core.policy import has_grants
from plait.live.api.cluster import NetworkJob, NetworkOfCluster, Switch, SwitchJob
from plait.live.api.jobs import JobAggregation, Region
from plait.live.layout import job_name
from plait.live.protocol.wire import LeaseSeen, SwitchSeen
from plait.live.scheduler.context import Context
from plait.live.scheduler.network.orders import served
from plait.live.scheduler.network.switches import network_of, serving_node
from plait.live.scheduler.network.tell import refusal
from plait.live.scheduler.records.attempts import Attempt
from plait.live.scheduler.records.network import Leased
from plait.live.scheduler.usage import measured


def network(ctx: Context) -> NetworkOfCluster:
    """The network, its switches and the jobs that could be aggregated; `network` is None without one."""
    state, known = ctx.state, network_of(ctx)
    declared = state.network.declared
    return NetworkOfCluster(
        network=None if declared is None else declared.text,
        policy=state.policy_text,
        grants=state.policy is not None and has_grants(state.policy),
        switches=[] if known is None else [_switch(ctx, one.id) for one in known.switches if one.aggregators],
        jobs=[
            NetworkJob(**structs.asdict(found), id=job_name(job.number), number=job.number)
            for job, attempt in state.attempts
            if (found := of_attempt(ctx, attempt)) is not None
        ],
    )


def of_attempt(ctx: Context, attempt: Attempt) -> JobAggregation | None:
    """Switch of an attempt, its use and the reason; None where nothing can aggregate for it."""
    if not attempt.networked:
        return None
    answer, lease = ctx.state.network.told.get(attempt.job), ctx.state.network.leases.get(attempt.job)
    granted = answer is not None and answer.epoch == attempt.epoch and answer.granted
    exchanges = [r.seen.exchange for r in attempt.ranks if r.seen is not None and r.seen.exchange is not None]
    figures = measured(attempt)
    node = None if lease is None else serving_node(ctx, lease.grant.switch)
    refused = "" if lease is None or node is None else refusal(node.switch, lease)
    by_gloo = next((one.reason for one in exchanges if one.mode == "gloo" and one.reason), "")
    total = sum(one.aggregated_bytes + one.fallback_bytes for one in exchanges)
    return JobAggregation(
        granted=granted,
        switch=None if lease is None else lease.grant.switch,
        region=None if lease is None else _region(lease.grant),
        epoch=None if lease is None else lease.epoch,
        protocol=(answer.options or {}).get("protocol") if granted and answer is not None else None,
        window=None if lease is None else lease.grant.window or None,
        priority=None if lease is None else lease.grant.priority or None,
        mode_used=None if not exchanges else "gloo" if any(one.mode == "gloo" for one in exchanges) else "aggregation",
        bits_per_s=None if figures is None else figures.bits_per_s,
        aggregated_share=None if figures is None else figures.aggregated,
        fallback_share=None if figures is None else figures.fallback_share,
        gloo_share=sum(one.fallback_bytes for one in exchanges) / total if total else None,
        resend_share=max((one.resend_share for one in exchanges), default=None),
        timeouts=sum(one.timeouts for one in exchanges) if exchanges else None,
        trouble=f"{lease.grant.switch} refuses its region: {refused}" if lease is not None and refused else None,
        reason=by_gloo or (answer.reason if answer is not None else "its switch has not answered yet"),
    )


def _region(grant: NetworkGrant) -> Region:
    return Region(grant.offset, grant.size, grant.mode, grant.exclusive)


def _switch(ctx: Context, name: str) -> Switch:
    known, book = network_of(ctx), ctx.state.network
    assert known is not None
    switch, serving = known.switch(name), book.serving.get(name)
    record = None if serving is None else ctx.state.nodes.get(serving.node)
    seen = SwitchSeen() if record is None or record.switch is None else record.switch
    regions = [one for one in served(book) if one.grant.switch == name]
    counted = {(one.job, one.epoch): one for one in seen.leases} if seen.name == name else {}
    up = name not in known.down
    return Switch(
        switch=name,
        state="up" if up else "lost" if serving and serving.incarnation else "not served",
        node=None if record is None else record.id,
        aggregators=switch.usable,
        payload_bytes=switch.payload_bytes,
        granted=sum(one.grant.size for one in regions if one.grant.exclusive),
        held=seen.held if up else 0,
        restarts=seen.restarts,
        trouble=seen.trouble or None,
        jobs=[_served(one, counted.get((one.job, one.epoch))) for one in regions],
    )


def _served(lease: Leased, seen: LeaseSeen | None) -> SwitchJob:
    counted = seen or LeaseSeen(lease.job, lease.epoch)
    return SwitchJob(
        **structs.asdict(_region(lease.grant)), id=job_name(lease.job), number=lease.job,
        serves=seen is not None and not seen.refused, held=counted.held, received=counted.received,
        collided=counted.collided, completed=counted.completed,
    )  # fmt: skip
