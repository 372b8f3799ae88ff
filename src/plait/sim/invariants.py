"""What must hold after every event; written once, run in tests and with `--check`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from plait.control import messages
from plait.control.controller import Controller
from plait.control.drive import ENDS, STARTS, Block
from plait.control.job_rows import FINISHED, RUNNING, WAITING
from plait.control.plan_check.capacity import needed_bytes
from plait.core.arrays import FloatArray, IntArray
from plait.core.errors import SimulationError
from plait.core.jit import kernel
from plait.core.jobs import Checkpoints, Phase
from plait.core.network_grants import NetworkGrant, by_job, clashing
from plait.core.plan import Groups
from plait.core.policy import memory_kept
from plait.sim.backend import Simulator


class Replayed(NamedTuple):
    """What follows from the rows of blocks so far: the job on each GPU, or -1, and what columns of the store are to be.

    `done` is the progress with which each job started last, in iterations.
    """

    owner: IntArray
    done: FloatArray
    phase: IntArray
    starts: IntArray
    first_start_s: FloatArray
    last_start_s: FloatArray
    pending_since_s: FloatArray
    end_s: FloatArray


@kernel
def replay(
    kind: IntArray, job: IntArray, at_s: FloatArray, done: FloatArray, gpu_count: IntArray, gpus: IntArray,
    last_s: FloatArray, seen: Replayed, submit_s: FloatArray, size: IntArray, iterations: FloatArray,
    gpu_kind: IntArray,
) -> int:  # fmt: skip
    """The first row of a block (`plait.control.drive.Block`) that cannot follow those before it; -1 if all can.

    Jobs start after they were submitted, with their whole gang on free GPUs of one kind, and stop or end while they
    run. `last_s` (1,) and `seen` are results, too. `gpu_kind` is -1 on nodes that are down. No code is shared with what
    is checked.
    """
    start, lo = 0, 0
    for row in range(len(kind)):
        one, now_s, fits = job[row], at_s[row], at_s[row] >= last_s[0]
        last_s[0] = now_s
        if kind[row] == STARTS:
            hi = lo + gpu_count[start]
            fits = fits and seen.phase[one] == WAITING and now_s >= submit_s[one] and hi - lo == size[one]
            fits = fits and seen.done[one] <= done[start] <= iterations[one]
            for gpu in gpus[lo:hi]:
                fits = fits and seen.owner[gpu] < 0 and gpu_kind[gpu] == gpu_kind[gpus[lo]] >= 0
                seen.owner[gpu] = one
            if seen.starts[one] == 0:
                seen.first_start_s[one] = now_s
            seen.phase[one], seen.last_start_s[one], seen.done[one] = RUNNING, now_s, done[start]
            seen.starts[one] += 1
            lo, start = hi, start + 1
        else:
            fits = fits and seen.phase[one] == RUNNING
            seen.owner[seen.owner == one] = -1
            if kind[row] == ENDS:
                seen.phase[one], seen.end_s[one] = FINISHED, now_s
            else:
                seen.phase[one], seen.pending_since_s[one] = WAITING, now_s
        if not fits:
            return row
    return -1


class Invariants:
    """A record that checks controller and simulator after each event and raises at the first violation."""

    def __init__(self, controller: Controller, backend: Simulator) -> None:
        self.controller = controller
        self.backend = backend
        self._done = np.zeros(len(backend.truth))
        self._nodes: dict[int, frozenset[int]] = {}  # where jobs run, or are suspended
        self._granted: dict[int, set[NetworkGrant]] = {}  # by the controller, before this event
        self._shrunk: set[int] = set()
        self._lost: set[int] = set()
        self._reported: set[int] = set()
        # Of instants that are replayed.
        n, never = len(backend.truth), np.full(len(backend.truth), np.nan)
        self._seen = Replayed(
            np.full(controller.cluster.gpus, -1), np.zeros(n), np.full(n, WAITING), np.zeros(n, dtype=np.int64),
            never, never.copy(), backend.reported.submit_s.copy(), never.copy(),
        )  # fmt: skip
        self._last_s = np.full(1, -np.inf)

    def __call__(self, event: messages.Event, commands: Sequence[messages.Command]) -> None:
        # Every job ever submitted is active or has ended; active jobs are in order and not ended.
        job_store, active = self.controller.job_store, self.controller.active
        phase = job_store.columns["phase"][: job_store.count]
        live = np.flatnonzero(phase <= int(Phase.RUNNING))
        if not np.array_equal(live, active):
            lost = sorted(set(live.tolist()) ^ set(active.tolist()))
            self._fail(event, f"{job_store.name(lost[0])} is neither active nor ended")
        if isinstance(event, messages.ProgressReported):
            # Work never exceeds the job; where it shrank, `_losses` asks for the failure that took it.
            before, now = self._done[event.jobs], event.iterations_done
            shrunk = now < before - 1e-6 * np.maximum(before, 1)
            self._shrunk.update(event.jobs[shrunk].tolist())
            self._reported.update(event.jobs.tolist())
            backend = self.backend
            over = now > backend.truth.iterations[event.jobs] * (1 + 1e-9) + 1.0 / backend.unit_ms[event.jobs]
            if over.any():
                self._fail(event, f"{self.controller.job_store.name(int(event.jobs[np.argmax(over)]))} did too much")
            self._done[event.jobs] = now
        self._losses(event, commands)
        self._grants(event)
        if isinstance(event, messages.ReplanDue):
            self._gpus(event)
            changed = [
                command.groups for command in commands if isinstance(command, (messages.Launch, messages.Adjust))
            ]
            if self.controller.running.guest is not None and commands:
                changed = [self._alive()]  # who shares GPUs may be in any group
            for groups in changed:
                self._pace(event, groups)
            self._times(event)

    def take(self, block: Block) -> None:
        """Replay many instants from the rows of what happened to jobs."""
        b, cluster, event = self.backend, self.controller.cluster, messages.ReplanDue(block.last_s)
        row = replay(
            block.kind, block.job, block.at_s, block.done, block.gpu_count, block.gpus, self._last_s, self._seen,
            b.submit_ms / 1000, b.truth.gpus, b.reported.iterations * (1 + 1e-9),
            np.where(cluster.node_up, cluster.node_kind, -1)[cluster.gpu_node],
        )  # fmt: skip
        if row >= 0:
            does = {ENDS: "end", STARTS: "start"}.get(int(block.kind[row]), "stop")
            name = self.controller.job_store.name(int(block.job[row]))
            self._fail(event, f"{name} cannot {does} at {block.at_s[row]} s, or not there")
        seen, columns = self._seen, self.controller.job_store.columns
        wrong = np.where(seen.phase == FINISHED, b.done_ms != b.total_ms, b.done_ms > b.total_ms * (1 + 1e-9))
        if wrong.any():
            job = int(np.argmax(wrong))
            self._fail(event, f"{self.controller.job_store.name(job)} did {b.done_ms[job]} of {b.total_ms[job]} ms")
        for name in Replayed._fields[2:]:
            ours, theirs = getattr(seen, name), columns[name][: len(wrong)]
            same = (ours == theirs) | (np.isnan(ours) & np.isnan(theirs))
            if not same.all():
                job = int(np.argmin(same))
                of = f"{name} of {self.controller.job_store.name(job)}"
                self._fail(event, f"{of} is {theirs[job]}, and {ours[job]} by its starts and stops")
        self._times(event)

    def _times(self, event: messages.Event) -> None:
        """Each millisecond a job held its GPUs was start-up, work or save: nothing is charged twice."""
        b = self.backend
        ended = self.controller.job_store.columns["phase"][: self.controller.job_store.count] == int(Phase.FINISHED)
        rows = np.flatnonzero(ended)
        held = b.service_ms[rows]
        useful = b.worked_ms[rows] + b.overhead_ms[rows]
        off = np.abs(b.run_ms[rows] - useful) > 1e-3 + 1e-9 * useful
        if off.any():
            job = int(rows[np.argmax(off)])
            name, used = self.controller.job_store.name(job), useful[np.argmax(off)]
            self._fail(event, f"{name} held GPUs {b.run_ms[job]} ms, used {used} ms")
        if (held < 0).any():
            self._fail(event, "negative service")

    def _fail(self, event: messages.Event, what: str) -> None:
        raise SimulationError(f"invariant broken after {type(event).__name__} at {event.at_s} s: {what}")

    def _losses(self, event: messages.Event, commands: Sequence[messages.Command]) -> None:
        """Work shrinks only when the job's process failed or one of its nodes was lost since its last report.

        The report comes first and its cause right after it, so the two are compared at the next decision. A suspended
        job stays in the memory of its nodes: what their loss costs is reported when it runs again.
        """
        if isinstance(event, messages.JobFailed):
            self._lost.update(event.jobs.tolist())
        elif isinstance(event, messages.NodeLost):
            node = self.controller.cluster.index(event.node)
            self._lost.update(job for job, nodes in self._nodes.items() if node in nodes)
        elif isinstance(event, messages.ReplanDue):
            if not self._shrunk <= self._lost:
                job = min(self._shrunk - self._lost)
                self._fail(
                    event, f"{self.controller.job_store.name(job)} lost progress, and neither it nor its node failed"
                )
            self._lost -= self._reported
            self._shrunk.clear()
            self._reported.clear()
        for command in commands:
            if isinstance(command, messages.Stop) and not command.suspend:
                for job in command.jobs.tolist():
                    self._nodes.pop(job, None)
                    if not command.checkpoint or self.backend.saves_as[job] != int(Checkpoints.ON_STOP):
                        self._lost.add(job)
            elif isinstance(command, messages.Launch):
                for group in command.groups:
                    nodes = frozenset(self.controller.cluster.gpu_node[list(group.gpus)].tolist())
                    self._nodes.update((member.job, nodes) for member in group.members)

    def _gpus(self, event: messages.Event) -> None:
        """No GPU of two hosts, none on a node that is down, gangs whole, cores and memory within node and GPU."""
        controller = self.controller
        cluster, columns = controller.cluster, controller.job_store.columns
        running = self._alive()
        hosts, guests = running.hosts.gpus, running.guests.gpus
        if len(np.unique(hosts)) != len(hosts):
            self._fail(event, "a GPU is used twice")
        if np.bincount(guests, minlength=1).max() > controller.max_guests_per_gpu:
            self._fail(event, "a GPU has too many guests")
        if np.isin(hosts, [gpu for one in controller.reservations for gpu in one.gpus]).any():
            self._fail(event, "a host runs on a reserved GPU")
        if not cluster.node_up[cluster.gpu_node[running.gpus]].all():
            self._fail(event, "a job runs on a node that is down")
        size = running.gpu_count()[running.group_of_member()]
        jobs = running.jobs
        wrong = (size < columns["min_gpus"][jobs]) | (size > columns["max_gpus"][jobs])
        if wrong.any():
            self._fail(event, f"{controller.job_store.name(int(jobs[np.argmax(wrong)]))} does not have its whole gang")
        of_gpu = np.bincount(running.group_of_member(), columns["gpu_memory_bytes"][jobs], minlength=len(running))
        peak = np.zeros(len(running))
        np.maximum.at(peak, running.group_of_member(), columns["gpu_memory_bytes"][jobs])
        taken = np.repeat(peak + memory_kept(controller.policy) * (of_gpu - peak), running.gpu_count())
        if len(guests):
            needed = needed_bytes(running, columns["gpu_memory_bytes"])
            of_gpu = np.bincount(running.group_of_member(), needed, minlength=len(running))
            together = np.bincount(running.gpus, np.repeat(of_gpu, running.gpu_count()))[running.gpus]
            taken = np.where(np.isin(running.gpus, guests), together, taken)
        there = cluster.node_gpu_memory_bytes[cluster.gpu_node[running.gpus]]
        tight = taken > there * (1 + 1e-9) + 1e-3
        if tight.any():
            short = cluster.nodes[int(cluster.gpu_node[running.gpus[np.argmax(tight)]])].id
            self._fail(event, f"a GPU of node {short} has too little gpu_memory_bytes")
        for name, capacity in (("cpus", cluster.node_cpus), ("memory_bytes", cluster.node_memory_bytes)):
            demand = columns[name][jobs] / np.maximum(columns["gpus"][jobs], 1)
            per_group = np.bincount(running.group_of_member(), demand, minlength=len(running))
            node = cluster.gpu_node[running.gpus]
            used = np.bincount(node, np.repeat(per_group, running.gpu_count()), minlength=len(cluster.nodes))
            if (used > capacity * (1 + 1e-9) + 1e-3).any():
                self._fail(event, f"node {cluster.nodes[int(np.argmax(used - capacity))].id} has too little {name}")

    def _grants(self, event: messages.Event) -> None:
        """Grants are of jobs that run, on switches that are up; no aggregator of one job alone is used by others.

        The simulated switches have carried out all commands but those of this event.
        """
        if self._granted != {job: set(grants) for job, grants in self.backend.grants.items()}:
            self._fail(event, "the simulated switches have other grants than the controller")
        controller, network = self.controller, self.controller.cluster.network
        self._granted = {job: set(grants) for job, grants in by_job(controller.grants).items()}
        phase = controller.job_store.columns["phase"]
        for one in controller.grants:
            if phase[one.job] != int(Phase.RUNNING):
                self._fail(event, f"{controller.job_store.name(one.job)} has memory of a switch and does not run")
            if network is None or one.switch in network.down or one.end > network.switch(one.switch).usable:
                self._fail(event, f"switch {one.switch} cannot serve the grant {one}")
        for one, other in clashing(controller.grants):
            self._fail(event, f"grants {one} and {other} have aggregators in common")

    def _alive(self) -> Groups:
        """The groups with at least one running member."""
        groups = self.controller.running
        alive = self.controller.job_store.columns["running_group"][groups.jobs] >= 0
        return groups[np.unique(groups.group_of_member()[alive])]

    def _pace(self, event: messages.Event, groups: Groups) -> None:
        """No member of a group that starts or changes runs faster than alone on its GPUs, and no guest or host."""
        owner, count = groups.group_of_member(), groups.gpu_count()
        inside = np.flatnonzero((np.diff(groups.first_job) > 1)[owner])
        if groups.guest is not None:
            inside = np.arange(len(groups.jobs))
        if not len(inside):
            return
        of = owner[inside]
        gpus = np.concatenate([groups.gpus[groups.first_gpu[g] : groups.first_gpu[g + 1]] for g in of.tolist()])
        jobs = groups.jobs[inside]
        alone = Groups(jobs, gpus, np.concatenate([[0], np.cumsum(count[of])]).astype(np.int64))
        iteration_s = self.backend.settings.physics.iteration_s
        apart = [alone] if self.backend.contends is None else [alone[np.array([g])] for g in range(len(alone))]
        alone_s = np.concatenate([iteration_s(self.backend.moving, one, self.backend.cluster) for one in apart])
        inside_s = iteration_s(self.backend.moving, groups, self.backend.cluster)[inside]
        fast = inside_s < alone_s * (1 - 1e-9)
        if fast.any():
            at = int(np.argmax(fast))
            self._fail(
                event,
                f"{self.controller.job_store.name(int(jobs[at]))} takes {inside_s[at]:g} s an iteration in its group "
                f"and {alone_s[at]:g} s alone",
            )
