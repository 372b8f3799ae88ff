"""One decision about the jobs of one GPU: a pure function of state, time, statistics and device.

    state, directives = decide(state, now_s, stats, device)

The simulator calls it with virtual time, the agent of a node with a monotonic clock: after steps, or ten times a
second. The state is a frozen value that `CODEC` writes as JSON, so a restarted coordinator continues from it, and
recorded observations replay bit for bit:

    for seen in observations:
        state, directives = decide(state, seen.now_s, seen.stats, seen.device)

The duties of AntMan's coordinator are published (Xiao et al., OSDI 2020, section 3.3), its decision rules are not: the
laws are plait's own, see `share_law` and `memory_law`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from plait.core.codec.values import Codec
from plait.core.errors import InputError
from plait.sharing import memory_law, share_law
from plait.sharing.directive import Action, Device, Directive, Reached, Sharer, StepStats
from plait.sharing.memory_state import JobMemory, MemoryState
from plait.sharing.share_law import ShareState

#: Writes and reads states, observations and directives; raises `InputError` naming the field for anything else. Fields
#: that a reader does not know are ignored.
CODEC = Codec(strict=True, sparse=(Directive, Sharer, StepStats), error=InputError)


@dataclass(frozen=True, slots=True)
class Seen:
    """The last step of a job that was processed, and its longest quantum, in seconds."""

    step: int
    quantum_s: float


@dataclass(frozen=True, slots=True)
class State:
    """The state of the coordinator of one GPU. `guaranteed`: the job whose speed `share` protects."""

    guaranteed: str | None = None
    share: ShareState = field(default_factory=ShareState)
    memory: MemoryState = field(default_factory=MemoryState)
    seen: Mapping[str, Seen] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Observation:
    """The input of one decision: seconds of a monotonic clock, steps by job, the device."""

    now_s: float
    stats: Mapping[str, tuple[StepStats, ...]]
    device: Device


def decide(
    state: State, now_s: float, stats: Mapping[str, Sequence[StepStats]], device: Device
) -> tuple[State, dict[str, Directive]]:
    """The next state, and the directive of every job on the device.

    `state`   the last state; `State()` at first
    `now_s`   seconds of a clock that never goes back
    `stats`   steps that ended since the last decision, by job, oldest first; known ones are ignored
    `device`  the GPU and the jobs on it now

    Opportunistic jobs share by weight what the guaranteed job leaves; without one, all of the GPU. The guaranteed job
    has share 1 always, and no memory limit while it is alone. A job that has to give memory back may finish its step at
    full share, or it would not reach the boundary at which it can; guaranteed steps meanwhile say nothing about shares.
    """
    fresh = {name: _fresh(state.seen.get(name), stats.get(name, ())) for name in device.jobs}
    seen = {name: state.seen[name] for name in device.jobs if name in state.seen}
    for name, steps in fresh.items():
        if steps:
            seen[name] = Seen(steps[-1].step, steps[-1].quantum_s)
    memory = memory_law.after_steps(state.memory, now_s, fresh, device)
    host, others = device.guaranteed, device.opportunistic
    running = [name for name in others if memory.jobs[name].action is Action.RUN]
    share = state.share if host == state.guaranteed and running else ShareState()
    owing = [name for name in others if owes(memory, name, device)]
    if host is not None and running and not owing and not _on_its_way(memory.jobs[host], device.reached.get(host)):
        quantum_s = max(
            max(device.jobs[name].quantum_s, seen[name].quantum_s if name in seen else 0.0) for name in running
        )
        for step in fresh[host]:
            share = share_law.after_step(share, now_s, step, quantum_s)
    shares = share_law.divided(
        share.allowed if host is not None else 1.0, {name: device.jobs[name].weight for name in running}
    )  # fmt: skip
    shares |= share_law.divided(1.0, {name: device.jobs[name].weight for name in owing})
    if host is not None:
        shares[host] = 1.0
    unlimited = host if len(device.jobs) == 1 else None
    directives = {
        name: Directive(
            share=shares.get(name, 0.0),
            memory_limit_bytes=None if name == unlimited else job.cap_bytes,
            limit_number=job.number,
            action=job.action,
            micro_batches=job.split,
        )
        for name, job in memory.jobs.items()
    }
    return State(host, share, memory, seen), directives


def replay(
    observations: Iterable[Observation], state: State | None = None
) -> Iterator[tuple[State, dict[str, Directive]]]:
    """Repeat the decisions on recorded observations from `state` on; results are bit-identical."""
    state = State() if state is None else state
    for seen in observations:
        state, directives = decide(state, seen.now_s, seen.stats, seen.device)
        yield state, directives


def owes(memory: MemoryState, name: str, device: Device) -> bool:
    """Whether a job must reach its boundary soon: to pause or leave, or because the guaranteed job needs memory."""
    job, reached = memory.jobs[name], device.reached.get(name)
    if reached is None or reached.number == job.number:
        return False
    if job.action is not Action.RUN or device.guaranteed is None:
        return job.action is not Action.RUN
    host = memory.jobs[device.guaranteed]
    return reached.limit_bytes > job.cap_bytes and host.cap_bytes < host.wanted_bytes


def _on_its_way(job: JobMemory, reached: Reached | None) -> bool:
    """Whether the last steps of a job ran under another limit than its directive says."""
    return reached is not None and reached.number != job.number


def _fresh(seen: Seen | None, steps: Sequence[StepStats]) -> Sequence[StepStats]:
    return steps if seen is None else [step for step in steps if step.step > seen.step]
