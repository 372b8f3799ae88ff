"""A simulator that is slow and plain: one dictionary-like object a job, whole milliseconds, loops.

It shares no code with `plait.control` and `plait.sim`: who is where, what it costs and when it is noticed are
written down here a second time. Decisions come from a `chooser`; `orders.py` has some of its own, and
`asking(policy)` shows a plait policy a `View` put together by hand.

The rules:
  - a job waits, runs on all its GPUs, and ends; it holds its GPUs from its start (or later, if its last save, or
    that of whoever had the GPUs, is not over) and works after its start-up
  - start-up: launch the first time, restore afterwards, and migrate if the first GPU is on another node; 100 ms
    if it was suspended and gets the very same GPUs
  - a job that is stopped after it did some work holds its GPUs until its state is saved, unless it is suspended
  - a crash (of a node or of the process) loses the work since the last save, or since the last of the regular
    checkpoints that happen each `checkpoint_ms` of work; the job is tried again while it has retries
  - ends and crashes happen when they happen; the scheduler hears of them at once, or with rounds at the next
    boundary, and decides if it heard anything or if its plan is no longer valid
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import permutations

import numpy as np

from plait.core.cluster import Cluster
from plait.core.goodput import Estimate
from plait.core.jobs import Checkpoints, JobSpec, JobTable, Phase
from plait.core.jobs.batch import BATCH_COLUMNS
from plait.core.plan import NO_GROUPS, Gate, Groups, Reservation
from plait.core.policy import Policy, View
from plait.core.resources import Resource

NEVER = math.inf


@dataclass(frozen=True)
class Rules:
    """The world: costs in milliseconds, everything else as in `World`."""

    round_ms: int = 0
    launch_ms: int = 0
    save_ms: int = 0
    restore_ms: int = 0
    migrate_ms: int = 0
    checkpoint_ms: float = 1_800_000
    spread_slowdown: float = 1.0
    skew_threshold: float = 0.3
    sharing: tuple[float, ...] = (1.0, 1.31, 1.48, 1.35)
    kind_speed: dict[str, float] = field(default_factory=dict)
    mtbf_s: float = math.inf
    seed: int = 0


@dataclass
class Job:
    number: int
    spec: JobSpec
    state: str = "future"  # waiting, running, finished, failed
    # what is true
    done: float = 0.0
    safe: float = 0.0
    held: int = 0
    service: int = 0
    gpus: tuple[int, ...] = ()
    company: tuple[int, ...] = ()
    turn: int = 0
    in_lock_step: bool = False
    hold_at: float = 0.0
    work_at: float = 0.0
    rate: float = 1.0
    end_at: float = NEVER
    fail_at: float = NEVER
    free_at: float = 0.0
    attempts: int = 0
    last_node: int = -1
    suspended_on: tuple[int, ...] = ()
    ended_at: float = NEVER
    # what the scheduler remembers
    waits_since_s: float = 0.0
    first_start_s: float = math.nan
    last_start_s: float = math.nan
    slow_since_s: float = math.nan  # nobody shares a GPU here, so nobody is slow
    starts: int = 0
    preemptions: int = 0
    failures: int = 0
    promotions: int = 0
    position: int = 1 << 60
    level: int = -1
    shared_speed: float = math.nan
    promoted_at_service: int = 0
    promoted_at_held: int = 0
    waited_s: float = 0.0
    competed_ms: float = 0.0

    @property
    def unit(self) -> float:
        """Milliseconds of an iteration alone."""
        assert self.spec.iteration_s is not None
        return self.spec.iteration_s * 1000

    @property
    def total(self) -> float:
        """Milliseconds of work."""
        assert self.spec.iterations is not None
        assert self.spec.iteration_s is not None
        return max(float(round(self.spec.iterations * self.spec.iteration_s * 1000)), 1.0)

    @property
    def submit(self) -> int:
        return math.ceil(self.spec.submit_s * 1000 - 1e-6)

    def work_by(self, now_ms: float) -> float:
        return self.done + max(0.0, now_ms - self.work_at) * self.rate if self.state == "running" else self.done

    def held_by(self, now_ms: float) -> float:
        """Time on GPUs by a time."""
        return self.held + (max(0.0, now_ms - self.hold_at) if self.state == "running" else 0.0)

    def service_by(self, now_ms: float) -> float:
        """GPU-time by a time."""
        more = max(0.0, now_ms - self.hold_at) * len(self.gpus) if self.state == "running" else 0.0
        return self.service + more


@dataclass
class Choice:
    """A decision: groups of job numbers with their GPUs; the rest as in `Plan`."""

    groups: list[tuple[tuple[int, ...], tuple[int, ...]]]
    order: Sequence[int] = ()
    levels: Sequence[int] = ()
    promoted: Sequence[int] = ()
    valid_until_s: float = math.inf
    suspend: bool = False
    raw: Groups | None = None


def turns_of(choice: Choice) -> tuple[dict[int, int], set[int]]:
    """The turn of each member, and who goes in lock step."""
    turns = {n: 0 for members, _ in choice.groups for n in members}
    lock_step: set[int] = set()
    for group in choice.raw or ():
        turns |= {m.job: m.turn for m in group.members}
        if group.gate is Gate.BARRIER:
            lock_step |= {m.job for m in group.members}
    return turns, lock_step


@dataclass
class Naive:
    jobs: list[Job]
    cluster: Cluster
    chooser: Callable[[Naive], Choice]
    rules: Rules
    changes: list[tuple[int, str, bool]]
    now: int = 0
    wake: float = NEVER
    deadline: float = NEVER  # news between two rounds
    valid_until_s: float = math.inf
    news: bool = False
    gpu_free_at: dict[int, float] = field(default_factory=dict)
    last: Groups = field(default_factory=lambda: NO_GROUPS)
    last_group: dict[int, int] = field(default_factory=dict)
    departed: list[int] = field(default_factory=list)
    competing_ms: float = 0.0
    kind_speeds: dict[str, float] = field(default_factory=dict)

    @property
    def now_s(self) -> float:
        return self.now / 1000

    @property
    def active(self) -> list[Job]:
        return [j for j in self.jobs if j.state in ("waiting", "running")]

    # -- time ------------------------------------------------------------------------------------------

    def run(self) -> Naive:
        for _ in range(200_000):
            if all(j.state in ("finished", "failed") for j in self.jobs):
                return self
            due = min(
                [j.submit for j in self.jobs if j.state == "future"]
                + [min(j.end_at, j.fail_at) for j in self.jobs if j.state == "running"]
                + [self.wake, self.deadline]
            )
            if self.rules.round_ms and due < NEVER:
                due = -(-due // self.rules.round_ms) * self.rules.round_ms
            due = max(due, self.now)
            if self.changes and self.changes[0][0] <= due:
                at, node, up = self.changes.pop(0)
                self.advance(at)
                self.change_node(node, up)
                if not self.rules.round_ms:
                    self.decide()
                elif self.news:
                    self.deadline = self.now
                continue
            assert due < NEVER, f"jobs {[j.number for j in self.active]} wait and nothing will ever happen"
            self.advance(int(due))
            self.deadline = NEVER
            if self.wake <= self.now:
                self.wake = NEVER
            self.decide()
        raise AssertionError("this does not end")

    def advance(self, now: int) -> None:
        """All that happens by `now`, in order; the scheduler hears of it now."""
        finished: list[Job] = []
        failed: list[Job] = []
        while True:
            due = [j for j in self.jobs if j.state == "running" and min(j.end_at, j.fail_at) <= now]
            if not due:
                break
            job = min(due, key=lambda j: (min(j.end_at, j.fail_at), j.number))
            if job.fail_at < job.end_at:
                self.off(job, job.fail_at, crash=True)
                failed.append(job)
            else:
                at = job.end_at
                self.off(job, at)
                job.done, job.ended_at = job.total, at
                finished.append(job)
        self.competing_ms += (len(self.active) + len(finished) + len(failed)) * (now - self.now)
        self.now = now
        self.note_shared_speeds()
        for job in finished:
            self.note_kind_speed(job)
            self.end(job, "finished")
        for job in sorted(failed, key=lambda j: j.number):
            job.failures += 1
            if job.failures > job.spec.retries:
                job.ended_at = now
                self.end(job, "failed")
            else:
                self.back_to_waiting(job)
        for job in self.jobs:
            if job.state == "future" and job.submit <= now:
                job.state, job.waits_since_s, job.competed_ms = "waiting", job.spec.submit_s, self.competing_ms
                self.news = True

    def note_shared_speeds(self) -> None:
        """How fast jobs are that share their GPUs now."""
        for job in self.jobs:
            if job.state == "running" and len(job.company) > 1:
                job.shared_speed = job.rate

    def note_kind_speed(self, job: Job) -> None:
        """How fast a kind of GPU was for a job that ran nowhere else, and alone."""
        group = self.last_group[job.number]
        alone = np.diff(self.last.first_job)[group : group + 1].tolist() == [1] and math.isnan(job.shared_speed)
        if len(self.cluster.kinds) > 1 and alone and job.starts == 1 and job.held >= 600_000:
            kind, speed = self.cluster.nodes[job.last_node].gpu_kind, job.total / job.held
            before = self.kind_speeds.get(kind, speed)
            self.kind_speeds[kind] = before + 0.25 * (speed - before)

    def end(self, job: Job, state: str) -> None:
        job.state = state
        self.departed.append(job.number)
        self.last_group.pop(job.number, None)
        self.news = True

    def back_to_waiting(self, job: Job) -> None:
        job.state, job.waits_since_s = "waiting", self.now_s
        self.last_group.pop(job.number, None)
        self.news = True

    def change_node(self, node: str, up: bool) -> None:
        index = self.cluster.index(node)
        if self.cluster.up[index] == up:
            return
        self.news = True
        if up:
            self.cluster = self.cluster.with_node(self.cluster.nodes[index])
            return
        self.cluster = self.cluster.without_node(node)
        for job in self.jobs:
            if job.state == "running" and index in self.nodes_of(job.gpus):
                self.off(job, self.now, crash=True)
                self.back_to_waiting(job)
            elif job.suspended_on and index in self.nodes_of(job.suspended_on):
                job.suspended_on, job.done = (), job.safe

    def nodes_of(self, gpus: Sequence[int]) -> set[int]:
        return {int(self.cluster.gpu_node[gpu]) for gpu in gpus}

    # -- starting and stopping -------------------------------------------------------------------------

    def off(self, job: Job, at: float, *, crash: bool = False, save: bool = False, suspend: bool = False) -> None:
        """Take a job off its GPUs at a time; leaves its state to the caller."""
        done = job.work_by(at)
        saving = 0
        if crash:
            every = self.rules.checkpoint_ms
            regular = math.floor(done / every) * every if 0 < every < NEVER else 0.0
            done = min(done, max(job.safe, regular))
        elif save and done > job.safe:
            saving = self.rules.save_ms
        job.done = done
        if not suspend:
            job.safe = done
        held = max(0.0, at - job.hold_at) + saving
        job.held += int(held)
        job.service += int(held) * len(job.gpus)
        job.free_at = at + saving
        for gpu in job.gpus:
            self.gpu_free_at[gpu] = max(self.gpu_free_at.get(gpu, 0), at + saving)
        if suspend:
            job.suspended_on = job.gpus
        job.state, job.gpus, job.end_at, job.fail_at = "off", (), NEVER, NEVER
        left = tuple(n for n in job.company if n != job.number and self.jobs[n].state == "running")
        job.company = ()
        for other in left:
            mate = self.jobs[other]
            if mate.state == "running" and min(mate.end_at, mate.fail_at) > at:
                self.pace(mate, left, at)

    def on(self, job: Job, gpus: tuple[int, ...]) -> None:
        begin = max([self.now, job.free_at] + [self.gpu_free_at.get(gpu, 0) for gpu in gpus])
        node = int(self.cluster.gpu_node[gpus[0]])
        start_up = self.rules.restore_ms if job.attempts else self.rules.launch_ms
        if job.suspended_on == gpus:
            start_up = min(start_up, 100)
        elif job.attempts and node != job.last_node:
            start_up += self.rules.migrate_ms
        job.suspended_on = ()
        job.attempts += 1
        job.last_node = node
        job.state, job.gpus, job.hold_at, job.work_at = "running", gpus, begin, begin + start_up
        job.fail_at = NEVER
        if self.rules.mtbf_s < NEVER:
            draw = np.random.default_rng((self.rules.seed, 0x10B, job.number, job.attempts))
            after = float(draw.exponential(self.rules.mtbf_s / len(gpus)))
            job.fail_at = begin + max(math.ceil(after * 1000 - 1e-6), 1)

    def pace(self, job: Job, company: tuple[int, ...], now_ms: float) -> None:
        """Book what was done and go on at the speed of this company."""
        if now_ms > job.work_at:
            job.done += (now_ms - job.work_at) * job.rate
            job.work_at = now_ms
        job.company = company
        job.rate = 1.0 / self.slowdown(job, company)
        job.end_at = job.work_at + max(math.ceil((job.total - job.done) / job.rate - 1e-6), 1)

    def slowdown(self, job: Job, company: tuple[int, ...]) -> float:
        factor = self.place_factor(job)
        if len(company) == 1:
            return factor
        factor_of_size = self.rules.sharing[min(len(company), len(self.rules.sharing)) - 1]
        mates = [self.jobs[n] for n in company]
        if job.in_lock_step and all(mate.spec.profile for mate in mates):
            alone = [mate.spec.profile.iteration_s * self.place_factor(mate) for mate in mates]
            return max(self.lock_step_s(mates), *alone) * factor_of_size / job.spec.profile.iteration_s
        busy = [0.0] * len(Resource)
        for mate in mates:
            for r in Resource:
                if mate.spec.profile is None:
                    busy[r] += 1.0 if r is Resource.GPU else 0.0
                else:
                    busy[r] += min(mate.spec.profile.stage_s[r] / mate.spec.profile.iteration_s, 1.0)
        return factor * max(1.0, *busy) * factor_of_size

    def lock_step_s(self, mates: list[Job]) -> float:
        """One slot after the other: whoever meets on a resource is served by its share, or one by one."""
        total = 0.0
        for step in range(4):
            longest, asked = 0.0, [0.0] * 4
            for mate in mates:
                r = (mate.turn + step) % 4
                seconds = mate.spec.profile.stage_s[r] * self.place_factor(mate)
                longest = max(longest, seconds)
                asked[r] += seconds * (self.share_of_cores(mate) if r == int(Resource.CPU) else 1.0)
            total += max(longest, *asked)
        if any(mate.turn for mate in mates):
            return total
        # Side by side as planned, or nobody planned: then every order of turns may be taken.
        stages = [[t * self.place_factor(m) for t in m.spec.profile.stage_s] for m in mates]
        orders = (
            sum(max(stages[i][(turn + step) % 4] for i, turn in enumerate(some)) for step in range(4))
            for some in permutations(range(4), len(mates))
        )
        return min(total, *orders)

    def share_of_cores(self, job: Job) -> float:
        node = self.cluster.nodes[min(self.nodes_of(job.gpus))]
        if not job.spec.cpus or not node.cpus:
            return 1.0 if not job.spec.cpus else 0.0
        return min(1.0, job.spec.cpus / job.spec.gpus * node.gpus / node.cpus)

    def place_factor(self, job: Job) -> float:
        nodes = self.nodes_of(job.gpus)
        kind = self.cluster.nodes[min(nodes)].gpu_kind
        factor = 1.0 / self.rules.kind_speed.get(kind, 1.0)
        sizes = sorted((n.gpus for n in self.cluster.nodes if n.gpu_kind == kind), reverse=True)
        fewest = next(k for k in range(1, len(sizes) + 1) if sum(sizes[:k]) >= len(job.gpus))
        insensitive = job.spec.skew is not None and job.spec.skew <= self.rules.skew_threshold
        if len(nodes) > fewest and not insensitive:
            factor *= self.rules.spread_slowdown
        return factor

    # -- deciding --------------------------------------------------------------------------------------

    def decide(self) -> None:
        if not self.news and self.now_s < self.valid_until_s - 1e-6:
            return
        choice = self.chooser(self)
        where = {n: (members, gpus) for members, gpus in choice.groups for n in members}
        used = [gpu for _, gpus in choice.groups for gpu in gpus]
        assert len(used) == len(set(used)), "a GPU twice"
        for n in choice.promoted:
            job = self.jobs[n]
            job.promotions += 1
            job.promoted_at_service, job.promoted_at_held = int(job.service_by(self.now)), int(job.held_by(self.now))
            job.waited_s = 0.0
        for job in self.active:
            if job.state == "running" and where.get(job.number, ((), ()))[1] != job.gpus:
                self.off(job, self.now, save=not choice.suspend, suspend=choice.suspend)
                job.state, job.waits_since_s = "waiting", self.now_s
                job.preemptions += 1
        started = []
        for members, gpus in choice.groups:
            assert len({self.cluster.nodes[n].gpu_kind for n in self.nodes_of(gpus)}) == 1, "two kinds"
            assert all(self.cluster.up[n] for n in self.nodes_of(gpus)), "a node that is down"
            for n in members:
                job = self.jobs[n]
                assert len(gpus) == job.spec.gpus, "half a gang"
                if job.state == "waiting":
                    if job.held > job.promoted_at_held:
                        job.waited_s += self.now_s - job.waits_since_s
                    job.first_start_s = self.now_s if math.isnan(job.first_start_s) else job.first_start_s
                    job.last_start_s = self.now_s
                    job.starts += 1
                    self.on(job, gpus)
                    started.append(n)
        turns, lock_step = turns_of(choice)
        for members, _ in choice.groups:
            again = lambda n: (turns[n], n in lock_step) != (self.jobs[n].turn, self.jobs[n].in_lock_step)  # noqa: E731
            renewed = any(again(n) for n in members)
            for n in members:
                self.jobs[n].turn, self.jobs[n].in_lock_step = turns[n], n in lock_step
            for n in members:
                if renewed or n in started or set(members) != set(self.jobs[n].company):
                    self.pace(self.jobs[n], members, self.now)
        for place, n in enumerate(choice.order):
            self.jobs[n].position = place
        for n, level in zip(choice.order, choice.levels, strict=False):
            self.jobs[n].level = level
        self.last_group = {n: i for i, (members, _) in enumerate(choice.groups) for n in members}
        if choice.raw is not None:
            self.last = choice.raw
        if choice.valid_until_s < NEVER:
            self.wake = max(math.ceil(choice.valid_until_s * 1000 - 1e-6), self.now + 1)
        self.valid_until_s = choice.valid_until_s
        self.news = False

    # -- a view made by hand ---------------------------------------------------------------------------

    def view(self) -> View:
        jobs = self.jobs
        now = self.now

        def spec(name: str, missing: float = math.nan) -> np.ndarray:
            values = [getattr(j.spec, name) for j in jobs]
            return np.array([missing if v is None else v for v in values])

        def state(name: str) -> np.ndarray:
            return np.array([getattr(j, name) for j in jobs])

        def numbers(name: str) -> np.ndarray:
            seen: list[str] = []
            for j in jobs:
                if j.state != "future" and getattr(j.spec, name) not in seen:
                    seen.append(getattr(j.spec, name))
            return np.array([seen.index(getattr(j.spec, name)) if j.state != "future" else -1 for j in jobs])

        kinds = np.empty(len(jobs), dtype=object)
        kinds[:] = [j.spec.gpu_kinds for j in jobs]
        phases = {"waiting": Phase.WAITING, "running": Phase.RUNNING, "finished": Phase.FINISHED}
        columns = {
            **{name: spec(name).astype(np.int64) for name in ("gpus", "min_gpus", "max_gpus", "job_class", "servers")},
            **{name: spec(name).astype(np.float64) for name in SPEC_FLOATS},
            "stage_s": np.array([j.spec.profile.stage_s if j.spec.profile else [math.nan] * 4 for j in jobs]),
            **{name: np.zeros(len(jobs), dtype=np.int64) for name in BATCH_COLUMNS},
            "goodput": np.full((len(jobs), len(Estimate)), math.nan),
            "gpu_kinds": kinds,
            "has_kinds": np.array([any(k is not None for k in kinds)]),
            "has_demands": np.array([any(j.spec.cpus or j.spec.memory_bytes for j in jobs)]),
            "user_number": numbers("user"),
            "project_number": numbers("project"),
            "phase": np.array([int(phases.get(j.state, Phase.FAILED)) for j in jobs]),
            "iterations_done": np.array([j.work_by(now) / j.unit for j in jobs]),
            "attained_gpu_s": np.array([j.service_by(now) / 1e3 for j in jobs]),
            "run_s": np.array([j.held_by(now) / 1e3 for j in jobs]),
            "pending_since_s": state("waits_since_s"),
            **{name: state(name) for name in REMEMBERED},
            # all save at a stop request, which then loses less than any patience
            "checkpoints": np.full(len(jobs), int(Checkpoints.ON_STOP)),
            "saved_run_s": np.zeros(len(jobs)),
            "restart_s": np.full(len(jobs), (self.rules.save_ms + self.rules.restore_ms) / 1e3 or math.nan),  # unknown
            "running_group": np.array([self.last_group.get(j.number, -1) for j in jobs], dtype=np.int64),
            "attained_base_gpu_s": state("promoted_at_service") / 1e3,
            "run_base_s": state("promoted_at_held") / 1e3,
            "wait_s": state("waited_s"),
            "competing_base": state("competed_ms") / 1e3,
        }
        active = np.array([j.number for j in self.active], dtype=np.int64)
        table = JobTable(columns, active, self.now_s, self.competing_ms / 1e3, Archive(self))
        return View(self.now_s, self.cluster, table, self.last)


SPEC_FLOATS = (
    "submit_s", "iterations", "iteration_s", "gpu_memory_bytes", "cpus", "memory_bytes", "skew", "deadline_s",
    "priority", "weight", "time_limit_s",
)  # fmt: skip
REMEMBERED = (
    "first_start_s", "last_start_s", "slow_since_s", "starts",
    "preemptions", "failures", "promotions", "position", "level",
    "shared_speed",
)  # fmt: skip


@dataclass
class Archive:
    """What a table asks about jobs that left."""

    run: Naive
    pair_reports: None = None

    @property
    def kind_speeds(self) -> dict[str, float]:
        return self.run.kind_speeds

    @property
    def departures(self) -> int:
        return len(self.run.departed)

    def spec(self, number: int) -> JobSpec:
        return self.run.jobs[number].spec

    def departed_sizes(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        sizes = sorted(
            job.service / 1e3 for job in (self.run.jobs[n] for n in self.run.departed[:count]) if job.service
        )
        return np.array(sizes), np.array([sum(sizes[:i]) for i in range(len(sizes) + 1)])


def asking(policy: Policy) -> Callable[[Naive], Choice]:
    """Decisions of a plait policy, for one run: it sees again what it has reserved for jobs that still wait."""
    reserved: list[Reservation] = []

    def choose(run: Naive) -> Choice:
        view = run.view()
        still = []
        for one in reserved:
            up = tuple(gpu for gpu in one.gpus if view.cluster.node_up[view.cluster.gpu_node[gpu]])
            if up and run.jobs[one.job].state == "waiting":
                still.append(Reservation(one.job, up))
        plan = policy.decide(replace(view, reservations=tuple(still)))
        reserved[:] = plan.reservations
        groups = [(tuple(m.job for m in g.members), g.gpus) for g in plan.groups]
        order = () if plan.order is None else plan.order.tolist()
        levels = () if plan.levels is None else plan.levels.tolist()
        promoted = plan.promoted.tolist()
        return Choice(groups, order, levels, promoted, plan.valid_until_s, plan.suspend, plan.groups)

    return choose


def naive(
    specs: Sequence[JobSpec],
    cluster: Cluster,
    chooser: Callable[[Naive], Choice],
    rules: Rules,
    changes: Sequence[tuple[int, str, bool]] = (),
) -> Naive:
    """Run these jobs to their end."""
    jobs = [Job(i, spec) for i, spec in enumerate(specs)]
    return Naive(jobs, cluster, chooser, rules, sorted(changes)).run()
