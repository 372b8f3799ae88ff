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
section 4.1, and its published code). It grows opportunistic jobs by greedy trial and error, as here: a twentieth of the
device for one job at a time, kept if it makes the job faster. Where nothing is left another job gives it, and gets it
back unless the first makes more of it. The sizes, the order of shrinking, the comparison by relative speed a byte and
the ladder for errors are plait's own. Sizes are bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum

from plait.sharing.directive import Action, Device, Reached, StepStats

#: Memory of the device that is never given away, and what the context of each process takes next to its limit.
MARGIN_BYTES, CONTEXT_BYTES = 512 << 20, 500_000_000
#: Room above a footprint: this part of it, at least so many bytes.
HEADROOM, LEAST_HEADROOM_BYTES = 0.05, 256 << 20
#: The footprint of the guaranteed job is the most of so many steps; after a burst it is not lowered for HOLD_S either.
FOOTPRINT_STEPS, HOLD_S = 50, 30.0
#: Part of the device that one trial moves, and steps at either limit that are compared.
PART, TRIAL_STEPS = 0.05, 5
#: Relative speed that a trial has to bring, and how long a job waits after one that did not.
LEAST_GAIN, AGAIN_S = 0.01, 60.0


class Rung(IntEnum):
    """What is tried for an allocation that fails, in this order; the first two by the job itself."""

    RELEASE_CACHE = 1
    SPILL = 2
    PAUSE_NEIGHBOURS = 3
    SMALLER_BATCH = 4
    FAIL = 5


def next_rung(last: Rung | None, *, neighbours: bool, can_split: bool) -> Rung:
    """What to try after `last`, which did not help (None: nothing was tried).

    neighbours: opportunistic jobs beside it can still be paused; can_split: its steps may become micro-batches, which
    is repeated while it is possible.

    >>> next_rung(Rung.SPILL, neighbours=False, can_split=True).name
    'SMALLER_BATCH'
    """
    if last is None:
        return Rung.RELEASE_CACHE
    if last is Rung.RELEASE_CACHE:
        return Rung.SPILL
    if last <= Rung.PAUSE_NEIGHBOURS and neighbours:
        return Rung.PAUSE_NEIGHBOURS
    return Rung.SMALLER_BATCH if can_split else Rung.FAIL


@dataclass(frozen=True, slots=True)
class Grant:
    """Bytes above the least limit of an opportunistic job, and the relative speed that each of them brought."""

    size_bytes: int
    gain: float


@dataclass(frozen=True, slots=True)
class Meter:
    """Work and the job's own seconds in counted steps at one limit; the first step at a limit is not counted."""

    steps: int = -1
    work: float = 0.0
    own_s: float = 0.0

    def add(self, step: StepStats) -> Meter:
        """The meter with one step more."""
        if self.steps < 0:
            return Meter(0)
        return Meter(self.steps + 1, self.work + (step.work or 1.0), self.own_s + step.own_s)

    @property
    def speed(self) -> float:
        """Work a second of the job's own; steps a second if it does not state its work."""
        return self.work / self.own_s if self.own_s > 0 else 0.0


@dataclass(frozen=True, slots=True)
class JobMemory:
    """One job.

    cap_bytes         the limit in its last directive
    number            counts changes of it, and pauses, so that the job can report what it applied
    held_bytes        the most that it may still use: its limit until it has confirmed a lower one
    persistent_bytes  as its last step reported, before that as declared
    unlimited         it has confirmed a limit and keeps none: what it needs beyond could not go to the host
    unknown           nobody has said what persists: neither a declaration nor a step
    needed_bytes      the least limit that an out-of-memory error taught; of an unknown job, to start with
    demand_bytes      of the guaranteed job: reserved and spilled by the last steps
    grants            of an opportunistic job: what it has above the least limit, oldest first
    tried_at_s        when more memory last brought it nothing
    split             into how many micro-batches its steps are split
    rung              how far its allocation that fails has climbed the ladder
    leaving           its directive is to save its state and leave
    """

    cap_bytes: int = 0
    number: int = 0
    held_bytes: int = 0
    persistent_bytes: int = 0
    needed_bytes: int = 0
    demand_bytes: tuple[int, ...] = ()
    grants: tuple[Grant, ...] = ()
    meter: Meter = Meter()
    tried_at_s: float | None = None
    split: int = 1
    rung: Rung | None = None
    leaving: bool = False
    action: Action = Action.PAUSE
    unknown: bool = False
    unlimited: bool = False

    @property
    def least_bytes(self) -> int:
        """The limit below which it cannot run."""
        return max(self.persistent_bytes + headroom(self.persistent_bytes), self.needed_bytes)

    @property
    def granted_bytes(self) -> int:
        """Bytes above the least limit."""
        return sum(grant.size_bytes for grant in self.grants)

    @property
    def wanted_bytes(self) -> int:
        """The most that the last steps of the guaranteed job asked for, and headroom."""
        footprint = max(self.demand_bytes, default=0)
        return footprint + headroom(footprint)


