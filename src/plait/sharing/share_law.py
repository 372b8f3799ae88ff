"""The part of a GPU that opportunistic jobs get together, so that the guaranteed job keeps its speed.

One law a GPU, for the sum of all opportunistic shares: additive increase, multiplicative decrease on the ratio r of the
mean step of the guaranteed job to b0, its step while opportunistic jobs pause:

    r > 1 + eps      the share is halved; below FLOOR it becomes 0 for PROBE_S, twice as long each time
    r < 1 + 3/4 eps  the share grows by ADD, more slowly below a level that was too much before
    between          it stays

The mean counts, not the median: behind long opportunistic kernels most steps are untouched and a few are ruined. The
median of three steps only closes a window early, so that a change is answered within three steps.

The feedback law of AntMan (Xiao et al., OSDI 2020) was never published; this one is plait's own. Its numbers come from
the micro model of one GPU in virtual time (`plait.sim.gpu`), where simpler ones miss the goal:

* At the quantum rule q = eps b0 / n sharing costs eps / 2. With the quiet limit there, growing would be a coin flip at
  every window, so it lies at 3/4 eps.
* Five steps with 1 % noise leave b0 uncertain by half a per cent, a quarter of eps. The first measurement takes 20
  steps; later ones take 5 and are averaged with it as long as they agree within eps.
* A window that exceeds the limit by less than eps / 2 becomes twice as long before the share is halved.
* A window that was closed early is judged by its last three steps: the mean of a long one hides the change.
* b0 is measured again after 60 s, but not before 100 steps: steps of ten seconds would leave little time to share.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from plait.sharing.directive import StepStats

#: Allowed slowdown of the guaranteed job.
EPS = 0.02
#: Below 1 + QUIET * EPS the share grows; above 1 + SURE * EPS one window is enough to cut it.
QUIET, SURE = 0.75, 1.5
ADD, CUT, FLOOR = 0.05, 0.5, 0.02
#: Growth below a level that was too much: half of the way to CAUTION times it, at least LEAST_ADD.
LEAST_ADD, CAUTION = 0.005, 0.9
#: Seconds without opportunistic work after the floor was too much.
PROBE_S, LONGEST_PROBE_S = 1.0, 64.0
#: Quiet windows after which the pause is short again, and after which a level that was too much is forgotten.
CALM, FORGOTTEN = 10, 20
#: A window: steps, most seconds, opportunistic quanta in it; steps that close it early, by EARLY * EPS.
WINDOW_STEPS, LONGEST_WINDOW_S, WINDOW_QUANTA, LAST, EARLY = 10, 10.0, 5, 3, 3
#: Measuring b0: steps at first and later, how often, and how many steps the average keeps.
FIRST_STEPS, AGAIN_STEPS, AGAIN_S, AGAIN_AFTER_STEPS, KEPT_STEPS = 20, 5, 60.0, 100, 50
#: Another phase: so many steps in a row that are longer or shorter by this part.
SHIFT, SHIFTED_STEPS = 0.2, 10


@dataclass(frozen=True, slots=True)
class Window:
    """Counted steps since the last judgement: how many, their seconds (raw, and a unit of work), the last three."""

    steps: int = 0
    seconds: float = 0.0
    total_s: float = 0.0
    last_s: tuple[float, ...] = ()

    def add(self, step_s: float, value_s: float) -> Window:
        """The window with one step more."""
        last = (*self.last_s, value_s)[-LAST:]
        return Window(self.steps + 1, self.seconds + step_s, self.total_s + value_s, last)


@dataclass(frozen=True, slots=True)
class ShareState:
    """The state of the law. Seconds of a step are a unit of work if the job states its work.

    share        sum of opportunistic shares while b0 is not being measured
    measuring    whether opportunistic jobs pause so that b0 can be measured
    settling     the next step still contains the last change and is not counted
    baseline_s   b0; None before its first measurement
    samples      steps that b0 is the mean of
    measured     steps since b0 was measured, and `measured_at_s`
    kind         phase, operations, and whether work is stated: of the last step
    shifted      steps in a row that are longer (shorter: negative) than b0 by a fifth
    bad          share that was too much; None if unknown or forgotten
    resume_at_s  when the share may leave 0
    probe_s      how long it stays at 0 next time
    quiet        windows in which the share could grow, since the last cut
    """

    share: float = 0.0
    measuring: bool = True
    settling: bool = True
    baseline_s: float | None = None
    samples: int = 0
    measured: int = 0
    measured_at_s: float = 0.0
    kind: tuple[str, int, bool] | None = None
    shifted: int = 0
    window: Window = Window()
    bad: float | None = None
    resume_at_s: float = 0.0
    probe_s: float = PROBE_S
    quiet: int = 0

    @property
    def allowed(self) -> float:
        """The sum of shares that opportunistic jobs have now, 0 to 1."""
        return 0.0 if self.measuring else self.share


def after_step(state: ShareState, now_s: float, step: StepStats, quantum_s: float) -> ShareState:
    """The state after the step `step` of the guaranteed job at `now_s`.

    `quantum_s`: the longest GPU work that opportunistic jobs start without looking at their share, in seconds.
    """
    kind = (step.phase, step.operations, step.work > 0)
    if kind != state.kind:
        known = state.kind is not None
        return replace(_measure_again(state) if known else state, kind=kind, settling=known)
    if step.left_out or state.settling:
        return replace(state, settling=False)
    value_s = step.step_s / step.work if step.work > 0 else step.step_s
    if state.measuring or state.baseline_s is None:
        return after_measuring(state, now_s, step.step_s, value_s)
    shifted = _shifted(state, value_s / state.baseline_s)
    if abs(shifted) >= SHIFTED_STEPS:
        return _measure_again(state)
    window, measured = state.window.add(step.step_s, value_s), state.measured + 1
    if now_s - state.measured_at_s >= AGAIN_S and measured >= AGAIN_AFTER_STEPS:
        return replace(state, measuring=True, settling=True, window=Window(), shifted=0)
    ratio = window_ratio(window, state.baseline_s, quantum_s / max(state.share, FLOOR))
    if ratio is None:
        return replace(state, window=window, shifted=shifted, measured=measured)
    judged = after_window(state, now_s, ratio)
    return replace(
        judged, window=Window(), shifted=shifted, measured=measured, settling=judged.share != state.share
    )  # fmt: skip


def divided(total: float, weights: Mapping[str, float]) -> dict[str, float]:
    """A sum of shares by weight.

    >>> divided(0.75, {"a": 1.0, "b": 2.0})
    {'a': 0.25, 'b': 0.5}
    """
    whole = sum(weights.values())
    return {name: min(total * weight / whole, 1.0) for name, weight in weights.items()}


def _measure_again(state: ShareState) -> ShareState:
    """Start another phase: b0 and the share that was too much are unknown."""
    return ShareState(share=state.share, kind=state.kind)


def after_measuring(state: ShareState, now_s: float, step_s: float, value_s: float) -> ShareState:
    """The state after one more step of a measurement of b0, `step_s` long (`value_s` per unit of work) at `now_s`."""
    window, old_s = state.window.add(step_s, value_s), state.baseline_s
    if window.steps < (FIRST_STEPS if old_s is None else AGAIN_STEPS):
        return replace(state, window=window)
    steps, baseline_s = window.steps, window.total_s / window.steps
    if old_s is not None and abs(baseline_s / old_s - 1.0) < EPS:
        steps += state.samples
        baseline_s = (old_s * state.samples + window.total_s) / steps
    return replace(
        state, measuring=False, settling=True, baseline_s=baseline_s, samples=min(steps, KEPT_STEPS), measured=0,
        measured_at_s=now_s, window=Window(), shifted=0,
    )  # fmt: skip


def _shifted(state: ShareState, ratio: float) -> int:
    if ratio >= 1.0 + SHIFT:
        return max(state.shifted, 0) + 1
    return min(state.shifted, 0) - 1 if ratio <= 1.0 - SHIFT else 0


def window_ratio(window: Window, baseline_s: float, paced_s: float) -> float | None:
    """How much slower than b0 the window is; None while it is open. `paced_s`: from one quantum to the next."""
    if window.steps >= LAST and sorted(window.last_s)[1] > (1.0 + EARLY * EPS) * baseline_s:
        return sum(window.last_s) / LAST / baseline_s
    if window.steps < WINDOW_STEPS or window.seconds < min(LONGEST_WINDOW_S, WINDOW_QUANTA * paced_s):
        return None
    ratio = window.total_s / window.steps / baseline_s
    unsure = 1.0 + EPS < ratio < 1.0 + SURE * EPS and window.steps < 2 * WINDOW_STEPS
    return None if unsure else ratio


def after_window(state: ShareState, now_s: float, ratio: float) -> ShareState:
    """The state after a window with this `ratio` at `now_s`; at share 0 the guaranteed job is alone."""
    if ratio > 1.0 + EPS and state.share > 0.0:
        share = state.share * CUT
        if share >= FLOOR:
            return replace(state, share=share, bad=state.share, quiet=0)
        return replace(
            state, share=0.0, bad=state.share, quiet=0, resume_at_s=now_s + state.probe_s,
            probe_s=min(2.0 * state.probe_s, LONGEST_PROBE_S),
        )  # fmt: skip
    if ratio >= 1.0 + QUIET * EPS:
        return state
    if state.share == 0.0:
        return replace(state, share=FLOOR) if now_s >= state.resume_at_s else state
    quiet = state.quiet + 1
    bad = None if quiet >= FORGOTTEN else state.bad
    probe_s = PROBE_S if quiet >= CALM else state.probe_s
    return replace(state, share=_grown(state.share, bad), bad=bad, quiet=quiet, probe_s=probe_s)


def _grown(share: float, bad: float | None) -> float:
    if bad is None:
        return min(1.0, share + ADD)
    room = CAUTION * bad - share
    return share if room <= 0.0 else min(1.0, share + min(ADD, max(LEAST_ADD, room / 2.0)))
