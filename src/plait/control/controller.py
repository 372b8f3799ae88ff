"""The scheduler as a state machine: events in, commands out.

The controller keeps the job store, calls the policy when a decision is due, checks the plan, compares it with the
running jobs and returns the changes as commands. It has no clock, thread, socket, file or GPU, so a simulation, a live
cluster and the replay of a log all run this very code.

Rules of the job store (one place each):
  a job waits from submission, or from the moment it loses its GPUs           `_to_waiting`
  its request may change, and it may be sent back to the queue                `_on_job_updated`, `_on_job_requeued`
  progress, service and run time are measured by the backend                  `_on_progress_reported`
  a job's waits count from its first run on, and from zero after a promotion  `_start`, `_promote`
  failures are retried while the spec allows it                               `_on_job_failed`
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from plait.control.job_rows import RUNNING, WAITING, record_completion, record_progress, record_shared_speed, start_jobs
from plait.control.job_store import JobStore, refusal
from plait.control.messages import (
    Adjust,
    Command,
    Event,
    GoodputReported,
    JobCancelled,
    JobFailed,
    JobFinished,
    JobHeld,
    JobKept,
    JobProfiled,
    JobRequeued,
    JobSubmitted,
    JobUpdated,
    Launch,
    LaunchFailed,
    NetworkReported,
    NodeJoined,
    NodeLost,
    NodesReserved,
    NodeSuspected,
    ProgressReported,
    Refuse,
    ReplanDue,
    ReservationCancelled,
    Stop,
    StopCostReported,
    SwitchJoined,
    SwitchLost,
    UsageReported,
    Wake,
)
from plait.control.plan_check.capacity import refuse_overfull, refuse_overload
from plait.control.plan_check.check import (
    NO_CHANGE,
    OK,
    PlanChanges,
    assign,
    check_plan,
    neighbours,
    plan_error,
    refuse_reservations,
    still_reserved,
    unfinished,
)
from plait.control.plan_check.grants import (
    grant_changes,
    grants_in_words,
    lost_switches,
    refuse_grants,
    refuse_missing_grants,
    still_granted,
)
from plait.control.usage import (
    note_paces,
    note_peaks,
    note_slow_progress,
    note_slow_steps,
    updated,
    updated_figures,
    without_gpus,
)
from plait.core.arrays import NO_JOBS, IntArray
from plait.core.cluster import Cluster
from plait.core.errors import PlaitError, PlanError
from plait.core.jobs import TRANSITIONS, Checkpoints, JobTable, Phase
from plait.core.jobs.table import LEAST_RUN_S
from plait.core.network_grants import NetworkFigures, NetworkGrant
from plait.core.plan import NO_GROUPS, TURN, Gate, Groups, NodeReservation, Plan, Reservation
from plait.core.policy import Policy, Usage, View, has_groups, has_preemption, layers, memory_kept, tries_placements
from plait.core.preemption import DEFAULT_RULE, PreemptionRule
from plait.core.resources import Resource
from plait.core.words import counted, noted
from plait.grouping.interference import measured_interference, scheduled_s, traits
from plait.placement.kernels import mark_spread
from plait.placement.pinned import keep_running
from plait.placement.reserve import hold_back, refilled, without_late
from plait.placement.reserved_nodes import planned

#: A wake-up may come this much early, seconds: backends have clocks of finite resolution.
CLOCK_S = 1e-6

#: Default limit of guest groups on a GPU: more than policies need, so a plan with more is a mistake.
MAX_GUESTS_PER_GPU = 8

#: Relative difference of a reported speed from the last one below which it is no news.
SAME_SPEED = 0.01

#: Events after which a grant of switch memory may have ended.
_ENDS_GRANTS = (
    JobFinished, JobFailed, JobCancelled, JobUpdated, JobRequeued, LaunchFailed, NodeLost, SwitchLost,
)  # fmt: skip

_PHASES = tuple(Phase)


class Controller:
    """Applies one policy to one cluster.

    `handle(event)` returns the commands the event causes; only `ReplanDue` (and a refusal at submission)
    causes any. Raises `PlanError` for an impossible plan and `PlaitError` for an impossible event.
    """

    def __init__(
        self,
        policy: Policy,
        cluster: Cluster,
        rule: PreemptionRule = DEFAULT_RULE,
        max_guests_per_gpu: int = MAX_GUESTS_PER_GPU,
        kills: bool = True,
        aggregates: bool = True,
        measures_memory: bool = True,
    ) -> None:
        """Start with no jobs. `rule` defines which running jobs the policy may stop or move; it may change at any time.

        Plans with more than `max_guests_per_gpu` guest groups on a GPU are refused; 0: all with guests.
        Without `kills` the jobs that a plan kills save a checkpoint first, as the other jobs that it stops do.
        Without `aggregates` plans with grants of switch memory are refused. `measures_memory`: see `View`.
        """
        self.policy = policy
        self.cluster = cluster
        self.rule = rule
        self.max_guests_per_gpu = max_guests_per_gpu
        self.kills = kills
        self.aggregates = aggregates
        self.measures_memory = measures_memory
        self.job_store = JobStore()
        self.active: IntArray = NO_JOBS
        #: Waiting jobs that the policy does not see.
        self.held: IntArray = NO_JOBS
        self.running: Groups = NO_GROUPS
        self.plan: Plan = Plan(NO_GROUPS)
        self.usage: Usage | None = None
        self.grants: tuple[NetworkGrant, ...] = ()
        self.network: NetworkFigures | None = None
        #: Nodes that count as down because they are silent.
        self.silent: frozenset[str] = frozenset()
        #: Nodes that are for a project alone, now or later; those that are over (not in `reserved_ahead`) keep their
        #: ids until the next one.
        self.reserved: tuple[NodeReservation, ...] = ()
        self.now_s = -math.inf
        self.events = 0
        self.changed = False
        self.competing = 0.0
        self._handlers: dict[type, Callable[[Any], Sequence[Command]]] = {
            JobSubmitted: self._on_job_submitted,
            ProgressReported: self._on_progress_reported,
            JobProfiled: self._on_job_profiled,
            GoodputReported: self._on_goodput_reported,
            StopCostReported: self._on_stop_cost_reported,
            JobKept: self._on_job_kept,
            JobHeld: self._on_job_held,
            UsageReported: self._on_usage_reported,
            NetworkReported: self._on_network_reported,
            JobFinished: self._on_job_finished,
            JobFailed: self._on_job_failed,
            JobCancelled: self._on_job_cancelled,
            JobUpdated: self._on_job_updated,
            JobRequeued: self._on_job_requeued,
            NodeJoined: self._on_node_joined,
            NodeLost: self._on_node_lost,
            NodeSuspected: self._on_node_suspected,
            NodesReserved: self._on_nodes_reserved,
            ReservationCancelled: self._on_reservation_cancelled,
            SwitchLost: self._on_switch_lost,
            SwitchJoined: self._on_switch_joined,
            LaunchFailed: self._on_launch_failed,
            ReplanDue: self._on_replan_due,
        }

    def handle(self, event: Event) -> Sequence[Command]:
        """Apply an event and return the commands that follow from it."""
        at_s = event.at_s
        if not at_s >= self.now_s:
            raise PlaitError(
                f"event {type(event).__name__} at {at_s} s comes after {self.now_s} s; time cannot go back"
            )
        if at_s > self.now_s > -math.inf:
            self.competing += len(self.active) * (at_s - self.now_s)
        self.now_s = at_s
        self.events += 1
        commands = self._handlers[type(event)](event)
        return self._with_releases(commands) if self.grants and isinstance(event, _ENDS_GRANTS) else commands

    def view(self, now_s: float | None = None) -> View:
        """The policy's view at `now_s`; at the time of the last event by default."""
        at_s = self.now_s if now_s is None else now_s
        table = JobTable(self.job_store.columns, self.active, at_s, self.competing, self.job_store)
        return View(
            at_s, self.cluster, table, self.running, self.rule, reservations=self.reservations, usage=self.usage,
            grants=self.grants, network=self.network, silent=self.silent, measures_memory=self.measures_memory,
        )  # fmt: skip

    @property
    def reserved_ahead(self) -> tuple[NodeReservation, ...]:
        """Reservations of nodes that are not over."""
        return tuple(one for one in self.reserved if one.until_s > self.now_s + CLOCK_S)

    @property
    def reservations(self) -> tuple[Reservation, ...]:
        """Reservations of the last plan, without jobs that no longer wait and GPUs that are lost."""
        return still_reserved(self.plan.reservations, self.job_store.columns["phase"], self.cluster)

    def waiting_reason(self, job: int) -> str | None:
        """Why a job waits by the last plan, and which GPUs are reserved for it; None without a reason in the plan."""
        held = next((one.gpus for one in self.reservations if one.job == job), ())
        words = f"{counted(len(held), 'GPU')} reserved for it: {', '.join(map(self._gpu_name, held))}" if held else ""
        reason = self.plan.reasons.get(job)
        return f"{reason} ({words})" if reason and words else reason or words or None

    def network_reason(self, job: int) -> str | None:
        """How a running job is aggregated in the network, or why it is not; None where nothing can aggregate.

        Jobs that want none, and jobs of clusters whose switches do not aggregate, have nothing to fall back from.
        """
        mine = [one for one in self.grants if one.job == job]
        if mine:
            return grants_in_words(mine, self.cluster)
        network = self.cluster.network
        if network is None or not network.most_usable or self.job_store.columns["phase"][job] != RUNNING:
            return None
        if self.job_store.spec(job).ina.mode == "off":
            return None
        note = self.plan.network_notes.get(job)
        return f"not aggregated: {note or f'policy {describe(self.policy)} grants it no memory of switches'}"

    def _gpu_name(self, gpu: int) -> str:
        node = self.cluster.gpu_node[gpu]
        return f"{self.cluster.nodes[node].id}:{gpu - self.cluster.first_gpu[node]}"

    # -- jobs -----------------------------------------------------------------------------------------

    def _on_job_submitted(self, event: JobSubmitted) -> Sequence[Command]:
        if event.first != self.job_store.count:
            raise PlaitError(f"submission starts at number {event.first}, expected {self.job_store.count}")
        numbers = self.job_store.append(event.jobs, self.competing)
        refused = self._refusals(numbers, event.room) | dict(event.refused)
        if refused:
            jobs = np.array(list(refused), dtype=np.int64)
            for job, reason in refused.items():
                self.job_store.columns["reason"][job] = reason
            self._end(jobs, Phase.FAILED, event.at_s)
            numbers = numbers[~np.isin(numbers, jobs)]
        if has_groups(self.policy):
            self.job_store.expect_peaks(numbers, self.cluster)
        self.active = np.concatenate([self.active, numbers])
        self.changed = True
        return (Refuse(self.events, jobs, tuple(refused.values())),) if refused else ()

    def _refusals(self, numbers: IntArray, room: int) -> dict[int, str]:
        columns = self.job_store.columns
        simple = not (columns["has_demands"][0] or columns["has_kinds"][0])
        needs_memory = columns["gpu_memory_bytes"][numbers].any() or columns["parameters"][numbers].any()
        if self.cluster.limits_gpu_memory and needs_memory:
            simple = False
        if self.job_store.requiring and not self.job_store.requiring.isdisjoint(numbers.tolist()):
            simple = False
        if simple and len(self.cluster.kinds) == 1:
            needs = columns["min_gpus"][numbers]
            if needs.max(initial=0) <= self.cluster.gpus:
                return {}
            suspects = numbers[needs > self.cluster.gpus]
        else:
            suspects = numbers
        reasons = {int(n): refusal(self.job_store.spec(int(n)), self.cluster, room) for n in suspects}
        return {n: reason for n, reason in reasons.items() if reason is not None}

    def _on_progress_reported(self, event: ProgressReported) -> Sequence[Command]:
        columns = self.job_store.columns
        if self.running.guest is not None:
            note_slow_progress(event, columns, self.running, self.usage)
        record_progress(
            event.jobs, event.iterations_done, event.attained_gpu_s, event.run_s,
            columns["iterations_done"], columns["attained_gpu_s"], columns["run_s"], columns["iteration_s"],
            columns["lost_s"],
        )  # fmt: skip
        if not self.running.single or self.running.guest is not None:
            guest = NO_CHANGE if self.running.guest is None else self.running.guest
            news = record_shared_speed(
                event.jobs, event.iteration_s, self.running.first_job, guest, columns["running_group"],
                columns["iteration_s"], columns["shared_speed"], SAME_SPEED,
            )  # fmt: skip
            for group in news.tolist():
                self._note_cost(group)
        if tries_placements(self.policy) and len(self.running):
            note_paces(event, columns, self.running, self.cluster)
        return ()

    def _note_lost_runs(self, jobs: IntArray) -> None:
        """Count as lost the run time of jobs without checkpoints whose progress is unknown."""
        columns = self.job_store.columns
        lost = jobs[(columns["checkpoints"][jobs] == int(Checkpoints.NEVER)) & (columns["iterations_done"][jobs] == 0)]
        columns["lost_s"][lost] += columns["run_s"][lost] - columns["saved_run_s"][lost]
        columns["saved_run_s"][lost] = columns["run_s"][lost]

    def _note_cost(self, group: int) -> None:
        """Record what the members of a running group lose beyond its schedule, for jobs like them."""
        running, columns = self.running, self.job_store.columns
        lo, hi = running.first_job[group : group + 2].tolist()
        jobs = running.jobs[lo:hi]
        held = running.first_gpu[group + 1] - running.first_gpu[group]
        if hi - lo < 2 or (columns["gpus"][jobs] != held).any() or (columns["batch_size"][jobs] > 0).any():
            return  # a guest alone, or profiles of another size
        gpus = running.gpus[running.first_gpu[group] : running.first_gpu[group + 1]]
        lent = running.gpus if running.guest is None else running.gpus[np.repeat(running.guest, running.gpu_count())]
        lends = running.guest is not None and np.isin(gpus, lent).any()
        cluster, spread = self.cluster, np.zeros(1, dtype=np.bool_)
        mark_spread(gpus, np.array([0, held]), cluster.gpu_node, cluster.node_kind, cluster.cap_prefix, spread)
        if lends or len(cluster.kinds) > 1 or spread[0]:
            return  # its speed depends on more than its members
        in_turn = running.gate is not None and running.gate[group] == int(Gate.BARRIER)
        turns = np.zeros(hi - lo) if running.details is None else running.details[lo:hi, TURN]
        stage_s, alone_s = columns["stage_s"][jobs], columns["iteration_s"][jobs]
        scheduled = scheduled_s(stage_s, alone_s, turns.astype(int).tolist() if in_turn else None)
        if scheduled is None or (running.gate is not None and running.gate[group] == int(Gate.TOKENS)):
            return
        logs = np.log(alone_s / columns["shared_speed"][jobs] / scheduled / measured_interference(hi - lo))
        members = traits(
            columns["kinds"][jobs], stage_s[:, Resource.GPU], alone_s, columns["gpu_memory_bytes"][jobs], self.cluster
        )
        if self.job_store.pair_reports.note(members, logs.tolist()) and any(
            getattr(policy, "learns", False) for policy in layers(self.policy)
        ):
            self.changed = True

    def _on_job_profiled(self, event: JobProfiled) -> Sequence[Command]:
        self.job_store.columns["iteration_s"][event.jobs] = event.iteration_s
        self.job_store.columns["stage_s"][event.jobs] = event.stage_s
        self.changed = True
        return ()

    def _on_goodput_reported(self, event: GoodputReported) -> Sequence[Command]:
        self.job_store.columns["goodput"][event.jobs] = event.goodput
        return ()

    def _on_stop_cost_reported(self, event: StopCostReported) -> Sequence[Command]:
        columns = self.job_store.columns
        columns["has_losses"][0] = True
        columns["checkpoints"][event.jobs] = event.checkpoints
        for name, values in (("saved_run_s", event.saved_run_s), ("restart_s", event.restart_s)):
            given = ~np.isnan(values)
            columns[name][event.jobs[given]] = values[given]
        self._may_release()
        return ()

    def _on_job_kept(self, event: JobKept) -> Sequence[Command]:
        self.job_store.columns["has_losses"][0] = True
        self.job_store.columns["keep_until_s"][event.jobs] = event.until_s
        self._may_release()
        return ()

    def _on_job_held(self, event: JobHeld) -> Sequence[Command]:
        phase = self.job_store.columns["phase"]
        away = event.jobs[(event.held > 0) & (phase[event.jobs] == WAITING)]
        back = np.intersect1d(event.jobs[event.held == 0], self.held)
        self.job_store.columns["pending_since_s"][back] = event.at_s
        self.active = np.setdiff1d(np.union1d(self.active, back), away)
        self.held = np.setdiff1d(np.union1d(self.held, away), back)
        self.changed = True
        return ()

    def _on_usage_reported(self, event: UsageReported) -> Sequence[Command]:
        columns = self.job_store.columns
        self.usage = updated(self.usage, event, self.cluster.gpus, columns["running_group"])
        self.changed |= note_slow_steps(event, columns, self.running)
        if has_groups(self.policy):
            self.changed |= note_peaks(event, self.job_store, self.running, self.cluster)
        return ()

    def _on_network_reported(self, event: NetworkReported) -> Sequence[Command]:
        self.network = updated_figures(self.network, event, self.job_store.columns["running_group"])
        return ()

    def _may_release(self) -> None:
        """Make a decision due if a job waits for GPUs that another may have to give up now."""
        if (self.job_store.columns["phase"][self.active] == WAITING).any():
            self.changed = True

    def _on_job_finished(self, event: JobFinished) -> Sequence[Command]:
        self._require(event.jobs, Phase.FINISHED, event)
        columns = self.job_store.columns
        if len(self.cluster.kinds) > 1:
            self._note_kind_speeds(event.jobs)
        record_completion(event.jobs, columns["iterations"], columns["iterations_done"])
        self._end(event.jobs, Phase.FINISHED, event.end_s)
        return ()

    def _note_kind_speeds(self, jobs: IntArray) -> None:
        """Record how fast finished jobs were on their kind of GPU, if they ran nowhere else and shared no GPUs.

        By the iterations that were reported: a job may end before all that its owner expects. Known iteration times are
        of the size and batch of the request, so jobs that may have had others say nothing.
        """
        columns, running, cluster = self.job_store.columns, self.running, self.cluster
        alone = (columns["starts"][jobs] == 1) & (columns["running_group"][jobs] >= 0)
        alone &= np.isnan(columns["shared_speed"][jobs]) & (columns["batch_size"][jobs] == 0)
        alone &= columns["min_gpus"][jobs] == columns["max_gpus"][jobs]
        crowd = np.bincount(running.gpus, np.repeat(np.diff(running.first_job), running.gpu_count()), cluster.gpus)
        for job in jobs[alone & (columns["run_s"][jobs] >= LEAST_RUN_S)].tolist():
            first = running.gpus[running.first_gpu[columns["running_group"][job]]]
            speed = columns["iterations_done"][job] * columns["iteration_s"][job] / columns["run_s"][job]
            if crowd[first] == 1 and speed > 0:  # NaN: its iteration time is unknown
                self.job_store.note_kind_speed(cluster.kinds[cluster.node_kind[cluster.gpu_node[first]]], float(speed))

    def _on_job_failed(self, event: JobFailed) -> Sequence[Command]:
        columns = self.job_store.columns
        self._require(event.jobs, Phase.FAILED, event)
        columns["failures"][event.jobs] += 1
        columns["reason"][event.jobs] = event.reason
        again = (columns["failures"][event.jobs] <= columns["retries"][event.jobs]) & event.again
        self._to_waiting(event.jobs[again])
        lost = event.jobs[~again]
        if not len(lost):
            return ()
        counts = columns["failures"][lost].tolist()
        reasons = tuple(event.reason if n == 1 else noted(event.reason, f"failed {n} times") for n in counts)
        columns["reason"][lost] = list(reasons)
        self._end(lost, Phase.FAILED, event.at_s)
        return (Refuse(self.events, lost, reasons),)

    def _on_job_cancelled(self, event: JobCancelled) -> Sequence[Command]:
        self._require(event.jobs, Phase.CANCELLED, event)
        stop = event.jobs[self.job_store.columns["phase"][event.jobs] == RUNNING]
        self._end(event.jobs, Phase.CANCELLED, event.at_s)
        return (Stop(self.events, stop, checkpoint=False),) if len(stop) else ()

    def _on_job_updated(self, event: JobUpdated) -> Sequence[Command]:
        columns, jobs = self.job_store.columns, event.jobs
        if len(jobs) != len(event.specs):
            raise PlaitError(f"an update names {len(jobs)} jobs and has {len(event.specs)} specs")
        phases = self.job_store.columns["phase"]
        for job in jobs.tolist():
            if not TRANSITIONS[_PHASES[phases[job]]]:
                raise PlaitError(
                    f"{self.job_store.name(job)} is {Phase(phases[job]).name.lower()} and cannot change "
                    f"({type(event).__name__} at {event.at_s} s)"
                )
        self.job_store.update(jobs, event.specs)
        if has_groups(self.policy):
            self.job_store.expect_peaks(jobs, self.cluster)
        self.changed = True
        running = jobs[columns["running_group"][jobs] >= 0]
        held = self.running.gpu_count()[columns["running_group"][running]]
        return self._leave(running[(held < columns["min_gpus"][running]) | (held > columns["max_gpus"][running])])

    def _on_job_requeued(self, event: JobRequeued) -> Sequence[Command]:
        self._require(event.jobs, Phase.WAITING, event)
        return self._leave(event.jobs)

    def _leave(self, jobs: IntArray) -> Sequence[Command]:
        """Let running jobs wait again, after a checkpoint; this is no preemption."""
        if not len(jobs):
            return ()
        self._to_waiting(jobs)
        return (Stop(self.events, jobs),)

    def _on_launch_failed(self, event: LaunchFailed) -> Sequence[Command]:
        self.job_store.columns["reason"][event.jobs] = event.reason
        self._to_waiting(event.jobs)
        return ()

    # -- nodes ----------------------------------------------------------------------------------------

    def _on_node_joined(self, event: NodeJoined) -> Sequence[Command]:
        self.cluster = self.cluster.with_node(event.node)
        self.silent -= {event.node.id}
        self.changed = True
        return ()

    def _on_node_lost(self, event: NodeLost) -> Sequence[Command]:
        node = self.cluster.index(event.node)
        self.cluster = self.cluster.without_node(event.node)
        self.silent -= {event.node}
        if self.usage is not None:
            self.usage = without_gpus(self.usage, self.cluster.gpu_node == node)
        groups = self.running
        hit = np.zeros(len(groups), dtype=bool)
        owner = np.repeat(np.arange(len(groups)), groups.gpu_count())
        hit[owner[self.cluster.gpu_node[groups.gpus] == node]] = True
        members = groups.jobs[hit[groups.group_of_member()]]
        columns = self.job_store.columns
        lost = members[(columns["phase"][members] == RUNNING) & (columns["running_group"][members] >= 0)]
        columns["reason"][lost] = f"lost node {event.node}"
        # Processes of the gang on other nodes are stopped without a checkpoint, as the gang is incomplete.
        self._to_waiting(lost)
        self.changed = True
        return (Stop(self.events, np.sort(lost), checkpoint=False),) if len(lost) else ()

    def _on_node_suspected(self, event: NodeSuspected) -> Sequence[Command]:
        """Mark a silent node as down; jobs with GPUs there stay (`View.on_silent_nodes`)."""
        node = self.cluster.nodes[self.cluster.index(event.node)]
        self.cluster = self.cluster.without_node(node.id) if event.suspect else self.cluster.with_node(node)
        self.silent = self.silent | {node.id} if event.suspect else self.silent - {node.id}
        self.changed = True
        return ()

    def _on_nodes_reserved(self, event: NodesReserved) -> Sequence[Command]:
        """Note a reservation, and forget expired ones."""
        new = event.reservation
        left = (one for one in self.reserved if one.id != new.id and one.until_s > event.at_s)
        self.reserved, self.changed = (*left, new), True
        return ()

    def _on_reservation_cancelled(self, event: ReservationCancelled) -> Sequence[Command]:
        """End a reservation now. It stays known until the next one, as its id is not given again."""
        now_s = event.at_s
        self.changed, self.reserved = (
            True,
            tuple(
                replace(one, from_s=min(one.from_s, now_s - 1.0), until_s=now_s) if one.id == event.id else one
                for one in self.reserved
            ),
        )
        return ()

    def _on_switch_lost(self, event: SwitchLost) -> Sequence[Command]:
        self.cluster = self.cluster.without_switch(event.switch)
        self.changed = True
        return ()

    def _on_switch_joined(self, event: SwitchJoined) -> Sequence[Command]:
        self.cluster = self.cluster.with_switch(event.switch)
        self.changed = True
        return ()

    def _with_releases(self, commands: Sequence[Command]) -> Sequence[Command]:
        """The commands of an event, and one that ends grants of jobs that no longer run and of lost switches."""
        running_group, before = self.job_store.columns["running_group"], self.grants
        self.grants = still_granted(before, running_group, self.cluster)
        if self.grants is before:
            return commands
        notes = lost_switches(before, self.grants, running_group)
        if notes:
            self.plan = replace(self.plan, network_notes={**self.plan.network_notes, **notes})
        left = set(map(id, self.grants))
        hit = {one.job for one in before if id(one) not in left}
        old, new = ([one for one in some if one.job in hit] for some in (before, self.grants))
        ended = grant_changes(self.events, old, new, notes)
        return commands if ended is None else [*commands, ended]

    # -- the job store --------------------------------------------------------------------------------

    def _require(self, jobs: IntArray, target: Phase, event: Event) -> None:
        phases = self.job_store.columns["phase"]
        for job in jobs.tolist():
            if target not in TRANSITIONS[_PHASES[phases[job]]]:
                raise PlaitError(
                    f"{self.job_store.name(job)} is {Phase(phases[job]).name.lower()} and cannot become "
                    f"{target.name.lower()} ({type(event).__name__} at {event.at_s} s)"
                )

    def _end(self, jobs: IntArray, phase: Phase, end_s: Any) -> None:
        columns = self.job_store.columns
        columns["phase"][jobs] = int(phase)
        columns["end_s"][jobs] = end_s
        columns["running_group"][jobs] = -1
        self.job_store.depart(jobs)
        self.active, self.held = (unfinished(some, columns["phase"]) for some in (self.active, self.held))
        if not self.plan.settled:
            self.changed = True

    def _to_waiting(self, jobs: IntArray) -> None:
        columns = self.job_store.columns
        if columns["has_losses"][0]:
            self._note_lost_runs(jobs)
        columns["phase"][jobs] = WAITING
        columns["running_group"][jobs] = -1
        columns["pending_since_s"][jobs] = self.now_s
        self.changed = True

    def _start(self, jobs: IntArray) -> None:
        c = self.job_store.columns
        start_jobs(
            jobs, self.now_s, c["run_s"], c["run_base_s"], c["wait_s"], c["pending_since_s"], c["first_start_s"],
            c["last_start_s"], c["starts"], c["phase"],
        )  # fmt: skip
        c["slow_since_s"][jobs] = math.nan

    def _promote(self, jobs: IntArray) -> None:
        columns = self.job_store.columns
        columns["promotions"][jobs] += 1
        columns["attained_base_gpu_s"][jobs] = columns["attained_gpu_s"][jobs]
        columns["run_base_s"][jobs] = columns["run_s"][jobs]
        columns["wait_s"][jobs] = 0.0

    # -- deciding -------------------------------------------------------------------------------------

    def _on_replan_due(self, event: ReplanDue) -> Sequence[Command]:
        if not self.changed and event.at_s < self.plan.valid_until_s - CLOCK_S:
            return ()
        view = self.view()
        plan = self.planned(view)
        changes = self._checked(plan.groups)
        if plan.grants or self.job_store.requiring:
            # The switches have to serve the plan, and jobs that require a grant to have one.
            store, policy = self.job_store, describe(self.policy)
            if plan.grants and not self.aggregates:
                one = plan.grants[0]
                raise PlanError(
                    f"policy {policy} made a plan that grants memory of switch {one.switch!r} to {store.name(one.job)}"
                    "; switches do not aggregate here"
                )
            refuse_grants(plan, self.grants, store.spec, self.cluster, store.name, policy)
            had = {one.job for one in self.grants}
            kept = [job for job in view.jobs.number[view.keeps.rows].tolist() if job not in had]
            refuse_missing_grants(plan, store.requiring, kept, store.name, policy)
        return self._apply(plan, changes)

    def planned(self, view: View) -> Plan:
        """The policy's plan for a view, in which kept jobs stay and GPUs are held for the first waiting job.

        Nodes that are reserved limit it.
        """
        return planned(view, left, self._with_holds) if (left := self.reserved_ahead) else self._with_holds(view)

    def _with_holds(self, view: View) -> Plan:
        plan = hold_back(view, keep_running(view, self.policy.decide(view)), has_preemption(self.policy))
        if (rest := without_late(view, plan)) is None:
            return plan
        again = hold_back(rest, keep_running(rest, self.policy.decide(rest)), has_preemption(self.policy))
        return refilled(plan, again)

    def _apply(self, plan: Plan, changes: PlanChanges) -> Sequence[Command]:
        groups, columns = plan.groups, self.job_store.columns
        if plan.reservations:
            phase = columns["phase"][: self.job_store.count]
            refuse_reservations(plan, phase, self.cluster, self.job_store.name, describe(self.policy))
        if not plan.valid_until_s > self.now_s:
            raise PlaitError(
                f"policy {describe(self.policy)} wants to decide again at {plan.valid_until_s} s, "
                f"which is not after {self.now_s} s; give a later valid_until_s"
            )
        if len(plan.promoted):
            self._promote(plan.promoted)
        commands: list[Command] = []
        if len(changes.leave):
            self._to_waiting(changes.leave)
            columns["preemptions"][changes.leave] += 1
            commands += self._stops(changes.leave, plan)
        if len(changes.starts):
            self._start(changes.starts)
        order = NO_JOBS if plan.order is None else plan.order
        assign(groups.jobs, groups.first_job, order, columns["running_group"], columns["position"])
        if plan.levels is not None:
            columns["level"][order] = plan.levels
        if plan.grants or self.grants or plan.network_notes:
            commands += self._grants(plan)
        if len(changes.adjusted):
            commands.append(Adjust(self.events, groups[changes.adjusted]))
        if len(changes.launched):
            commands.append(Launch(self.events, groups[changes.launched]))
        if plan.valid_until_s != self.plan.valid_until_s and plan.valid_until_s < math.inf:
            commands.append(Wake(self.events, plan.valid_until_s))
        self.running, self.plan, self.changed = groups, plan, False
        return commands

    def _stops(self, jobs: IntArray, plan: Plan) -> list[Command]:
        """Jobs that leave their GPUs after a checkpoint, and jobs that are killed."""
        killed = np.isin(jobs, plan.kills) & self.kills if len(plan.kills) else np.zeros(len(jobs), dtype=np.bool_)
        saved, lost = jobs[~killed], jobs[killed]
        stops: list[Command] = [Stop(self.events, saved, suspend=plan.suspend)] if len(saved) else []
        return [*stops, Stop(self.events, lost, checkpoint=False)] if len(lost) else stops

    def _grants(self, plan: Plan) -> list[Command]:
        """Changes of the plan to the grants in force, and jobs that newly run without one."""
        told = self.plan.network_notes
        notes = {job: why for job, why in plan.network_notes.items() if told.get(job) != why}
        changed = grant_changes(self.events, self.grants, plan.grants, notes)
        self.grants = plan.grants
        return [] if changed is None else [changed]

    def _checked(self, groups: Groups) -> PlanChanges:
        """The changes that `groups` make to what runs; raises `PlanError` if they cannot run."""
        columns, store, policy = self.job_store.columns, self.job_store, describe(self.policy)
        code, job, gpu, changes = check_plan(
            groups, self.running, columns, self.events, store.count, self.cluster, self.max_guests_per_gpu
        )
        if code != OK:
            name = store.name(job) if 0 <= job < store.count else f"job number {job}"
            sharing = [store.name(one) for one in neighbours(groups, gpu) if one != job and 0 <= one < store.count]
            raise plan_error(code, name, gpu, self.cluster, policy, ", ".join(sharing[:3]), self.max_guests_per_gpu)
        kept = memory_kept(self.policy)
        refuse_overload(groups, changes.changed, columns, self.cluster, store.name, policy, kept)
        if groups.guest is not None:
            refuse_overfull(groups, changes.changed, columns["gpu_memory_bytes"], self.cluster, store.name, policy)
        return changes


def describe(policy: Policy) -> str:
    """A policy's name for messages: its `name` if it has one, else its class."""
    return str(getattr(policy, "name", "") or type(policy).__name__)
