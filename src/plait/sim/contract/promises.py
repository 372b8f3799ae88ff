"""The promises that every policy must keep, one check each."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any

import numpy as np

from plait.control.controller import Controller, describe
from plait.control.messages import Command, Event, ReplanDue, group_to_json
from plait.core.cluster import Cluster
from plait.core.jobs import Checkpoints, JobBatch, JobSpec, Phase
from plait.core.plan import Plan
from plait.core.policy import Policy, View
from plait.placement.pinned import broken
from plait.sim.contract.runs import BrokenPromise, Make, all_finish, play, same
from plait.sim.contract.waiting import starves_nobody
from plait.sim.contract.workloads import (
    CLUSTERS,
    COSTLY,
    IDEAL,
    Workload,
    adaptive_jobs,
    on_all_clusters,
    on_one_cluster,
    outages,
    random_jobs,
)  # fmt: skip
from plait.sim.run import Step


@dataclass(frozen=True)
class Contract:
    """One promise. `check(make, seed)` raises if the policy that `make()` builds breaks it."""

    name: str
    doc: str
    check: Callable[[Make, int], None]


def _finishes(make: Make, seed: int) -> None:
    for workload in on_all_clusters(seed):
        all_finish(make, workload)


def _repeats(make: Make, seed: int) -> None:
    workload = on_one_cluster(seed)
    same(workload, play(make(), workload).lines, play(make(), workload).lines, "the same run")


def _plan_json(plan: Plan) -> str:
    return json.dumps(
        {
            "groups": [group_to_json(g) for g in plan.groups],
            "order": None if plan.order is None else plan.order.tolist(),
            "levels": None if plan.levels is None else plan.levels.tolist(),
            "promoted": plan.promoted.tolist(),
            "reasons": {str(job): plan.reasons[job] for job in plan.reasons},
            "valid_until_s": plan.valid_until_s,
            "suspend": plan.suspend,
            "settled": plan.settled,
            "reservations": [[one.job, *one.gpus] for one in plan.reservations],
            "kills": plan.kills.tolist(),
            "grants": [astuple(one) for one in plan.grants],
            "network_notes": {str(job): note for job, note in plan.network_notes.items()},
        }
    )


def _store_bytes(controller: Controller) -> dict[str, Any]:
    seen: dict[str, Any] = {
        name: column.tolist() if column.dtype == object else column.tobytes()
        for name, column in controller.job_store.columns.items()
    }
    running = controller.running
    seen["running"] = [running.jobs.tobytes(), running.gpus.tobytes(), running.first_gpu.tobytes()]
    seen["active"] = controller.active.tobytes()
    return seen


@dataclass
class _RepeatedDecisions:
    """Asks everything twice, and a newborn policy as well."""

    make: Make
    policy: Policy
    controller: Controller | None = None

    @property
    def name(self) -> str:
        return describe(self.policy)

    def watch(self, controller: Controller) -> Step:
        self.controller = controller
        return lambda event, commands: None

    def decide(self, view: View) -> Plan:
        assert self.controller is not None
        before = _store_bytes(self.controller)
        plan = self.policy.decide(view)
        said = _plan_json(plan)
        for who, again in (
            ("asked twice", self.policy.decide(view)),
            ("built again", self.make().decide(self.controller.view())),
        ):
            if _plan_json(again) != said:
                raise BrokenPromise(
                    f"policy {self.name} {who} about the same view at {view.now_s} s plans {_plan_json(again)[:300]}, "
                    f"first it was {said[:300]}"
                )
        after = _store_bytes(self.controller)
        changed = [name for name in before if before[name] != after[name]]
        if changed:
            raise BrokenPromise(
                f"policy {self.name} changed {', '.join(changed)} of what it was shown at {view.now_s} s"
            )
        return plan


def _pure(make: Make, seed: int) -> None:
    for workload in (on_one_cluster(seed), on_one_cluster(seed + 4, world=COSTLY)):
        repeated = _RepeatedDecisions(make, make())
        play(repeated, workload, observe=repeated.watch)


def _nameless(make: Make, seed: int) -> None:
    workload = on_one_cluster(seed + 1)
    renamed = workload.jobs.replace(id=[f"x-{i:06d}-{name}" for i, name in enumerate(workload.jobs.id.tolist())])
    first = play(make(), workload).commands
    same(workload, first, play(make(), replace(workload, jobs=renamed)).commands, "a run under other job ids")


def _restarts(make: Make, seed: int) -> None:
    rng = np.random.default_rng((seed, 0x5A7E))
    for workload in (on_one_cluster(seed + 2), on_one_cluster(seed + 3, world=replace(COSTLY, round_s=60.0))):
        workload = replace(workload, changes=outages(workload, seed))
        whole = play(make(), workload)
        at = rng.choice(len(whole.lines), size=min(6, len(whole.lines)), replace=False)
        parts = play(make(), workload, restarts={int(step): make for step in at})
        same(workload, whole.lines, parts.lines, f"a run restored from snapshots at steps {sorted(at.tolist())}")


def _feeds_all(make: Make, seed: int) -> None:
    """Run a stream of narrow jobs with one wide gang: no GPUs stay idle while a gang would fit on them."""
    narrow = [
        JobSpec(id=f"n{i:03d}", submit_s=20.0 * i, gpus=1, iterations=90.0 + i % 7, iteration_s=1.0, user=f"u{i % 3}")
        for i in range(60)
    ]
    wide = JobSpec(id="wide", submit_s=50.0, gpus=8, iterations=300.0, iteration_s=1.0, user="w")
    jobs = JobBatch.of(sorted([*narrow, wide], key=lambda spec: spec.submit_s))
    workload = Workload("narrow jobs and a wide one on 2x4", jobs, Cluster.parse("2x4"), seed=seed)
    played = all_finish(make, workload)
    last = float(jobs.submit_s.max() + (jobs.iterations * jobs.iteration_s).sum())
    for job, end_s in played.ends().items():
        if end_s > last:
            raise BrokenPromise(
                f"workload {workload.name}: {played.controller.job_store.name(job)} ended at {end_s} s; one job after "
                f"the other would all have ended at {last} s"
            )


class _Idle:
    """Raise when jobs wait, nothing runs, and every node is up."""

    def __init__(self, controller: Controller) -> None:
        self.controller = controller

    def __call__(self, event: Event, commands: Sequence[Command]) -> None:
        c = self.controller
        if isinstance(event, ReplanDue) and len(c.active) and all(c.cluster.up):
            running = c.job_store.columns["phase"][c.active] == int(Phase.RUNNING)
            if not running.any():
                job = int(c.active[0])
                raise BrokenPromise(
                    f"policy {describe(c.policy)} runs nothing at {event.at_s} s, and {c.job_store.name(job)} would "
                    f"fit the empty cluster: {c.plan.reasons.get(job, 'it gave no reason')}"
                )


def _admits(make: Make, seed: int) -> None:
    for cluster in (CLUSTERS[seed % len(CLUSTERS)], Cluster.parse("1x4")):
        workload = Workload(str(cluster), random_jobs(seed + 7, 8, min(8, cluster.gpus)), cluster, seed=seed)
        play(make(), workload, observe=_Idle)
        giant = JobSpec(id="giant", submit_s=60.0, gpus=cluster.gpus + 1, iterations=10.0, iteration_s=1.0)
        rows = sorted([*workload.jobs, giant], key=lambda spec: spec.submit_s)
        played = play(make(), replace(workload, jobs=JobBatch.of(rows)))
        ended = [rows[job].id for job in played.ends()]
        refused = sorted({spec.id for spec in rows} - set(ended))
        if refused != ["giant"]:
            raise BrokenPromise(
                f"workload {workload.name} and a giant: {refused or 'no job'} did not finish, not only the giant"
            )


def _survives_nodes(make: Make, seed: int) -> None:
    for workload in (on_one_cluster(seed), on_one_cluster(seed + 1, world=COSTLY)):
        workload = replace(workload, changes=outages(workload, seed))
        played = all_finish(make, workload)
        if not any('"NodeLost"' in line for line in played.lines):
            raise BrokenPromise(f"no node of workload {workload.name} was lost, so this check tested nothing")


def _survives_failures(make: Make, seed: int) -> None:
    world = replace(COSTLY, job_mtbf_s=1500.0, checkpoint_every_s=120.0)
    workload = on_one_cluster(seed + 2, world=world)
    workload = replace(workload, jobs=JobBatch.of(replace(spec, retries=1000) for spec in workload.jobs))
    all_finish(make, workload)
    few = replace(workload, jobs=JobBatch.of(replace(spec, retries=0) for spec in workload.jobs))
    play(make(), few)  # jobs may fail permanently, none may be lost


def _adapts(make: Make, seed: int) -> None:
    cluster = CLUSTERS[1 + seed % 3]
    all_finish(make, Workload(f"adaptive jobs on {cluster}", adaptive_jobs(seed), cluster, seed=seed))
    workload = Workload("adaptive jobs on 2x4", adaptive_jobs(seed + 5), Cluster.parse("2x4"), COSTLY, seed=seed)
    workload = replace(workload, changes=outages(workload, seed))
    whole = all_finish(make, workload)
    at = len(whole.lines) // 2
    parts = play(make(), workload, restarts={at: make})
    same(workload, whole.lines, parts.lines, f"a run restored from a snapshot at step {at}")


def _keeps_patience(make: Make, seed: int) -> None:
    """For policies that state a `longest_wait_s`: an endless overload of narrow jobs, and one gang."""
    policy = make()
    longest_s = float(getattr(policy, "longest_wait_s", math.inf))
    if not math.isfinite(longest_s):
        return
    every_s = longest_s / 40
    narrow = [  # the first eight fill the cluster; the gang comes next, so no job is due before it
        JobSpec(id=f"n{i:03d}", submit_s=every_s * max(i - 7, 0), gpus=1, iterations=10 * every_s + i, iteration_s=1.0)
        for i in range(80)
    ]
    wide = JobSpec(id="wide", submit_s=every_s / 2, gpus=8, iterations=30.0, iteration_s=1.0)
    jobs = JobBatch.of(sorted([*narrow, wide], key=lambda spec: spec.submit_s))
    workload = Workload("an overload of narrow jobs and a wide one on 2x4", jobs, Cluster.parse("2x4"), seed=seed)
    played = all_finish(make, workload)
    job = jobs.id.tolist().index("wide")
    waited_s = float(played.controller.job_store.columns["first_start_s"][job]) - wide.submit_s
    if waited_s > longest_s + 1e-3:
        raise BrokenPromise(
            f"workload {workload.name}: the wide job waited {waited_s} s, and policy {describe(policy)} "
            f"promises {longest_s} s at most (`longest_wait_s`)"
        )


@dataclass
class _CheckedPlans:
    """Looks at each plan before the controller repairs it: does it keep who may not be stopped or moved?"""

    policy: Policy
    kept: int = 0

    @property
    def name(self) -> str:
        return describe(self.policy)

    def decide(self, view: View) -> Plan:
        plan = self.policy.decide(view)
        self.kept += view.keeps.any
        moved = broken(view, plan)
        if len(moved):
            row = int(moved[0])
            loss = view.jobs[row].stop_loss_s
            what = "its whole work" if math.isinf(loss) else f"{loss:g} s of its time"
            raise BrokenPromise(
                f"policy {self.name} stops or moves job {view.jobs[row].spec.id!r} at {view.now_s} s, which may not be "
                f"now and would lose {what}; give jobs with `view.may_stop` False the GPUs they have (`view.running`), "
                "or let `plait.placement.place` do so"
            )
        return plan


def _keeps_work(make: Make, seed: int) -> None:
    """Jobs of all three kinds, half of them plain, with restarts that cost: no plan stops one that is kept."""
    for i, world in enumerate((COSTLY, replace(COSTLY, round_s=60.0, checkpoint_every_s=120.0))):
        workload = on_one_cluster(seed + i, world=world)
        rng = np.random.default_rng((seed, i, 0x6EE9))
        saves = rng.choice([Checkpoints.NEVER, Checkpoints.NEVER, Checkpoints.PERIODIC, Checkpoints.ON_STOP], 12)
        jobs = workload.jobs.replace(checkpoints=saves[: len(workload.jobs)].astype(np.int64))
        workload = replace(workload, jobs=jobs)
        watched = _CheckedPlans(make())
        played = play(watched, workload)
        if not watched.kept:
            raise BrokenPromise(f"no job of workload {workload.name} was kept, so this check tested nothing")
        job_store = played.controller.job_store
        lost_s = job_store.columns["lost_s"][: len(jobs)][jobs.column("checkpoints") == int(Checkpoints.NEVER)]
        if len(played.ends()) < len(jobs) or lost_s.any():
            job = int(np.argmax(lost_s))
            raise BrokenPromise(
                f"workload {workload.name}: {job_store.name(job)} lost {lost_s[job]} s of work, or a job never ended"
            )


def _rounds(make: Make, seed: int) -> None:
    for round_s in (0.0, 360.0):
        all_finish(make, on_one_cluster(seed + 3, world=replace(COSTLY, round_s=round_s)))
        all_finish(make, on_one_cluster(seed + 4, world=replace(IDEAL, round_s=round_s)))


CONTRACTS = (
    Contract("finishes", "plans are valid and every job ends, on clusters of many shapes, invariants on", _finishes),
    Contract("repeats", "the same run twice gives the same events and commands", _repeats),
    Contract("pure", "the plan depends on the view alone, and the view stays as it is", _pure),
    Contract("nameless", "renaming jobs without changing their order changes nothing", _nameless),
    Contract("restarts", "a controller restored from a snapshot at any event continues unchanged", _restarts),
    Contract(
        "feeds-all", "a wide gang ends among narrow jobs, no later than one job after the other would", _feeds_all
    ),
    Contract("admits", "an empty cluster runs something; what can never fit is refused without harm", _admits),
    Contract(
        "keeps-patience",
        "a policy with a `longest_wait_s` starts who waited that long, whatever comes",
        _keeps_patience,
    ),
    Contract(
        "starves-nobody",
        "the first of the queue waits no longer than for the jobs that ran when it became first",
        starves_nobody,
    ),
    Contract("adapts", "jobs that adapt their batch, elastic and opportunistic ones end too", _adapts),
    Contract("survives-nodes", "nodes go and come back; every job ends", _survives_nodes),
    Contract("survives-failures", "processes fail and are retried; every job ends", _survives_failures),
    Contract(
        "keeps-work",
        "who may not be stopped or moved now stays on its GPUs: plain jobs, and where a stop costs more than it gains",
        _keeps_work,
    ),
    Contract("rounds", "decisions at every event or every 360 s, with start-up and save costs", _rounds),
)
