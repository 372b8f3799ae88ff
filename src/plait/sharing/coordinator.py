"""One decision about the jobs of one GPU: a pure function of state, time, statistics and device.

    state, directives = decide(state, now_s, stats, device)

The simulator calls it with virtual time, the agent of a node with a monotonic clock: after steps, or ten times a
second. Nobody changes a state once it is decided, and `CODEC` writes it as JSON, so a restarted coordinator continues
from it, and recorded observations replay bit for bit:

    for seen in observations:
        state, directives = decide(state, seen.now_s, seen.stats, seen.device)

The duties of AntMan's coordinator are published (Xiao et al., OSDI 2020, section 3.3), its decision rules are not: the
laws are plait's own, see `share_law` and `memory_law`.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from plait.core.codec.values import Codec
from plait.core.errors import InputError
from plait.sharing import memory_law, quanta, share_law
from plait.sharing.directive import Action, Device, Directive, Reached, Sharer, StepStats
from plait.sharing.memory_law import JobMemory, MemoryState
from plait.sharing.share_law import DECAY
from plait.sharing.share_state import Guests, ShareState

#: Writes and reads states, observations and directives; raises `InputError` naming the field for anything else. Fields
#: that a reader does not know are ignored.
CODEC = Codec(strict=True, sparse=(Directive, Sharer, StepStats), error=InputError)

#: How much the quanta of a step count after each later step in what a random time falls into: a long one among 100
#: steps is not met often, and is remembered if it comes again.
MET_DECAY = 0.99
#: Quanta have grown where all of so many last steps had longer ones: at a small share 100 steps take half an hour.
GROWN = 3


@dataclass(frozen=True, slots=True)
class SeenSteps:
    """The last step of a job that was processed (-1: none), and its quanta of late.

    quantum_s     the longest, in seconds
    sum_s, sum_s2 sums of the longest of each step and of their squares, without the first: it loads kernels
    last_s        the longest of each of the last steps
    """

    step: int
    quantum_s: float
    sum_s: float = 0.0
    sum_s2: float = 0.0
    last_s: tuple[float, ...] = ()

    def met_s(self, now_s: float) -> float:
        """Seconds of the quantum that a random time falls into; `now_s`: the longest of the unfinished step."""
        if self.sum_s == 0.0:
            return max(self.quantum_s, now_s)
        late_s = min(self.last_s) if len(self.last_s) == GROWN else 0.0
        met_s = (self.sum_s2 + now_s * now_s) / (self.sum_s + now_s)
        return late_s if late_s > quanta.GROWN * met_s else met_s  # by less they only vary


@dataclass(frozen=True, slots=True)
class State:
    """The state of the coordinator of one GPU.

    guaranteed    the job whose speed `share` protects
    seen          of each job
    shares        of opportunistic jobs, as they were last; `share_number` counts their changes
    """

    guaranteed: str | None = None
    share: ShareState = field(default_factory=ShareState)
    memory: MemoryState = field(default_factory=MemoryState)
    seen: Mapping[str, SeenSteps] = field(default_factory=dict)
    shares: Mapping[str, float] = field(default_factory=dict)
    share_number: int = 0


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
    seen = {name: _seen(state.seen.get(name), fresh[name], job) for name, job in device.jobs.items()}
    memory = memory_law.after_steps(state.memory, now_s, fresh, device)
    host, others = device.guaranteed, device.opportunistic
    running = [name for name in others if memory.jobs[name].action is Action.RUN]
    owing = [name for name in others if owes(memory, name, device)]
    share = state.share if host == state.guaranteed else ShareState(chance=zlib.crc32((host or "").encode()))
    if host is None or not running:
        share = replace(share, guests=0)
        shares = share_law.divided(1.0, {name: device.jobs[name].weight for name in running})
    else:
        told = Guests(
            quanta_s=tuple(seen[name].quantum_s for name in running),
            weights=tuple(device.jobs[name].weight for name in running),
            acknowledged=_acknowledged(state.share_number, running, device),
            gated=device.gated,
            latency=device.jobs[host].latency,
            met_s=tuple(seen[name].met_s(device.jobs[name].quantum_s) for name in running),
            disturbed=bool(owing) or _on_its_way(memory.jobs[host], device.reached.get(host)),
        )
        share = share_law.decided(share, now_s, fresh[host], told)
        shares = dict(zip(running, share_law.shares(share, told), strict=True))
    shares |= share_law.divided(1.0, {name: device.jobs[name].weight for name in owing})
    number = state.share_number + (shares != state.shares)
    directives = {
        name: Directive(
            share=1.0 if name == host else shares.get(name, 0.0),
            memory_limit_bytes=None if len(device.jobs) == 1 and name == host else job.cap_bytes,
            limit_number=job.number,
            action=job.action,
            micro_batches=job.split,
            share_number=0 if name == host else number,
        )
        for name, job in memory.jobs.items()
    }
    return State(host, share, memory, seen, shares, number), directives


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


def _acknowledged(number: int, running: Sequence[str], device: Device) -> bool | None:
    """Whether all that run obey the shares with this number; None if one of them does not report that."""
    known = [device.reached[name].share_number if name in device.reached else None for name in running]
    if None in known:
        return None
    return all(one is not None and one >= number for one in known)


def _fresh(seen: SeenSteps | None, steps: Sequence[StepStats]) -> Sequence[StepStats]:
    return steps if seen is None else [step for step in steps if step.step > seen.step]


def _seen(before: SeenSteps | None, steps: Sequence[StepStats], job: Sharer) -> SeenSteps:
    """The last step of a job, and its quanta of late: each step makes those before it count less.

    The first one counts only until the second has ended: on an H100 its longest quantum took 157 ms, later ones 3 ms.
    """
    old = before or SeenSteps(-1, 0.0)
    number, quantum_s, sum_s, sum_s2, last_s = old.step, old.quantum_s, old.sum_s, old.sum_s2, old.last_s
    for step in steps:
        quantum_s = max(step.quantum_s, DECAY * quantum_s if sum_s > 0.0 else 0.0)
        if number >= 0:
            sum_s, sum_s2 = MET_DECAY * sum_s + step.quantum_s, MET_DECAY * sum_s2 + step.quantum_s**2
        number, last_s = step.step, (*last_s, step.quantum_s)[-GROWN:]
    return SeenSteps(number, max(quantum_s, job.quantum_s), sum_s, sum_s2, last_s)
