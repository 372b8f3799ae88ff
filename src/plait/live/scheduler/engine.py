"""The live scheduler: messages and times in, assignments out.

    engine = Engine(store, Fences(Layout.at(home)), now_s=0.0, policy="muri-l")
    number, = engine.submit([{"command": ["python", "train.py"]}], owner="ann", now_s=1.0)
    assignment = engine.observe(observed, now_s=1.2)        # what an agent saw -> what should run there
    wake_s = engine.tick(now_s=2.0)

Each operation yields steps, which the ledger applies to the state (`plait.live.scheduler.ledger`). The engine then does
what follows from them (`_advance`) and commits. Nothing is acted on before the commit. Inside `with engine.batch():`,
operations share one commit; their results may be sent to others after the block.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from plait.control.messages import ReplanDue
from plait.core.jobs import JobClass
from plait.core.policy import has_grants
from plait.live.layout import Layout
from plait.live.protocol.wire import Assignment, Observed
from plait.live.scheduler.context import Context, Step, Unfenced
from plait.live.scheduler.decide import LATE_S, WATCH_S, admit, decision_s, may_start, release, settled_s, wake_s
from plait.live.scheduler.explain import views, waiting
from plait.live.scheduler.explain.gpu_demand import GpuDemand
from plait.live.scheduler.explain.queue import queue
from plait.live.scheduler.ingest.progress import report_progress
from plait.live.scheduler.ingest.report import ingest
from plait.live.scheduler.ingest.usage import report_usage
from plait.live.scheduler.ledger import Counts, Fencing, Ledger, Problem, restore
from plait.live.scheduler.live_policy import live_policy
from plait.live.scheduler.memory import carry_over
from plait.live.scheduler.network import shown, switches
from plait.live.scheduler.network.report import report_network
from plait.live.scheduler.network.tell import tell
from plait.live.scheduler.options import Options
from plait.live.scheduler.reconcile import reconcile
from plait.live.scheduler.records.network import note_of
from plait.live.scheduler.records.notes import PolicySet, ServiceStarted
from plait.live.scheduler.records.observations import SilenceExcused
from plait.live.scheduler.requests import admission, changes, losses, operations
from plait.live.scheduler.snapshots import Later, Snapshots, at_once
from plait.live.scheduler.state import State
from plait.live.scheduler.stops import stop_at_limits
from plait.live.scheduler.watch import silence_s, watch
from plait.live.store import Store
from plait.network.topology.declared import Declared
from plait.policies.parts.ignored_requests import remarks

#: The best and safest on a mixed queue of plain and attached jobs: docs/explanation/preemption.md has the table.
DEFAULT_POLICY = "tiresias-l"
#: The same where switches have memory to grant.
NETWORK_POLICY = "tiresias-l:placement=netpack,ina=inalloc"


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
        ctx.timers.settle_s = settled_s(ctx, self.begin_s)
        snapshots = Snapshots(self.options.snapshot_weight, later)
        snapshots.weight = float(tail)
        self.ledger = Ledger(ctx, store, snapshots, fencing, timer)
        self._timer, self._batching, self._gpu_demand = timer, False, GpuDemand()
        if not shows:
            self._begin_network(network)
            self._begin_policy(policy, may_lose_work)
            self._commit()

    def note_start(self) -> None:
        """Note in the log that a service continues from the store, unless it is the first one."""
        if self.term > 1:
            self.ledger.do(ServiceStarted(self.begin_s, self.term, round(self._away_s, 3)))
            self._commit()

    def stored(self, now_s: float) -> Engine:
        """An engine of what is stored, to be read only, after a commit of this one failed: this one is ahead of it.

        Observations of nodes and processes are in no store, and are taken over.
        """
        shown = Engine(
            self.store, self.fencing, now_s=now_s, options=self.options, secret=self.context.secret, shows=True
        )
        carry_over(self.state, shown.state)
        shown.ready = self.ready
        return shown

    def _begin_network(self, network: Declared | None) -> None:
        book = self.state.network
        wanted = network if network is None or network.text or network.listed else None
        if network is not None and wanted != book.declared:
            self.ledger.do(note_of(wanted, self.begin_s))

    def _begin_policy(self, policy: str | None, may_lose_work: bool | None) -> None:
        state = self.state
        network = state.network.declared is not None
        first = NETWORK_POLICY if network else DEFAULT_POLICY
        wanted, lose = policy or state.policy_text or first, may_lose_work
        if lose is None:  # a permission is for the policy that it was given with
            lose = state.may_lose_work and wanted == state.policy_text
        if (wanted, lose) != (state.policy_text, state.may_lose_work):
            operations.check_policy(self.context, wanted)
            self.ledger.do(PolicySet(self.begin_s, wanted, lose))
        elif has_grants(state.limited_policy()) and not network:
            live_policy(wanted, network)

    @property
    def state(self) -> State:
        """Everything that is known; only the ledger changes it."""
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
        return self.ledger.broken

    @property
    def ready(self) -> bool:
        """False while code for decisions is still being compiled: all else runs."""
        return self.context.ready

    @ready.setter
    def ready(self, ready: bool) -> None:
        self.context.ready = ready

    @property
    def counts(self) -> Counts:
        """Figures and problems that the service reads and empties."""
        return self.ledger.counts

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
        return self._advance(self.clock(now_s))

    def tick(self, now_s: float) -> float:
        """Do what is due; returns when there will be something to do even if nothing happens before."""
        due_s = self._advance(self.clock(now_s))
        self._commit()
        return due_s

    def clock(self, now_s: float) -> float:
        """Time never goes back, whatever the caller's clock does."""
        ctx = self.context
        ctx.now_s = max(now_s, ctx.now_s)
        return ctx.now_s

    def _run(self, steps: Iterator[Step], now_s: float) -> None:
        """Take the steps of an operation, do what follows from them, and commit."""
        self.ledger.take(steps)
        self._advance(now_s)
        self._commit()

    def _commit(self) -> None:
        if not self._batching:
            self.ledger.commit()

    def _advance(self, now_s: float) -> float:
        """Nodes, admission, attempts, decision, in this order; returns when to come again."""
        ctx, timers, ledger = self.context, self.context.timers, self.ledger
        if (late_s := now_s - timers.due_s) > LATE_S:  # no report could arrive while this process itself stood still
            ledger.take(iter([SilenceExcused(now_s, late_s)]))
        if now_s >= timers.watched_s + WATCH_S:
            timers.watched_s = now_s
            ledger.take(watch(ctx, now_s))
            ledger.take(stop_at_limits(ctx, now_s))
            timers.silence_s = silence_s(ctx)
        if self.state.network.declared is not None:
            ledger.take(switches.follow(ctx, now_s))
        if self.state.pending:
            self._admit(now_s)
        ledger.take(release(ctx, now_s))
        ledger.stale |= ctx.deferred
        self._settle(now_s)
        if now_s >= decision_s(ctx):
            self._decide(now_s)
        elif self.state.live and now_s >= timers.reported_s + self.options.progress_s:
            self._report(now_s)
        if self.state.network.declared is not None:
            ledger.take(tell(ctx, now_s))
        if self.state.touched_nodes:  # one came, or came back
            timers.silence_s = silence_s(ctx)
        timers.due_s = wake_s(ctx, now_s)
        return timers.due_s

    def _admit(self, now_s: float) -> None:
        controller = self.state.controller
        first = 0 if controller is None else controller.job_store.count
        self.ledger.take(admit(self.context, now_s))
        if may_start(self.context, first):
            arrived = self.context.timers.arrived
            self.context.timers.arrived = (arrived[0] if arrived else now_s, now_s)

    def _settle(self, now_s: float) -> None:
        while self.ledger.stale:
            self.ledger.stale = False
            self.context.deferred = bool(self.ledger.take(reconcile(self.context, self.fencing.next_epoch, now_s)))

    def _report(self, now_s: float) -> None:
        if self.state.controller is not None:
            self.context.timers.reported_s = now_s
        self.ledger.take(report_progress(self.context, sorted(self.state.live), now_s))
        if now_s >= self.context.timers.usage_s + self.options.usage_s:
            reported = self.ledger.take(report_usage(self.context, now_s))
            if self.state.network.declared is not None:
                reported = bool(self.ledger.take(report_network(self.context, now_s))) or reported
            self.context.timers.usage_s = now_s if reported else self.context.timers.usage_s

    def _decide(self, now_s: float) -> None:
        self._report(now_s)
        begin_s = self._timer()
        self.ledger.do(ReplanDue(now_s))
        took_s = self._timer() - begin_s
        self.counts.decisions_s.append(took_s)
        self.context.timers.took_s, self.context.timers.arrived = took_s, None
        self._settle(now_s)

    # -- users ----------------------------------------------------------------------------------------

    def submit(
        self, requests: Sequence[Mapping[str, Any]], *, owner: str, now_s: float, key: str | None = None
    ) -> list[int]:
        """New jobs, all or none; returns their numbers. Raises `InputError` for an invalid one.

        A repeated submission: the same owner's submission of the same `key` has its jobs already.
        """
        now_s = self.clock(now_s)
        if (before := self.state.submissions.find(owner, key, requests)) is not None:
            return before
        projects = [admission.project_of(request) for request in requests]
        self.ledger.open_jobs.check(owner, projects, self.options)
        note = admission.take_in(self.context, requests, owner, key, now_s, self.final_state)
        if requests:
            self._run(iter([note]), now_s)
        return list(range(note.first, note.first + len(requests)))

    def final_state(self, number: int) -> str:
        """How a job ended that memory no longer has."""
        row = self.store.job(number)
        assert row is not None, "a job is forgotten once it is stored"
        return str(row["state"])

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
        now_s = self.clock(now_s)
        self._run(changes.cancel(self.context, number, by, now_s), now_s)

    def requeue(
        self, number: int, now_s: float, *, by: str, key: str | None = None, may_lose_work: bool = False
    ) -> None:
        """Let a job leave its GPUs after a checkpoint and wait again; see `plait.live.scheduler.requests.changes`.

        A repeated request, by the same user with the same `key`, does nothing more. Raises `Conflict` if the job has
        ended, or would lose its work and not `may_lose_work`; `LookupError` if it never existed.
        """
        now_s = self.clock(now_s)
        self._run(changes.requeue(self.context, number, by, now_s, key, may_lose_work), now_s)

    def update(
        self, number: int, fields: Mapping[str, Any], now_s: float, *, by: str, key: str | None = None,
        may_lose_work: bool = False,
    ) -> None:  # fmt: skip
        """Change priority, class, deadline or size of a job; as `requeue`, and `InputError` for what cannot be."""
        now_s = self.clock(now_s)
        self._run(changes.update(self.context, number, fields, by, now_s, key, may_lose_work), now_s)

    def foreseen(
        self, number: int, start: Sequence[float | None] | None, end: Sequence[float | None], now_s: float
    ) -> None:
        """Keep what a client forecast of a job: early end, middle and late end, seconds from now, None for never.

        The first forecast of a job counts; `start` is None for a running job. `LookupError` for a job that has ended.
        """
        now_s = self.clock(now_s)
        if steps := list(operations.foreseen(self.context, number, start, end, now_s)):
            self._run(iter(steps), now_s)

    # -- operators ------------------------------------------------------------------------------------

    def set_policy(self, text: str, now_s: float, *, may_lose_work: bool = False) -> None:
        """Decide by another policy from now on; `InputError` if there is none of that name.

        `may_lose_work`: it may stop jobs that cannot resume from a checkpoint.
        """
        now_s = self.clock(now_s)
        self._run(operations.set_policy(self.context, text, may_lose_work, now_s), now_s)

    def set_project(self, name: str, *, gpu_quota: int | None, weight: float, now_s: float) -> None:
        """Make or change a project: at most `gpu_quota` GPUs at once (None = no limit), its weight in fair policies."""
        now_s = self.clock(now_s)
        self._run(operations.set_project(self.context, name, gpu_quota, weight, now_s), now_s)

    def drop_project(self, name: str, now_s: float) -> None:
        """Forget a project's quota and weight; its jobs stay."""
        now_s = self.clock(now_s)
        self._run(operations.drop_project(self.context, name, now_s), now_s)

    def drain(self, node: str, now_s: float, *, may_lose_work: bool = False) -> None:
        """Take a node out: no new work; jobs there stop, after a checkpoint if possible, and continue elsewhere.

        Raises `Conflict` if one would lose work and not `may_lose_work`; `LookupError` for an unknown node.
        """
        now_s = self.clock(now_s)
        self._run(operations.drain(self.context, node, may_lose_work, now_s), now_s)

    def losses(self, jobs: Sequence[int] = (), nodes: Sequence[str] = (), owner: str | None = None) -> dict[str, Any]:
        """Work that running jobs would lose if stopped now: of these jobs and nodes, of all if neither is given.

        {losses: one by one, the largest first; text: the same as a sentence}, of all owners if `owner` is None.
        `LookupError` for an unknown node.
        """
        return losses.report(self.context, jobs, nodes, owner)

    def resume(self, node: str, now_s: float) -> None:
        """Let a drained node work again."""
        now_s = self.clock(now_s)
        self._run(operations.resume(self.context, node, now_s), now_s)

    def node_gone(self, node: str, why: str, now_s: float, *, certain: bool = True) -> None:
        """Take a node as dead on the word of its backend: it is lost at once if it is silent, or as soon as it is.

        Reports of the node itself count for more: a node that still reports is not lost. Unless it is `certain` that
        nothing runs there any more (it may only be out of reach), the service waits for its lease to end all the same.
        """
        now_s = self.clock(now_s)
        self._run(operations.node_gone(self.context, node, why, certain), now_s)

    def forget_node(self, node: str, now_s: float) -> None:
        """Take a node that will not come back out of the lists; `Conflict` while it may still run something."""
        now_s = self.clock(now_s)
        self.ledger.take(operations.forget_node(self.context, node, now_s))
        self.ledger.assigner.renumber(node)
        self._run(iter(()), now_s)

    # -- agents ---------------------------------------------------------------------------------------

    def observe(self, seen: Observed, now_s: float, address: str = "127.0.0.1") -> Assignment:
        """Take what an agent sees, answer what should be there.

        Inside a `batch`, the consequences are left to `step`, once for all reports, and `assignment` returns the result
        after the batch.
        """
        now_s = self.clock(now_s)
        told_to_stop = self.ledger.assigner.stopped_at(seen.node.id, seen.reached)
        steps = ingest(self.context, seen, told_to_stop, now_s, address)
        if self._batching:
            self.ledger.take(steps)
        else:
            self._run(steps, now_s)
        return self.assignment(seen.node.id, seen.agent)

    def assignment(self, node: str, agent: str | None = None) -> Assignment:
        """The assignment of a node as of the last commit; empty for an agent that another one has replaced."""
        return self.ledger.assigner.assignment(node, agent)

    def versions(self) -> tuple[int, Callable[[], dict[str, int]]]:
        """A number that grows whenever a version of an assignment may have, and a function that returns them all."""
        return self.ledger.assigner.looked(), self.ledger.assigner.versions

    # -- looking --------------------------------------------------------------------------------------

    def status(self, now_s: float) -> dict[str, Any]:
        """The cluster in a few numbers."""
        found, demand = views.status(self.context, self._gpu_demand, self.clock(now_s)), self._gpu_demand
        if (error := demand.failure) is not None:
            demand.failure = None  # once per question
            what = f"policy {self.state.policy_text} cannot value GPUs for jobs: {error}"
            self.counts.problems.append(Problem(what, error))
        return found

    def queue(self, now_s: float, limit: int, offset: int) -> dict[str, Any]:
        """The order of the queue; see `plait.live.scheduler.explain.queue`."""
        return queue(self.context, self.clock(now_s), limit, offset)

    def nodes(self, now_s: float) -> list[dict[str, Any]]:
        """Each node: hardware, state, usage, and who is on its GPUs."""
        return views.nodes(self.context, self.clock(now_s))

    def network(self, now_s: float) -> dict[str, Any]:
        """The network, its switches, and what jobs have of them; see `plait.live.scheduler.network.shown`."""
        self.clock(now_s)
        return shown.network(self.context)

    def explain(self, number: int, now_s: float) -> dict[str, Any]:
        """Why a job waits, or how it runs; see `plait.live.scheduler.explain.waiting`."""
        return waiting.explain(self.context, number, self.clock(now_s))

    def state_for_forecast(self, now_s: float) -> Callable[[], dict[str, Any]]:
        """State for a forward simulation: copied now, made into JSON values by the function returned."""
        return views.forecast(self.context, self.clock(now_s))

    def fields(self, numbers: Sequence[int]) -> dict[int, dict[str, Any]]:
        """Fields that only memory has of these jobs, for jobs that have not ended."""
        return {n: views.live_fields(self.context, n) for n in numbers if n in self.state.jobs}
