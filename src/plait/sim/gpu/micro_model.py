"""Kernels of a guaranteed job and of opportunistic jobs on one GPU, in virtual time.

The GPU serves kernels in the order of their launch and never preempts one. Every job has one kernel outstanding, so
launches in the order of time are all there is to simulate. Packed: opportunistic jobs launch whenever they can. LAW: at
the shares of `plait.sharing.decide`, called at the end of every guaranteed step (ten times a second without one).
GATE: in addition only while the guaranteed job is outside its GPU stage.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from plait.sharing import Action, Device, Directive, Observation, Sharer, StepStats, decide
from plait.sim.gpu.memory import SimDevice
from plait.sim.gpu.outcome import Mark, Outcome
from plait.sim.gpu.patterns import Pattern
from plait.sim.gpu.scenario import NEVER, Mode, Opportunistic, Phase, Scenario

#: Standard deviation of every duration, as a part of it.
NOISE = 0.01
#: From the end of an opportunistic kernel to the launch of the next one.
LAUNCH_S = 10e-6
#: How often decisions are made without a guaranteed job.
TICK_S = 0.1
#: How much longer a step takes whose memory is all on the host, beside 1: each access crosses the bus.
SPILL_COST = 4.0
#: The name of the guaranteed job.
GUARANTEED = "guaranteed"
PROMISED = Sharer(guaranteed=True)


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
        self.noise = random.Random(f"{seed} {job.name}").gauss
        packed = mode is Mode.PACKED
        self.share = 1.0 if packed else 0.0
        self.directive = Directive() if packed else Directive(0.0, 0, action=Action.PAUSE)
        self.next_s = job.starts_s if packed else NEVER
        self.started, self.gone, self.waiting = packed, False, False  # waiting: at the gate
        self.at_boundary = True  # between two steps
        self.left, self.step, self.begun_s = job.quanta, 0, job.starts_s
        self.ended_s, self.last_s = -NEVER, 0.0  # of the last kernel: end and duration
        self.busy_s = self.before_s = 0.0  # on the GPU: in all, and before this step

    def schedule(self, now_s: float) -> None:
        """When it may launch again, at its present share."""
        self.waiting = False
        if (self.at_boundary and self.directive.action is not Action.RUN) or self.share <= 0.0:
            self.next_s = NEVER
        else:
            paced_s = self.ended_s + LAUNCH_S + self.last_s * (1.0 / self.share - 1.0)
            self.next_s = max(now_s, paced_s, self.job.starts_s)


class _Gpu:
    def __init__(self, scenario: Scenario, mode: Mode, seed: int, record: bool) -> None:
        self.scenario, self.mode, self.record = scenario, mode, record
        self.memory = SimDevice(scenario.capacity_bytes)
        self.guests = [_Guest(job, mode, seed) for job in scenario.opportunistic]
        self.noise = random.Random(f"{seed} {GUARANTEED}").gauss
        self.outcome = Outcome()
        self.stats: dict[str, list[StepStats]] = {}
        self.free_s = 0.0  # when the GPU has served all that was launched
        self.closed_until_s = 0.0  # the gate
        self.phase, self.kernel, self.step = 0, 0, 0
        self.present = bool(scenario.phases)
        self.next_s = scenario.starts_s if self.present else NEVER
        self.tick_s = NEVER if mode is Mode.PACKED or (self.present and scenario.starts_s == 0.0) else 0.0
        self.begun_s, self.gpu_s, self.spill_bytes, self.stretch = -1.0, 0.0, 0, 1.0
        self.directive = Directive()

    def run(self) -> Outcome:
        """Process launches in order of time, the guaranteed job's first at equal times."""
        end_s, guests, gated = self.scenario.seconds, self.guests, self.mode is Mode.GATE
        while True:
            guest = guests[0] if len(guests) == 1 else min(guests, key=_next_s, default=None)
            first_s = min(self.next_s, self.tick_s)
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
            elif self.next_s <= self.tick_s:
                self._guaranteed(self.next_s)
            else:
                self.tick_s += TICK_S
                self._decide(self.tick_s - TICK_S)
        self.outcome.busy_s = {guest.name: guest.busy_s for guest in guests}
        return self.outcome

    # -- opportunistic jobs ----------------------------------------------------------------------------

    def _launch(self, guest: _Guest) -> None:
        start_s = guest.next_s if guest.next_s > self.free_s else self.free_s
        took_s = guest.job.quantum_s * guest.noise(1.0, NOISE)
        self.free_s = guest.ended_s = start_s + took_s
        guest.last_s, guest.at_boundary = took_s, False
        guest.busy_s += took_s
        guest.left -= 1
        if guest.left == 0:
            guest.next_s = guest.ended_s
        else:
            guest.next_s = guest.ended_s + LAUNCH_S + took_s * (1.0 / guest.share - 1.0)

    def _boundary(self, guest: _Guest) -> None:
        """Its step has ended: report it, take the last directive."""
        now_s, job = guest.next_s, guest.job
        guest.left, guest.at_boundary = job.quanta, True
        own_s, guest.before_s = guest.busy_s - guest.before_s, guest.busy_s
        if self.mode is not Mode.PACKED:
            got = self.memory.step(job.name, job.wants_bytes)
            limit = self.memory.reached()[job.name].limit_bytes
            work = own_s * job.speed(limit)
            self.stats.setdefault(job.name, []).append(
                StepStats(
                    step=guest.step, step_s=now_s - guest.begun_s, stage_s={"gpu": own_s},
                    device_persistent_bytes=job.persistent_bytes, device_reserved_bytes=got.reserved_bytes,
                    quantum_s=job.quantum_s, work=work,
                )
            )  # fmt: skip
            self._obey(guest)
        guest.step, guest.begun_s = guest.step + 1, now_s
        guest.schedule(now_s)

    def _obey(self, guest: _Guest) -> None:
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
        """Launch its next kernel; between two steps decide first."""
        if self.kernel == 0 and not self._next_step(now_s):
            return
        pattern = self.scenario.phases[self.phase].pattern
        kernel = pattern.kernels[self.kernel]
        start_s = now_s if now_s > self.free_s else self.free_s
        took_s = kernel.gpu_s * self.stretch * self.noise(1.0, NOISE)
        self.free_s = start_s + took_s
        self.gpu_s += took_s
        self.next_s = self.free_s + kernel.host_s * self.noise(1.0, NOISE)
        self.kernel = (self.kernel + 1) % len(pattern.kernels)
        if self.mode is Mode.GATE:
            self.closed_until_s = self.free_s if kernel.ends_stage else NEVER
            if kernel.ends_stage:
                for guest in self.guests:
                    if guest.waiting:
                        guest.schedule(self.free_s)

    def _next_step(self, now_s: float) -> bool:
        """End a step and begin the next; whether there is one."""
        if self.begun_s < 0:
            self.tick_s = NEVER
            self._decide(now_s)
            self.memory.bound(GUARANTEED, self.directive)
        else:
            self._end_step(now_s)
        while now_s >= self.scenario.phases[self.phase].until_s:
            self.phase += 1
            if self.phase == len(self.scenario.phases):
                self.present, self.next_s = False, NEVER
                self.memory.leave(GUARANTEED)
                self.tick_s = NEVER if self.mode is Mode.PACKED else now_s
                return False
        demand = self.scenario.phases[self.phase].memory_bytes
        got = self.memory.step(GUARANTEED, demand)
        self.spill_bytes, self.stretch = got.spill_bytes, 1.0 + SPILL_COST * got.spill_bytes / max(demand, 1)
        self.begun_s, self.gpu_s = now_s, 0.0
        return True

    def _end_step(self, now_s: float) -> None:
        phase = self.scenario.phases[self.phase]
        step_s, others_s = now_s - self.begun_s, sum(guest.busy_s for guest in self.guests)
        share = sum(guest.share for guest in self.guests)
        alone_s = phase.pattern.step_s
        self.outcome.marks.append(Mark(now_s, step_s, alone_s, self.gpu_s, others_s, share, self.spill_bytes))
        if self.mode is Mode.PACKED:
            return
        self.stats[GUARANTEED] = [
            StepStats(
                step=self.step, step_s=step_s, stage_s={"gpu": self.gpu_s},
                device_reserved_bytes=phase.memory_bytes - self.spill_bytes, host_spill_bytes=self.spill_bytes,
                phase=phase.label,
            )
        ]  # fmt: skip
        self.step += 1
        self._decide(now_s)
        self.memory.bound(GUARANTEED, self.directive)

    # -- decisions -------------------------------------------------------------------------------------

    def _decide(self, now_s: float) -> None:
        if self.mode is Mode.PACKED:
            return
        jobs = {GUARANTEED: PROMISED} if self.present and now_s >= self.scenario.starts_s else {}
        here = [guest for guest in self.guests if not guest.gone and now_s >= guest.job.starts_s]
        for guest in here:
            jobs[guest.name] = guest.sharer
        device = Device(self.scenario.capacity_bytes, jobs, self.memory.reached())
        stats, self.stats = {name: tuple(steps) for name, steps in self.stats.items()}, {}
        outcome, before = self.outcome, self.outcome.state
        outcome.state, directives = decide(before, now_s, stats, device)
        if self.record:
            outcome.observations.append(Observation(now_s, stats, device))
            outcome.decisions.append((outcome.state, directives))
        self.directive = directives.get(GUARANTEED, self.directive)
        for guest in here:
            self._tell(guest, directives[guest.name], now_s)
        share = sum(guest.share for guest in here)
        if not outcome.shares or outcome.shares[-1][1] != share:
            outcome.shares.append((now_s, share))

    def _tell(self, guest: _Guest, directive: Directive, now_s: float) -> None:
        if directive == guest.directive:
            return
        guest.directive, guest.share = directive, directive.share
        if not guest.started:
            if directive.action is not Action.RUN:
                return
            guest.started = True
            guest.begun_s = now_s
        if guest.at_boundary:
            self._obey(guest)
        if guest.left > 0:
            guest.schedule(now_s)


def _next_s(guest: _Guest) -> float:
    return guest.next_s


def table_cell(
    pattern: Pattern, quantum_s: float, mode: Mode, seconds: float, seeds: Sequence[int], from_s: float = 0.0
) -> tuple[float, float]:
    """Mean over seeds of the guaranteed slowdown, and of the part of the slack that one opportunistic job got.

    The slowdown counts all steps, the part of the slack those that ended after `from_s`.
    """
    scenario = Scenario((Phase(pattern),), (Opportunistic("opportunistic", quantum_s),), seconds)
    done = [run(scenario, mode, seed) for seed in seeds]
    slowdown = sum(outcome.slowdown() for outcome in done) / len(done)
    return slowdown, sum(outcome.slack_share(from_s) for outcome in done) / len(done)
