"""Runs as values, and how they are made."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy as np

from plait import make_policy, make_world
from plait import simulate as simulate_cluster
from plait.core.cluster import Cluster
from plait.network.fluid.jobs import PlacedJob
from plait.network.packets.deadlines import granted
from plait.network.packets.results import PacketResults
from plait.network.packets.run import simulate
from plait.network.packets.scenario import MIB, PacketJob, Scenario, Straggler, one_switch
from plait.network.protocol.options import preset
from plait.network.routing import GradientFlow, Problem, grid, shortest
from plait.network.topology.paths import Graph
from plait.network.topology.read import networked
from plait.sim.contention.network import NetworkPhysics, with_gradient_bytes
from plait.sim.physics import StandardPhysics
from plait.traces.load import load_jobs
from plait.traces.synthetic import generate
from plait_papers.evaluation import Ended, Evaluation

#: Packets in a queue from which on the released switch of A2TP marks: 1,000 cells of 80 bytes, four to a packet.
MARKED = 250
#: Payload of a worker's link, bits/s.
LINE = 100e9 * 248 / 306


@dataclass(frozen=True, slots=True)
class Case:
    """One run on one switch. `study`: equal, straggler (of job 0, worker 0), deadlines, routes or cluster (no packets).

    `protocol` hybrid is inalloc without deadlines: all jobs share; of a cluster it has the options of `tiresias-l`.
    `iterations` compute as long as the line needs for an exchange. `rto_us` 0: timers as released.
    """

    protocol: str
    aggregators: int = 4096
    study: str = "equal"
    jobs: int = 8
    workers: int = 8
    mib: float = 2.0
    window: int = 245
    seed: int = 1
    loss: float = 0.0
    iterations: int = 1
    index: str = "auto"
    rto_us: float = 0.0


@dataclass(frozen=True, slots=True)
class Done:
    """Figures of a run, and the CPU seconds that it took."""

    figures: dict[str, float]
    cpu_s: float


def run_case(case: Case, ended: Ended | None = None) -> Done:
    """Run it; `ended(1)` is called at its end."""
    begin = time.process_time()
    if case.study == "routes":
        figures = _routes(case)
    elif case.study == "cluster":
        figures = _cluster(case)
    elif case.study == "straggler":
        figures = _straggler(case)
    else:
        figures = _figures(simulate(scenario_of(case)))
    if ended is not None:
        ended(1)
    return Done(figures, time.process_time() - begin)


def scenario_of(case: Case) -> Scenario:
    name = {"hybrid": "inalloc"}.get(case.protocol, case.protocol)
    # Congestion control of A2TP would take most of a run to open its windows.
    more = {"rto_s": 1e-6 * case.rto_us, "first_rto_s": 1e-6 * case.rto_us} if case.rto_us else {}
    options = preset(name, window=case.window, payload_bytes=248, index=case.index, initial_window=case.window, **more)
    size = round(case.mib * MIB)
    compute_s = 8 * size / LINE if case.iterations > 1 else 0.0
    job = PacketJob(options, case.workers, (size,), case.iterations, compute_s)
    jobs = [replace(job, priority=10 + j if name == "esa" else None) for j in range(case.jobs)]
    if case.study == "deadlines":
        slack = np.random.default_rng(case.seed).uniform(1.1, 6.0, case.jobs)
        jobs = [replace(one, deadline_s=8 * size / LINE * float(s)) for one, s in zip(jobs, slack, strict=True)]
    made = one_switch(jobs, case.aggregators, seed=case.seed, loss_up=case.loss, loss_down=case.loss)
    if case.study == "straggler":
        made = replace(made, stragglers=(Straggler(0, 0, share=0.2),), mark_packets=MARKED)
    return granted(made) if case.protocol == "inalloc" else made


def _figures(found: PacketResults) -> dict[str, float]:
    jobs = found.jobs
    packets = found.worker_packets
    span = [job.finish_s - job.start_s for job in jobs]
    return {
        "goodput": found.goodput_bits_per_s / 1e9,
        "fallback": 100 * found.fallback_share,
        "aggregated": float(np.mean([job.aggregated_share for job in jobs])),
        "resent": 100 * sum(job.resend_share * job.packets for job in jobs) / packets,
        "makespan_ms": 1e3 * found.makespan_s,
        "mean_jct_ms": 1e3 * float(np.mean(span)),
        "holding_us": 1e6 * float(np.nan_to_num(np.mean([job.holding_s for job in jobs]))),
        "missed": float(sum(job.met_deadline is False for job in jobs)),
        "events": float(found.events),
    }


def _straggler(case: Case) -> dict[str, float]:
    """Job 1 with a straggling job 0, and alone; aggregators of both while job 1 runs, and of job 0 afterwards.

    Shares of all aggregators, each over the second half of its time.
    """
    made = scenario_of(case)
    both, alone = simulate(made), simulate(replace(made, jobs=made.jobs[1:], stragglers=()))
    end, last = (int(job.finish_s / both.bin_s) for job in (both.jobs[1], both.jobs[0]))
    during, after = slice(end // 2, end), slice(end + (last - end) // 2, last)
    return _figures(both) | {
        "kept": both.jobs[1].goodput_bits_per_s / alone.jobs[0].goodput_bits_per_s,
        "goodput_0": both.jobs[0].goodput_bits_per_s / 1e9,
        "goodput_1": both.jobs[1].goodput_bits_per_s / 1e9,
        "held_during": float(both.held[0][during].mean()) / case.aggregators,
        "held_beside": float(both.held[1][during].mean()) / case.aggregators,
        "held_after": float(both.held[0][after].mean()) / case.aggregators,
    }


def _routes(case: Case) -> dict[str, float]:
    """The fullest link under GRID over that under fixed leaf switches: one random placement of a seed."""
    rng = np.random.default_rng(case.seed)
    made = networked(
        Cluster.parse("32x1@8"), f"leaf-spine:oversubscription=4,aggregators={case.aggregators},aggregating=all"
    )
    graph, flows = Graph.of(made), []
    for j in range(case.jobs):
        nodes = rng.choice(32, case.workers + 1, replace=False).tolist()
        flows.append(GradientFlow(PlacedJob(tuple(nodes[1:]), server=nodes[0]), 5e9, pick=j % graph.most_ways))
    problem = Problem.of(graph, flows)
    found, fixed = grid(problem, seed=case.seed).utilisation, shortest(problem, "leaf").utilisation
    return {"fullest": found, "fixed": fixed}


def _cluster(case: Case) -> dict[str, float]:
    """Mean completion time of jobs like Philly's on 64 nodes in 8 racks: one trace of a seed."""
    table = generate("philly_heavy", case.jobs, 256, load=0.25, seed=case.seed, models="by_gpu_hours")
    network = f"leaf-spine:oversubscription=4,link_gbps=25,aggregators={case.aggregators}"
    cluster = networked(Cluster.parse("64x4@8"), network)
    jobs = with_gradient_bytes(load_jobs(table).jobs, case.seed)
    policy = make_policy("tiresias-l" + (f":{case.protocol}" if case.protocol else ""))
    world = make_world("plait")
    assert isinstance(world.physics, StandardPhysics)
    done = simulate_cluster(jobs, cluster, policy, replace(world, physics=NetworkPhysics(world.physics)))
    columns = done.controller.job_store.columns
    return {"mean_jct_ms": 1e3 * float((columns["end_s"][: len(jobs)] - jobs.submit_s).mean())}


EVALUATION: Evaluation[Case, Done] = Evaluation(
    "ina", run_case, Done, jobs=lambda case: 1, code=(
        "plait.core", "plait.network", "plait.placement", "plait.policies", "plait.control", "plait.sim",
        "plait.traces", "plait_papers.ina.cases",
    ),
    what="simulating packets",
)  # fmt: skip
