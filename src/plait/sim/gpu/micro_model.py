"""Kernels of a guaranteed job and of opportunistic jobs on one GPU, in virtual time.

The GPU serves kernels in the order of their launch and never preempts one, unless it slices time. Every job has one
kernel outstanding, so launches in the order of time are all there is to simulate. Packed: opportunistic jobs launch
whenever they can. LAW: at the shares of `plait.sharing.decide`, called ten times a second as on a node; jobs obey 5 ms
later, and report their quanta as the gate of a guest does. GATE: in addition only once the guaranteed job has been
outside its GPU stage for a millisecond.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from plait.core.errors import SimulationError
from plait.sharing.coordinator import Observation, State, decide
from plait.sharing.directive import Action, Device, Directive, Reached, Sharer, SpillReason, StepStats
from plait.sharing.memory_law import CONTEXT_BYTES, MARGIN_BYTES, Rung, next_rung
from plait.sharing.quanta import Quanta
from plait.sim.gpu.scenario import NEVER, NOISE, STEP_CV, Mode, Opportunistic, Pattern, Phase, Scenario, Variation

#: From the end of an opportunistic kernel to the launch of the next one.
LAUNCH_S = 10e-6
#: How often decisions are made, how long until they are obeyed, and how many steps are in a page.
TICK_S, OBEY_S, RING = 0.1, 0.005, 12
#: How long the guaranteed job has to be outside its GPU stage before the gate opens.
LINGER_S = 0.001
#: How much the pause after a quantum varies, as a part of it.
JITTER = 0.5
#: How much longer a step takes whose memory is all on the host, beyond 1: each access crosses the bus.
SPILL_COST = 4.0
#: Variation of a server's service.
SERVICE_CV = 0.02
#: Windows of a minute begin so many seconds apart.
WINDOW_S, APART_S = 60.0, 10.0
#: The name of the guaranteed job.
GUARANTEED = "guaranteed"


@dataclass(frozen=True, slots=True)
class Allocation:
    """What a step got: bytes reserved on the device, bytes on the host and why, bytes that could not be served."""

    reserved_bytes: int
    spill_bytes: int
    reason: SpillReason
    refused_bytes: int


@dataclass(slots=True)
class _Pool:
    limit_bytes: int
    number: int = 0
    reserved_bytes: int = 0


class SimDevice:
    """Memory pools of jobs with limits at step boundaries; a pool keeps what the last step used.

    Limits follow the published code of AntMan (adjust at a boundary, partial shrink, spill to a host pool).
    """

    def __init__(self, capacity_bytes: int, host_bytes: int = 64 << 30) -> None:
        """`host_bytes`: the most that each job may pin on the host."""
        self.capacity_bytes, self.host_bytes = capacity_bytes, host_bytes
        self._pools: dict[str, _Pool] = {}

    def bound(self, job: str, directive: Directive, live_bytes: int = 0) -> None:
        """Set the limit of a job at its boundary; its process starts with the first one.

        What is reserved is freed until the limit is reached; `live_bytes` are in use and stay: a shrink may be partial.
        """
        given = directive.memory_limit_bytes
        limit = self.capacity_bytes if given is None else given
        pool = self._pools.setdefault(job, _Pool(limit))
        pool.reserved_bytes = min(pool.reserved_bytes, max(limit, live_bytes))
        pool.limit_bytes, pool.number = max(limit, pool.reserved_bytes), directive.limit_number

    def step(self, job: str, demand_bytes: int, fragmented_bytes: int = 0) -> Allocation:
        """Allocate for a step: from the pool within the limit, then on the host, and what neither has is refused.

        `fragmented_bytes` of the cache are of no use until it is released.
        """
        pool = self._pools[job]
        reason, rung, spill = SpillReason.NONE, None, 0
        usable = pool.limit_bytes - fragmented_bytes
        while demand_bytes > usable + spill:
            rung = next_rung(rung, neighbours=False, can_split=False)
            if rung is Rung.RELEASE_CACHE:
                usable = pool.limit_bytes
            elif rung is Rung.SPILL:
                reason = SpillReason.OUT_OF_MEMORY
                spill = min(demand_bytes - usable, self.host_bytes)
            else:
                break
        served = min(demand_bytes, usable)
        pool.reserved_bytes = served
        return Allocation(served, spill, reason, demand_bytes - served - spill)

    def leave(self, job: str) -> None:
        """The process has ended."""
        self._pools.pop(job, None)

    def reached(self) -> dict[str, Reached]:
        """The limits as jobs report them."""
        return {job: Reached(pool.number, pool.limit_bytes) for job, pool in self._pools.items()}

    def verify(self) -> None:
        """Raise `SimulationError` if limits in force, contexts and margin exceed the capacity of a shared device."""
        if len(self._pools) < 2:
            return
        limits = sum(pool.limit_bytes for pool in self._pools.values())
        total = limits + len(self._pools) * CONTEXT_BYTES + MARGIN_BYTES
        if total > self.capacity_bytes:
            names = ", ".join(f"{job} {pool.limit_bytes:,}" for job, pool in self._pools.items())
            raise SimulationError(
                f"memory limits of a GPU with {self.capacity_bytes:,} bytes are over-committed by "
                f"{total - self.capacity_bytes:,}: {names}, {CONTEXT_BYTES:,} a context, {MARGIN_BYTES:,} margin"
            )


@dataclass(frozen=True, slots=True)
class Mark:
    """The end of a guaranteed step: seconds it took and took on the GPU, opportunistic GPU seconds so far, share.

    `alone_s`: the same step without others; `latency_s`: of a request, from its arrival.
    """

    end_s: float
    step_s: float
    alone_s: float
    gpu_s: float
    others_s: float
    share: float
    spill_bytes: int
    latency_s: float = 0.0


@dataclass
class Outcome:
    """What happened: the guaranteed steps; GPU seconds of each opportunistic job; what was decided.

    `shares` are (seconds, sum of opportunistic shares) at each decision that changed it.
    """

    marks: list[Mark] = field(default_factory=list)
    busy_s: dict[str, float] = field(default_factory=dict)
    shares: list[tuple[float, float]] = field(default_factory=list)
    observations: list[Observation] = field(default_factory=list)
    decisions: list[tuple[State, dict[str, Directive]]] = field(default_factory=list)
    state: State = field(default_factory=State)

    def slowdown(self, from_s: float = 0.0, until_s: float = math.inf) -> float:
        """Mean guaranteed step that ended between these times over the same steps without sharing; 1 without any."""
        marks = [m for m in self.marks if from_s < m.end_s <= until_s]
        return math.fsum(m.step_s for m in marks) / math.fsum(m.alone_s for m in marks) if marks else 1.0

    def worst_minute(self) -> float:
        """The largest slowdown of a minute; of all of it if it is shorter."""
        if not self.marks or self.marks[-1].end_s < WINDOW_S:
            return self.slowdown()
        slots: dict[int, list[float]] = {}
        for mark in self.marks:
            slot = slots.setdefault(int(mark.end_s // APART_S), [0.0, 0.0])
            slot[0], slot[1] = slot[0] + mark.step_s, slot[1] + mark.alone_s
        worst, width = 1.0, int(WINDOW_S / APART_S)
        for first in range(int(self.marks[-1].end_s // APART_S) - width + 1):
            window = [slots.get(slot, (0.0, 0.0)) for slot in range(first, first + width)]
            alone_s = sum(one[1] for one in window)
            if alone_s > 0.0:
                worst = max(worst, sum(one[0] for one in window) / alone_s)
        return worst

    def latency_s(self, part: float = 0.99) -> float:
        """The latency that this part of requests does not exceed, in seconds."""
        ranked = sorted(mark.latency_s for mark in self.marks)
        return ranked[min(int(part * len(ranked)), len(ranked) - 1)]

    def slack_share(self, from_s: float = 0.0) -> float:
        """Opportunistic GPU time after `from_s` over the time in which the guaranteed job left the GPU, 0 to 1."""
        marks = [m for m in self.marks if m.end_s > from_s]
        first, last = marks[0], marks[-1]
        others_s = last.others_s - first.others_s
        return others_s / (last.end_s - first.end_s - math.fsum(m.gpu_s for m in marks[1:]))


def run(scenario: Scenario, mode: Mode, seed: int, *, record: bool = False) -> Outcome:
    """Simulate; the same scenario, mode and seed give the same outcome to the bit.

    `record` keeps every observation and decision.
    """
    return _Gpu(scenario, mode, seed, record).run()


class _Guest:
    """An opportunistic job: when it launches its next kernel, and where it is in its step."""

    def __init__(self, job: Opportunistic, mode: Mode, seed: int) -> None:
        self.job, self.name = job, job.name
        self.sharer = Sharer(False, job.weight, job.persistent_bytes)
        chance = random.Random(f"{seed} {job.name}")
        self.noise, self.chance = chance.gauss, chance.random
        packed = mode is Mode.PACKED
        self.share = 1.0 if packed else 0.0
        self.directive = Directive() if packed else Directive(0.0, 0, action=Action.PAUSE)
        self.next_s = job.starts_s if packed else NEVER
        self.started, self.gone, self.waiting = packed, False, False  # waiting: at the gate
        self.at_boundary = True  # between two steps
        self.left, self.step, self.begun_s = job.quanta, 0, job.starts_s
        self.ended_s, self.last_s = -NEVER, 0.0  # of the last kernel: end and duration
        self.seconds, self.longest_s = Quanta(), 0.0  # of quanta; the longest of this step
        self.busy_s = self.before_s = 0.0  # on the GPU: in all, and before this step
        self.obeys: deque[tuple[float, int]] = deque([(-NEVER, 0)])  # when it acknowledged which change of shares

    def kernel_s(self) -> float:
        """Seconds of its next kernel on a free GPU."""
        job, (later_s, later_quantum_s) = self.job, self.job.later
        quantum_s = later_quantum_s if self.next_s >= later_s else job.quantum_s
        if job.rare and self.chance() * job.rare < 1.0:
            return job.rare_s
        if job.growth:
            quantum_s *= math.exp(job.growth * self.next_s)
        if job.spread:
            return quantum_s * math.exp(self.noise(0.0, job.spread))
        return quantum_s * self.noise(1.0, NOISE)

    def paced_s(self) -> float:
        """When it launches again at its share."""
        if self.share >= 1.0:
            return self.ended_s + LAUNCH_S
        pause_s = self.last_s * (1.0 / self.share - 1.0)
        return self.ended_s + LAUNCH_S + pause_s * (1.0 - JITTER + 2.0 * JITTER * self.chance())

    def schedule(self, now_s: float) -> None:
        """When it may launch again, at its present share."""
        self.waiting = False
        if (self.at_boundary and self.directive.action is not Action.RUN) or self.share <= 0.0:
            self.next_s = NEVER
        else:
            self.next_s = max(now_s, self.paced_s(), self.job.starts_s)

    def acknowledged(self, before_s: float) -> int:
        """The change of shares that it had acknowledged by this time."""
        while len(self.obeys) > 1 and self.obeys[1][0] <= before_s:
            self.obeys.popleft()
        return self.obeys[0][1]


class _Gpu:
    def __init__(self, scenario: Scenario, mode: Mode, seed: int, record: bool) -> None:
        self.scenario, self.mode, self.record, self.seed = scenario, mode, record, seed
        self.hardware, self.reporting = scenario.hardware, scenario.reporting
        self.memory = SimDevice(scenario.capacity_bytes)
        self.guests = [_Guest(job, mode, seed) for job in scenario.opportunistic]
        self.noise = random.Random(f"{seed} {GUARANTEED}").gauss
        self.chance = random.Random(f"{seed} reports").random
        self.outcome = Outcome()
        self.stats: dict[str, list[StepStats]] = {}
        self.reports: deque[StepStats] = deque()  # of the guaranteed job, not seen yet, and when they ended
        self.ended: deque[float] = deque()
        self.free_s = 0.0  # when the GPU has served all that was launched
        self.closed_until_s = 0.0  # the gate
        self.phase, self.kernel, self.step = 0, 0, 0
        self.present = bool(scenario.phases)
        self.next_s = scenario.starts_s if self.present else NEVER
        self.tick_s = NEVER if mode is Mode.PACKED else 0.0
        self.orders: dict[str, Directive] = {}  # given, and obeyed at `obeyed_s`
        self.obeyed_s = NEVER
        self.begun_s, self.stretch, self.spill_bytes = -1.0, 1.0, 0
        self.factors: Iterator[tuple[float, float]] | None = None
        self._new_step()
        self.clock_s = self.shadow_s = 0.0  # see `Variation`; when the last step would have ended without others
        self.kernel_end_s = 0.0  # of the guaranteed job's last kernel
        self.runner: _Guest | None = None  # who launched last, where time is sliced
        self.arrivals = random.Random(f"{seed} arrivals").expovariate
        self.arrived_s, self.waits = 0.0, False  # of the request that is served or next; whether it is next
        self.directive = Directive()
        self.promised = Sharer(guaranteed=True, latency=scenario.latency)

    def _new_step(self) -> None:
        self.gpu_s = self.alone_s = self.stage_s = 0.0
        self.stage_from_s: float | None = None
        self.gpu_factor, self.host_factor = next(self.factors) if self.factors is not None else (1.0, 1.0)

    def run(self) -> Outcome:
        """Process launches in order of time, the guaranteed job's first at equal times."""
        end_s, guests, gated = self.scenario.seconds, self.guests, self.mode is Mode.GATE
        while True:
            guest = guests[0] if len(guests) == 1 else min(guests, key=lambda guest: guest.next_s, default=None)
            first_s = min(self.next_s, self.tick_s, self.obeyed_s)
            if guest is not None and guest.next_s < first_s:
                if guest.next_s >= end_s:
                    break
                if guest.left == 0:
                    self._boundary(guest)
                elif gated and guest.next_s < self.closed_until_s:
                    guest.waiting = self.closed_until_s == NEVER
                    guest.next_s = self.closed_until_s
                else:
                    self._launch(guest)
            elif first_s >= end_s:
                break
            elif self.next_s <= first_s:
                self._guaranteed(self.next_s)
            elif self.obeyed_s <= self.tick_s:
                self._obeyed()
            else:
                self.tick_s += TICK_S
                self._decide(self.tick_s - TICK_S)
        self.outcome.busy_s = {guest.name: guest.busy_s for guest in guests}
        return self.outcome

    # -- opportunistic jobs ----------------------------------------------------------------------------

    def _launch(self, guest: _Guest) -> None:
        took_s, now_s = guest.kernel_s(), guest.next_s
        if self.hardware.slices:
            guest.ended_s = self._sliced(now_s, took_s)
            self.runner = guest
        else:
            self.free_s = guest.ended_s = max(now_s, self.free_s) + took_s
        whole_s, marked = guest.ended_s - now_s, self.present and self.reporting.stages
        inside = self.stage_from_s is not None or self.kernel_end_s > now_s
        left = self.stage_from_s is None and self.kernel_end_s <= guest.ended_s
        behind_s = self.kernel_end_s - now_s if marked and inside and left else 0.0
        alone = marked and not inside and self.next_s >= guest.ended_s
        before_s = max(self.next_s - now_s, 0.0) if marked and not (inside or alone) else 0.0
        crowded = len(self.guests) > 1
        guest.last_s, counts_s = guest.seconds.ended(whole_s, behind_s, alone=alone, before_s=before_s, crowded=crowded)
        guest.at_boundary = False
        guest.longest_s = max(guest.longest_s, counts_s)
        guest.busy_s += took_s
        guest.left -= 1
        guest.next_s = guest.ended_s if guest.left == 0 else guest.paced_s()

    def _sliced(self, now_s: float, took_s: float) -> float:
        """When a guest's kernel ends that takes turns with that of the guaranteed job, which ends later for it."""
        left_s = max(self.kernel_end_s - now_s, 0.0)
        if left_s <= 0.0:
            return now_s + took_s
        both_s = min(left_s, took_s)
        self.kernel_end_s += both_s
        self.next_s += both_s
        if self.stage_from_s is None:
            self.stage_s += both_s
        return now_s + both_s + took_s

    def _boundary(self, guest: _Guest) -> None:
        """Its step has ended: report it, take the last directive."""
        now_s, job = guest.next_s, guest.job
        guest.left, guest.at_boundary = job.quanta, True
        guest.seconds.step()
        own_s, guest.before_s = guest.busy_s - guest.before_s, guest.busy_s
        if self.mode is not Mode.PACKED:
            got = self.memory.step(job.name, job.wants_bytes)
            limit = self.memory.reached()[job.name].limit_bytes
            work = own_s * job.speed(limit)
            self.stats.setdefault(job.name, []).append(
                StepStats(
                    step=guest.step, step_s=now_s - guest.begun_s, stage_s={"gpu": own_s},
                    device_persistent_bytes=job.persistent_bytes, device_reserved_bytes=got.reserved_bytes,
                    quantum_s=guest.longest_s, work=work,
                )
            )  # fmt: skip
            self._apply(guest)
        guest.step, guest.begun_s, guest.longest_s = guest.step + 1, now_s, 0.0
        guest.schedule(now_s)

    def _apply(self, guest: _Guest) -> None:
        """At a boundary: apply the limit, and whether to continue."""
        if guest.directive.action in (Action.CHECKPOINT, Action.STOP):
            guest.gone = True
            guest.directive = Directive(0.0, 0, action=Action.PAUSE)
            self.memory.leave(guest.name)
            return
        live = guest.job.live_bytes if guest.step else 0
        self.memory.bound(guest.name, guest.directive, live)

    # -- the guaranteed job ----------------------------------------------------------------------------

    def _guaranteed(self, now_s: float) -> None:
        """Launch its next kernel; between two steps report first."""
        clock_s = self.clock_s
        if self.kernel == 0 and clock_s and (tick_s := math.ceil(now_s / clock_s - 1e-6) * clock_s) > now_s:
            self.next_s = tick_s
            return
        if self.kernel == 0 and not self._next_step(now_s):
            return
        phase = self.scenario.phases[self.phase]
        pattern = phase.pattern
        kernel = pattern.kernels[self.kernel]
        noise = NOISE if phase.variation is None else 0.0
        alone_s = kernel.gpu_s * self.gpu_factor
        if self.scenario.latency:
            alone_s *= max(self.noise(1.0, SERVICE_CV), 0.1)
        elif noise:
            alone_s *= self.noise(1.0, noise)
        took_s = alone_s * self.stretch
        hardware = self.hardware
        if hardware.interference and now_s >= hardware.interference_s:
            took_s *= 1.0 + hardware.interference * sum(guest.share for guest in self.guests)
        if hardware.slices:
            end_s = self._slices(now_s, took_s)
        else:
            end_s = self.free_s = max(now_s, self.free_s) + took_s
        self.kernel_end_s = end_s
        self.gpu_s += took_s
        host_s = kernel.host_s * self.host_factor * (self.noise(1.0, noise) if noise else 1.0)
        self.alone_s += alone_s + host_s
        if hardware.elsewhere and now_s >= hardware.interference_s:
            host_s *= 1.0 + hardware.elsewhere * sum(guest.share for guest in self.guests)
        if self.stage_from_s is None:
            self.stage_from_s = now_s
        if kernel.ends_stage:
            self.stage_s, self.stage_from_s = self.stage_s + end_s - self.stage_from_s, None
        self.next_s = end_s + host_s
        self.kernel = (self.kernel + 1) % len(pattern.kernels)
        if self.mode is Mode.GATE:
            self.closed_until_s = end_s + LINGER_S if kernel.ends_stage else NEVER
            if kernel.ends_stage:
                for guest in self.guests:
                    if guest.waiting:
                        guest.schedule(self.closed_until_s)

    def _slices(self, now_s: float, took_s: float) -> float:
        """When its kernel ends that takes turns with that of a guest, which ends later for it."""
        guest = self.runner
        if guest is None or guest.ended_s <= now_s:
            return now_s + took_s
        both_s = min(guest.ended_s - now_s, took_s)
        guest.ended_s += both_s
        if guest.next_s < NEVER:
            guest.next_s += both_s
        return now_s + took_s + both_s

    def _next_step(self, now_s: float) -> bool:
        """End a step and begin the next; whether there is one now."""
        if self.begun_s < 0:
            self.memory.bound(GUARANTEED, self.directive)
        else:
            self._end_step(now_s)
        if self.scenario.latency and not self._arrived(now_s):
            return False
        before, first = self.phase, self.begun_s < 0
        while now_s >= self.scenario.phases[self.phase].until_s:
            self.phase += 1
            if self.phase == len(self.scenario.phases):
                self.present, self.next_s = False, NEVER
                self.memory.leave(GUARANTEED)
                return False
        self._begin_step(now_s, first or before != self.phase)
        return True

    def _arrived(self, now_s: float) -> bool:
        """Whether a server has another request; if not, it waits for that."""
        if self.arrived_s > now_s:
            self.next_s = self.arrived_s
            return False
        return True

    def _begin_step(self, now_s: float, new_phase: bool) -> None:
        phase = self.scenario.phases[self.phase]
        if new_phase:
            varied = phase.variation
            self.clock_s = 0.0 if varied is None else varied.clock_s
            self.factors = None if varied is None else varied.factors(self.seed, phase.pattern.step_s)
        got = self.memory.step(GUARANTEED, phase.memory_bytes)
        self.spill_bytes = got.spill_bytes
        self.stretch = 1.0 + SPILL_COST * got.spill_bytes / max(phase.memory_bytes, 1)
        self.begun_s = now_s
        self._new_step()

    def _end_step(self, now_s: float) -> None:
        if self.scenario.latency and self.waits:
            self.waits = False
            return
        phase = self.scenario.phases[self.phase]
        if clock_s := self.clock_s:  # what it would have taken alone, from tick to tick
            until_s = math.ceil((self.shadow_s + self.alone_s) / clock_s - 1e-6) * clock_s
            self.alone_s, self.shadow_s = until_s - self.shadow_s, until_s
        step_s, others_s = now_s - self.begun_s, sum(guest.busy_s for guest in self.guests)
        share = sum(guest.share for guest in self.guests)
        latency_s = now_s - self.arrived_s if self.scenario.latency else 0.0
        mark = Mark(now_s, step_s, self.alone_s, self.gpu_s, others_s, share, self.spill_bytes, latency_s)
        self.outcome.marks.append(mark)
        if self.scenario.latency:
            self.arrived_s += self.arrivals(self.scenario.load / phase.pattern.step_s)
            self.waits = self.arrived_s > now_s
            self.begun_s = now_s
        if self.mode is Mode.PACKED:
            return
        said, pattern = self.reporting, phase.pattern
        self.reports.append(
            StepStats(
                step=self.step, step_s=step_s, stage_s={"gpu": self.stage_s} if said.stages else {},
                device_reserved_bytes=phase.memory_bytes - self.spill_bytes, host_spill_bytes=self.spill_bytes,
                phase=phase.label, ended_s=now_s if said.stamps else 0.0,
                returns=pattern.gaps if said.returns else 0, entries=pattern.stages if said.returns else 0,
            )
        )  # fmt: skip
        self.ended.append(now_s)
        self.step += 1
        self.memory.bound(GUARANTEED, self.directive)

    # -- decisions -------------------------------------------------------------------------------------

    def _seen(self, now_s: float) -> tuple[StepStats, ...]:
        """The steps of the guaranteed job that its page has by now, and that were not seen."""
        seen, before_s = [], now_s - self.reporting.late_s
        while self.reports and self.ended[0] <= before_s:
            self.ended.popleft()
            step = self.reports.popleft()
            if not self.reporting.lost or self.chance() >= self.reporting.lost:
                seen.append(step)
        return tuple(seen[-RING:])

    def _decide(self, now_s: float) -> None:
        here = [guest for guest in self.guests if not guest.gone and now_s >= guest.job.starts_s]
        jobs = {GUARANTEED: self.promised} if self.present and now_s >= self.scenario.starts_s else {}
        reached, heard_s = self.memory.reached(), now_s - self.reporting.late_s
        for guest in here:
            new = guest.step == 0 and guest.longest_s > 0.0
            jobs[guest.name] = replace(guest.sharer, quantum_s=guest.longest_s) if new else guest.sharer
            if self.reporting.acknowledged and guest.name in reached:
                reached[guest.name] = replace(reached[guest.name], share_number=guest.acknowledged(heard_s))
        device = Device(self.scenario.capacity_bytes, jobs, reached, gated=self.mode is Mode.GATE)
        stats, self.stats = {name: tuple(steps) for name, steps in self.stats.items()}, {}
        if seen := self._seen(now_s):
            stats[GUARANTEED] = seen
        outcome = self.outcome
        outcome.state, directives = decide(outcome.state, now_s, stats, device)
        if self.record:
            outcome.observations.append(Observation(now_s, stats, device))
            outcome.decisions.append((outcome.state, directives))
        if directives != self.orders:
            self.orders, self.obeyed_s = directives, now_s + OBEY_S

    def _obeyed(self) -> None:
        """Jobs have read what was decided."""
        now_s, self.obeyed_s = self.obeyed_s, NEVER
        self.directive = self.orders.get(GUARANTEED, self.directive)
        here = [guest for guest in self.guests if not guest.gone and guest.name in self.orders]
        for guest in here:
            self._tell(guest, self.orders[guest.name], now_s)
        share, shares = sum(guest.share for guest in here), self.outcome.shares
        if not shares or shares[-1][1] != share:
            shares.append((now_s, share))

    def _tell(self, guest: _Guest, directive: Directive, now_s: float) -> None:
        if directive == guest.directive:
            return
        changed = directive.share != guest.share
        guest.directive, guest.share = directive, directive.share
        guest.obeys.append((max(now_s, guest.ended_s), directive.share_number))  # after the kernel that runs
        if not guest.started:
            if directive.action is not Action.RUN:
                return
            guest.started = True
            guest.begun_s = now_s
        if guest.at_boundary:
            self._apply(guest)
        if guest.left > 0 and (changed or guest.at_boundary):
            guest.schedule(now_s)


def table_cell(
    pattern: Pattern,
    quantum_s: float,
    mode: Mode,
    seconds: float,
    seeds: Sequence[int],
    from_s: float = 0.0,
    cv: float = STEP_CV,
) -> tuple[float, float]:
    """Mean over seeds of the guaranteed slowdown, and of the part of the slack that one opportunistic job got.

    Steps vary by `cv`. The slowdown counts all of them, the part of the slack those that ended after `from_s`.
    """
    scenario = Scenario(
        (Phase(pattern, variation=Variation(cv=cv)),), (Opportunistic("opportunistic", quantum_s),), seconds
    )
    done = [run(scenario, mode, seed) for seed in seeds]
    slowdown = sum(outcome.slowdown() for outcome in done) / len(done)
    return slowdown, sum(outcome.slack_share(from_s) for outcome in done) / len(done)
