"""One simulated run: jobs, cluster, policy, world and seed in; the controller and its job store out."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from plait.control.controller import Controller, describe
from plait.control.drive import TakesBlocks, drive
from plait.control.messages import Command, Event, NodesReserved
from plait.core.cluster import Cluster
from plait.core.errors import SimulationError
from plait.core.jobs import Checkpoints, JobBatch
from plait.core.plan import NodeReservation
from plait.core.policy import Policy
from plait.core.preemption import DEFAULT_RULE, PreemptionRule
from plait.policies.quotas import Quotas, never_admitted
from plait.sim.backend import Simulator
from plait.sim.failures import ElasticNodes, NodeChange, NodeSupply, drawn_failures, drawn_switch_failures
from plait.sim.invariants import Invariants
from plait.sim.stretch import Twin, compare_with_stretches, outside, run_stretches
from plait.sim.world import CHECKPOINT, RESTORE, Overheads, SimulationSettings, World

Step = Callable[[Event, Sequence[Command]], None]


@dataclass(frozen=True)
class Simulation:
    """A finished run: its controller, with the records of all jobs, and its backend."""

    controller: Controller
    backend: Simulator


def simulator(
    jobs: JobBatch,
    cluster: Cluster,
    world: World,
    *,
    seed: int = 0,
    node_changes: Sequence[NodeChange] | None = None,
    refused: Mapping[int, str] | None = None,
) -> Simulator:
    """The backend of one run; `node_changes` replaces the world's drawn failures of nodes and switches.

    `refused`: rows of jobs that are refused at their submission, with the reason.
    """
    settings = SimulationSettings(
        physics=world.physics,
        overheads=world.overheads,
        round_s=world.round_s,
        checkpoint_every_s=world.checkpoint_every_s,
        job_mtbf_s=world.job_mtbf_s,
        seed=seed,
        profile_noise=world.profile_noise,
    )
    jobs = with_plain_jobs(jobs, world.plain, seed)
    changes: Iterator[NodeChange] = iter(node_changes or ())
    if node_changes is None and world.node_mtbf_s < math.inf:
        changes = drawn_failures(cluster, world.node_mtbf_s, world.node_mttr_s, seed)
    if node_changes is None and world.switch_mtbf_s < math.inf:
        of_switches = drawn_switch_failures(cluster, world.switch_mtbf_s, world.switch_mttr_s, seed)
        changes = heapq.merge(changes, of_switches)
    reported = with_restart_costs(noisy(jobs, world.profile_noise, seed), world.overheads)
    return Simulator(jobs, cluster, settings, reported, changes, refused)


def simulate(
    jobs: JobBatch,
    cluster: Cluster,
    policy: Policy,
    world: World,
    *,
    seed: int = 0,
    node_changes: Sequence[NodeChange] | None = None,
    check: bool = False,
    observe: Callable[[Controller], Step | Sequence[Step]] | None = None,
    rule: PreemptionRule = DEFAULT_RULE,
    reservations: Sequence[NodeReservation] = (),
    elastic: ElasticNodes | None = None,
) -> Simulation:
    """Simulate a trace on a cluster under a policy until every job has ended.

    `jobs` are those of a trace (`plait.load_jobs`), sorted by submission; `world` is the model of time: overheads,
    speed of groups, failures (`plait.make_world`). `seed` is of what the world draws: equal arguments give equal runs.
    `rule` says which running jobs the policy may stop or move.
    `observe(controller)` returns a function that sees every event with its commands (a history, a log), or several. If
    all of them take blocks of instants, too (`plait.control.drive.TakesBlocks`), runs of most orders of fixed gangs
    need no Python between two instants (`plait.sim.stretch`), with the same results.
    `check` verifies the invariants after every event. Of compiled stretches it verifies all that happens to jobs, and
    goes through some of their instants message by message as well; where a record takes single messages, the whole run
    has to come to the same as stretches do. `node_changes` (of nodes and switches) replaces the world's drawn failures.
    `reservations` of nodes are known from the beginning, and nodes of `elastic` clusters come and go by policy. Jobs
    that the cluster, the quotas or the system of the policy never allow are refused.

    Returns the controller at the end, in whose `job_store` each job has a row (seconds, GPU-seconds), and the backend.
    Raises `SimulationError` naming the jobs if some can never finish, `PlanError` for an impossible plan.

    >>> from plait import Cluster, JobBatch, JobSpec, make_policy, make_world
    >>> jobs = JobBatch.of([JobSpec(id=f"job-{i}", gpus=8, iterations=100, iteration_s=1) for i in range(2)])
    >>> done = simulate(jobs, Cluster.parse("1x8"), make_policy("fifo"), make_world("ideal"))
    >>> done.controller.job_store.columns["end_s"][:2].tolist()
    [100.0, 200.0]
    """
    refused: Mapping[int, str] = {}
    quotas = getattr(policy, "quotas", None)
    if isinstance(quotas, Quotas):
        quotas.refuse_unknown(set(jobs.column("project").tolist()), cluster.kinds)
        refused = never_admitted(policy, quotas, jobs, cluster.kinds)
    aggregation = None
    if hasattr(policy, "policy"):  # which is around another one
        from plait.policies.aggregation import aggregation_of

        aggregation = aggregation_of(policy)
    if aggregation is not None:
        from plait.sim.contention.network import NetworkPhysics

        if aggregation.system == "a2tp" and isinstance(world.physics, NetworkPhysics):
            world = replace(world, physics=world.physics.controlled("a2tp"))
        wanted = jobs.column("ina").tolist()
        never = {row: why for row, ina in enumerate(wanted) if (why := aggregation.never_serves(ina)) is not None}
        refused = {row: f"ina is require, and {why}" for row, why in never.items()} | dict(refused)
    cluster = cluster if elastic is None else elastic.first(cluster)
    backend = simulator(jobs, cluster, world, seed=seed, node_changes=node_changes, refused=refused)
    controller = Controller(policy, cluster, rule, measures_memory=False)
    steps: list[Step] = [] if elastic is None else [NodeSupply(elastic, controller, backend)]
    if observe is not None:
        observing = observe(controller)
        steps += observing if isinstance(observing, Sequence) else [observing]
    if check:
        steps.append(Invariants(controller, backend))

    def record(event: Event, commands: Sequence[Command]) -> None:
        for step in steps:
            step(event, commands)

    def again() -> Simulator:
        return simulator(jobs, cluster, world, seed=seed, node_changes=node_changes, refused=refused)

    for one in reservations:
        reserved = NodesReserved(float(jobs.submit_s.min(initial=0.0)), one)
        record(reserved, controller.handle(reserved))
    if outside(controller, backend, steps) is None:
        takers: list[Any] = [step for step in steps if isinstance(step, TakesBlocks)]
        run_stretches(controller, backend, takers, Twin(controller, again()) if check else None)
    else:
        drive(controller, backend, record)
        if check:
            compare_with_stretches(controller, again())
    refuse_silence(controller)
    return Simulation(controller, backend)


def refuse_silence(controller: Controller) -> None:
    """Raise `SimulationError` if a run ended while jobs still wait, so that no job is lost silently."""
    if not len(controller.active):
        return
    lines = []
    for job in controller.active.tolist()[:10]:
        why = controller.waiting_reason(job) or "the policy gave no reason"
        lines.append(f"  {controller.job_store.name(job)}: {why}")
    more = len(controller.active) - len(lines)
    raise SimulationError(
        f"{len(controller.active)} jobs can never finish under policy {describe(controller.policy)}: nothing "
        "runs, and no event is left\n" + "\n".join(lines) + (f"\n  and {more} more" if more else "")
    )


def with_plain_jobs(jobs: JobBatch, share: float, seed: int) -> JobBatch:
    """The same jobs, of which the part `share` cannot resume from a checkpoint, drawn by `seed` and position."""
    if share == 0:
        return jobs
    plain = np.random.default_rng((seed, 0x9A17)).random(len(jobs)) < share
    return jobs.replace(checkpoints=np.where(plain, int(Checkpoints.NEVER), jobs.column("checkpoints")))


def with_restart_costs(jobs: JobBatch, overheads: Overheads) -> JobBatch:
    """The same jobs with what a save and a restart cost them, as measured when their models ran before.

    Costs that a job states itself stay.
    """
    costs = overheads.for_batch(jobs)
    restart_s = costs[:, CHECKPOINT] + costs[:, RESTORE]
    if not restart_s.any():
        return jobs
    said = jobs.column("restart_s")
    return jobs.replace(restart_s=np.where(np.isnan(said), restart_s, said))


def noisy(jobs: JobBatch, noise: float, seed: int) -> JobBatch:
    """The same jobs as profiling would report them: each stage and iteration time x U[1 - `noise`, 1 + `noise`].

    Each job's factors depend only on `seed` and its position (Muri, section 6.4, figure 14).
    """
    if noise == 0:
        return jobs
    rng = np.random.default_rng((seed, 0x9015E))
    factors = rng.uniform(1 - noise, 1 + noise, size=(len(jobs), 1 + jobs.stage_s.shape[1]))
    return jobs.replace(
        iteration_s=jobs.iteration_s * np.maximum(factors[:, 0], 1e-3), stage_s=jobs.stage_s * factors[:, 1:]
    )


def with_round(world: World, round_s: float | None) -> World:
    """The same world with another decision interval; None keeps the world's own."""
    return world if round_s is None else replace(world, round_s=round_s)
