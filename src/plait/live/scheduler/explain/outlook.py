"""When jobs start and end: the queue as arrays, played forward with drawn durations, as intervals.

The order is that of the policy's last decision and stays fixed; new jobs are not foreseen. The resulting error shows in
the outcomes of earlier forecasts, by which the intervals are corrected (`plait.live.scheduler.records.track_record`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from plait.core.arrays import FloatArray, IntArray
from plait.core.compile_policy import either
from plait.live.api.explain import JobOutlook, Uncalibrated
from plait.live.api.explain import Times as ShownTimes
from plait.live.scheduler.explain.durations import History, draw
from plait.live.scheduler.explain.list_schedule import PREEMPT, play
from plait.live.scheduler.explain.next_starts import Release, started
from plait.live.scheduler.explain.queue_arrays import QueueArrays
from plait.live.scheduler.records.track_record import ENOUGH, TAIL, Calibration, Said, TrackRecord

#: Draws of a forecast.
DRAWS = 40
#: Plain Python takes about so many tenths of a millisecond for a job of a draw.
WORK = 1.0
NO_PROBES: IntArray = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True)
class Times:
    """A start or an end, seconds from now: the middle, and where one in two and four in five lie; infinite: never."""

    middle_s: float
    half: tuple[float, float]
    wide: tuple[float, float]
    said: Said

    @classmethod
    def of(cls, drawn_s: FloatArray, calibration: Calibration) -> Times:
        """From draws, corrected by what earlier forecasts were worth."""
        said = said_of(drawn_s)
        half, wide = calibration.inner(said), calibration.interval(said)
        return cls(said[1], half, (min(wide[0], half[0]), max(wide[1], half[1])), said)

    def after(self, start: Times) -> Times:
        """The same end, neither early nor late before its start."""

        def later(mine: tuple[float, float], its: tuple[float, float]) -> tuple[float, float]:
            return max(mine[0], its[0]), max(mine[1], its[1])

        return replace(self, half=later(self.half, start.half), wide=later(self.wide, start.wide))

    @property
    def or_later(self) -> Times:
        """The same without a latest time."""
        low, middle, _ = self.said
        later = (self.half[0], math.inf), (self.wide[0], math.inf)
        return replace(self, half=later[0], wide=later[1], said=(low, middle, math.inf))

    @property
    def shown(self) -> ShownTimes:
        """The same, None for never."""
        return ShownTimes(_plain(self.middle_s), [*map(_plain, self.half)], [*map(_plain, self.wide)])


def said_of(drawn_s: FloatArray) -> Said:
    """Early end, middle and late end of draws."""
    ordered = np.sort(drawn_s)
    last = len(ordered) - 1
    low, high = ordered[math.floor(TAIL * last)], ordered[math.ceil((1 - TAIL) * last)]
    return float(low), float(ordered[last // 2]), float(high)


def _plain(seconds: float) -> float | None:
    return round(max(seconds, 0.0), 3) if math.isfinite(seconds) else None


@dataclass(frozen=True)
class Calibrations:
    """Corrections of starts and ends."""

    start: Calibration
    end: Calibration

    @classmethod
    def of(cls, record: TrackRecord, now_s: float) -> Calibrations:
        """By what came of earlier forecasts until now."""
        return cls(record.calibration("start", now_s), record.calibration("end", now_s))

    @property
    def words(self) -> str:
        """The reasons for the width of the intervals."""
        count = min(self.start.known, self.end.known)
        if count >= ENOUGH:
            return f"intervals are corrected by what came of the last {count} forecasts here"
        return f"intervals are wide until {ENOUGH} forecasts have been checked ({count} so far)"


@dataclass(frozen=True)
class Outlook:
    """All jobs of a queue: draws of starts and ends, shape (draws, jobs), seconds after `now_s`.

    `releases`: by which decision waiting jobs may start, by number.
    """

    queue: QueueArrays
    left_s: FloatArray
    sources: list[str]
    starts_s: FloatArray
    ends_s: FloatArray
    now_s: float
    row: Mapping[int, int]
    releases: Mapping[int, Release]

    def of(self, number: int, by: Calibrations, assumed: list[str]) -> JobOutlook | None:
        """One job: start (None if it runs) and end as intervals, and where its duration is from; None if unknown."""
        at = self.row.get(number)
        if at is None:
            return None
        runs = self.queue.place[at] >= 0
        start = None if runs else Times.of(self.starts_s[:, at], by.start)
        end, release = Times.of(self.ends_s[:, at], by.end), self.releases.get(number, Release())
        if start is not None and release.open:
            start, end = start.or_later, end.or_later
        return JobOutlook(
            start=None if start is None else start.shown,
            end=(end if start is None else end.after(start)).shown,
            duration=self.sources[at],
            said=Uncalibrated(None if start is None else [*map(_plain, start.said)], [*map(_plain, end.said)]),
            assumptions=[*assumed, *release.limits],
        )


def played(
    queue: QueueArrays, left_s: FloatArray, probes: tuple[IntArray, IntArray, IntArray] | None = None
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Starts, ends and starts of probes (before which job, GPUs, mask), seconds from now; only these where given."""
    n = left_s.size
    kernel = either(play, WORK * n, cpu_s=6)
    at, gpus, mask = (NO_PROBES,) * 3 if probes is None else probes
    return kernel(
        queue.gpus, queue.mask, queue.place, queue.stays, left_s, queue.capacity, queue.how, at, gpus, mask,
        probes is None,
    )  # fmt: skip


