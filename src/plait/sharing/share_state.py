"""The state of the share law, and its input beside the steps of the guaranteed job."""

from __future__ import annotations

from dataclasses import dataclass

from plait.sharing.contrast import NO_LEDGER, NOTHING, Costs, Ledger, Sum, WholeSteps
from plait.sharing.grant import Bound

#: Seconds after an alarm until all is forgotten, the first time.
RETRY_S = 600.0
NO_WATCH, NO_COSTS = WholeSteps(), Costs()


@dataclass(frozen=True, slots=True)
class Guests:
    """The guests of a guaranteed job, and what is known of that beside its steps.

    quanta_s      longest quantum of each guest, in seconds; 0: none was seen
    weights       of each guest, above 0
    acknowledged  whether all of them obey the last directive; None: they do not report it
    gated         guests start only outside the GPU stage of the guaranteed job
    latency       the guaranteed job is a server
    disturbed     steps say nothing: guests finish a step at full share, or memory limits change
    met_s         the quantum of each that a random time falls into, in seconds; None: the longest
    """

    quanta_s: tuple[float, ...]
    weights: tuple[float, ...]
    acknowledged: bool | None = None
    gated: bool = False
    latency: bool = False
    disturbed: bool = False
    met_s: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class Alarm:
    """A cut: when, in seconds; the level that was too much, and what sharing cost at it, as a part of a step."""

    at_s: float
    level: float
    cost: float


@dataclass(slots=True)  # not frozen: a decision is a copy that changes (`share_law`); all others leave it as it is
class ShareState:
    """The state of the law. `values` are seconds of a step, of its GPU stage if reported, per unit of work if stated.

    on, since_s, obeyed_s  the block, since when, and since when guests obey it (None: not yet)
    level                  sum of shares in on blocks
    granted                sum of shares of the grant, and which bound it follows from
    whole                  the off block is 5B long
    need, count            steps of the on block, and counted ones of this block
    ring                   values of this block, the last 5B
    totals                 of this block: in the scale of b0; seconds of steps, and of their GPU stages
    tail, tail_level       values of the last on block, and its level
    off                    values of the last off block while its contrast is outstanding
    b0_s, gpu0_s, pace_s   of steps in off blocks: the scale of contrasts (seconds of a step, of the GPU stage of a
                           server's; per unit of work if stated), seconds of the GPU stage, seconds of a step
    marked_b0_s            of the last off block, which b0 of a host that marks stages follows after the next
    variance, placebos     of a contrast, by placebos (None before the first), and how many of them
    blind, to_placebo      contrasts since the last placebo, steps to the next one
    period, maybe, unseen  of the steps; another one that was found once; steps since it was looked for
    looked_s               and when that was
    history, recent        the last 160 values, and steps that the grant is lowered by
    contrasts, sum_d       since the level changed
    costs, ledger          of sharing, by the contrasts since the ramp began
    small, large           the two CUSUMs
    suspect                whether the next blocks are a test
    cap, bad               most that the level may be after an alarm, and what was too much
    bad_until_s, retry_at_s, retry_s, ramp_failed, alarms, alarm   of alarms
    moved_b0_s, moved_gpu0_s  b0 and GPU part at the last alarm
    trust                  part of the grant that is used; above 1 where contrasts showed room; None at first
    returns                to an idle device in a step; 0: not reported
    stamped                steps say when they ended
    long, longs            mean part of long steps; long and all steps in off and on blocks
    kind, guests           of the last step; how many there are
    stepped_s, decided_s   times of the last step and decision
    chance                 counter of the generator
    last_d, last_sigma     the last contrast and its standard deviation
    watch, by_step         whole steps of a job that marks its stages; whether it is judged by these alone
    offs                   means of the last three off blocks of a test, in the scale of b0
    """

    on: bool = False
    since_s: float | None = None
    obeyed_s: float | None = None
    level: float = 0.0
    granted: float = 0.0
    bound: Bound = Bound.UNKNOWN
    whole: bool = True
    need: int = 0
    count: int = 0
    ring: tuple[float, ...] = ()
    totals: tuple[float, float, float] = (0.0, 0.0, 0.0)
    tail: tuple[float, ...] = ()
    tail_level: float = 0.0
    off: tuple[float, ...] = ()
    b0_s: float | None = None
    marked_b0_s: float = 0.0
    gpu0_s: float = 0.0
    pace_s: float = 0.0
    variance: float | None = None
    placebos: int = 0
    blind: int = 0
    to_placebo: int = 0
    period: int = 1
    maybe: int = 1
    unseen: int = 0
    looked_s: float = 0.0
    history: tuple[float, ...] = ()
    recent: tuple[float, ...] = ()
    contrasts: float = 0.0
    sum_d: float = 0.0
    costs: Costs = NO_COSTS
    ledger: Ledger = NO_LEDGER
    small: Sum = NOTHING
    large: Sum = NOTHING
    suspect: bool = False
    cap: float | None = None
    bad: float | None = None
    bad_until_s: float = 0.0
    retry_at_s: float = 0.0
    retry_s: float = RETRY_S
    ramp_failed: bool = False
    alarms: int = 0
    alarm: Alarm | None = None
    moved_b0_s: float = 0.0
    moved_gpu0_s: float = 0.0
    trust: float | None = None
    returns: float = 0.0
    stamped: bool = False
    long: float = 0.0
    longs: tuple[int, int, int, int] = (0, 0, 0, 0)
    kind: tuple[str, int, bool] | None = None
    guests: int = 0
    stepped_s: float = 0.0
    decided_s: float = 0.0
    chance: int = 0
    last_d: float = 0.0
    last_sigma: float = 0.0
    offs: tuple[float, ...] = ()
    watch: WholeSteps = NO_WATCH
    by_step: bool = False

    @property
    def allowed(self) -> float:
        """The sum of shares that opportunistic jobs have now, 0 to 1."""
        return self.level if self.on else 0.0
