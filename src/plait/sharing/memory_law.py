"""Device memory that each job of a GPU may reserve.

From two jobs on, at all times: the sum of limits in force, contexts and margin is at most the capacity. A limit
that was lowered stays in force until its job has confirmed the lower one, so memory is given away only once it is free.

The guaranteed job has no limit while it is alone, else the most it reserved in 50 steps plus headroom. When it needs
more (it spills to the host, or reserves beyond that), one decision lowers the limits of opportunistic jobs by what is
missing, least marginal loss first; jobs that fall below their least limit pause, and those whose persistent bytes do
not fit save their state and leave. Its own limit rises as they confirm; a partial shrink is tried again at the job's
next boundary, and counted.

Of a job that was never seen nobody knows what its parameters take. It starts with all that others do not need, and one
such job at a time, until its first step says what persists.

The mechanisms (limit at a step boundary, spill to the host instead of an error) are AntMan's (Xiao et al., OSDI 2020,
section 4.1, and its published code). The sizes, the order of shrinking and the ladder for errors are plait's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from plait.sharing.directive import Action, Device, Reached, StepStats
from plait.sharing.growth import PART, least_gain, tried
from plait.sharing.memory_state import (
    FOOTPRINT_STEPS,
    HOLD_S,
    JobMemory,
    MemoryState,
    Meter,
    Rung,
    Trial,
    budget,
    headroom,
    next_rung,
)

Steps = Mapping[str, Sequence[StepStats]]
Jobs = dict[str, JobMemory]


def after_steps(state: MemoryState, now_s: float, steps: Steps, device: Device) -> MemoryState:
    """The state after what jobs reported; the limit and the action of each are in `jobs`.

    `steps` are those that ended since the last decision, by job, oldest first. Jobs that left the device are forgotten.
    """
    jobs = {name: _heard(state.jobs.get(name), name, device, steps.get(name, ())) for name in device.jobs}
    partial = sum(bool(steps.get(name)) and _short(job, device.reached.get(name)) for name, job in jobs.items())
    bursts, hold_until_s = state.bursts, state.hold_until_s
    host = device.guaranteed
    if host is not None:
        jobs[host], burst = _demanded(jobs[host], steps.get(host, ()))
        if burst:
            bursts, hold_until_s = bursts + 1, now_s + HOLD_S
    refused = [name for name, size_bytes in device.refused_bytes.items() if name in jobs and size_bytes > 0]
    fell = [name for name in refused if jobs[name].rung is None]
    served = [name for name, job in jobs.items() if job.rung is Rung.FAIL and name not in refused]
    for name in fell + served:  # a job has tried the first two rungs itself
        jobs[name] = replace(jobs[name], rung=Rung.PAUSE_NEIGHBOURS)
    trial = state.trial
    # A guaranteed job that is not here yet may start its process at any time.
    whole = budget(device.capacity_bytes, len(jobs) + (host is None))
    target = 0
    if host is not None:
        target = _guaranteed_target(jobs, host, whole, now_s < hold_until_s)
        if jobs[host].unlimited and jobs[host].demand_bytes:  # nor does it keep one before its first step
            target = whole
        if len(jobs) == 1:
            whole = target = device.capacity_bytes
    spare = _fitted(jobs, device, whole - target)
    starting = any(job.unknown and job.action is Action.RUN for job in jobs.values())
    if starting:  # without this it would fail in less than its parameters take
        trial = None
        jobs |= {name: replace(job, grants=()) for name, job in jobs.items() if job.grants}
    trial, spare = _shrunk(jobs, trial, spare)
    if now_s >= hold_until_s and not starting and not any(job.rung for job in jobs.values()):
        trial = tried(jobs, trial, device, now_s, spare)
    targets = _targets(jobs, device.opportunistic, trial, spare)
    if host is not None:
        targets[host] = target
    _limited(jobs, targets, host, whole)
    for name in refused:
        job = jobs[name]
        if name not in fell and job.held_bytes == job.cap_bytes and job.number == state.jobs[name].number:
            _climb(jobs, name, device)
    return MemoryState(jobs, trial, hold_until_s, bursts, state.partial_shrinks + partial)


# -- what jobs report --------------------------------------------------------------------------------------


def _heard(job: JobMemory | None, name: str, device: Device, steps: Sequence[StepStats]) -> JobMemory:
    """A job after its report: what it still holds, and what its steps were like."""
    reached = device.reached.get(name)
    if job is None:
        persistent = device.jobs[name].persistent_bytes
        job = JobMemory(persistent_bytes=persistent or 0)
        if persistent is None and not device.jobs[name].guaranteed:
            job = replace(job, unknown=True, needed_bytes=int(PART * device.capacity_bytes))
        if reached is not None:  # it was here before this coordinator was
            job = replace(job, cap_bytes=reached.limit_bytes, number=reached.number)
    if reached is None:
        held = max(job.held_bytes, job.cap_bytes)
    elif reached.number == job.number:
        held = max(reached.limit_bytes, job.cap_bytes)
    else:  # it has not yet seen its last directive, and may be on its way to any since the one it confirmed
        held = max(job.held_bytes, job.cap_bytes, reached.limit_bytes)
    if held != job.held_bytes:
        job = replace(job, held_bytes=held)
    if reached is not None and reached.number == job.number > 0:
        unlimited = reached.limit_bytes >= device.capacity_bytes > job.cap_bytes
        job = job if unlimited == job.unlimited else replace(job, unlimited=unlimited)
    if job.unknown and reached is not None and _short(job, reached) and reached.limit_bytes < device.capacity_bytes:
        job = replace(job, persistent_bytes=max(job.persistent_bytes, reached.limit_bytes))  # it could not free that
    if not steps:
        return job
    if job.unknown:
        job = replace(job, unknown=False, needed_bytes=0)
    meter, last = job.meter, steps[-1]
    if not device.jobs[name].guaranteed and job.held_bytes == job.cap_bytes:
        for step in steps:
            meter = meter if step.left_out else meter.add(step)
    if job.rung is not None:  # the allocation that failed was served
        needed = last.device_reserved_bytes + headroom(last.device_reserved_bytes)
        job = replace(job, rung=None, needed_bytes=needed)
    persistent = last.device_persistent_bytes or job.persistent_bytes
    if meter is job.meter and persistent == job.persistent_bytes:
        return job
    return replace(job, meter=meter, persistent_bytes=persistent)


def _short(job: JobMemory, reached: Reached | None) -> bool:
    """Whether a job tried its last limit and could not free enough."""
    return reached is not None and reached.number == job.number and reached.limit_bytes > job.cap_bytes


def _demanded(job: JobMemory, steps: Sequence[StepStats]) -> tuple[JobMemory, bool]:
    """The guaranteed job after its steps, and whether one of them was a burst."""
    burst, demand = False, job.demand_bytes
    for step in steps:
        footprint = max(demand, default=step.device_reserved_bytes)
        burst |= step.host_spill_bytes > 0 or step.device_reserved_bytes > footprint + headroom(footprint)
        demand = (*demand, step.device_reserved_bytes + step.host_spill_bytes)[-FOOTPRINT_STEPS:]
    return (job if demand == job.demand_bytes else replace(job, demand_bytes=demand)), burst


def _climb(jobs: Jobs, name: str, device: Device) -> None:
    """Put a job whose allocation failed under its present limit one rung higher; what it leads to comes next time.

    Neighbours of the guaranteed job that paused in vain leave before it has to split its steps or fails.
    """
    job, promised = jobs[name], device.jobs[name].guaranteed
    most = device.jobs[name].most_micro_batches
    others = [other for other in device.opportunistic if other != name]
    waiting = any(jobs[other].held_bytes > jobs[other].persistent_bytes for other in others)
    rung = next_rung(job.rung, neighbours=waiting or (promised and bool(others)), can_split=job.split < most)
    if rung is Rung.PAUSE_NEIGHBOURS:
        if not waiting:
            jobs.update({other: replace(jobs[other], leaving=True) for other in others})
        return
    split = min(2 * job.split, most) if rung is Rung.SMALLER_BATCH else job.split
    # Elsewhere there may be enough for an opportunistic job that is not alone here.
    leaving = job.leaving or (rung is Rung.FAIL and len(device.jobs) > 1 and not promised)
    jobs[name] = replace(job, rung=rung, split=split, leaving=leaving)


# -- who gets how much -------------------------------------------------------------------------------------


def _guaranteed_target(jobs: Jobs, host: str, whole: int, held: bool) -> int:
    """The limit of the guaranteed job beside others: what it wants, at most `whole`; not lowered while `held`."""
    job = jobs[host]
    wanted = job.wanted_bytes
    if job.rung is not None:
        wanted = whole - sum(other.persistent_bytes for name, other in jobs.items() if name != host)
    elif len(job.demand_bytes) < FOOTPRINT_STEPS:
        left = whole - sum(other.least_bytes for name, other in jobs.items() if name != host)
        if job.demand_bytes and any(other.unknown for name, other in jobs.items() if name != host):
            left -= max(left - wanted, 0) // 2  # for the one that starts
        wanted = max(wanted, left)
    elif held or wanted <= job.cap_bytes <= wanted + headroom(wanted):
        wanted = max(wanted, job.cap_bytes)
    return min(max(wanted, 0), whole)


def _fitted(jobs: Jobs, device: Device, room: int) -> int:
    """The opportunistic jobs that can run, first come, first served; the bytes left for growth.

    An unknown job starts alone, and once the guaranteed job has made a step: that may need all there is for its first.
    First come, first served here, too: gangs that took turns as their processes arrive would wait for each other.
    """
    host = device.guaranteed
    closed = host is not None and not jobs[host].demand_bytes
    squeezed = next((name for name, job in jobs.items() if job.rung is not None), None)
    for name in device.opportunistic:
        job = jobs[name]
        waits = job.leaving or squeezed not in (None, name) or (job.unknown and closed)
        if not waits and job.least_bytes <= room:
            room -= job.least_bytes
            action, closed = Action.RUN, closed or job.unknown
        else:
            leaving = job.leaving or ((job.cap_bytes > 0 or job.unknown) and job.persistent_bytes > room)
            room -= min(job.persistent_bytes, room)
            action = Action.CHECKPOINT if leaving else Action.PAUSE
            if job.grants or leaving != job.leaving:
                job = jobs[name] = replace(job, grants=(), leaving=leaving)
        if action is not job.action:
            number = job.number + (job.action is Action.RUN)  # so that it says when it has come to its boundary
            jobs[name] = replace(job, action=action, number=number)
    for name, job in jobs.items():
        action = Action.RUN if device.jobs[name].guaranteed else job.action
        if job.rung is Rung.FAIL and not job.leaving:
            action = Action.STOP
        if action is not job.action:
            jobs[name] = replace(job, action=action)
    return room


def _shrunk(jobs: Jobs, trial: Trial | None, spare: int) -> tuple[Trial | None, int]:
    """Take back what does not fit, an unfinished trial first, then least gain first; what is left."""
    if trial is not None:
        taking = [name for name in (trial.job, trial.giver) if name is not None]
        if any(name not in jobs or jobs[name].action is not Action.RUN for name in taking):
            trial = None
    spare -= sum(job.granted_bytes for job in jobs.values())
    if trial is not None and spare < trial.size_bytes:
        trial = None
    while spare < 0 and (name := least_gain(jobs)) is not None:
        spare += jobs[name].grants[-1].size_bytes
        jobs[name] = replace(jobs[name], grants=jobs[name].grants[:-1])
    return trial, spare - (trial.size_bytes if trial is not None else 0)


def _targets(jobs: Jobs, opportunistic: Sequence[str], trial: Trial | None, spare: int) -> dict[str, int]:
    """The limit of each opportunistic job once all have confirmed theirs."""
    targets = {}
    for name in opportunistic:
        job = jobs[name]
        if job.action is not Action.RUN:
            targets[name] = min(job.cap_bytes, job.persistent_bytes)
        else:
            takes_all = job.rung is not None or len(jobs) == 1 or job.unknown
            targets[name] = job.least_bytes + job.granted_bytes + (spare if takes_all else 0)
    if trial is not None:
        targets[trial.job] += trial.size_bytes
    return targets


def _limited(jobs: Jobs, targets: Mapping[str, int], host: str | None, whole: int) -> None:
    """Lower limits at once, and raise them only from freed memory: the guaranteed job's first.

    The guaranteed job takes what has come free so far; an opportunistic job waits until all of its raise is there.
    """
    for name, job in jobs.items():
        if targets[name] < job.cap_bytes:
            jobs[name] = replace(job, cap_bytes=targets[name], number=job.number + 1, meter=Meter())
    free = whole - sum(max(job.cap_bytes, job.held_bytes) for job in jobs.values())
    for name in sorted(jobs, key=lambda name: name != host):
        job, guaranteed = jobs[name], name == host
        used = max(job.cap_bytes, job.held_bytes)
        cap = min(targets[name], used + max(free, 0))
        if cap > job.cap_bytes and (guaranteed or cap == targets[name]):
            free -= max(cap - used, 0)
            held = max(cap, job.held_bytes)
            job = replace(job, cap_bytes=cap, number=job.number + 1, held_bytes=held, meter=Meter())
        if job.action is Action.RUN and not guaranteed and job.cap_bytes < job.least_bytes:
            job = replace(job, action=Action.PAUSE)  # until there is enough for it
        jobs[name] = job
