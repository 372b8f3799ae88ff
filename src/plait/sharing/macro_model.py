"""Cost of sharing for a guaranteed job and gain for opportunistic ones over minutes, without simulating kernels.

    estimate(Load(step_s=0.2, gpu_s=0.1), quantum_s=0.004)     # slowdown 1.009, 0.93 of the slack

The micro model (`plait.sim.gpu`) runs jobs, memory and decisions kernel by kernel. For traces of clusters this one
keeps only what makes the result:

* A quantum costs what hangs over. One that starts with time x left in a gap delays the guaranteed job by
  max(0, q - x). One that waits for a kernel starts with the gap behind it or, between two kernels without a gap, costs
  all of q. The next one starts after a pause of q (1/share - 1), so its place follows from the last one's: at some
  shares quanta lock into gaps, at others they hit the next kernel. An average over places would miss both.
* The law judges windows, not averages: ten steps and five quanta exceed 1 + eps or do not. Where gaps are shorter
  than q a few quanta decide, and the share saws between halving, growing and 0.

So positions of quanta are followed through the windows of the law itself (`share_law.window_ratio`, `after_window`).
Steps without a quantum, quanta that fit into one gap, and a share that has settled at 1 are passed over at once.
Durations vary by the same 1 % as in the micro model, by a fixed sequence of numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import count
from statistics import NormalDist

from plait.core.errors import InputError
from plait.sharing import share_law
from plait.sharing.share_law import ShareState, Window

#: Spread of durations, and from the end of an opportunistic kernel to the launch of the next: those of the micro model.
NOISE, LAUNCH_S = 0.01, 10e-6
#: Windows that are followed at most. What comes later is as it was between the first of them and the last.
WARM, MOST_WINDOWS = 100, 250
#: Sequences of numbers whose mean is taken where windows are so long that fewer of them pass.
SEQUENCES = 3
#: Quanta at the end of a gap that are not passed over.
STRIDE = 3


@dataclass(frozen=True, slots=True)
class Load:
    """A step of a guaranteed job that is alone.

    step_s  seconds of the step
    gpu_s   of those on the GPU, evenly in `gaps` kernels that the job waits for
    gaps    how many times it waits for the GPU
    stages  how many of the gaps have host work in them, evenly; the gate closes the others
    """

    step_s: float
    gpu_s: float
    gaps: int = 1
    stages: int = 1

    def __post_init__(self) -> None:
        """Check the step."""
        if not (0.0 <= self.gpu_s <= self.step_s and 0.0 < self.step_s < math.inf):
            raise InputError(f"gpu_s must be 0 to step_s, got gpu_s={self.gpu_s} and step_s={self.step_s}")
        if not (1 <= self.stages <= self.gaps and self.gaps % self.stages == 0):
            raise InputError(f"gaps must be a multiple of stages, got gaps={self.gaps} and stages={self.stages}")


@dataclass(frozen=True, slots=True)
class Estimate:
    """Mean guaranteed slowdown, and the part of the slack in which opportunistic jobs together had the GPU, 0 to 1."""

    slowdown: float
    slack_share: float


@lru_cache(maxsize=65_536)
def estimate(load: Load, quantum_s: float, *, gated: bool = False, guests: int = 1, seconds: float = 600.0) -> Estimate:
    """Result of the law for a guaranteed job and `guests` opportunistic ones on a GPU, `seconds` from a cold start.

    quantum_s  opportunistic GPU work that starts without a look at the share, in seconds
    gated      opportunistic work starts only outside the GPU stage of the guaranteed job

    A pure function. Within 15 % of the micro model in 63 of 71 patterns, and in 38 of the 39 in which a guest gets a
    fifth of the slack or more: docs/explanation/sharing-law.md lists the others.
    """
    if not (quantum_s > 0.0 and guests >= 1 and seconds > 0.0):
        raise InputError(
            f"quantum_s, guests and seconds must be > 0, got {quantum_s}, {guests} and {seconds}"
        )  # fmt: skip
    if load.gpu_s == load.step_s:
        return Estimate(1.0, 0.0)  # no slack, so no part of it
    runs = []
    for sequence in range(SEQUENCES):
        run = _Run(_Gpu(load, quantum_s, gated, guests, sequence))
        runs.append(run.outcome(seconds))
        if run.followed >= MOST_WINDOWS or run.settled:
            break
    return Estimate(
        math.fsum(r.slowdown for r in runs) / len(runs), math.fsum(r.slack_share for r in runs) / len(runs)
    )  # fmt: skip


class _Gpu:
    """Where opportunistic quanta fall in the steps of the guaranteed job."""

    def __init__(self, load: Load, quantum_s: float, gated: bool, guests: int, sequence: int) -> None:
        gaps = load.stages if gated else load.gaps
        self.load, self.quantum_s, self.step_s = load, quantum_s, load.step_s
        self.stages, self.kernels = load.stages, gaps // load.stages
        self.kernel_s, self.gap_s = load.gpu_s / gaps, (load.step_s - load.gpu_s) / load.stages
        self.spread_s = NOISE * math.sqrt(gaps * self.kernel_s**2 + load.stages * self.gap_s**2)
        self.noise = _normal(sequence)
        self.next_s = [0.0] * guests  # of each guest: its next launch, from the beginning of the next step
        self.busy_s = 0.0

    def unshared_s(self, steps: int) -> float:
        """Seconds of the next steps without an opportunistic launch."""
        took_s = self.step_s * steps + self.spread_s * math.sqrt(steps) * next(self.noise)
        self.next_s = [max(at_s - took_s, 0.0) for at_s in self.next_s]
        return took_s

    def idle_steps(self) -> int:
        """Number of next steps without an opportunistic launch, less one to be sure."""
        return max(int(min(self.next_s) / self.step_s) - 1, 0)

    def step(self, share: float) -> float:
        """Seconds of the next step with opportunistic jobs at a sum of shares."""
        now_s, noise = 0.0, self.noise
        for _ in range(self.stages):
            for _ in range(self.kernels - 1):
                now_s += self.kernel_s * (1.0 + NOISE * next(noise))
                now_s = self._gap(now_s, now_s, share)
            now_s += self.kernel_s * (1.0 + NOISE * next(noise))
            now_s = self._gap(now_s, now_s + self.gap_s * (1.0 + NOISE * next(noise)), share)
        self.next_s = [at_s - now_s for at_s in self.next_s]
        return now_s

    def _gap(self, free_s: float, until_s: float, share: float) -> float:
        """When the guaranteed job gets the GPU that it left at `free_s` and wants at `until_s`."""
        due, several = self.next_s, len(self.next_s) > 1
        pause = len(due) / share - 1.0
        who = 0
        while True:
            if several:
                who = min(range(len(due)), key=due.__getitem__)
            if due[who] >= until_s:
                return until_s if until_s > free_s else free_s
            start_s = due[who] if due[who] > free_s else free_s
            quanta = 1
            if not several:
                quanta = int((until_s - start_s) / (self.quantum_s * (1.0 + pause) + LAUNCH_S)) - STRIDE
                quanta = max(quanta, 1)
            took_s = self.quantum_s * (quanta + NOISE * math.sqrt(quanta) * next(self.noise))
            self.busy_s += took_s
            due[who] = start_s + took_s * (1.0 + pause) + quanta * LAUNCH_S
            free_s = start_s + took_s if quanta == 1 else free_s


class _Run:
    """The law on such a GPU, a window at a time."""

    def __init__(self, gpu: _Gpu) -> None:
        self.gpu, self.state = gpu, ShareState()
        self.now_s, self.steps = 0.0, 0.0
        self.followed, self.settled = 0, False

    def outcome(self, seconds: float) -> Estimate:
        """Over `seconds`; those that are not followed are as the last ones were."""
        usual, whole = [0.0, 0.0, 0.0], 0  # seconds, steps and opportunistic GPU seconds that later ones are like
        while self.now_s < seconds and self.followed < MOST_WINDOWS and not self.settled:
            pausing, before = self.state.measuring, (self.now_s, self.steps, self.gpu.busy_s)
            self._advance()
            whole = whole + 1 if self.state.share == 1.0 else 0
            if whole == 0 and self.followed <= WARM:
                usual = [0.0, 0.0, 0.0]
            elif not (whole and pausing):
                new = (self.now_s, self.steps, self.gpu.busy_s)
                usual = [total + n - b for total, n, b in zip(usual, new, before, strict=True)]
            self.settled = whole > share_law.FORGOTTEN and self.state.bad is None
        if self.now_s < seconds:
            self._extend(seconds, *usual)
        gpu_s = self.steps * self.gpu.load.gpu_s
        slowdown = self.now_s / (self.steps * self.gpu.step_s)
        return Estimate(slowdown, min(self.gpu.busy_s / (self.now_s - gpu_s), 1.0))

    def _extend(self, seconds: float, usual_s: float, steps: float, busy_s: float) -> None:
        """Go on as in the usual seconds; in those of a settled law the pauses that measure b0 are missing."""
        factor = (seconds - self.now_s) / usual_s
        if self.settled:
            again_s = max(share_law.AGAIN_S, share_law.AGAIN_AFTER_STEPS * self.gpu.step_s)
            busy_s *= again_s / (again_s + (share_law.AGAIN_STEPS + 1) * self.gpu.step_s)
        self.steps += factor * steps
        self.gpu.busy_s += factor * busy_s
        self.now_s = seconds

    def _advance(self) -> None:
        """To the next decision: the end of a measurement of b0, or of a window."""
        state, gpu = self.state, self.gpu
        if state.settling:
            self._pass(1)
            state = replace(state, settling=False)
        if state.measuring:
            steps = share_law.FIRST_STEPS if state.baseline_s is None else share_law.AGAIN_STEPS
            took_s = gpu.unshared_s(steps)
            self._count(steps, took_s)
            window = Window(steps - 1, took_s, took_s * (steps - 1) / steps)
            self.state = share_law.after_measuring(
                replace(state, window=window), self.now_s, took_s / steps, took_s / steps
            )
            return
        self.followed += 1
        window, ratio = self._window(state)
        steps = state.measured + window.steps
        if ratio is None:
            self.state = replace(state, measuring=True, settling=True)
            return
        judged = share_law.after_window(state, self.now_s, ratio)
        self.state = replace(judged, measured=steps, settling=judged.share != state.share)

    def _window(self, state: ShareState) -> tuple[Window, float | None]:
        """Steps until the law judges, and what it sees; None if b0 is to be measured first."""
        window, gpu = Window(), self.gpu
        baseline_s = gpu.step_s if state.baseline_s is None else state.baseline_s
        paced_s = gpu.quantum_s / max(state.share, share_law.FLOOR)
        least_s = min(share_law.LONGEST_WINDOW_S, share_law.WINDOW_QUANTA * paced_s)
        while True:
            steps = 1
            if window.steps >= share_law.LAST:
                missing = max(share_law.WINDOW_STEPS - window.steps, int((least_s - window.seconds) / gpu.step_s))
                idle = missing if state.share == 0.0 else gpu.idle_steps()
                steps = max(min(idle, missing), 1)
            took_s = self._pass(steps)
            window = window.add(took_s, took_s / steps)
            if steps > 1:
                window = replace(
                    window, steps=window.steps + steps - 1, total_s=window.total_s + took_s * (1 - 1 / steps)
                )  # fmt: skip
            due = self.now_s - state.measured_at_s >= share_law.AGAIN_S
            if due and state.measured + window.steps >= share_law.AGAIN_AFTER_STEPS:
                return window, None
            ratio = share_law.window_ratio(window, baseline_s, paced_s)
            if ratio is not None:
                return window, ratio

    def _pass(self, steps: int) -> float:
        """Seconds of the next steps: of one, or of several without opportunistic launches."""
        share = self.state.allowed
        took_s = self.gpu.step(share) if share > 0.0 and steps == 1 else self.gpu.unshared_s(steps)
        self._count(steps, took_s)
        return took_s

    def _count(self, steps: int, took_s: float) -> None:
        self.steps += steps
        self.now_s += took_s


def _normal(sequence: int) -> Iterator[float]:
    """Numbers that are distributed normally, without end: quantiles in the order of a linear congruential generator."""
    state = 12_345 + 1_000_003 * sequence
    for _ in count():
        state = (state * 6_364_136_223_846_793_005 + 1_442_695_040_888_963_407) & (2**64 - 1)
        yield _QUANTILES[state >> 54]


_QUANTILES = tuple(NormalDist().inv_cdf((i + 0.5) / 1024) for i in range(1024))
