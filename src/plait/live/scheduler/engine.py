"""The live scheduler: messages and times in, assignments out.

    engine = Engine(store, Fences(Layout.at(home)), now_s=0.0, policy="muri-l")
    number, = engine.submit([{"command": ["python", "train.py"]}], owner="ann", now_s=1.0)
    assignment = engine.observe(observed, now_s=1.2)        # what an agent saw -> what should run there
    wake_s = engine.tick(now_s=2.0)

Each operation changes the state by `Context.record`, entry by entry. The engine then does what follows (`settle`) and
commits: log, rows and snapshot in one transaction; after it, and only then, older attempts are fenced and assignments
change. Inside `with engine.batch():`, operations share one commit; their results may be sent to others after the block.
"""

from __future__ import annotations

import json
import math
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, Concatenate, ParamSpec, Protocol, TypeAlias, TypeVar

from plait.control.messages import ReplanDue
from plait.core.errors import PlaitError
from plait.core.jobs import JobClass, Phase
from plait.core.policy import has_grants
from plait.live.api.cluster import ClusterFigures, Losses, NetworkOfCluster, NodeRow, Queue, ReservationRow
from plait.live.api.explain import Explanation
from plait.live.api.jobs import FINAL, JobRow
from plait.live.layout import Layout, array_index
from plait.live.protocol.arrays import all_members, array_of
from plait.live.protocol.wire import Assignment, Observed, sane_text
from plait.live.scheduler import assignments
from plait.live.scheduler.context import FENCE_TRIES, Context, EngineCounts, Pending, Problem, Unfenced
from plait.live.scheduler.decide import LATE_S, WATCH_S, admit, decision_s, may_start, release, wake_s
from plait.live.scheduler.explain import views, waiting
from plait.live.scheduler.explain.gpu_demand import GpuDemand
from plait.live.scheduler.explain.views import queue
from plait.live.scheduler.fold import apply
from plait.live.scheduler.live_policy import live_policy
from plait.live.scheduler.measured import report_progress
from plait.live.scheduler.network import shown, switches
from plait.live.scheduler.network.tell import tell
from plait.live.scheduler.options import Options
from plait.live.scheduler.reconcile import reconcile
from plait.live.scheduler.records.attempts import JobRecord
from plait.live.scheduler.records.network import note_of
from plait.live.scheduler.records.notes import PolicySet, ServiceStarted, Undelivered, entry_from_json
from plait.live.scheduler.report import excuse_silence, silence_s, take_report, watch
from plait.live.scheduler.requests import admission, changes, losses, operations
from plait.live.scheduler.state import State
from plait.live.scheduler.stops import stop_at_limits
from plait.live.scheduler.usage import report_network, report_usage
from plait.live.store import Store, pack
from plait.network.topology.declared import Declared
from plait.policies.fair_share import by_project, half_life_s, member_use
from plait.policies.ignored_requests import remarks

#: The best mean and 99th percentile on a mixed queue of plain and attached jobs: docs/explanation/preemption.md has the
#: table. Jobs of unknown length go by what jobs like them took.
DEFAULT_POLICY = "plait"
#: The same where switches have memory to grant.
NETWORK_POLICY = "plait:placement=netpack,ina=inalloc"


P = ParamSpec("P")
T = TypeVar("T")
#: Lets something be done, elsewhere and later perhaps.
Later: TypeAlias = Callable[[Callable[[], bytes]], "Future[bytes]"]


def at_once(work: Callable[[], bytes]) -> Future[bytes]:
    """Done here and now, as suits tests and tools."""
    done: Future[bytes] = Future()
    done.set_result(work())
    return done


