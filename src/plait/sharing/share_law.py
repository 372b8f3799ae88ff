"""The part of a GPU that opportunistic jobs get together, so that the guaranteed job keeps its speed.

The mechanism grants (`grant`), statistics guard its premises (`contrast`). Guests run in *on* blocks at one level, and
pause in *off* blocks between them. Each off block gives a contrast: how much longer the steps around it were. As long
as contrasts agree with what the grant may cost, the level is the grant; where they do not, two CUSUMs raise an alarm,
and the level becomes what the contrasts say that the job can bear. A ledger of all contrasts lowers the level before
that as far as it surely costs more. A job that marks its GPU stages is judged by these, and by its whole steps, too.

    ramp       returns to the device are not known: from RAMP of the grant on, at most doubled as contrasts allow;
               half of the time is off, then as much of it as they say that sharing may cost more than UNSURE
    suspicion  a sum is high: half of the time is off until it is low again
    alarm      the level is cut; it grows by contrasts that show room, and is tried again after RETRY_S, twice as long
               each time

Where the job itself changes within a contrast by a fifth, that is dropped: it is no noise, and no cost of guests.

A step counts only if it began after guests acknowledged the change before it. With Gaussian noise of known size a sum
raises a false alarm at most once in e^7 = 1,097 contrasts (Lorden's inequality); where the noise of a job is not
Gaussian that is no guarantee, so an alarm also has to pass a rank test.

The feedback law of AntMan (Xiao et al., OSDI 2020) was never published; this one is plait's own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace

from plait.sharing.contrast import (
    AROUND,
    CONTRAST_VARIANCE,
    LARGE_SHIFT,
    LONG_MEDIANS,
    LONG_MOST,
    MOVED,
    OFF_VARIANCE,
    PERIOD_VALUES,
    PHASE,
    PLACEBO,
    Costs,
    Ledger,
    Sum,
    WholeSteps,
    block_steps,
    contrast,
    first_noise,
    mean,
    median,
    moved_between,
    noise_after,
    noise_of,
    period_of,
    sigma_of,
    small_shift,
)
from plait.sharing.directive import StepStats
from plait.sharing.grant import (
    EPS,
    EPS_GATED_SERVER,
    THETA,
    Bound,
    Grant,
    beside_gated_server,
    by_work,
    expected_cost,
    grant,
)
from plait.sharing.share_state import Alarm, Guests, ShareState

#: Time of off blocks: in tests, usually, and once K contrasts show that sharing is cheap.
IN_TEST, USUAL, CALM, CALM_CONTRASTS = 1 / 2, 1 / 8, 1 / 16, 6
#: On blocks differ in length, so that they do not alias with what a job does every so many steps.
SHORTEST, LONGEST = 0.8, 1.2
#: The ramp: its beginning, at which guests cost 5 % whatever happens, as half of the time is off; the most that the
#: next level may cost by what is known and so many errors of that, where a slope above its error counts so many times
#: more; the least step up; errors of a slope that lowers the level.
RAMP, RAMP_COST, RAMP_ERRORS, RAMP_SLOPE, RAMP_STEP, RAMP_SURE = 0.1, 0.08, 2.0, 2.0, 1.1, 2.6
#: What sharing may cost a host that does not report its returns, ERRORS included; above it guests have less time.
UNSURE, ERRORS = 1.5 * EPS, 1.5
#: After an alarm: the least level; how long growth stops below what was too much; when all is forgotten: once in a
#: ramp, where little is at stake, at first and at most.
LEAST_CAP, CAREFUL, BAD_S, MOST_BAD_S = 0.004, 0.8, 60.0, 3840.0
#: The same where whole steps are judged: a guest that hardly needs the GPU is held back from the rest by it, too.
LEAST_BY_STEP = 1e-4
RETRY_RAMP_S, MOST_RETRY_S = 120.0, 14_400.0
#: What sharing is expected to cost at most, as a part of eps.
EXPECTED = 0.75
#: An alarm below this part of eps is none; contrasts of growth, and above the grant, where a rare long quantum is in
#: few; standard deviations of its upper bound, its limits.
REAL, GROWTH_CONTRASTS, GROWTH_ABOVE, SURE, ROOM, LEAST_ROOM, GROWTH = 0.9, 2, 8, 2.5, 0.85, 0.4, 2.0
#: A half contrast makes suspect and cuts (on the GPU, of whole steps) above eps and so many standard deviations, each
#: HALF of those of a whole one: cores and storage of a host may cost more than their share, the GPU does not.
HALF_SUSPECT, HALF_CUT, WHOLE_CUT, HALF = 2.5, 5.0, 3.0, 1.3
#: Steps that end an on block early, above the 3B before them by 2 eps or so many standard deviations.
JUMP_STEPS, JUMP_BLOCKS, JUMP_EPS, JUMP_SIGMA = (5, 10), 3, 2.0, 4.0
#: b0: how fast it follows off blocks. Steps whose mean lowers the grant, and how many at least.
FOLLOW, RECENT, RECENT_LEAST = 0.3, 20, 10
#: Long steps: values of the median, quanta above it at which one is left out, the rate of their mean.
LONG_VALUES, LONG_QUANTA, LONG_RATE = 31, 3.0, 0.02
LONG_Z, LONG_SPARE, LONG_LEAST = 4.0, 2.0, 8
#: Seconds until a change is obeyed by guests that acknowledge nothing, next to their longest quantum.
OBEY_S = 0.05
#: The same of guests that do, but have not yet: it may be long until they need the GPU again.
UNHEARD_S = 5.0
#: An off block ends after so long without a step; the period is looked for every so many steps and seconds.
HANGS_S, HANGS_STEPS, LOOK_STEPS, LOOK_S = 30.0, 20.0, 16, 1.0
#: Contrasts after which a new off block is long if no placebo was seen; contrasts that a mean is made of at most.
BLIND, REMEMBERED = 24, 64
#: A first noise that is the square of one placebo counts as so many placebos fewer than one that many steps agree on.
ONE_SQUARE = -8
#: Quanta and returns of a job are those of late: how much a step counts after each later one.
DECAY = 0.97
#: The level of an on block is lowered at once if the grant has become so much smaller.
LOWERED = 0.9


def decided(state: ShareState, now_s: float, steps: Sequence[StepStats], guests: Guests) -> ShareState:
    """The state after a decision at `now_s`: `steps` of the guaranteed job ended since the last one, oldest first."""
    law = _Law(state, now_s, guests)
    law.decide(steps)
    return law.state()


def divided(total: float, weights: Mapping[str, float]) -> dict[str, float]:
    """A sum of shares by weight.

    >>> divided(0.75, {"a": 1.0, "b": 2.0})
    {'a': 0.25, 'b': 0.5}
    """
    whole = sum(weights.values())
    return {name: min(total * weight / whole, 1.0) for name, weight in weights.items()}


def shares(state: ShareState, guests: Guests) -> tuple[float, ...]:
    """The share of each guest now, 0 to 1: its part of the grant, all lowered or raised alike."""
    allowed = state.allowed
    if allowed <= 0.0:
        return (0.0,) * len(guests.weights)
    given = _grant(state, guests)
    total = given.total
    part = allowed / total if total > 0.0 else 0.0
    # A guest without a known quantum costs at most its share: in a ramp it would need minutes to report one.
    unseen = part if state.cap is not None else max(part, 1.0)
    return tuple(
        min(one * (part if q > 0.0 else unseen), 1.0) for one, q in zip(given.shares, guests.quanta_s, strict=True)
    )


def described(state: ShareState, now_s: float) -> str:
    """Where the law is, in words: grant and bound, blocks, what sharing costs, the last alarm and when it is over."""
    if state.b0_s is None:
        return f"measures the step without guests ({state.count} steps so far)"
    base_s = _base_s(state, state.bound is Bound.SERVER)
    known = f"{state.returns:.0f} counted" if state.returns else "1 assumed"
    text = f"grant {state.granted:.2f} by {_FORMULAS[state.bound]}, with n = {known} and b = {base_s * 1e3:.1f} ms"
    part = (state.trust or RAMP) if state.cap is None else state.level / max(state.granted, 1e-9)
    if abs(part - 1.0) > 0.01:
        text += f", of which {part:.2f} is used"
    text += f"; guests pause for {part_off(state):.0%} of the time" if state.on else "; guests pause now"
    if state.by_step:
        text += "; whole steps are judged, which show more than its GPU stages do"
    if state.contrasts:
        error = state.last_sigma / math.sqrt(state.contrasts)
        cost = state.sum_d / state.contrasts
        text += f"; costs {cost:+.1%} of a step, give or take {error:.1%}"
    if state.alarm is not None and state.cap is not None:
        text += (
            f"; alarm {max(now_s - state.alarm.at_s, 0.0):.0f} s ago, as level {state.alarm.level:.2f} cost "
            f"{state.alarm.cost:.1%}; tried again in {max(state.retry_at_s - now_s, 0.0):.0f} s"
        )
    return text


#: What a grant follows from: q quanta of guests, w their parts by weight, b a step, n returns of it to the device.
_FORMULAS = {
    Bound.CERTAIN: f"n sum(q) <= {EPS:g} b",
    Bound.EXPECTED: f"w min(1, {2 * THETA:g} b / (n q))",
    Bound.WORK: f"work alone, {EPS:g}",
    Bound.SERVER: "(b / (4 q))^2, behind the gate",
    Bound.UNKNOWN: f"{EPS:g}, until a quantum is reported",
}


def part_off(state: ShareState) -> float:
    """The part of the time without guests, as things are."""
    low = state.cap is not None and state.cap <= state.granted / 2.0
    if state.bound is Bound.UNKNOWN and not state.suspect:
        return USUAL  # a share costs at most itself
    if (state.trust or RAMP) < 1.0 or state.suspect or low:
        return IN_TEST
    if (most := _may_cost(state)) > UNSURE:
        return min(1.0 - (1.0 - USUAL) * UNSURE / most, IN_TEST)
    eps = EPS_GATED_SERVER if state.bound is Bound.SERVER else EPS
    if state.contrasts >= CALM_CONTRASTS and state.variance is not None:
        cost = state.sum_d / state.contrasts + 2.0 * math.sqrt(state.variance / state.contrasts)
        return CALM if cost < eps else USUAL
    return USUAL


def _may_cost(state: ShareState) -> float:
    """What guests may cost a host of unknown returns while they run, by the contrasts since the ramp began."""
    if (state.returns and not state.by_step) or state.costs.weight <= 0.0:
        return 0.0
    slope, error = state.costs.known
    return state.level * (max(slope, 0.0) + ERRORS * error)


def _grant(state: ShareState, guests: Guests) -> Grant:
    """By the shorter of b0 and the steps of late."""
    if state.b0_s is None:
        return by_work(guests.weights)
    if guests.latency and not state.gpu0_s:
        return by_work(guests.weights)
    base_s = _base_s(state, guests.latency)
    if guests.latency and guests.gated:
        return beside_gated_server(base_s, guests.quanta_s, guests.weights)
    return grant(base_s, max(state.returns, 1.0), guests.quanta_s, guests.weights, guests.met_s)


def _base_s(state: ShareState, latency: bool) -> float:
    """Seconds of a step that the grant goes by: of a server's, of the GPU stage."""
    base_s = state.gpu0_s if latency else state.pace_s
    return min(base_s, mean(state.recent)) if len(state.recent) >= RECENT_LEAST else base_s


