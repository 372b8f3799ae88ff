"""A simulation from a scenario to its results. Start at `simulate`."""

from __future__ import annotations

from plait.core.errors import SimulationError
from plait.core.jit import announced
from plait.network.memory.inalloc import Inalloc
from plait.network.packets.build import build, ps
from plait.network.packets.deadlines import Reviews
from plait.network.packets.loop import run
from plait.network.packets.results import PacketResults, results
from plait.network.packets.scenario import Scenario
from plait.network.packets.state import FAULT, FAULT_AT, FINE, FULL_QUEUE, FULL_ROWS, NOW, TOO_LATE, Net
from plait.network.protocol.switch import HELD

__all__ = ["simulate"]


def simulate(scenario: Scenario, manager: Inalloc | None = None) -> PacketResults:
    """Run a scenario, the same each time.

    `manager`: it reviews the memory of all jobs, which are of protocol inalloc, whenever one starts and once in its
    period; without it the memory stays as it is in the scenario. Raises `SimulationError` if it takes longer than
    `until_s`, if a ring overflows or an aggregator is left over, and `InputError` where the scenario does not fit its
    network.
    """
    reviews = None if manager is None else Reviews(scenario, manager)
    net = build(scenario if reviews is None else reviews.scenario)
    until = ps(scenario.until_s)
    with announced("the packet simulator", cpu_s=10):
        while reviews is not None and (now_s := reviews.next_s(net)) < scenario.until_s:
            if run(net, ps(now_s)) != TOO_LATE:
                break
            net.links.info[FAULT] = FINE
            reviews.review(net, now_s)
        fault = net.links.info[FAULT] or run(net, until)
    if fault:
        raise SimulationError(_why(net, scenario, fault))
    held = int(net.fabric.switch_info[:, HELD].sum())
    if held:
        raise SimulationError(f"{held} aggregators are still held when all jobs are finished")
    if net.ends.hosts["wrong"].any():
        raise SimulationError(f"{int(net.ends.hosts['wrong'].sum())} sums that workers received are wrong")
    return results(scenario, net)


def _why(net: Net, scenario: Scenario, fault: int) -> str:
    """What went wrong, and what helps."""
    at = f"after {int(net.links.info[NOW]) / 1e12:.6g} s of simulated time"
    if fault == FULL_QUEUE:
        q = int(net.links.info[FAULT_AT])
        room = int(net.links.queues[q]["mask"]) + 1
        channel = scenario.graph.channel_name(q // 2)
        return f"link {channel} has more than the {room:,} packets under way for which there is room, {at}"
    if fault == FULL_ROWS:
        return f"more than {len(net.links.packets):,} packets are under way, for which there is no room, {at}"
    assert fault == TOO_LATE
    open_jobs = [j for j, row in enumerate(net.links.jobs) if row["busy"] > 0]
    return f"job {', '.join(map(str, open_jobs))} did not finish in {scenario.until_s:g} s of simulated time (until_s)"
