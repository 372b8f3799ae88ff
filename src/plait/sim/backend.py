"""The simulator is a backend: it yields what happens to jobs and nodes and carries out commands.

Time is whole milliseconds (held in floats, which are exact here), so equal times compare equal and a run is
a function of its inputs. `running.py` has what happens to jobs on their GPUs; this module has the times at which it
happens, the events that report it, and the commands.

With `round_ms` > 0 the controller learns of arrivals and completions at the next round boundary and decides
there; jobs still end when they end. Boundaries at which nothing is new are skipped.

Jobs that adapt their batch (`adaptive.py`) change their rate at times of their own, which are not reported; their
estimates are reported at the next decision.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Mapping

import numpy as np

from plait.control import messages
from plait.core.arrays import NO_JOBS, FloatArray, IntArray
from plait.core.cluster import Cluster
from plait.core.errors import InputError, SimulationError
from plait.core.jobs import JobBatch
from plait.core.network_grants import by_job
from plait.sim.failures import NodeChange, has_room
from plait.sim.running import ON_STOP, PERIODIC, JobsOnGpus
from plait.sim.state import due_by, earliest, measure, still, to_ms
from plait.sim.world import SimulationSettings

NO_TIMES: FloatArray = np.zeros(0)

#: A run is declared stuck after this many instants without progress that was possible.
PATIENCE = 1000

#: Where sharing costs what only measurements say, groups report so long after their start, milliseconds.
LOOK_MS = 60_000.0


class Simulator(JobsOnGpus):
    """A simulated cluster; see the module docstring.

    `truth` holds the jobs as they are, sorted by submission; `reported` is what users and profiling say of
    them (the same by default). `node_changes` must be ordered by time.
    """

    def __init__(
        self,
        truth: JobBatch,
        cluster: Cluster,
        settings: SimulationSettings,
        reported: JobBatch | None = None,
        node_changes: Iterator[NodeChange] | None = None,
        refused: Mapping[int, str] | None = None,
    ) -> None:
        """Check that every job has a known duration and that submissions are in order.

        `refused`: rows of jobs that are refused at their submission, with the reason.
        """
        unknown = np.isnan(truth.iterations) | np.isnan(truth.iteration_s)
        if unknown.any():
            job = truth.id[int(np.argmax(unknown))]
            raise InputError(f"job {job!r} has no known duration; a simulation needs iterations and iteration_s")
        if (np.diff(truth.submit_s) < 0).any():
            raise InputError("jobs must be sorted by submit_s")
        super().__init__(truth, cluster, settings)
        self.reported = truth if reported is None else reported
        self.submit_ms: FloatArray = np.ceil(truth.submit_s * 1000 - 1e-6)
        self.reports_estimates = True  # whether jobs report what they learn of themselves
        self.round_ms = to_ms(settings.round_s)
        self.wake_ms = math.inf
        self.news_ms = math.inf  # when an event between two rounds needs a decision
        self.looks = getattr(getattr(settings.physics, "inner", settings.physics), "pairs", None) is not None
        self.soonest = math.inf  # when the next running job completes or fails
        self.arrived = 0
        self.refused: Mapping[int, str] = refused or {}
        self.ended = 0
        self.instants, self.progress = 0, -1.0  # counted by `check_progress`
        self.late: list[IntArray] = []  # jobs off their GPUs whose last figures are still to be reported
        self.node_changes: Iterator[NodeChange] = node_changes or iter(())
        self.next_change = next(self.node_changes, None)
        self.some_save_at_times = bool((self.saves_as == PERIODIC).any())
        self.changed = False  # whether a node ever went down or returned

    def schedule(self, change: NodeChange) -> None:
        """A node comes or goes at a time that lies ahead."""
        ahead = [change] if self.next_change is None else sorted([change, self.next_change])
        self.next_change, self.node_changes = ahead[0], heapq.merge(ahead[1:], self.node_changes)

    def look_at(self, at_s: float) -> None:
        """Have a decision at this time, if there is none before."""
        self.news_ms = min(self.news_ms, to_ms(at_s))

    # -- what happens -----------------------------------------------------------------------------------

    def events(self) -> Iterator[messages.Event]:
        """Everything that happens until the last job has ended."""
        while self.ended < len(self.truth):
            due = self.next_due()
            change = self.next_change
            if self.adapt_until(due if change is None else min(due, to_ms(change.at_s))):
                continue  # the end of some job has moved
            if change is not None and to_ms(change.at_s) <= due:
                yield from self._change_node(change)
            elif due < math.inf:
                yield from self.happened(due)
                yield self.replan_due()
                yield from self._measured()  # of jobs that have just started
            else:
                return  # jobs wait and nothing will ever happen: the caller knows their names and reasons
            self.check_progress()

    def check_progress(self) -> None:
        """Count this instant; raise after `PATIENCE` instants without work or arrivals.

        Instants at which nothing runs do not count while no job fits on the nodes that are up, or one needs a switch
        that is lost: policies can only wait.
        """
        if self.next_change is not None and not len(self.running):
            waiting = self._waiting()
            if not has_room(self.cluster, self.truth, waiting) or self._needs_lost_switch(waiting):
                return
        self.instants += 1
        if self.instants % PATIENCE == 0:
            self.note_progress()

    def note_progress(self) -> None:
        """Raise if no job has made progress since the last call."""
        # Work done and jobs arrived so far.
        worked = np.maximum(self.now - self.since_ms[self.running], 0.0) * self.rate[self.running]
        now = float(self.done_ms.sum() + worked.sum()) + self.arrived
        if now == self.progress:
            waiting = self._waiting()
            names = ", ".join(repr(str(self.truth.id[j])) for j in waiting[:10].tolist())
            raise SimulationError(
                f"no job made progress in {PATIENCE} decisions until {self.now / 1000} s: the policy runs none of "
                f"them, or stops them before their start-up is over; look at its quantum. Unfinished: {names}"
                + (f" and {len(waiting) - 10} more" if len(waiting) > 10 else "")
            )
        self.progress = now

    def _needs_lost_switch(self, jobs: IntArray) -> bool:
        """Whether a switch is lost and one of these jobs does not run without aggregation."""
        lost = self.cluster.network is not None and self.cluster.network.down
        return bool(lost) and any(ina.required for ina in self.truth.column("ina")[jobs])

    def _waiting(self) -> IntArray:
        """Jobs that have arrived and not ended."""
        return np.flatnonzero(self.done_ms[: self.arrived] < self.total_ms[: self.arrived])

    def next_due(self) -> float:
        """When something happens next, in ms; infinity if never."""
        while self.thinned:
            self.share_gpus(self.thinned.pop(), self.now)
        self.pace_touched()
        self.soonest = earliest(self.running, self.stop_ms)
        due = min(self.soonest, self.wake_ms, self.news_ms)
        if self.arrived < len(self.submit_ms):
            due = min(due, self.submit_ms[self.arrived])
        due = max(due, self.now)
        if self.round_ms and due < math.inf:
            due = math.ceil(due / self.round_ms) * self.round_ms
        return float(due)

    def happened(self, now_ms: float) -> Iterator[messages.Event]:
        """Advance the world to `now_ms` and yield the events, in a fixed order."""
        finished, end_ms, failed = self._run_until(now_ms)
        self.now = now_ms
        jobs = self.running
        if len(finished) or len(failed) or self.late:
            jobs = np.concatenate([jobs, finished, failed, *self.late])
            if self.late:  # a job that saved may already run again
                jobs, self.late = np.unique(jobs), []
        at_s = now_ms / 1000
        if len(jobs):
            yield self._progress(jobs, now_ms)
        if len(self.running) and self.some_save_at_times:
            yield from self._stop_costs(at_s)
        if len(finished):
            yield messages.JobFinished(at_s, finished, end_ms / 1000)
        if len(failed):
            yield messages.JobFailed(at_s, failed, "process failed")
        yield from self._measured()
        if self.adaptive is not None and self.adaptive.fresh and self.reports_estimates:
            yield messages.GoodputReported(at_s, *self.adaptive.report())
        if self.arrived < len(self.submit_ms) and self.submit_ms[self.arrived] <= now_ms:
            first, self.arrived = self.arrived, int(np.searchsorted(self.submit_ms, now_ms, side="right"))
            last = self.arrived
            refused = tuple((i, self.refused[i]) for i in range(first, last) if i in self.refused)
            yield messages.JobSubmitted(at_s, first, self.reported[first:last], refused=refused)

    def _measured(self) -> Iterator[messages.Event]:
        """What monitors report that has changed."""
        yield from self._usage()
        yield from self._exchanges()

    def _usage(self) -> Iterator[messages.Event]:
        """How busy and full GPUs are, if that has changed since the last report."""
        if self.usage is not None and self.usage.fresh:
            self.pace_touched()  # which measures again whom stopped jobs have left behind
            yield self.usage.report(self.now / 1000, self.running, self.cluster)

    def _exchanges(self) -> Iterator[messages.Event]:
        """What jobs exchange over the network, if that has changed since the last report."""
        if self.contends is not None:
            self.pace_touched()
        found, self.exchanged = self.exchanged, None
        if found is not None:
            here = self.is_running[found.jobs] == 1
            figures = (found.jobs, found.bits_per_s, found.aggregated, found.fallback_share)
            yield messages.NetworkReported(self.now / 1000, *(column[here] for column in figures))

    def replan_due(self) -> messages.ReplanDue:
        """Ask for a decision now, which also serves wake-ups that are due."""
        self.news_ms = math.inf
        if self.looks and any(self.since_ms[job] > self.now for job in self.groups):
            self.news_ms = self.now + LOOK_MS  # members are still starting
        if self.wake_ms <= self.now:
            self.wake_ms = math.inf
        return messages.ReplanDue(self.now / 1000)

    def _progress(self, jobs: IntArray, now_ms: float) -> messages.ProgressReported:
        figures = measure(jobs, now_ms, self.is_running, self.state)
        return messages.ProgressReported(now_ms / 1000, jobs, *figures)

    def _stop_costs(self, at_s: float) -> Iterator[messages.Event]:
        """The work held by the last checkpoints of running jobs with periodic checkpoints."""
        jobs = self.running[self.saves_as[self.running] == PERIODIC]
        if not len(jobs):
            return
        work, ran = measure(jobs, self.now, self.is_running, self.state)[::2]
        done = work * self.unit_ms[jobs]
        saved = np.array([self._saved(job, begun) for job, begun in zip(jobs.tolist(), done.tolist(), strict=True)])
        saved_run_s = ran - (done - saved) / self.rate[jobs] / 1000
        yield messages.StopCostReported(at_s, jobs, self.saves_as[jobs], saved_run_s, np.full(len(jobs), math.nan))

    def _run_until(self, now_ms: float) -> tuple[IntArray, FloatArray, IntArray]:
        """End jobs that complete or fail by `now_ms`: (finished, their ends in ms, failed)."""
        if self.adapt_until(now_ms):
            self.soonest = earliest(self.running, self.stop_ms)
        if self.soonest > now_ms:
            return NO_JOBS, NO_TIMES, NO_JOBS
        finished: list[int] = []
        ends: list[float] = []
        failed: list[int] = []
        while True:
            due = due_by(self.running, self.stop_ms, now_ms)
            if not len(due):
                break
            if len(due) > 1:
                due = due[np.lexsort((due, self.stop_ms[due]))]
            # Read before any job is released: when one member of a group ends, the others get a new pace.
            stops, crashes = self.stop_ms[due].tolist(), (self.fail_ms[due] < self.end_ms[due]).tolist()
            self.repaced, before = False, stops[0]
            for job, at, crashed in zip(due.tolist(), stops, crashes, strict=True):
                # The pace of others may have changed before they end, or they choose another batch.
                if at > before and (self.repaced or self.adaptive):
                    break
                before = at
                self._release(job, at, lost=crashed, save=crashed)
                if crashed:
                    failed.append(job)
                else:
                    self.done_ms[job] = self.total_ms[job]
                    finished.append(job)
                    ends.append(at)
            self.running = still(self.running, self.is_running)
            self.adapt_until(now_ms)
        self.ended += len(finished)
        return np.array(finished, dtype=np.int64), np.array(ends), np.array(sorted(failed), dtype=np.int64)

    def _change_node(self, change: NodeChange) -> Iterator[messages.Event]:
        now = to_ms(change.at_s)
        yield from self.happened(now)
        self.next_change = next(self.node_changes, None)
        if self.cluster.network is not None and change.node in self.cluster.network.names:
            yield from self._change_switch(change.node, change.up, now)
        else:
            yield from self._change_one(self.cluster.index(change.node), change.up, now, change.graceful)
        # Even if the state of the node did not change, jobs may have come or gone in this millisecond.
        if self.round_ms:
            self.news_ms = now
        else:
            yield self.replan_due()
            yield from self._measured()

    def _change_one(self, index: int, up: bool, now: float, graceful: bool) -> Iterator[messages.Event]:
        """A node goes down or returns; jobs of a `graceful` one have saved."""
        if up and not self.cluster.up[index]:
            self.changed = True
            self.cluster = self.cluster.with_node(self.cluster.nodes[index])
            if self.usage is not None:
                self.usage.fresh = True
            yield messages.NodeJoined(now / 1000, self.cluster.nodes[index])
        elif not up and self.cluster.up[index]:
            self.changed = True
            yield from self._lose_node(index, now, graceful)

    def _change_switch(self, switch: str, up: bool, now: float) -> Iterator[messages.Event]:
        """A switch stops to add up gradients, or does so again; packets pass it all the time."""
        assert self.cluster.network is not None
        down = switch in self.cluster.network.down
        if up and down:
            self.cluster = self.cluster.with_switch(switch)
            yield messages.SwitchJoined(now / 1000, switch)
        elif not up and not down:
            self.cluster = self.cluster.without_switch(switch)
            yield messages.SwitchLost(now / 1000, switch)

    def _lose_node(self, index: int, now_ms: float, graceful: bool) -> Iterator[messages.Event]:
        node = self.cluster.nodes[index].id
        self.cluster = self.cluster.without_node(node)
        hit = [j for j in self.running.tolist() if (self.cluster.gpu_node[self.where[j]] == index).any()]
        for job in hit:
            self._release(job, now_ms, lost=not graceful)
        for job, gpus in list(self.parked.items()):
            if (self.cluster.gpu_node[gpus] == index).any():
                del self.parked[job]
                self.done_ms[job] = self.safe_ms[job]
        self.running = still(self.running, self.is_running)
        if hit:
            yield self._progress(np.array(hit, dtype=np.int64), now_ms)
        yield messages.NodeLost(now_ms / 1000, node)

    # -- commands ----------------------------------------------------------------------------------------

    def execute(self, command: messages.Command) -> None:
        """Carry out a command now."""
        if isinstance(command, messages.Stop):
            self._stop(command)
        elif isinstance(command, messages.Grant):
            for job in command.released.tolist():
                self.grants.pop(job, None)
            self.grants.update(by_job(command.grants))
            if self.contends is not None:  # jobs that run on get another pace, and all that meet them
                self.touched.update(
                    gpu for job in command.jobs if job in self.where for gpu in self.where[job].tolist()
                )
        elif isinstance(command, (messages.Launch, messages.Adjust)):
            self.run_groups(command.groups)
            if self.looks and not command.groups.single:
                self.news_ms = min(self.news_ms, self.now + LOOK_MS)
        elif isinstance(command, messages.Wake):
            self.wake_ms = max(to_ms(command.at_s), self.now + 1)
        elif isinstance(command, messages.Refuse):
            self.ended += len(command.jobs)

    def _stop(self, command: messages.Stop) -> None:
        for job in command.jobs.tolist():
            if not self.is_running[job]:
                continue
            gpus = self.where[job]
            saving = self._release(job, self.now, lost=not command.checkpoint, save=not command.suspend)
            if saving or not command.checkpoint or self.saves_as[job] != ON_STOP:
                self.late.append(np.array([job], dtype=np.int64))
            if command.suspend:
                self.parked[job] = gpus
        self.running = still(self.running, self.is_running)