def _chance(counter: int) -> float:
    """A number from 0 to 1 for each number of the counter (SplitMix64)."""
    mixed = counter * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & 0xFFFFFFFFFFFFFFFF
    return (mixed ^ mixed >> 31) / 2.0**64


_FIELDS = tuple(field.name for field in fields(ShareState))


class _Law(ShareState):
    """A state while a decision changes it: a copy, with the time and the guests of the decision."""

    __slots__ = ("eps", "now_s", "told")

    def __init__(self, state: ShareState, now_s: float, told: Guests) -> None:
        super().__init__(**{name: getattr(state, name) for name in _FIELDS})
        self.now_s, self.told = now_s, told
        self.eps = EPS_GATED_SERVER if told.latency and told.gated else EPS

    def state(self) -> ShareState:
        return ShareState(**{name: getattr(self, name) for name in _FIELDS})

    # -- a decision ---------------------------------------------------------------------------------------------------

    def decide(self, steps: Sequence[StepStats]) -> None:
        now_s, told = self.now_s, self.told
        if self.since_s is None or now_s < self.decided_s:  # the first one, or a clock that went back
            self.since_s = self.decided_s = self.stepped_s = self.looked_s = now_s
            self.obeyed_s = None
            self.bad_until_s = self.retry_at_s = now_s
        if self.guests != len(told.weights):
            self._drop()
            self.guests = len(told.weights)
            self.ledger, self.watch = Ledger(), replace(self.watch, contrasts=0, ledger=Ledger())
            self.suspect = self.suspect or self._watches
        if told.disturbed:
            self.obeyed_s, self.since_s = None, now_s
        self._obeyed()
        begun_s = self.decided_s
        for number, step in enumerate(steps):
            stamped = 0.0 < step.ended_s <= now_s + 1.0
            if stamped:
                self.stamped = True
                began_s = step.ended_s - step.step_s
            else:  # no later than the truth: the first of a batch ended after the last decision
                began_s = begun_s - step.step_s if number == 0 else begun_s
                begun_s = began_s + step.step_s
            self._step(step, began_s)
        self.decided_s = now_s
        self._look()
        self._level()

    def _obeyed(self) -> None:
        """Note whether guests obey the last change by now."""
        if self.obeyed_s is not None or self.told.disturbed:
            return
        if self.told.acknowledged is None:
            due_s = (self.since_s or 0.0) + OBEY_S + max(self.told.quanta_s, default=0.0)
            if self.now_s >= due_s:
                self.obeyed_s = due_s
        elif self.told.acknowledged:
            self.obeyed_s = self.now_s
        elif self.now_s >= (self.since_s or 0.0) + UNHEARD_S + 2.0 * max(self.told.quanta_s, default=0.0):
            self.obeyed_s = self.now_s  # busy with something else: a guest looks before each quantum

    def _step(self, step: StepStats, began_s: float) -> None:
        """Count a step of the guaranteed job, or leave it out."""
        self.stepped_s = self.now_s
        kind = (step.phase, step.operations, step.work > 0)
        if kind != self.kind:
            if self.kind is not None:
                self._drop()
                self.history = self.recent = ()
            self.kind = kind
        returns = step.entries if self.told.gated else step.returns
        if returns:
            self.returns = max(float(returns), DECAY * self.returns)
        if step.left_out or self.obeyed_s is None or began_s < self.obeyed_s:
            return
        per = step.work if step.work > 0 else 1.0
        gpu_s = step.stage_s.get("gpu", 0.0) / per
        value = step.step_s / per if self.by_step or not gpu_s else gpu_s
        if self._long(value):
            return
        scale_s = gpu_s if self.told.latency and gpu_s else step.step_s / per
        self.recent = (*self.recent, scale_s * per)[-RECENT:]
        scaled_s, whole_s, whole_gpu_s = self.totals
        self.totals = (scaled_s + scale_s, whole_s + step.step_s, whole_gpu_s + gpu_s * per)
        self.count += 1
        block = self._block()
        self.ring = (*self.ring, value)[-max(PLACEBO * block, 2) :]
        self.unseen += 1
        self._placebo(block)
        if gpu_s and not self.by_step:
            self.watch = self.watch.after(step.step_s / per, block, self.b0_s or 0.0)
        if not self.on:
            if self.count >= (PLACEBO if self.whole else 1) * block:
                self._end_off()
            return
        if self.off and self.count >= AROUND * block:
            self._contrast(block)
        if self.on and self.count >= self.need:
            self._end_on()

    def _block(self) -> int:
        """B, by the pace in off blocks, or of this one before the first has ended."""
        return block_steps(self.pace_s or max(self.totals[1] / max(self.count, 1), 1e-9), self.period)

    def _long(self, value: float) -> bool:
        """Whether a step is left out because it is long, as few are; remembers its value."""
        history = self.history
        self.history = (*history, value)[-PERIOD_VALUES:]
        late = history[-LONG_VALUES:]
        is_long = False
        if len(late) >= RECENT_LEAST:
            middle = sorted(late)[len(late) // 2]
            most = max((self.guests + LONG_MEDIANS) * middle, middle + LONG_QUANTA * math.fsum(self.told.quanta_s))
            is_long = value > most
        self.long += LONG_RATE * (is_long - self.long)
        counts = list(self.longs)
        counts[2 * self.on] += is_long
        counts[2 * self.on + 1] += 1
        self.longs = (counts[0], counts[1], counts[2], counts[3])
        return is_long and self.long <= LONG_MOST

    # -- blocks -------------------------------------------------------------------------------------------------------

    def _begin(self, on: bool) -> None:
        self.on, self.since_s, self.obeyed_s = on, self.now_s, None
        self.count, self.ring, self.totals, self.to_placebo = 0, (), (0.0, 0.0, 0.0), 0
        self.watch = replace(self.watch, ring=(), to_placebo=0)

    def _drop(self) -> None:
        """Forget the block and what it was to be compared with: an off block is next."""
        self.tail, self.off = (), ()
        self.watch = replace(self.watch, tail=(), off=())
        self._begin(False)

    def _end_off(self) -> None:
        """Learn b0 from an off block, and begin an on block."""
        base_s, step_s, gpu_s = (total / self.count for total in self.totals)
        if self.b0_s is None or abs(base_s / self.b0_s - 1.0) > MOVED:
            self.b0_s, self.pace_s, self.gpu0_s = base_s, step_s, gpu_s
        else:
            self.b0_s += FOLLOW * ((self.marked_b0_s if self._watches else base_s) - self.b0_s)
            self.pace_s += FOLLOW * (step_s - self.pace_s)
            self.gpu0_s += FOLLOW * (gpu_s - self.gpu0_s)
        self.marked_b0_s = base_s  # noise of 40 % that scales its own contrast is a cost of 0.015
        if not gpu_s:  # it marks stages no more
            self.gpu0_s, self.watch = 0.0, WholeSteps()
        self._moved()
        if self.whole and self.period == 1 and self.variance is None:
            self.period = period_of(self.ring, EPS * self.b0_s)
        block = self._block()
        if self.variance is None:
            self.variance, square = first_noise(self.ring, block, self.period, self.b0_s, block)
            self.placebos = ONE_SQUARE if square else 0
            self.suspect = self._watches
        self.whole = False
        self._off_placebo(base_s)
        half = False
        if self.tail and self.variance is not None:
            half = self._half_contrast(block)
        self.off = () if half or not self.tail else self.ring
        if self._watches:
            self.watch = self.watch.off_ended(block, self.period, self.b0_s, keep=bool(self.off))
        took = block + max(math.ceil((self.now_s - (self.since_s or 0.0)) / self.pace_s) - self.count, 0)
        self._begin(True)
        self._level(begins=True)
        self._plan(block, took)

    def _moved(self) -> None:
        """Another job than that of the last alarm: what was too much then may not be now."""
        if self.bad is None or not self.moved_b0_s or self.b0_s is None:
            return
        then = (self.b0_s, self.moved_b0_s), (self.gpu0_s, self.moved_gpu0_s)
        if any(before_s and abs(now_s / before_s - 1.0) > MOVED for now_s, before_s in then):
            self.bad_until_s, self.moved_b0_s, self.moved_gpu0_s = self.now_s, self.b0_s, self.gpu0_s

    def _plan(self, block: int, took: int) -> None:
        """How long the on block that begins is, where an off block takes as long as so many steps."""
        part = part_off(self)
        self.chance += 1
        length = (1.0 / part - 1.0) * took * (SHORTEST + (LONGEST - SHORTEST) * _chance(self.chance))
        least = block if part == IN_TEST else AROUND * block
        self.need = -(-max(math.ceil(length), least) // self.period) * self.period

    def _end_on(self) -> None:
        """Begin an off block, after the contrast of the last one if the on block was short."""
        block = self._block()
        if self.off:
            self._contrast(block)
            if not self.on:
                return
        self._go_off(block)

    def _go_off(self, block: int) -> None:
        self.tail, self.tail_level, self.off = self.ring[-AROUND * block :], self.level, ()
        self.watch = replace(self.watch, tail=self.watch.ring[-AROUND * block :], off=())
        if self.blind >= BLIND:
            self.whole, self.blind = True, 0
        self._begin(False)

    def _look(self) -> None:
        """What is looked at once a decision: the period, a jump of the job, a job that hangs, alarms that are over."""
        if self.unseen >= LOOK_STEPS and self.now_s - self.looked_s >= LOOK_S:
            self.unseen, self.looked_s = 0, self.now_s
            self._period()
        block = self._block() if self.pace_s else 0
        if self.on and block and self.period == 1 and self.variance is not None and self._jumped(block):
            self._end_on()
        hangs_s = max(HANGS_S, HANGS_STEPS * self.pace_s)
        if not self.on and self.b0_s is not None and self.now_s - max(self.stepped_s, self.since_s or 0.0) > hangs_s:
            self.off = self.tail = ()
            self._begin(True)
            self._level(begins=True)
            self._plan(block, block)
        if self.cap is not None and self.now_s >= self.retry_at_s:
            self.cap = self.bad = None
            self.trust, self.contrasts, self.sum_d = RAMP, 0.0, 0.0
            self._forget_costs()
            self.small = self.large = Sum()
            if self.on:
                self._go_off(block)

    def _period(self) -> None:
        """Follow the period of the steps, once it was found twice."""
        found = period_of(self.history, EPS * (self.b0_s or 0.0))
        if found == self.period or found != self.maybe:
            self.maybe = found
            return
        self.period = found
        if self.b0_s is not None:
            self.whole = True
            self._drop()

    def _jumped(self, block: int) -> bool:
        """Whether the last steps of the on block are longer than those before: a contrast is due.

        Of whole steps, most of them: a single one that waits for data would choose which steps are compared.
        """
        assert self.variance is not None, "there was an off block"
        assert self.b0_s is not None, "there was an off block"
        before, stages = JUMP_BLOCKS * block, self.gpu0_s > 0.0 and not self.by_step
        whole = self.watch.ring, self.watch.variance or math.inf, median
        for ring, variance, least in ((self.ring, self.variance, mean if stages else median), whole):
            of_step = JUMP_SIGMA * math.sqrt(variance * block / CONTRAST_VARIANCE)
            for steps in JUMP_STEPS:
                if len(ring) >= before + steps and self.count > AROUND * block:
                    last = min(mean(ring[-steps:]), least(ring[-steps:]))
                    more = last - mean(ring[-steps - before : -steps])
                    if more > self.b0_s * max(JUMP_EPS * self.eps, of_step / math.sqrt(steps)):
                        return True
        return False

    # -- noise --------------------------------------------------------------------------------------------------------

    def _placebo(self, block: int) -> None:
        """Every B/3 steps of a stretch without a change: how much a contrast varies by chance."""
        if self.variance is None or self.b0_s is None or self.count < PLACEBO * block:
            return
        self.to_placebo -= 1
        if self.to_placebo <= 0:
            self.to_placebo = -(-block // 3)
            known = self.b0_s, self.variance, self.placebos
            self.variance, seen = noise_of(self.ring[-PLACEBO * block :], block, *known)
            self.placebos, self.blind = self.placebos + seen, 0 if seen else self.blind

    def _off_placebo(self, base_s: float) -> None:
        """In tests, where on blocks are too short for placebos: the contrast of three off blocks that follow."""
        assert self.variance is not None, "an off block has ended"
        assert self.b0_s is not None, "an off block has ended"
        self.offs = (*self.offs, base_s)[-3:] if part_off(self) > USUAL else ()
        if len(self.offs) == 3 and not moved_between(self.offs[:1], self.offs[2:], self.b0_s, self.variance):
            square = (contrast(self.offs[:1], self.offs[1:2], self.offs[2:]) / self.b0_s) ** 2
            self.variance = noise_after(self.variance, square * CONTRAST_VARIANCE / OFF_VARIANCE, self.placebos)
            self.placebos, self.blind = self.placebos + 1, 0

    @property
    def _watches(self) -> bool:
        """Whether whole steps get a second look: the job marks its GPU stages, and is judged by these."""
        return self.gpu0_s > 0.0 and not (self.by_step or self.told.latency)

    # -- contrasts ----------------------------------------------------------------------------------------------------

    def _half_contrast(self, block: int) -> bool:
        """At the end of an off block: the steps before it alone make suspect, or cut; whether they cut."""
        assert self.b0_s is not None, "an off block has ended"
        around, watch, suspect = max(min(len(self.tail), AROUND * block), 1), self.watch, self.suspect
        looks = [(self.tail, self.ring, self.variance)]
        if self._watches and watch.tail and watch.ring:
            looks.append((watch.tail, watch.ring, watch.variance))
        for tail, ring, variance in looks:
            if variance is None:
                continue
            d = (mean(tail) - mean(ring)) / self.b0_s
            sigma = HALF * sigma_of(variance, block, around, self.period, self.b0_s, (tail, ring))
            if suspect and d > self.eps + (HALF_CUT if tail is self.tail else WHOLE_CUT) * sigma:
                if tail is not self.tail:
                    self._by_step()
                self._cut(d, self.tail_level)
                return True
            self.suspect = self.suspect or d > self.eps + HALF_SUSPECT * sigma
        return False

    def _by_step(self) -> None:
        """Judge whole steps from now on, which have shown more than GPU stages do."""
        self.by_step, self.variance, self.placebos = True, self.watch.variance, self.watch.placebos
        self.ring, self.watch, self.period, self.maybe = self.watch.ring, WholeSteps(), 1, 1
        self.history = self.offs = ()

    def _contrast(self, block: int) -> None:
        """Judge the steps around the last off block."""
        assert self.variance is not None, "an off block has ended"
        assert self.b0_s is not None, "an off block has ended"
        around = min(AROUND * block, len(self.tail), len(self.ring))
        around = around // self.period * self.period or around
        before, off, after, self.off = self.tail[-around:], self.off, self.ring[:around], ()
        d = contrast(before, off, after) / self.b0_s
        if moved_between(before, after, self.b0_s, self.variance, abs(self.level - self.tail_level)):
            self.suspect = self.small.suspect or self.large.suspect or self.watch.suspect
            if mean(after) > mean(before):
                self._go_off(block)
            return
        sigma = sigma_of(self.variance, block, around, self.period, self.b0_s, (before, off, after))
        level = (self.tail_level + self.level) / 2.0
        self.blind, self.last_d, self.last_sigma = self.blind + 1, d, sigma
        if self.contrasts >= REMEMBERED:
            self.contrasts, self.sum_d = self.contrasts / 2.0, self.sum_d / 2.0
        self.contrasts, self.sum_d = self.contrasts + 1.0, self.sum_d + d
        self.costs, self.ledger = self.costs.add(level, d, sigma), self.ledger.add(level, d)
        base_s = _base_s(self, self.told.latency)
        cost = expected_cost(base_s, max(self.returns, 1.0), self.told.met_s or self.told.quanta_s, level)
        error = max(sigma, PHASE * self.eps)
        expected = min(EXPECTED * self.eps, cost)
        z = (d - expected) / error
        self.small = self.small.add(d, z, small_shift(self.eps, error))
        self.large = self.large.add(d, z, LARGE_SHIFT)
        if self._watches:
            self.watch = self.watch.judged(block, around, self.period, self.b0_s, level, expected)
        watch = self.watch
        for one, whole in ((self.small, False), (self.large, False), (watch.small, True), (watch.large, True)):
            # On the GPU a share costs at most itself; of cores or storage a guest with a small share may take all.
            if one.alarm and (level > self.eps or self.by_step or whole):
                cost = mean(one.since)
                if cost > REAL * self.eps and median(one.since) > REAL * self.eps:
                    if whole:
                        self._by_step()
                    self._cut(cost, level)
                    self._go_off(block)
                    return
        self.small, self.large = _restarted(self.small), _restarted(self.large)
        self.watch = replace(watch, small=_restarted(watch.small), large=_restarted(watch.large))
        self.suspect = self.small.suspect or self.large.suspect or self.watch.suspect
        self._long_ones(level)
        self._grow(sigma)
        if self.suspect:
            self._go_off(block)

    def _long_ones(self, level: float) -> None:
        """Cut if steps that are left out as long are more frequent beside guests."""
        off, all_off, on, all_on = self.longs
        if on >= LONG_LEAST and all_off:
            expected = max(off, 1) * all_on / all_off
            if on - LONG_SPARE - expected > LONG_Z * math.sqrt(expected):
                self._cut(self.eps, level)

    def _cut(self, cost: float, level: float) -> None:
        """Too much: the level becomes what costs half of eps, at most half of what it was."""
        self.cap = max(self._least_cap, capped(level, cost, self.eps))
        self.bad, self.alarms = level, self.alarms + 1
        self.alarm = Alarm(self.now_s, level, cost)
        self.bad_until_s = self.now_s + min(BAD_S * 2.0**self.alarms, MOST_BAD_S)
        soon = self.trust is not None and self.trust < 1.0 and not self.ramp_failed
        self.ramp_failed = self.ramp_failed or soon
        wait_s = RETRY_RAMP_S if soon else self.retry_s
        self.retry_at_s = self.now_s + wait_s
        self.retry_s = self.retry_s if soon else min(2.0 * self.retry_s, MOST_RETRY_S)
        self.moved_b0_s, self.moved_gpu0_s = self.b0_s or 0.0, self.gpu0_s
        self.small = self.large = Sum()
        self.watch = replace(self.watch, small=Sum(), large=Sum())
        self.suspect, self.contrasts, self.sum_d = False, 0.0, 0.0
        self._forget_costs()
        self.longs = (0, 0, 0, 0)
        self.trust = min(self.trust or RAMP, 1.0)

    @property
    def _least_cap(self) -> float:
        """The level below which no alarm cuts, and which growth may try again although it was too much."""
        return LEAST_BY_STEP if self.by_step else LEAST_CAP

    def _grow(self, sigma: float) -> None:
        """Raise the level after a contrast: in the ramp, below the grant after an alarm, or above the grant."""
        if self.suspect or self.trust is None:
            return
        reach = self.trust * self.granted
        if self.cap is not None and self.cap < reach:
            factor = self._room(sigma)
            if factor > 1.0:
                self.cap *= factor
                if self.bad is not None and self.now_s < self.bad_until_s:
                    self.cap = min(self.cap, max(CAREFUL * self.bad, self._least_cap))
                self.contrasts = self.sum_d = 0.0
                if self.cap >= reach:
                    self.cap = self.bad = None
        elif (self.trust < 1.0 or _may_cost(self) > UNSURE) and self.costs.weight > 0.0:
            slope, error = self.costs.known
            slope = min(slope, 1.0)
            most = RAMP_COST / min(max(slope, 0.0) + RAMP_ERRORS * error + RAMP_SLOPE * max(slope - error, 0.0), 1.0)
            trust = min(GROWTH * self.trust, most / max(self.granted, 1e-9), 1.0)
            if slope > RAMP_SURE * error and reach * slope > self.eps:
                self.trust *= EXPECTED * self.eps / (reach * slope)
                self.contrasts = self.sum_d = 0.0
            elif trust >= min(RAMP_STEP * self.trust, 1.0):
                self.trust, self.contrasts, self.sum_d = trust, 0.0, 0.0
        elif (
            self.trust >= 1.0
            and self.granted < 1.0
            and reach < 1.0
            and self.contrasts >= GROWTH_ABOVE
            and (self.stamped or self.told.acknowledged is not None)
        ):
            factor = self._room(sigma)
            if factor > 1.0:
                self.trust = min(self.trust * factor, 1.0 / max(self.granted, 1e-9))
                self.contrasts = self.sum_d = 0.0

    def _forget_costs(self) -> None:
        """Begin a ramp, by contrasts from now on."""
        self.costs, self.ledger, self.watch = Costs(), Ledger(), replace(self.watch, ledger=Ledger())

    def _room(self, sigma: float) -> float:
        """By how much the level may grow: the contrasts since it changed show at most so much cost."""
        if self.contrasts < GROWTH_CONTRASTS:
            return 1.0
        most = self.sum_d / self.contrasts + SURE * sigma / math.sqrt(self.contrasts)
        if most >= ROOM * self.eps:
            return 1.0
        return min(GROWTH, ROOM * self.eps / max(most, LEAST_ROOM * self.eps))

    def _level(self, *, begins: bool = False) -> None:
        """The level by grant, trust and cap: at the beginning of an on block, later only if it has become smaller."""
        given, before = _grant(self, self.told), self.bound
        self.granted, self.bound = given.total, given.bound
        if self.on and not begins and before is Bound.UNKNOWN is not given.bound:  # a quantum was seen
            self._forget_costs()
            self._begin(True)
            self._plan(self._block(), self._block())
            begins = True
        if self.b0_s is None:
            return
        if self.trust is None and given.bound is not Bound.UNKNOWN:
            self.trust = 1.0 if self.returns else RAMP
        level = min((self.trust or 1.0) * self.granted, 1.0)
        if given.bound is not Bound.SERVER:
            level = min(level, *(one.most(EXPECTED * self.eps) for one in (self.ledger, self.watch.ledger)))
        if self.cap is not None:
            level = min(level, self.cap)
        if begins or level < LOWERED * self.level:
            self.level = level


def capped(level: float, cost: float, eps: float = EPS) -> float:
    """The level after an alarm at which sharing cost this part of a step.

    >>> round(capped(1.0, 0.39), 4), round(capped(0.5, 0.03), 4)
    (0.0256, 0.1667)
    """
    return level * min(0.5, eps / 2.0 / cost)


def _restarted(one: Sum) -> Sum:
    """A sum after an alarm that was none."""
    return Sum() if one.alarm else one