class Snapshots:
    """Snapshots of the state, so that a restart need not read the whole log; one at a time.

    Begun when as much has happened as `limit` entries of the log weigh. The engine copies the parts that may change,
    which takes milliseconds; another thread makes JSON of it and compresses it; the next commit writes it. A restart
    uses a snapshot as soon as it exists, and needs none.
    """

    def __init__(self, limit: float, later: Later = at_once) -> None:
        self._limit, self._later = limit, later
        self._made: tuple[int, Future[bytes]] | None = None

    def take(self, ctx: Context) -> tuple[int, bytes] | None:
        """Begin a snapshot of the present state if one is due; return one that is ready to be written."""
        if self._made is None and ctx.pending.weight >= self._limit:
            plain = ctx.state.frozen()
            self._made = ctx.state.seq, self._later(lambda: pack(plain()))
            ctx.pending.weight = 0.0
        if self._made is None or not self._made[1].done():
            return None
        (seq, body), self._made = self._made, None
        return seq, body.result()


class Fencing(Protocol):
    """Where attempts are fenced, as `plait.live.fencing.Fences` does on disk."""

    layout: Layout

    def next_epoch(self, number: int, epoch: int) -> int:
        """The epoch of a job's next attempt, its last one being `epoch`; `OSError`: later, perhaps."""

    def write(self, number: int, epoch: int, first: int) -> None:
        """Make attempts of a job before this epoch unable to commit; raises `OSError` if that cannot be written."""

    def may_pass(self, number: int, error: OSError) -> bool:
        """Whether an error of `write` may pass by itself, because it is not due to the job's own folder."""


