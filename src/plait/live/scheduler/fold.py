"""The state as a fold over the log.

`apply` is the only thing that takes an entry into a `State`: live, after a restart and in `replay --verify`, so all
three agree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from plait.control import messages
from plait.control.controller import Controller
from plait.core.cluster import Cluster
from plait.core.errors import PlaitError
from plait.core.jobs import Phase
from plait.live.layout import job_name
from plait.live.protocol.arrays import array_of
from plait.live.protocol.profile_keys import processes_per_gpu
from plait.live.protocol.requests import AFTER, PROJECT_TIME, dependencies, ina_of, never_met
from plait.live.protocol.wire import NodeInfo
from plait.live.scheduler.leases import follow_grants
from plait.live.scheduler.live_policy import AGGREGATES, GUESTS_PER_GPU, KILLS, made
from plait.live.scheduler.records import notes
from plait.live.scheduler.records.attempts import ALWAYS, BYSTANDER, ONCE, Attempt, JobRecord, NodeRecord, Rank
from plait.live.scheduler.records.network import Serving, declared_of
from plait.live.scheduler.state import State

#: Maximum profiles kept for later jobs; the oldest are dropped.
MOST_LEARNT = 10_000
#: How much the last restart counts in the average of what restarts cost a job.
NEWEST = 0.5
#: Events after which other jobs may run, or the same ones in other groups.
_CHANGES_GROUPS = (
    messages.ReplanDue, messages.JobFinished, messages.JobFailed, messages.JobCancelled, messages.JobUpdated,
    messages.JobRequeued, messages.LaunchFailed, messages.NodeLost,
)  # fmt: skip


def apply(state: State, entry: notes.Entry) -> Sequence[messages.Command]:
    """Take the next entry of the log; returns what the controller commands."""
    state.seq += 1
    state.record.reserved_idle_gpu_s = state.reserved_idle_gpu_s(entry.at_s)
    state.now_s = max(state.now_s, entry.at_s)
    if isinstance(entry, notes.Note):
        _NOTES[type(entry)](state, entry)
        follow_grants(state)
        return ()
    if isinstance(entry, messages.NodeJoined):
        _node_joined(state, entry)
    assert state.controller is not None, f"{type(entry).__name__} before any node"
    commands: Sequence[messages.Command]
    try:
        commands = state.controller.handle(entry)
    except Exception as error:
        if not isinstance(entry, messages.ReplanDue):
            raise
        # A policy that fails must not take the cluster with it: running jobs continue, and the status shows the reason.
        text = str(error) if isinstance(error, PlaitError) else f"{type(error).__name__}: {error}"
        state.policy_error, commands = text, ()
    else:
        if isinstance(entry, messages.ReplanDue):
            state.policy_error = ""
    _after(state, entry, commands)
    return commands


def _after(state: State, entry: messages.Event, commands: Sequence[messages.Command]) -> None:
    if isinstance(entry, messages.ReplanDue):
        state.decision_s, state.decision_seq = entry.at_s, state.seq
    if isinstance(entry, messages.NodeJoined) and state.network.declared is not None:
        state.join_network()
    if isinstance(entry, _CHANGES_GROUPS):
        state.update_groups(lambda number: processes_per_gpu(state.jobs[number].request))
    if isinstance(entry, messages.JobSubmitted):
        for number in range(entry.first, entry.first + len(entry.jobs)):
            state.pending.popleft()
            state.jobs[number].admitted = True
    elif isinstance(entry, messages.NodeLost):
        state.nodes[entry.node].lost, state.nodes[entry.node].suspect = True, False
        state.touch_node(entry.node)
    elif isinstance(entry, messages.NodeSuspected):
        state.nodes[entry.node].suspect = entry.suspect
        state.touch_node(entry.node)
    elif isinstance(entry, messages.JobFinished):
        for number, end_s in zip(entry.jobs.tolist(), entry.end_s.tolist(), strict=True):
            state.record.came(number, "end", end_s)
    elif isinstance(entry, (messages.JobFailed, messages.JobCancelled)):
        for number in entry.jobs.tolist():
            state.record.forget(number)
            job = state.jobs[number]
            if isinstance(entry, messages.JobCancelled) and entry.by not in ("", job.owner):
                job.reason = f"cancelled by {entry.by}"
    elif isinstance(entry, messages.ProgressReported):
        _note_losses(state, entry.jobs.tolist())
    if isinstance(entry, (messages.JobFinished, messages.JobCancelled)):
        _settle_waits(state, entry.jobs.tolist())
    if not isinstance(
        entry, (messages.ProgressReported, messages.UsageReported, messages.NetworkReported, messages.ReplanDue)
    ):
        state.touched.update(notes.jobs_of(entry))
    for command in commands:
        state.touched.update(notes.jobs_of(command))
        if isinstance(command, messages.Refuse):
            _settle_waits(state, command.jobs.tolist())
    follow_grants(state)


def _note_losses(state: State, numbers: Iterable[int]) -> None:
    """Work that jobs lost, in the job store: as their agents measured it, not as the controller makes it out."""
    for number in numbers:
        state.in_charge.job_store.columns["lost_s"][number] = state.jobs[number].lost_work_s


def _node_joined(state: State, event: messages.NodeJoined) -> None:
    node, hardware = state.nodes.setdefault(event.node.id, NodeRecord(event.node.id)), event.node
    node.lost = node.drained = node.leaving = node.suspect = False
    state.touched_nodes.add(node.id)
    node.info = NodeInfo(
        hardware.id, hardware.gpus, hardware.gpu_kind, float(hardware.gpu_memory_bytes), hardware.cpus,
        hardware.memory_bytes, hardware.rack,
    )  # fmt: skip
    if state.controller is None:
        state.controller = Controller(
            state.limited_policy(), Cluster((hardware,)), state.preemption_rule(), GUESTS_PER_GPU, KILLS, AGGREGATES,
        )  # fmt: skip


def _settle_waits(state: State, numbers: Iterable[int]) -> None:
    """Note for jobs that wait for these, which have ended, whether they ended as they have to.

    Jobs that wait for an array are visited once: when its last job ends, or the first that ends in another way.
    """
    phases = state.in_charge.job_store.columns["phase"]
    for number in numbers:
        name, phase = job_name(number), Phase(int(phases[number])).name.lower()
        job = state.jobs.get(number)
        for awaited in (name, "" if job is None else array_of(job.request)):
            if (waiting := state.dependents.get(awaited)) is None:
                continue
            left = state.open_members.get(awaited, set())
            left.discard(number)
            for field in [field for field in waiting if not left or phase not in AFTER[field]]:
                reason = "" if phase in AFTER[field] else never_met(name, phase, field)
                for one in waiting.pop(field):
                    if (record := state.jobs.get(one)) is not None and record.waits_for.pop(awaited, ""):
                        record.unmet = record.unmet or reason
                        state.touched.add(one)
            if not waiting:
                del state.dependents[awaited]
                state.open_members.pop(awaited, None)


def _requested(state: State, note: notes.Requested) -> None:
    first, (waits_for, meant) = note.first, dependencies(note.requests, note.first, note.arrays)
    ended = set(note.met)
    left = {awaited: numbers for awaited, numbers in meant.items() if not ended.issuperset(numbers)}
    for i, (request, waits) in enumerate(zip(note.requests, waits_for, strict=True)):
        request = state.with_time_limit(request)
        record = JobRecord(first + i, request, note.owner, request.get("project") or "default", note.at_s)
        record.waits_for = {awaited: field for awaited, field in waits.items() if awaited in left}
        state.jobs[record.number] = record
        state.pending.append(record.number)
        state.touched.add(record.number)
    state.numbers = first + len(note.requests)
    for number in range(first, state.numbers):
        state.follow_waits(state.jobs[number])
    for awaited in left.keys() - state.open_members.keys():
        if len(numbers := left[awaited]) > 1:
            state.open_members[awaited] = {number for number in numbers if state.is_open(number)}
    state.submissions.add(note)


def _cancel_asked(state: State, note: notes.CancelAsked) -> None:
    state.jobs[note.job].cancelled = True
    state.touched.add(note.job)


def _requeue_asked(state: State, note: notes.RequeueAsked) -> None:
    state.keys.add(note)
    state.touched.add(note.job)


def _update_asked(state: State, note: notes.UpdateAsked) -> None:
    state.keys.add(note)
    job = state.jobs[note.job]
    job.request = {**job.request, **note.fields}
    for name, value in note.fields.items():
        if value is None:
            del job.request[name]
    if "time_limit_s" in note.fields:
        job.request.pop(PROJECT_TIME, None)
    if "gpus" in note.fields and (note.fields["gpus"] or 1) != (note.before["gpus"] or 1):
        job.profiled = job.measured_beside = job.seen_outside = False  # they are of the size that it had
    state.touched.add(note.job)


def _policy_set(state: State, note: notes.PolicySet) -> None:
    state.policy_text, state.may_lose_work = note.policy, note.may_lose_work
    state.policy = made(state.policy_text)
    state.refresh_policy()


def _project_set(state: State, note: notes.ProjectSet) -> None:
    if note.gone:
        state.projects.pop(note.name, None)
    else:
        fields = ("gpu_quota", "weight", "default_time_s", "most_time_s", "most_idle_s")
        state.projects[note.name] = {name: getattr(note, name) for name in fields}
    state.refresh_policy()


def _attempt_began(state: State, note: notes.AttemptBegan) -> None:
    job = state.jobs[note.job]
    ranks = [Rank(node, gpu) for node, gpu in note.ranks]
    job.epoch = note.epoch
    job.first_epoch = job.first_epoch or job.epoch
    job.attempt = Attempt(job.number, job.epoch, tuple(note.gpus), ranks, note.at_s, note.port)
    group = state.groups.by_job.get(job.number)
    job.attempt.guest, job.attempt.device_bytes = group is not None and group.guest, job.device_bytes
    # Whether the ranks of its attempt get grant files: where there are several, and a network.
    job.attempt.networked = (
        state.network.declared is not None and len(job.attempt.ranks) > 1 and ina_of(job.request).mode != "off"
    )
    job.attempt.limits = note.limits
    job.attempt.merge = bool(job.request.get("merge")) and not job.unmerged
    if job.unmerged == ONCE:
        job.unmerged = ""
    if note.port:
        state.ports_given += 1
    state.record.came(job.number, "start", note.at_s)
    state.live.add(job.number)
    state.touched.add(job.number)


def _stop_asked(state: State, note: notes.StopAsked) -> None:
    attempt = state.jobs[note.job].attempt
    assert attempt is not None
    attempt.stop, attempt.grace_s, attempt.stop_s = note.why, note.grace_s, note.at_s
    attempt.stop_reason, attempt.takers = note.reason, tuple(note.takers)
    state.touched.add(note.job)


def _rank_ended(state: State, note: notes.RankEnded) -> None:
    job = state.jobs[note.job]
    attempt = job.attempt
    assert attempt is not None
    attempt.end(note.rank, note.exit_code, note.reason, note.started, note.ended_s)
    if note.merged:
        job.unmerged = ALWAYS if job.unmerged == ALWAYS or note.merged != BYSTANDER else ONCE
    state.touched.add(note.job)


def _attempt_over(state: State, note: notes.AttemptOver) -> None:
    job = state.jobs[note.job]
    attempt = job.attempt
    assert attempt is not None
    attempt.ended_s, attempt.outcome = note.at_s, note.outcome
    attempt.find_cause()
    attempt.batch_size = note.batch_size or None
    attempt.lost_work_s = note.lost_work_s
    job.lost_work_s += attempt.lost_work_s
    state.record.lost(note.why_lost or "failed", attempt.lost_work_s * len(attempt.gpus))
    _note_losses(state, (job.number,))
    job.held_s += note.held_s
    job.held_gpu_s += note.held_s * len(attempt.gpus)
    if note.steps > job.mark:
        job.mark, job.requeues, job.launch_failures = note.steps, 0, 0
    job.requeues += attempt.outcome == "requeued"
    job.launch_failures += attempt.outcome == "start failed"
    if attempt.cause:
        job.reason = attempt.cause
    state.record.over(note, attempt.began_s, attempt.stop_s)
    job.down_s = None
    if note.outcome == "preempted" and attempt.stop_s is not None:
        job.down_s = max(0.0, (note.ended_s or note.at_s) - attempt.stop_s)
    state.live.discard(job.number)
    state.network.told.pop(job.number, None)
    state.touched.add(job.number)


def _restarted(state: State, note: notes.Restarted) -> None:
    job, cost_s = state.jobs[note.job], note.cost_s
    job.restart_s = cost_s if job.restart_s is None else job.restart_s + NEWEST * (cost_s - job.restart_s)
    job.restarts, job.down_s = job.restarts + 1, None
    state.record.restarts_gpu_s += cost_s * (len(job.attempt.gpus) if job.attempt else 1)
    state.touched.add(job.number)


def _node_drained(state: State, note: notes.NodeDrained) -> None:
    node = state.nodes[note.node]
    node.drained = note.drained
    state.touched_nodes.add(node.id)
    if node.drained:  # it is there, but not for work: the controller counts it as lost
        node.lost = False


def _node_leaving(state: State, note: notes.NodeLeaving) -> None:
    node = state.nodes[note.node]
    node.leaving = note.leaving
    node.lost = False  # as with a drained one: it is there, only not for work
    state.touch_node(node.id)


def _node_forgotten(state: State, note: notes.NodeForgotten) -> None:
    del state.nodes[note.node]
    state.touched_nodes.add(note.node)
    state.in_charge.cluster = state.in_charge.cluster.forget(note.node)
    if state.network.declared is not None:
        state.join_network()


def _learnt(state: State, note: notes.ProfileRecorded) -> None:
    if note.job is not None:
        state.touched.add(note.job)
    if note.beside:
        assert note.job is not None
        state.jobs[note.job].measured_beside = True
        return
    taught: dict[str, object] = {"stage_s": note.stage_s, "iteration_s": note.iteration_s, "skew": note.skew}
    taught |= {"sizes": note.sizes, "fit": note.fit}
    new = {name: value for name, value in taught.items() if value is not None}
    for key in (*note.like, note.key):
        state.learnt[key] = {**state.learnt.pop(key, {}), **new}  # what was learnt last comes last
    while len(state.learnt) > MOST_LEARNT:
        del state.learnt[next(iter(state.learnt))]
    if note.job is not None:
        job = state.jobs[note.job]
        job.profiled, job.seen_outside = not note.outside, note.outside


def _network_set(state: State, note: notes.NetworkSet) -> None:
    book = state.network
    book.declared = declared_of(note)
    book.serving = {}
    state.join_network()


def _switch_served(state: State, note: notes.SwitchServed) -> None:
    state.network.serving[note.switch] = Serving(note.node, note.incarnation)


def _ranks_told(state: State, note: notes.RanksTold) -> None:
    state.network.told[note.job] = note
    state.touched.add(note.job)


def _numbers_spent(state: State, note: notes.NumbersSpent) -> None:
    lease = state.network.leases.get(note.job)
    if lease is not None and lease.since == note.since:
        state.network.leases[note.job] = replace(lease, spent=True)


_NOTES: dict[type[Any], Callable[[State, Any], object]] = {
    notes.Requested: _requested, notes.CancelAsked: _cancel_asked, notes.PolicySet: _policy_set,
    notes.RequeueAsked: _requeue_asked, notes.UpdateAsked: _update_asked, notes.ProjectSet: _project_set,
    notes.AttemptBegan: _attempt_began, notes.StopAsked: _stop_asked, notes.RankEnded: _rank_ended,
    notes.AttemptOver: _attempt_over, notes.NodeDrained: _node_drained, notes.ProfileRecorded: _learnt,
    notes.NodeLeaving: _node_leaving, notes.NodeForgotten: _node_forgotten, notes.Restarted: _restarted,
    notes.ForecastRecorded: lambda state, note: state.record.add_forecast(note),
    notes.NetworkSet: _network_set, notes.SwitchServed: _switch_served, notes.RanksTold: _ranks_told,
    notes.RanksMoved: lambda state, note: state.network.former.pop(note.job, None),
    notes.NumbersSpent: _numbers_spent,
    # For readers of the log alone: the state does not change.
    notes.ServiceStarted: lambda *_: None, notes.AgentRestarted: lambda *_: None, notes.Undelivered: lambda *_: None,
}  # fmt: skip
