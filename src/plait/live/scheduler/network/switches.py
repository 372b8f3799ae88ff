"""Who serves each switch that aggregates, and which are lost: nodes elected for them, and events to the controller."""

from __future__ import annotations

from plait.control.messages import SwitchJoined, SwitchLost
from plait.core.cluster import Network, Switch
from plait.live.scheduler.context import Context
from plait.live.scheduler.records.attempts import NodeRecord
from plait.live.scheduler.records.network import Serving
from plait.live.scheduler.records.notes import SwitchServed


def follow(ctx: Context) -> None:
    """Elect a node for each switch without one; report switches that are lost, started or restarted.

    Candidates are the node that is declared for the switch, or else the first one by name that is attached to it, once
    the expected nodes have joined. A node serves until it is lost, drained or leaves. A switch that starts has empty
    memory, so one that restarted was lost in between.
    """
    network = network_of(ctx)
    for switch in [] if network is None else [one for one in network.switches if one.aggregators]:
        serving = ctx.state.network.serving.get(switch.id)
        record = None if serving is None else ctx.state.nodes.get(serving.node)
        if serving is None or record is None or not _may_serve(record):
            _elect(ctx, switch, serving)
            continue
        seen = record.switch
        if seen is None:
            continue  # its agent has not reported since the service started
        works = seen.name == switch.id and seen.incarnation != ""
        if _up(ctx, switch) and not (works and seen.incarnation == serving.incarnation):
            ctx.record(SwitchLost(ctx.now_s, switch.id))
        if works and not _up(ctx, switch):
            ctx.record(SwitchServed(ctx.now_s, switch.id, record.id, seen.incarnation))
            ctx.record(SwitchJoined(ctx.now_s, switch.id))


def serving_node(ctx: Context, switch: str) -> NodeRecord | None:
    """The node that serves a switch that is up; None for one that is lost."""
    network, serving = network_of(ctx), ctx.state.network.serving.get(switch)
    if network is None or serving is None or switch not in network.names or switch in network.down:
        return None
    return ctx.state.nodes.get(serving.node)


def network_of(ctx: Context) -> Network | None:
    """The present network of the cluster."""
    controller = ctx.state.controller
    return None if controller is None or ctx.state.network.declared is None else controller.cluster.network


def _up(ctx: Context, switch: Switch) -> bool:
    network = network_of(ctx)
    return network is not None and switch.id not in network.down


def _may_serve(record: NodeRecord) -> bool:
    return not (record.lost or record.drained or record.leaving)


def _elect(ctx: Context, switch: Switch, serving: Serving | None) -> None:
    if _up(ctx, switch):
        ctx.record(SwitchLost(ctx.now_s, switch.id))
    if ctx.now_s < ctx.timers.settle_s:
        return  # more nodes may join, and the first of them is to serve it
    chosen = _candidate(ctx, switch)
    if (serving.node if serving else "") != chosen:
        ctx.record(SwitchServed(ctx.now_s, switch.id, chosen))


def _candidate(ctx: Context, switch: Switch) -> str:
    """The name of the node that is to serve a switch; "" if there is none."""
    network, nodes = network_of(ctx), ctx.state.nodes
    assert network is not None
    busy = {one.node for name, one in ctx.state.network.serving.items() if name != switch.id}
    attached = {end for link in network.links for end in (link.a, link.b) if switch.id in (link.a, link.b)}
    found = []
    for name in sorted(nodes):
        record = nodes[name]
        if record.switch is None or name in busy or not _may_serve(record) or record.suspect:
            continue
        if record.switch.declared == switch.id:
            found.append((0, name))
        elif not record.switch.declared and name in attached:
            found.append((1, name))
    return min(found)[1] if found else ""