class Engine:
    """See the module. After a `StoreError` from a commit the engine is ahead of the store: make a new one."""

    def __init__(
        self,
        store: Store,
        fencing: Fencing,
        *,
        now_s: float | Callable[[float], float],
        policy: str | None = None,
        may_lose_work: bool | None = None,
        options: Options | None = None,
        network: Declared | None = None,
        secret: bytes = b"",
        later: Later = at_once,
        timer: Callable[[], float] = lambda: 0.0,
        shows: bool = False,
    ) -> None:
        """Continue from the store. `now_s` may be a function of the newest time in it.

        `network`: declaration for the cluster from now on, None to keep its current one; one without text and switches
        removes it. `secret`: of the home folder, for the tokens of jobs. `fencing` makes older attempts of a job unable
        to commit a checkpoint; `later` runs work that need not be done at once; `timer` measures the seconds that
        decisions and commits take. `shows`: the engine answers from the store and writes nothing; see `stored`.
        """
        self.store, self.options, self.fencing = store, options or Options(), fencing
        term = (store.term or 0) if shows else store.next_term()  # before the log is read: later entries are only ours
        state, tail = restore(store)
        port_seed = zlib.crc32(str(fencing.layout.home).encode())
        self.context = ctx = Context(state, self.options, term, port_seed, secret=secret)
        last_s = state.now_s
        self.begin_s = ctx.now_s = max(now_s(last_s) if callable(now_s) else now_s, last_s)
        self._away_s = self.begin_s - last_s
        for node in state.nodes.values():
            node.heard_s = self.begin_s
        ctx.unfenced = {number: Unfenced() for number in state.live}
        ctx.timers.settle_s = ctx.settled_s()
        ctx.pending.weight = float(tail)
        for job in state.jobs.values():
            if not job.cancelled:
                ctx.count_open(job, 1)
        self._snapshots = Snapshots(self.options.snapshot_weight, later)
        self._timer, self._batching, self._together, self._gpu_demand = timer, False, False, GpuDemand()
        if not shows:
            book = self.state.network
            wanted = network if network is None or network.text or network.listed else None
            if network is not None and wanted != book.declared:
                self.context.record(note_of(wanted, self.begin_s))
            self._begin_policy(policy, may_lose_work)
            self._commit()

    def note_start(self) -> None:
        """Note in the log that a service continues from the store, unless it is the first one."""
        if self.term > 1:
            self.context.record(ServiceStarted(self.begin_s, self.term, round(self._away_s, 3)))
            self._commit()

    def stored(self, now_s: float) -> Engine:
        """An engine of what is stored, to be read only, after a commit of this one failed: this one is ahead of it.

        Observations of nodes and processes are in no store, and are taken over.
        """
        shown = Engine(
            self.store, self.fencing, now_s=now_s, options=self.options, secret=self.context.secret, shows=True
        )
        _carry_over(self.state, shown.state)
        shown.ready = self.ready
        return shown

    def _begin_policy(self, policy: str | None, may_lose_work: bool | None) -> None:
        state = self.state
        network = state.network.declared is not None
        first = NETWORK_POLICY if network else DEFAULT_POLICY
        wanted, lose = policy or state.policy_text or first, may_lose_work
        if lose is None:  # a permission is for the policy that it was given with
            lose = state.may_lose_work and wanted == state.policy_text
        if (wanted, lose) != (state.policy_text, state.may_lose_work):
            operations.check_policy(self.context, wanted)
            self.context.record(PolicySet(self.begin_s, wanted, lose))
        elif has_grants(state.limited_policy()) and not network:
            live_policy(wanted, network)

    @property
    def state(self) -> State:
        """Everything that is known; only `Context.record` changes it, and reports what only memory has."""
        return self.context.state

    @property
    def term(self) -> int:
        """How often a service has begun to lead this store."""
        return self.context.term

    @property
    def layout(self) -> Layout:
        """Where the home folder has what."""
        return self.fencing.layout

    @property
    def broken(self) -> bool:
        """Whether the state may differ from the store: a new engine has to continue from there."""
        return self.context.broken

    @property
    def ready(self) -> bool:
        """False while code for decisions is still being compiled: all else runs."""
        return self.context.ready

    @ready.setter
    def ready(self, ready: bool) -> None:
        self.context.ready = ready

    @property
    def counts(self) -> EngineCounts:
        """Figures and problems that the service reads and empties."""
        return self.context.counts

    # -- what follows ---------------------------------------------------------------------------------

    @contextmanager
    def batch(self) -> Iterator[Engine]:
        """One commit for all that is done inside; nothing done inside may be acted on before the end."""
        self._batching = True
        try:
            yield self
        finally:
            self._batching = False
        self._commit()

    def step(self, now_s: float) -> float:
        """Inside a batch: what `tick` does, without a commit of its own."""
        self.clock(now_s)
        return self._settle()

    def tick(self, now_s: float) -> float:
        """Do what is due; returns when there will be something to do even if nothing happens before."""
        due_s = self.step(now_s)
        self._commit()
        return due_s

    def clock(self, now_s: float) -> float:
        """Time never goes back, whatever the caller's clock does."""
        ctx = self.context
        ctx.now_s = max(now_s, ctx.now_s)
        return ctx.now_s

    def _change(
        self, now_s: float, change: Callable[Concatenate[Context, P], T], *args: P.args, **options: P.kwargs
    ) -> T:
        """Do what was requested, and then what follows from it."""
        self.clock(now_s)
        done = change(self.context, *args, **options)
        self._run()
        return done

    def _run(self) -> None:
        if self._together:
            return
        self._settle()
        self._commit()

    def _settle(self) -> float:
        """Nodes, admission, attempts, decision, in this order; returns when to come again."""
        ctx, timers, now_s = self.context, self.context.timers, self.context.now_s
        if (late_s := now_s - timers.due_s) > LATE_S:  # no report could arrive while this process itself stood still
            excuse_silence(ctx, late_s)
        if now_s >= timers.watched_s + WATCH_S:
            timers.watched_s = now_s
            watch(ctx)
            stop_at_limits(ctx)
            timers.silence_s = silence_s(ctx)
        if self.state.network.declared is not None:
            switches.follow(ctx)
        if self.state.pending:
            controller = self.state.controller
            first = 0 if controller is None else controller.job_store.count
            admit(ctx)
            if may_start(ctx, first):
                timers.arrived = (timers.arrived[0] if timers.arrived else now_s, now_s)
        release(ctx)
        ctx.stale |= ctx.deferred
        self._reconcile()
        if now_s >= decision_s(ctx):
            self._report()
            begin_s = self._timer()
            ctx.record(ReplanDue(now_s))
            timers.took_s, timers.arrived = self._timer() - begin_s, None
            self.counts.decisions_s.append(timers.took_s)
            self._reconcile()
        elif self.state.live and now_s >= timers.reported_s + self.options.progress_s:
            self._report()
        if self.state.network.declared is not None:
            tell(ctx)
        if self.state.touched_nodes:  # one came, or came back
            timers.silence_s = silence_s(ctx)
        timers.due_s = wake_s(ctx)
        return timers.due_s

    def _reconcile(self) -> None:
        ctx = self.context
        while ctx.stale:
            ctx.stale = False
            ctx.deferred = reconcile(ctx, self.fencing.next_epoch)

    def _report(self) -> None:
        ctx, timers = self.context, self.context.timers
        if self.state.controller is not None:
            timers.reported_s = ctx.now_s
        report_progress(ctx, sorted(self.state.live))
        if ctx.now_s >= timers.usage_s + self.options.usage_s:
            reported = report_usage(ctx)
            if self.state.network.declared is not None:
                reported = report_network(ctx) or reported
            timers.usage_s = ctx.now_s if reported else timers.usage_s

    # -- commits --------------------------------------------------------------------------------------

    def _commit(self) -> None:
        """Write what happened; then fence new attempts."""
        if self._batching:
            return
        ctx, state, pending = self.context, self.state, self.context.pending
        if pending.rows or state.touched or state.touched_nodes or pending.projects:
            keep = self._snapshots.take(ctx)
            begin_s = self._timer()
            try:
                self.store.commit(pending.rows, views.changed(ctx, pending.over, pending.projects), keep)
            except BaseException:
                ctx.broken = True
                raise
            self.counts.commits_s.append(self._timer() - begin_s)
            self.counts.outcomes.update(attempt.outcome for attempt in pending.over)
            self._forget()
            ctx.pending, ctx.reassign = Pending(weight=pending.weight), True
        self._raise_fences()

    def _forget(self) -> None:
        """Jobs that have ended and of which nothing runs are in the store from now on."""
        state = self.state
        for number in state.touched:
            job = state.jobs.get(number)
            if job is None or not _is_over(state, job):
                continue
            controller = state.controller
            end_s = math.nan if controller is None else float(controller.job_store.columns["end_s"][number])
            jct_s = (self.context.now_s if math.isnan(end_s) else end_s) - job.created_s
            self.counts.left.append((state.phase(job).name.lower(), max(jct_s, 0.0)))
            del state.jobs[number]
            if not job.cancelled:
                self.context.count_open(job, -1)
        state.touched.clear()
        state.touched_nodes.clear()

    def _raise_fences(self) -> None:
        """Attempts are assigned only once older ones cannot commit a checkpoint any more; a full disk means later."""
        ctx = self.context
        for number, waits in sorted(ctx.unfenced.items()):
            job = self.state.jobs.get(number)
            attempt = job.live if job else None
            if job is not None and attempt is not None:
                try:
                    self.fencing.write(number, attempt.epoch, job.first_epoch)
                except OSError as error:
                    waits.why = str(error)
                    if ctx.now_s >= waits.next_s and not self.fencing.may_pass(number, error):
                        waits.tries, waits.next_s = waits.tries + 1, ctx.now_s + 1.0
                        ctx.stale |= waits.tries >= FENCE_TRIES  # `reconcile` ends it after too many tries
                    continue
            del ctx.unfenced[number]
            ctx.reassign = True

    # -- users ----------------------------------------------------------------------------------------

    def submit(
        self, requests: Sequence[Mapping[str, Any]], *, owner: str, now_s: float, key: str | None = None
    ) -> list[int]:
        """New jobs, all or none, the members of arrays one by one; returns their numbers. `InputError`: an invalid one.

        A repeated submission: the same owner's submission of the same `key` has its jobs already.
        """
        self.clock(now_s)
        if (before := self.state.submissions.find(owner, key, requests)) is not None:
            return before
        jobs = all_members(requests, self.state.numbers)
        projects = [admission.project_of(request) for request in jobs]
        admission.check_open_jobs(self.context, owner, projects)
        note = admission.take_in(self.context, jobs, owner, key, self.store.states, self.members)
        if jobs:
            self.context.record(note)
            self._run()
        return list(range(note.first, note.first + len(jobs)))

    def members(self, names: Collection[str]) -> dict[str, list[int]]:
        """Numbers of the jobs of arrays (a-5), or of one of their members (a-5.3); other names are left out."""
        named = {name: which for name in names if (which := array_index(name)) is not None}
        if not named:
            return {}
        found = self.store.members({array for array, _ in named.values()})
        for number, job in self.state.jobs.items():
            if (array := array_of(job.request)) in found:
                found[array][job.request["member"]["index"]] = number
        out = {}
        for name, (array, index) in named.items():
            numbers = found[array]
            if index is None and numbers:
                out[name] = sorted(numbers.values())
            elif index in numbers:
                out[name] = [numbers[index]]
        return out

    def open_members(self, arrays: Collection[str]) -> dict[str, Counter[str]]:
        """How many jobs of each of these arrays that have not ended are in each state, and `gpus` that they hold."""
        out: dict[str, Counter[str]] = {array: Counter() for array in arrays}
        for job in self.state.jobs.values():
            if (array := array_of(job.request)) not in out:
                continue
            if (shown := views.shown_state(self.context, job)) not in FINAL:
                out[array][shown] += 1
                out[array]["gpus"] += len(job.live.gpus) if job.live else 0
        return out

    @contextmanager
    def together(self, now_s: float) -> Iterator[None]:
        """Operations inside draw their consequences once, at the end."""
        self.clock(now_s)
        self._together = True
        try:
            yield
        finally:
            self._together = False
            self._run()

    def past_use(self) -> dict[str, float] | None:
        """GPU-seconds of each project that still count, where the policy shares by past use; None elsewhere."""
        controller, fair_s = self.state.controller, half_life_s(self.state.policy)
        if controller is None or fair_s is None:
            return None
        of_project = by_project(member_use(controller.view().jobs, fair_s))
        return {
            name: float(of_project[number])
            for name, number in controller.job_store.project_numbers.items()
            if number < len(of_project)
        }

    def check_project(self, name: str) -> None:
        """Raise `InputError` for a project that does not exist."""
        admission.check_project(self.context, name)

    def remarks(self, request: Mapping[str, Any]) -> list[str]:
        """Settings of a request that the current policy ignores, a sentence each."""
        policy = self.state.policy
        priority, deadline_s = float(request.get("priority") or 0.0), request.get("deadline_s")
        job_class = JobClass[str(request.get("class") or "guaranteed").upper()]
        return [] if policy is None else remarks(self.state.policy_text, policy, priority, deadline_s, job_class)

    def cancel(self, number: int, now_s: float, *, by: str = "") -> None:
        """Cancel a job; if it runs, it is stopped. `Conflict` if it has ended, `LookupError` if it never was."""
        self._change(now_s, changes.cancel, number, by)

    def requeue(
        self, number: int, now_s: float, *, by: str, key: str | None = None, may_lose_work: bool = False
    ) -> None:
        """Let a job leave its GPUs after a checkpoint and wait again; see `plait.live.scheduler.requests.changes`.

        A repeated request, by the same user with the same `key`, does nothing more. Raises `Conflict` if the job has
        ended, or would lose its work and not `may_lose_work`; `LookupError` if it never existed.
        """
        self._change(now_s, changes.requeue, number, by, key, may_lose_work)

    def update(
        self, number: int, fields: Mapping[str, Any], now_s: float, *, by: str, key: str | None = None,
        may_lose_work: bool = False,
    ) -> None:  # fmt: skip
        """Change priority, class, deadline or size of a job; as `requeue`, and `InputError` for what cannot be."""
        self._change(now_s, changes.update, number, fields, by, key, may_lose_work)

    def foreseen(
        self, number: int, start: Sequence[float | None] | None, end: Sequence[float | None], now_s: float
    ) -> None:
        """Keep what a client forecast of a job: early end, middle and late end, seconds from now, None for never.

        The first forecast of a job counts; `start` is None for a running job. `LookupError` for a job that has ended.
        """
        self._change(now_s, operations.foreseen, number, start, end)

    def undelivered(self, channel: str, number: int, event: str, why: str, now_s: float) -> None:
        """Enter into the log that a notification of a job did not arrive, or may not have."""
        self.context.record(Undelivered(self.clock(now_s), number, channel, event, sane_text(why)))
        self._run()

    # -- operators ------------------------------------------------------------------------------------

    def set_policy(self, text: str, now_s: float, *, may_lose_work: bool = False) -> None:
        """Decide by another policy from now on; `InputError` if there is none of that name.

        `may_lose_work`: it may stop jobs that cannot resume from a checkpoint.
        """
        self._change(now_s, operations.set_policy, text, may_lose_work)

    def set_project(
        self, name: str, *, gpu_quota: int | None, weight: float, now_s: float, default_time_s: float | None = None,
        most_time_s: float | None = None, most_idle_s: float | None = None,
    ) -> None:  # fmt: skip
        """Make or change a project: at most `gpu_quota` GPUs at once (None = no limit), its weight in fair policies."""
        self._change(now_s, operations.set_project, name, gpu_quota, weight, default_time_s, most_time_s, most_idle_s)

    def drop_project(self, name: str, now_s: float) -> None:
        """Forget a project's quota and weight; its jobs stay."""
        self._change(now_s, operations.drop_project, name)

    def drain(self, node: str, now_s: float, *, may_lose_work: bool = False) -> None:
        """Take a node out: no new work; jobs there stop, after a checkpoint if possible, and continue elsewhere.

        Raises `Conflict` if one would lose work and not `may_lose_work`; `LookupError` for an unknown node.
        """
        self._change(now_s, operations.drain, node, may_lose_work)

    def losses(self, jobs: Sequence[int] = (), nodes: Sequence[str] = (), owner: str | None = None) -> Losses:
        """Work that running jobs would lose if stopped now: of these jobs and nodes, of all if neither is given.

        The largest first; of all owners if `owner` is None. `LookupError` for an unknown node.
        """
        return losses.report(self.context, jobs, nodes, owner)

    def resume(self, node: str, now_s: float) -> None:
        """Let a drained node work again."""
        self._change(now_s, operations.resume, node)

    def node_gone(self, node: str, why: str, now_s: float, *, certain: bool = True) -> None:
        """Take a node as dead on the word of its backend: it is lost at once if it is silent, or as soon as it is.

        Reports of the node itself count for more: a node that still reports is not lost. Unless it is `certain` that
        nothing runs there any more (it may only be out of reach), the service waits for its lease to end all the same.
        """
        self._change(now_s, operations.node_gone, node, why, certain)

    def forget_node(self, node: str, now_s: float) -> None:
        """Take a node that will not come back out of the lists; `Conflict` while it may still run something."""
        self._change(now_s, operations.forget_node, node)

    def reservations(self, now_s: float) -> list[ReservationRow]:
        """Reservations of nodes that have not ended, the first to begin first."""
        return waiting.reservations(self.context, now_s)

    def reserve(
        self, nodes: Sequence[str], project: str, from_s: float, until_s: float, by: str, now_s: float,
        key: str = "",
    ) -> ReservationRow:  # fmt: skip
        """Keep nodes for jobs of a project alone, from a time until another; again under the `key` of a user: the same.

        Raises `Conflict` where one of them is reserved then, `LookupError` for an unknown node, `InputError` for an
        unknown project or no time.
        """
        made = self._change(now_s, operations.reserve, nodes, project, from_s, until_s, by, key)
        return waiting.reservation(self.context, made, now_s)

    def cancel_reservation(self, name: str, by: str, now_s: float) -> None:
        """Let jobs of all projects use reserved nodes again; `LookupError` for an unknown reservation."""
        self._change(now_s, operations.cancel_reservation, name, by)

    # -- agents ---------------------------------------------------------------------------------------

    def observe(self, seen: Observed, now_s: float, address: str = "127.0.0.1") -> Assignment:
        """Take what an agent sees, answer what should be there.

        Inside a `batch`, the consequences are left to `step`, once for all reports, and `assignment` returns the result
        after the batch.
        """
        self.clock(now_s)
        take_report(self.context, seen, address)
        if not self._batching:
            self._run()
        return self.assignment(seen.node.id, seen.agent)

    def assignment(self, node: str, agent: str | None = None) -> Assignment:
        """The assignment of a node as of the last commit; empty for an agent that another one has replaced."""
        return assignments.assignment(self.context, node, agent)

    def new_versions(self) -> dict[str, int] | None:
        """Versions of the assignments of all nodes as of the last commit; None if none can have changed since then."""
        if not assignments.refresh(self.context):
            return None
        return {name: node.version for name, node in self.state.nodes.items()}

    # -- looking --------------------------------------------------------------------------------------

    def status(self, now_s: float) -> ClusterFigures:
        """The cluster in a few numbers."""
        found, demand = views.status(self.context, self._gpu_demand, self.clock(now_s)), self._gpu_demand
        if (error := demand.failure) is not None:
            demand.failure = None  # once per question
            what = f"policy {self.state.policy_text} cannot value GPUs for jobs: {error}"
            self.counts.problems.append(Problem(what, error))
        return found

    def queue(self, now_s: float, limit: int, offset: int) -> Queue:
        """The order of the queue; see `plait.live.scheduler.explain.views`."""
        return queue(self.context, self.clock(now_s), limit, offset)

    def nodes(self, now_s: float) -> list[NodeRow]:
        """Each node: hardware, state, usage, and who is on its GPUs."""
        return views.nodes(self.context, self.clock(now_s))

    def network(self, now_s: float) -> NetworkOfCluster:
        """The network, its switches, and what jobs have of them; see `plait.live.scheduler.network.shown`."""
        self.clock(now_s)
        return shown.network(self.context)

    def explain(self, number: int, now_s: float) -> Explanation:
        """Why a job waits, or how it runs; see `plait.live.scheduler.explain.waiting`."""
        return waiting.explain(self.context, number, self.clock(now_s))

    def state_for_forecast(self, now_s: float) -> Callable[[], dict[str, Any]]:
        """State for a forward simulation: copied now, made into JSON values by the function returned."""
        return views.forecast(self.context, self.clock(now_s))

    def jobs(self, numbers: Sequence[int], now_s: float) -> dict[int, JobRow]:
        """The rows of these jobs, for jobs that have not ended."""
        self.clock(now_s)
        state = self.state
        return {n: views.job_row(self.context, state.jobs[n]) for n in numbers if n in state.jobs}