@dataclass(frozen=True, slots=True)
class Trial:
    """More memory for one job, to see what it brings; `taken` is what another job gave for it, `giver` which one."""

    job: str
    size_bytes: int
    speed: float
    giver: str | None = None
    taken: Grant | None = None


@dataclass(frozen=True, slots=True)
class MemoryState:
    """The state of the law. `hold_until_s`: the guaranteed limit is not lowered before; the rest are counts."""

    jobs: Mapping[str, JobMemory] = field(default_factory=dict)
    trial: Trial | None = None
    hold_until_s: float = 0.0
    bursts: int = 0
    partial_shrinks: int = 0


def headroom(size_bytes: int) -> int:
    """Bytes of room above a footprint."""
    return max(int(HEADROOM * size_bytes), LEAST_HEADROOM_BYTES)


def budget(capacity_bytes: int, jobs: int) -> int:
    """Bytes that the limits of so many jobs may add up to: without the margin and the contexts of the processes."""
    return max(capacity_bytes - MARGIN_BYTES - jobs * CONTEXT_BYTES, 0)


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


# -- growth ---------------------------------------------------------------------------------------------------


def tried(jobs: Jobs, trial: Trial | None, device: Device, now_s: float, spare_bytes: int) -> Trial | None:
    """The trial that is active from now on, if any; a finished one leaves its result in the grants of `jobs`.

    `spare_bytes` are unassigned. No trial is judged or started while a job has yet to apply a limit.
    """
    if any(job.held_bytes != job.cap_bytes for job in jobs.values()):
        return trial
    if trial is None:
        return _begun(jobs, device, now_s, spare_bytes)
    job = jobs[trial.job]
    if job.cap_bytes < job.least_bytes + job.granted_bytes + trial.size_bytes or job.meter.steps < TRIAL_STEPS:
        return trial
    gain = (job.meter.speed / trial.speed - 1.0) / trial.size_bytes if trial.speed > 0 else 0.0
    lost = trial.taken.gain if trial.taken is not None else 0.0
    if (gain - lost) * trial.size_bytes > LEAST_GAIN:
        jobs[trial.job] = replace(job, grants=(*job.grants, Grant(trial.size_bytes, gain)))
        return None
    jobs[trial.job] = replace(job, tried_at_s=now_s)
    if trial.giver is not None and trial.taken is not None:
        giver = jobs[trial.giver]
        jobs[trial.giver] = replace(giver, grants=(*giver.grants, trial.taken))
    return None


def _begun(jobs: Jobs, device: Device, now_s: float, spare_bytes: int) -> Trial | None:
    """A trial for the job that has waited longest for one; None if no job is due or none can give memory."""
    size = int(PART * device.capacity_bytes)
    due = [
        name for name in device.opportunistic
        if jobs[name].action is Action.RUN and jobs[name].meter.steps >= TRIAL_STEPS
        and (jobs[name].tried_at_s is None or now_s - (jobs[name].tried_at_s or 0.0) >= AGAIN_S)
    ]  # fmt: skip
    for name in sorted(due, key=lambda name: jobs[name].tried_at_s or 0.0):
        speed = jobs[name].meter.speed
        if spare_bytes >= size:
            return Trial(name, size, speed)
        giver = least_gain(jobs, except_for=name)
        own = jobs[name].grants
        if giver is not None and (not own or own[-1].gain > jobs[giver].grants[-1].gain):
            taken = jobs[giver].grants[-1]
            jobs[giver] = replace(jobs[giver], grants=jobs[giver].grants[:-1])
            return Trial(name, taken.size_bytes, speed, giver, taken)
    return None


def least_gain(jobs: Jobs, except_for: str | None = None) -> str | None:
    """The job whose newest grant brought it least per byte; None if no job has one."""
    owners = [name for name, job in jobs.items() if job.grants and name != except_for]
    return min(owners, key=lambda name: jobs[name].grants[-1].gain, default=None)
