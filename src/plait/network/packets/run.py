"""A simulation from a scenario to its results. Start at `simulate`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from plait.core.arrays import FloatArray
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

#: Parts of the time whose rates are compared, those before a simulation may end, and those after which it ends.
PARTS, FEWEST_PARTS, MOST_PARTS = 20, 5, 200


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
            if run(net, ps(now_s) - 1) != TOO_LATE:  # before jobs that start at this time
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


@dataclass(frozen=True)
class Flow:
    """Rates of jobs that all go on: payload bits a second at each worker, and the share of sums added up."""

    bits_per_s: FloatArray
    aggregated: FloatArray


def flow(scenario: Scenario, from_s: float, until_s: float, near: float = 0.0, packets: float = 0.0) -> Flow:
    """Rates of jobs between two times of a simulation; raises as `simulate` does, and if all end before.

    With `near` the simulation ends when the standard error of the rate of each job, of parts of the time, is a smaller
    part of it; until then it goes on past `until_s` while workers have received fewer results than `packets`. The share
    of sums completed in a switch is the mean over the switches that add up for a job.
    """
    net, counts = build(scenario), []
    for part in range(MOST_PARTS + 1):
        at_s = from_s + (until_s - from_s) * part / PARTS
        net.links.info[FAULT] = FINE
        with announced("the packet simulator", cpu_s=10):
            fault = run(net, ps(at_s))
        if fault != TOO_LATE:
            raise SimulationError(_why(net, scenario, fault) if fault else f"all jobs ended before {at_s:g} s")
        counts.append((at_s, net.ends.delivered.sum(axis=1), net.fabric.jobs_at["aggregated"].copy()))
        each = np.diff([count[1] for count in counts], axis=0)
        if part >= PARTS and counts[-1][1].sum() >= packets:
            break
        if part >= FEWEST_PARTS and (each.std(axis=0, ddof=1) < near * part**0.5 * each.mean(axis=0)).all():
            break
    (_, first, before), (ended_s, last, after) = counts[0], counts[-1]
    sums = (last - first) / np.array([job.workers for job in scenario.jobs])
    adds = net.fabric.jobs_at["expected"] != 0
    payload = np.array([8.0 * job.options.payload_bytes for job in scenario.jobs])
    shares = np.where(adds, after - before, 0).sum(axis=0) / np.maximum(sums * adds.sum(axis=0), 1)
    return Flow(payload * sums / (ended_s - from_s), shares)


def _why(net: Net, scenario: Scenario, fault: int) -> str:
    """What went wrong, and what helps."""
    at = f"after {int(net.links.info[NOW]) / 1e12:.6g} s of simulated time"
    if fault == FULL_QUEUE:
        q = int(net.links.info[FAULT_AT])
        room = int(net.links.queues[q]["mask"]) + 1
        channel = scenario.graph.channel_name(q // 2 % len(net.links.channels))
        return f"link {channel} has more than the {room:,} packets under way for which there is room, {at}"
    if fault == FULL_ROWS:
        return f"more than {len(net.links.packets):,} packets are under way, for which there is no room, {at}"
    assert fault == TOO_LATE
    open_jobs = [j for j, row in enumerate(net.links.jobs) if row["busy"] > 0]
    return f"job {', '.join(map(str, open_jobs))} did not finish in {scenario.until_s:g} s of simulated time (until_s)"
