"""Forecasts and their outcomes, and costs of starts and ends here: they set the width of later forecasts.

A client that makes a forecast (`plait explain`) sends it to the service; the first one of each job is kept until the
job starts, and ends, and each is then one score. A score is the distance of the outcome from the middle of the
forecast, in half widths of its interval, on a logarithmic scale of time: 0 is the middle, 1 the late end. Quantiles of
the scores turn the interval of the next forecast into one that would have held as often as it claims (split conformal
prediction: Vovk et al., Algorithmic Learning in a Random World, 2005; with normalised scores: Lei et al., JASA 113,
2018).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from plait.core.codec.values import Codec
from plait.live.scheduler.records.notes import AttemptOver, ForecastRecorded

#: Scores and costs that are kept: the newest count.
KEPT = 200
#: Default while nothing has been scored yet: quantiles of scores of a forecast that is too confident, and mostly too
#: early. It counts as `PRIOR_WEIGHT` scores at first, as none once `ENOUGH` are known.
PRIOR = (-1.2, -0.9, -0.6, -0.3, 0.0, 0.3, 0.6, 0.9, 1.5, 2.5)
PRIOR_WEIGHT, ENOUGH = 10.0, 40
#: Seconds up to which the scale of time is linear: fractions of a second do not matter to plans.
SCALE_S = 1.0
#: The least half width of an interval on that scale, and the largest score that is believed.
NARROWEST, MOST = 0.1, 20.0
#: The part of forecasts that comes before the early end, and the part after the late one: of intervals that hold in
#: four of five cases, and of intervals that hold in one of two.
TAIL, QUARTER = 0.1, 0.25

#: Seconds from a decision to the first iteration and from a request to stop to the end, if none was measured: of
#: a process that imports PyTorch.
START_UP_S, STOP_S = 3.0, 1.0
#: Costs that are kept, see `TrackRecord`.
COSTS = ("starts_s", "tails_s", "stops_s", "lags_s")
#: Forecast and scored times of a job.
SCORES = ("start", "end")
#: Early end, middle and late end of a forecast, seconds from when it was made; infinite for never.
Said = tuple[float, float, float]


def _scaled(seconds: float) -> float:
    return math.log1p(max(seconds, 0.0) / SCALE_S)


def _seconds(scaled: float) -> float:
    return SCALE_S * math.expm1(max(scaled, 0.0))


def _half(said: Said) -> float:
    """Half the width on the scale of time; of an interval without a late end that of its early half."""
    low, middle, high = map(_scaled, said)
    half = (high - low) / 2 if math.isfinite(high) else middle - low
    return max(half, NARROWEST)


def score(said: Said, came_s: float) -> float | None:
    """How far off a forecast was; None for one that expected never.

    >>> score((9.0, 10.0, 11.0), 10.0), score((0.0, 0.0, 0.0), 0.0)
    (0.0, 0.0)
    """
    if not math.isfinite(said[1]):
        return None
    return min(max((_scaled(came_s) - _scaled(said[1])) / _half(said), -MOST), MOST)


@dataclass(frozen=True)
class Calibration:
    """Ends of honest intervals, in half widths from the middle, from so many scores (`known`).

    Four in five hold between `low` and `high`, one in two between `early` and `late`.
    """

    low: float
    high: float
    known: int
    early: float = field(default=math.nan, compare=False)
    late: float = field(default=math.nan, compare=False)

    @classmethod
    def of(cls, scores: Sequence[float], pending: Sequence[float] = ()) -> Calibration:
        """From earlier forecasts, and from the prior until there are enough.

        `pending`: lower bounds of the scores of open forecasts. Without them a growing queue would be judged by its
        quick jobs alone (Kaplan and Meier, JASA 53, 1958).
        """
        known = len(scores)
        prior = PRIOR_WEIGHT / len(PRIOR) * max(0.0, 1.0 - known / ENOUGH)
        pairs = [(value, prior) for value in PRIOR if prior] + [(value, 1.0) for value in scores]
        values, weights = (np.array(column) for column in zip(*sorted(pairs), strict=True))
        # The next one lies in each of the gaps between the known ones with the same chance: there is one more gap than
        # scores.
        later = np.sort(np.array(pending, dtype=np.float64))
        behind = len(later) - np.searchsorted(later, values, side="left")
        at_risk = weights.sum() + 1.0 - np.concatenate([[0.0], np.cumsum(weights)[:-1]]) + behind
        below = 1.0 - np.cumprod(1.0 - weights / at_risk)
        low, early, late, high = np.interp([TAIL, QUARTER, 1.0 - QUARTER, 1.0 - TAIL], below, values).tolist()
        return cls(low, high, known, early, late)

    def interval(self, said: Said) -> tuple[float, float]:
        """The honest interval of a forecast, seconds; one that expected never is unchanged."""
        return self._between(said, self.low, self.high)

    def inner(self, said: Said) -> tuple[float, float]:
        """The same of which one in two holds."""
        return self._between(said, self.early, self.late)

    @staticmethod
    def _between(said: Said, low: float, high: float) -> tuple[float, float]:
        if not math.isfinite(said[1]):
            return said[0], said[2]
        middle, half = _scaled(said[1]), _half(said)
        late = _seconds(middle + high * half) if math.isfinite(said[2]) else math.inf
        return _seconds(middle + low * half), late


def _recent(values: Iterable[float] = ()) -> deque[float]:
    return deque(values, KEPT)


_CODEC = Codec(own={deque: (list, _recent)})


@dataclass
class TrackRecord:
    """Forecasts of jobs whose start or end is still to come, scores of past ones, and costs, newest last.

    `starts_s`: from the decision to the first iteration; `tails_s`: from the last iteration until the end was known;
    `stops_s`: from the request to stop to the end; `lags_s`: before a process began and after it ended.
    `lost_gpu_s`: GPU-seconds of work that was thrown away, by the reason; `restarts_gpu_s`: that restarts took;
    `reserved_idle_gpu_s`: in which GPUs were held for a waiting job and no host ran on them.
    """

    open: dict[int, dict[str, Any]] = field(default_factory=dict)
    scores: dict[str, deque[float]] = field(default_factory=lambda: {name: _recent() for name in SCORES})
    starts_s: deque[float] = field(default_factory=_recent)
    tails_s: deque[float] = field(default_factory=_recent)
    stops_s: deque[float] = field(default_factory=_recent)
    lags_s: deque[float] = field(default_factory=_recent)
    lost_gpu_s: dict[str, float] = field(default_factory=dict)
    restarts_gpu_s: float = 0.0
    reserved_idle_gpu_s: float = 0.0

    def add_forecast(self, note: ForecastRecorded) -> None:
        """A forecast was made: the first of a job counts."""
        self.open.setdefault(note.job, {"at_s": note.at_s, "start": note.start, "end": note.end})

    def came(self, job: int, what: str, at_s: float) -> None:
        """A job starts (`start`) or has ended (`end`)."""
        forecast = self.open.get(job)
        if forecast is None:
            return
        said, forecast[what] = forecast[what], None
        if what == "end":
            del self.open[job]
        if said is not None:
            found = score(_said(said), at_s - forecast["at_s"])
            if found is not None:
                self.scores[what].append(found)

    def over(self, note: AttemptOver, began_s: float, stop_s: float | None) -> None:
        """An attempt is over: what its start, its stop or its end cost."""
        first_s, last_s, held_s = note.first_step_s, note.last_step_s, note.held_s
        ended_s = note.ended_s or note.at_s
        if note.outcome == "finished":
            self.lags_s.append(max(0.0, note.at_s - began_s - held_s))
        if first_s is not None:
            self.starts_s.append(max(0.0, ended_s - held_s - began_s) + first_s)
        if note.outcome == "finished" and last_s is not None:
            self.tails_s.append(max(0.0, held_s - last_s) + max(0.0, note.at_s - ended_s))
        elif note.outcome == "preempted" and stop_s is not None:
            self.stops_s.append(max(0.0, ended_s - stop_s))

    def lost(self, why: str, gpu_s: float) -> None:
        """Work was thrown away."""
        if gpu_s > 0:
            self.lost_gpu_s[why] = self.lost_gpu_s.get(why, 0.0) + gpu_s

    def calibration(self, what: str, now_s: float) -> Calibration:
        """The correction of forecasts of starts or ends (`SCORES`), including open ones."""
        waited = [(_said(one[what]), now_s - one["at_s"]) for one in self.open.values() if one[what] is not None]
        pending = [found for said, seconds in waited if (found := score(said, seconds)) is not None]
        return Calibration.of(list(self.scores[what]), pending)

    def forget(self, job: int) -> None:
        """Drop the forecast of a job that was cancelled or has failed: it cannot be scored."""
        self.open.pop(job, None)

    def to_json(self) -> dict[str, Any]:
        """All of it as plain values."""
        out: dict[str, Any] = _CODEC.encode(self)
        return out

    def facts(self) -> dict[str, Any]:
        """Facts that makers of forecasts need."""
        out: dict[str, Any] = self.to_json()
        return {name: out[name] for name in ("scores", *COSTS)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TrackRecord:
        """The record that `to_json` wrote; of `facts` too."""
        record = _CODEC.decode(cls, data)
        record.scores = {name: record.scores.get(name, _recent()) for name in SCORES}
        return record


def _said(values: Sequence[float | None]) -> Said:
    """A forecast from its form in notes, where null is never."""
    low, middle, high = (math.inf if value is None else float(value) for value in values)
    return low, middle, high