def foresee(
    queue: QueueArrays,
    history: History,
    now_s: float,
    draws: int = DRAWS,
    seed: int = 0,
    releases: Callable[[Mapping[int, float]], Mapping[int, Release]] = lambda left_s: {},
) -> Outlook:
    """Play a queue forward with durations like the ones of `history`; a function of its arguments.

    `releases` returns by which decision of the policy jobs may start, from the seconds that each job still runs.
    """
    left_s, sources = draw(queue.unknown, history, draws, seed)
    decided = releases(middles(queue, left_s))
    starts_s, ends_s = allowed(queue, left_s, decided)
    row = {number: i for i, number in enumerate(queue.numbers.tolist())}
    return Outlook(queue, left_s, sources, starts_s, ends_s, now_s, row, decided)


def allowed(queue: QueueArrays, left_s: FloatArray, releases: Mapping[int, Release]) -> tuple[FloatArray, FloatArray]:
    """Starts and ends of all jobs (draws, jobs), seconds from now, where the policy's decisions allow them.

    A job waits for the ends of jobs that start after fewer ends, as they are moved themselves: not for its own.
    """
    starts_s, ends_s, _ = played(queue, left_s)
    known = [releases.get(number) for number in queue.numbers.tolist()]
    turns = np.array([-1 if one is None else one.ends for one in known], dtype=np.int64)
    for turn in np.unique(turns[turns >= 0]).tolist():
        jobs = np.flatnonzero(turns == turn)
        before_s = starts_s[:, jobs]
        then_s = started(before_s, ends_s[:, turns < turn], [known[job] for job in jobs.tolist()])
        never = np.isinf(before_s)  # the policy may still start a job that does not fit next to the running ones
        with np.errstate(invalid="ignore"):
            ends_s[:, jobs] = np.where(never, then_s + left_s[:, jobs], ends_s[:, jobs] + (then_s - before_s))
        starts_s[:, jobs] = then_s
    return starts_s, ends_s


def middles(queue: QueueArrays, left_s: FloatArray) -> dict[int, float]:
    """Seconds that jobs still run, in the middle of the draws (draws, jobs), by number."""
    return dict(zip(queue.numbers.tolist(), np.median(left_s, axis=0).tolist(), strict=True))


def assumptions(queue: QueueArrays, policy: str, by: Calibrations) -> list[str]:
    """Assumptions of a forecast, in words."""
    how = "jobs ahead may take GPUs of jobs behind" if queue.how & PREEMPT else "jobs that run stay"
    first = "what starts after the next ends is decided by the policy"
    out = [f"the order of {policy} unchanged, no new jobs, no failures; {how}; {first}", by.words]
    if queue.sharing > 1:
        out.append(f"each GPU is taken to hold {queue.sharing:.2f} jobs, as now, at the pace that they have now")
    return out