def restore(store: Store) -> tuple[State, int]:
    """The state as stored, and the number of entries after its snapshot; `PlaitError` for a log with a gap."""
    data, tail = store.load()
    state = State() if data is None else State.from_json(data)
    behind = state.seq
    for row in tail:
        if row.seq != state.seq + 1:
            raise PlaitError(f"the log has entry {row.seq} where {state.seq + 1} was expected; restore a backup")
        apply(state, entry_from_json(json.loads(row.entry)))
    state.touched.clear()
    state.jobs = {number: job for number, job in state.jobs.items() if not _is_over(state, job)}
    state.touched_nodes = set(state.nodes)
    return state, state.seq - behind


def _is_over(state: State, job: JobRecord) -> bool:
    return job.admitted and not job.live and state.phase(job) > Phase.RUNNING


def _carry_over(old: State, new: State) -> None:
    """Give a state that was read from the store what another one of the same cluster has seen beyond the log."""
    for name in old.nodes.keys() & new.nodes.keys():
        was, node = old.nodes[name], new.nodes[name]
        node.agent, node.agents, node.heard_s, node.address = was.agent, set(was.agents), was.heard_s, was.address
        node.usage, node.reached, node.term, node.switch = was.usage, was.reached, was.term, was.switch
        node.suspect, node.gone, node.dead, node.leaving_s = was.suspect, was.gone, was.dead, was.leaving_s
    for number in old.jobs.keys() & new.jobs.keys():
        past, job = old.jobs[number], new.jobs[number]
        job.estimated_s, job.total, job.device_bytes = past.estimated_s, past.total, past.device_bytes
        seen, attempt = past.attempt, job.attempt
        if seen is None or attempt is None or seen.epoch != attempt.epoch:
            continue
        attempt.leaves, attempt.device_bytes = seen.leaves, seen.device_bytes
        for before, rank in zip(seen.ranks, attempt.ranks, strict=True):
            rank.seen, rank.learnt_s = before.seen, dict(before.learnt_s)
