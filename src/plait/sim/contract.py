"""The promises that every policy must keep: small seeded runs, one check per promise.

`plait policy check MODULE:NAME` runs these on a user's policy, the tests run them on the whole catalog. A
workload is small (about a dozen jobs) and drawn from a seed, so every failure can be reproduced; its detail
names the seed, the time and the job. Start reading at `CONTRACTS`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from plait.control.controller import Controller, describe
from plait.control.drive import drive
from plait.control.messages import Command, Event, ReplanDue, group_to_json, to_json
from plait.control.snapshot import restore, snapshot
from plait.core.arrays import IntArray
from plait.core.cluster import Cluster
from plait.core.errors import PlaitError
from plait.core.jobs import Checkpoints, JobBatch, JobClass, JobSpec, Phase
from plait.core.plan import Plan
from plait.core.policy import Policy, View
from plait.core.resources import StageProfile
from plait.core.words import counted
from plait.goodput.shipped import shipped
from plait.placement.pinned import broken
from plait.sim.failures import NodeChange
from plait.sim.invariants import Invariants
from plait.sim.physics import StandardPhysics
from plait.sim.run import Step, refuse_silence, simulator
from plait.sim.world import Overheads, World

IDEAL = World("contract", "no overheads", StandardPhysics(spread_slowdown=1.3))
COSTLY = replace(
    IDEAL,
    name="contract-costly",
    overheads=Overheads.constant(launch_s=20, checkpoint_s=7, restore_s=11, migrate_s=3),
)

#: clusters on which every placement can place every gang of at most eight GPUs: two nodes of four and more
CLUSTERS = (
    Cluster.parse("2x4"),
    Cluster.parse("4x4@2"),
    Cluster.parse("1x8,2x4"),
    Cluster.parse("2x4:v100,2x4:a100"),
    Cluster.of(3, 4, cpus=16.0, memory_bytes=64e9, gpu_memory_bytes=16_000_000_000),
)


@dataclass(frozen=True)
class SmallWorkload:
    """Jobs, hardware and world of one small run."""

    name: str
    jobs: JobBatch
    cluster: Cluster
    world: World = IDEAL
    changes: tuple[NodeChange, ...] = ()
    seed: int = 0


def random_jobs(seed: int, count: int = 12, most_gpus: int = 8, spread_s: float = 1500.0) -> JobBatch:
    """Draw `count` varied jobs of at most `most_gpus` GPUs, submitted over `spread_s` seconds, some at equal times."""
    rng = np.random.default_rng((seed, 0xC0117AC7))
    sizes = [g for g in (1, 1, 1, 2, 2, 3, 4, 8) if g <= most_gpus]
    submits = np.sort(
        np.where(rng.random(count) < 0.5, rng.integers(0, 6, count) * 60.0, rng.uniform(0, spread_s, count))
    )
    return JobBatch.of(_random_job(rng, i, int(rng.choice(sizes)), float(submits[i])) for i in range(count))


def _random_job(rng: np.random.Generator, i: int, gpus: int, submit_s: float) -> JobSpec:
    duration_s = float(rng.choice([30.0, 120.0, 600.0, rng.uniform(1, 900), rng.uniform(1, 2400)]))
    iteration_s = float(rng.choice([0.05, 0.25, 1.0, 0.333]))
    profile = None
    if rng.random() < 0.7:
        parts = rng.dirichlet(np.ones(4)) * iteration_s * (0.3 if i % 3 == 0 else 1.0)  # some have gaps
        profile = StageProfile.from_sequence(parts.tolist(), iteration_s)
    return JobSpec(
        id=f"j{i:03d}",
        submit_s=round(submit_s, 3),
        gpus=gpus,
        iterations=duration_s / iteration_s,
        iteration_s=iteration_s,
        user=f"u{int(rng.integers(0, 3))}",
        project=f"g{int(rng.integers(0, 2))}",
        profile=profile,
        cpus=float(rng.choice([0.0, gpus, 4.0 * gpus])),
        memory_bytes=float(rng.choice([0.0, 8e9 * gpus])),
        gpu_memory_bytes=float(rng.choice([0.0, 6e9, 12e9])),
        skew=None if rng.random() < 0.3 else float(rng.uniform(0, 1)),
    )


def adaptive_jobs(seed: int, count: int = 10) -> JobBatch:
    """Jobs that adapt their batch, elastic jobs and fixed ones, some of them opportunistic."""
    rng = np.random.default_rng((seed, 0xADA97))
    submits = np.sort(np.round(rng.uniform(0, 900.0, count), 3))
    models = shipped()
    rows = []
    for i, submit_s in enumerate(submits.tolist()):
        model = models[str(rng.choice(["cifar10", "ncf", "deepspeech2"]))]
        guest = JobClass.OPPORTUNISTIC if rng.random() < 0.2 else JobClass.GUARANTEED
        common: dict[str, Any] = {"id": f"a{i:03d}", "submit_s": submit_s, "job_class": guest, "user": f"u{i % 3}"}
        duration_s, kind = float(rng.uniform(60, 900)), rng.random()
        if kind < 0.5:
            one_s = model.iteration_s(1, 1)
            common |= {"iterations": duration_s / one_s, "iteration_s": one_s, "model": model.name}
            rows.append(JobSpec(**common, batch=model.batch, max_gpus=int(rng.choice([4, 8]))))
        elif kind < 0.75:
            rows.append(JobSpec(**common, iterations=duration_s, iteration_s=1.0, gpus=2, min_gpus=1, max_gpus=6))
        else:
            rows.append(JobSpec(**common, iterations=duration_s, iteration_s=1.0, gpus=int(rng.choice([1, 3, 8]))))
    return JobBatch.of(rows)


def on_all_clusters(seed: int) -> Iterator[SmallWorkload]:
    for i, cluster in enumerate(CLUSTERS):
        yield SmallWorkload(f"{cluster}", random_jobs(seed * 100 + i), cluster, seed=seed)


def on_one_cluster(seed: int, **change: Any) -> SmallWorkload:
    cluster = CLUSTERS[seed % len(CLUSTERS)]
    return replace(SmallWorkload(f"{cluster}", random_jobs(seed * 100 + 50), cluster, seed=seed), **change)


def outages(workload: SmallWorkload, seed: int) -> tuple[NodeChange, ...]:
    """Take every node down once, two of them at overlapping times."""
    rng = np.random.default_rng((seed, 0x0DD5))
    changes: list[NodeChange] = []
    for i, node in enumerate(workload.cluster.nodes):
        down = round(200.0 * i + float(rng.uniform(50, 400)), 3)
        changes += [NodeChange(down, node.id, False), NodeChange(down + float(rng.integers(60, 400)), node.id, True)]
    return tuple(sorted(changes))


Make = Callable[[], Policy]

#: Decisions after which a run of a dozen jobs counts as thrashing.
MOST_DECISIONS = 20_000


class BrokenPromise(PlaitError):
    """A policy broke its contract."""


@dataclass
class Played:
    """The result of a run: each event with its commands as JSON, and the controller at the end."""

    lines: list[str]
    commands: list[str]
    controller: Controller

    def ends(self) -> Mapping[int, float]:
        """When each finished job finished, seconds."""
        columns = self.controller.job_store.columns
        jobs = np.flatnonzero(columns["phase"][: self.controller.job_store.count] == int(Phase.FINISHED))
        return dict(zip(jobs.tolist(), columns["end_s"][jobs].tolist(), strict=True))


class _Watch:
    """A backend whose controller can be exchanged, watched by invariants and by a limit on decisions."""

    def __init__(
        self, policy: Policy, workload: SmallWorkload, restarts: Mapping[int, Make], also: Step | None
    ) -> None:
        self.backend = simulator(
            workload.jobs, workload.cluster, workload.world, seed=workload.seed, node_changes=workload.changes
        )
        self.workload, self.restarts, self.also = workload, restarts, also
        self.played = Played([], [], Controller(policy, workload.cluster))
        self.invariants = Invariants(self.played.controller, self.backend)
        self.decisions = 0

    def handle(self, event: Event) -> Sequence[Command]:
        make = self.restarts.get(len(self.played.lines))
        if make is not None:
            self.played.controller = restore(json.loads(json.dumps(snapshot(self.played.controller))), make())
            self.invariants.controller = self.played.controller
        return self.played.controller.handle(event)

    def __call__(self, event: Event, commands: Sequence[Command]) -> None:
        said = [to_json(c) for c in commands]
        self.played.lines.append(json.dumps([to_json(event), said]))
        self.played.commands += [json.dumps(c) for c in said]
        self.invariants(event, commands)
        self.decisions += isinstance(event, ReplanDue)
        if self.decisions > MOST_DECISIONS:
            waiting = self.played.controller.job_store.name(int(self.played.controller.active[0]))
            raise BrokenPromise(
                f"{MOST_DECISIONS} decisions until {event.at_s} s for {len(self.workload.jobs)} jobs, and {waiting} "
                f"has not ended: policy {describe(self.played.controller.policy)} thrashes"
            )
        if self.also is not None:
            self.also(event, commands)


def play(
    policy: Policy,
    workload: SmallWorkload,
    *,
    restarts: Mapping[int, Make] | None = None,
    observe: Callable[[Controller], Step] | None = None,
) -> Played:
    """Run a workload to its end with all invariants on; every job must end well.

    `restarts` maps step numbers to what makes the policy of a controller restored from a snapshot just then.
    Raises for a wrong plan, a broken invariant or a lost job, naming workload and time.
    """
    watch = _Watch(policy, workload, restarts or {}, None)
    if observe is not None:
        watch.also = observe(watch.played.controller)
    try:
        drive(watch, watch.backend, watch)  # type: ignore[arg-type]
        refuse_silence(watch.played.controller)
    except Exception as error:
        at_s = watch.backend.now / 1000 + 0.0  # never -0.0
        where = f"workload {workload.name}, seed {workload.seed}, round {workload.world.round_s} s, at {at_s} s"
        raise BrokenPromise(f"{where}: {what_it_said(error)}") from error
    return watch.played


def what_it_said(error: Exception) -> str:
    return str(error) if isinstance(error, PlaitError) else f"{type(error).__name__}: {error}"


def all_finish(make: Make, workload: SmallWorkload, observe: Callable[[Controller], Step] | None = None) -> Played:
    """Run a workload; raises `BrokenPromise` if a job did not finish. `observe` is as for `play`."""
    played = play(make(), workload, observe=observe)
    ends = played.ends()
    job_store = played.controller.job_store
    for job in range(len(workload.jobs)):
        if job not in ends:
            phase = Phase(int(job_store.columns["phase"][job])).name.lower()
            raise BrokenPromise(
                f"workload {workload.name}, seed {workload.seed}: {job_store.name(job)} ended as {phase}: "
                f"{job_store.columns['reason'][job]}"
            )
    return played


def same(workload: SmallWorkload, first: Sequence[str], second: Sequence[str], what: str) -> None:
    """Raise `BrokenPromise` at the first step in which the logs `first` and `second` differ; `what` says how."""
    if first == second:
        return
    at = next((i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second)))
    ours = first[at] if at < len(first) else "nothing"
    theirs = second[at] if at < len(second) else "nothing"
    raise BrokenPromise(
        f"workload {workload.name}, seed {workload.seed}: {what} differs at step {at}: {ours[:300]} and {theirs[:300]}"
    )


#: Seconds after the last job in the way has ended by which the first of the queue has started: rounds and time slices
#: of policies, and jobs that are kept until they have run longer than their start and stop took.
LATE_S = 120.0
_WAITING, _RUNNING = int(Phase.WAITING), int(Phase.RUNNING)


def starves_nobody(make: Make, seed: int) -> None:
    """Check that the first of the queue waits no longer than for the jobs that ran when it became first."""
    for workload in streams(seed):
        all_finish(make, workload, observe=_FirstOfTheQueue)


def streams(seed: int) -> Iterator[SmallWorkload]:
    """Streams of narrow jobs that leave no node idle, and wide jobs of a higher priority among them."""
    rng = np.random.default_rng((seed, 0x57A2))
    plain, on_stop = Checkpoints.NEVER, Checkpoints.ON_STOP
    kinds = "1x4:v100,1x4:a100"
    for name, cluster, world, saves, wide in (
        ("plain narrow jobs and a wide one", "2x2", IDEAL, (plain,), ((4, None),)),
        ("narrow jobs, every second one plain, and two wide ones", "2x4", COSTLY, (plain, on_stop), ((8, None),) * 2),
        ("plain narrow jobs and a wide one of one kind of GPU", kinds, IDEAL, (plain,), ((4, ("a100",)),)),
    ):
        gpus = Cluster.parse(cluster).gpus
        narrow = [
            JobSpec(id=f"n{i:03d}", submit_s=16.0 * i, gpus=1, iterations=float(16 * gpus + rng.integers(0, 9)),
                    iteration_s=1.0, checkpoints=saves[i % len(saves)])
            for i in range(6 * gpus)
        ]  # fmt: skip
        gangs = [
            JobSpec(id=f"wide{i}", submit_s=16.0 * gpus + i, gpus=size, iterations=5.0, iteration_s=1.0, priority=5.0,
                    gpu_kinds=kind, checkpoints=plain)
            for i, (size, kind) in enumerate(wide)
        ]  # fmt: skip
        jobs = JobBatch.of(sorted([*narrow, *gangs], key=lambda spec: spec.submit_s))
        yield SmallWorkload(f"{name} on {cluster}", jobs, Cluster.parse(cluster), world, seed=seed)


class _FirstOfTheQueue:
    """Raise when a job that stays first in the queue still waits long after all that ran when it became first."""

    def __init__(self, controller: Controller) -> None:
        self.controller = controller
        self.first = -1
        self.ahead: IntArray = np.zeros(0, dtype=np.int64)

    def __call__(self, event: Event, commands: Sequence[Command]) -> None:
        c = self.controller
        phase, end_s = c.job_store.columns["phase"], c.job_store.columns["end_s"]
        first = self._first() if isinstance(event, ReplanDue) else self.first
        if first < 0 or phase[first] != _WAITING:
            self.first = -1
            return
        if first != self.first:
            self.first, self.ahead = first, c.active[phase[c.active] == _RUNNING]
        ends_s = end_s[self.ahead]
        left_s = float(np.where(phase[self.ahead] > _RUNNING, ends_s, math.inf).max(initial=-math.inf))
        if event.at_s > left_s + LATE_S:
            raise BrokenPromise(
                f"policy {describe(c.policy)} has let {c.job_store.name(first)} wait, the first of its queue, until "
                f"{event.at_s} s; the {counted(len(self.ahead), 'job')} that ran when it became first had ended at "
                f"{left_s} s. Start the first job of `Plan.order` where its GPUs are free"
            )

    def _first(self) -> int:
        """The number of the first waiting job: by the plan's order, or by priority and submission; -1 for none."""
        c = self.controller
        phase, priority = c.job_store.columns["phase"], c.job_store.columns["priority"]
        order = c.plan.order
        if order is None:
            order = c.active[np.lexsort((c.active, -priority[c.active]))]
        waiting = order[phase[order] == _WAITING]
        return int(waiting[0]) if len(waiting) else -1


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
    workload = SmallWorkload("narrow jobs and a wide one on 2x4", jobs, Cluster.parse("2x4"), seed=seed)
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
        workload = SmallWorkload(str(cluster), random_jobs(seed + 7, 8, min(8, cluster.gpus)), cluster, seed=seed)
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
    all_finish(make, SmallWorkload(f"adaptive jobs on {cluster}", adaptive_jobs(seed), cluster, seed=seed))
    workload = SmallWorkload("adaptive jobs on 2x4", adaptive_jobs(seed + 5), Cluster.parse("2x4"), COSTLY, seed=seed)
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
    workload = SmallWorkload("an overload of narrow jobs and a wide one on 2x4", jobs, Cluster.parse("2x4"), seed=seed)
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


class CheckResult(NamedTuple):
    """One promise: kept or not, and how to reproduce a failure; `reason` is the failure without time and place."""

    name: str
    ok: bool
    detail: str
    reason: str = ""


def check_policy(make: Make, *, seed: int = 0, only: Sequence[str] | None = None) -> Iterator[CheckResult]:
    """Check the promises in `CONTRACTS` one by one, or those named in `only`.

    `make` builds a fresh, equal policy each time; `seed` draws the workloads. Never raises for an
    error of the policy: its exceptions are broken promises.
    """
    for contract in CONTRACTS:
        if only is not None and contract.name not in only:
            continue
        try:
            contract.check(make, seed)
        except Exception as error:
            cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
            yield CheckResult(contract.name, False, f"{what_it_said(error)} (seed {seed})", what_it_said(cause))
        else:
            yield CheckResult(contract.name, True, "")
