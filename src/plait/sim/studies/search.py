"""A search for the options of a policy: successive halving over a seeded sample, then smaller and smaller steps.

Choices are evaluated on a part of the jobs (a ninth, a third, all), so poor choices cost little.
 The best on all jobs is then improved one option at a time by steps that are halved until they are fine
(about 3 % of a range), so an optimum between two of the first candidates is not jumped over. Everything follows from
the seed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from plait.core.arrays import FloatArray
from plait.policies.options import Range

Thresholds = tuple[float, ...]
#: Parts of the jobs on which choices are compared, and which part of the choices goes on to the next.
RUNGS, KEEP = (1 / 9, 1 / 3, 1.0), 1 / 3
#: Steps of the second half of the search, as parts of a range.
STEPS = (1 / 4, 1 / 8, 1 / 16, 1 / 32)
#: Thresholds tried alone, spread evenly over the logarithm of the service that jobs took.
GRID = 16
#: A bound that no job reaches: one queue, written so that it can be pasted.
ONE_QUEUE = (1e15,)


@dataclass(frozen=True, order=True)
class Choice:
    """Options as text, sorted by name, and thresholds (None: as given); what is not named stays as given."""

    options: tuple[tuple[str, str], ...] = ()
    thresholds: Thresholds | None = None

    @property
    def size(self) -> tuple[int, int]:
        """How much a choice asks for: queues, then options that are not as given."""
        return len(self.thresholds or ()), len(self.options)

    def with_option(self, name: str, value: str | None) -> Choice:
        """With an option set, or as given again."""
        rest = {k: v for k, v in self.options if k != name}
        return Choice(tuple(sorted((rest | ({} if value is None else {name: value})).items())), self.thresholds)


Cost = Callable[[Choice, float], float]


@dataclass(frozen=True)
class Space:
    """What may be chosen: options by name with their ranges, thresholds between `low` and `high` GPU-seconds.

    `most` thresholds at most, 0 for one queue; None where the policy has none or they are not to be fitted.
    """

    ranges: Mapping[str, Range]
    most: int | None = None
    low: float = 1.0
    high: float = 1.0

    @property
    def grid(self) -> Thresholds:
        """Candidates for a threshold, ascending, whole GPU-seconds."""
        values: FloatArray = np.round(np.geomspace(self.low, self.high, GRID))
        return tuple(sorted({max(float(v), 1.0) for v in values}))

    def first(self, seed: int, samples: int) -> list[Choice]:
        """What is tried on few jobs: as given, every threshold and option alone, and `samples` mixtures."""
        found = [Choice()]
        if self.most is not None:
            found += [Choice(thresholds=ONE_QUEUE), *(Choice(thresholds=(t,)) for t in self.grid if self.most)]
        for name, span in self.ranges.items():
            found += [Choice(((name, value),)) for value in (*span.also, *(_text(span, u) for u in _quarters(span)))]
        rng = np.random.default_rng((seed, 0x70E))
        found += [self._mixture(rng) for _ in range(samples)]
        return list(dict.fromkeys(found))

    def _mixture(self, rng: np.random.Generator) -> Choice:
        thresholds: Thresholds | None = None if self.most is None else ONE_QUEUE
        if self.most:
            drawn = self.low * (self.high / self.low) ** rng.random(int(rng.integers(1, self.most + 1)))
            thresholds = tuple(sorted({max(float(round(t)), 1.0) for t in drawn.tolist()}))
        options = {}
        for name, span in self.ranges.items():
            as_given, u, word = rng.random() < 0.5, float(rng.random()), int(rng.integers(len(span.also) + span.spread))
            if not as_given:
                options[name] = span.also[word] if word < len(span.also) else _text(span, u)
        return Choice(tuple(sorted(options.items())), thresholds)

    def near(self, choice: Choice, step: float) -> Iterator[Choice]:
        """Choices one step away: a threshold moved, added or left out, an option changed or as given again."""
        if self.most:
            current = () if choice.thresholds in (None, ONE_QUEUE) else choice.thresholds or ()
            factor = (self.high / self.low) ** step
            for i, old in enumerate(current):
                rest = current[:i] + current[i + 1 :]
                moved = (float(round(min(max(old * f, 1.0), 1e14))) for f in (factor, 1 / factor))
                for bounds in (*((*rest, t) for t in moved), rest or ONE_QUEUE):
                    yield Choice(choice.options, tuple(sorted(set(bounds))))
            if len(current) < self.most and step == STEPS[0]:
                for t in self.grid[1::2]:
                    yield Choice(choice.options, tuple(sorted({*current, t})))
        given = dict(choice.options)
        for name, span in self.ranges.items():
            if name in given:
                yield choice.with_option(name, None)
            at = _place(span, given.get(name))
            values = [_text(span, u) for u in ((at - step, at + step) if at is not None else ()) if 0 <= u <= 1]
            if step == STEPS[0]:
                values += [*span.also, *(_text(span, u) for u in _quarters(span) if at is None)]
            for text in values:
                if text != given.get(name):
                    yield choice.with_option(name, text)


def search(space: Space, cost: Cost, *, seed: int = 0, samples: int = 24, most_runs: float = math.inf) -> Choice:
    """The choice of least cost that was found; of equals the one with fewer queues and options, then found first.

    `cost(choice, part)` evaluates a choice on a part of the jobs; `most_runs` bounds the calls of the second half.
    """
    field = space.first(seed, samples)
    for part, after in zip(RUNGS, (*RUNGS[1:], None), strict=True):
        ranked = sorted(field, key=lambda choice: (cost(choice, part), choice.size))
        if after is not None:
            field = [Choice(), *(c for c in ranked[: max(math.ceil(len(ranked) * KEEP), 2)] if c != Choice())]
    best, seen = ranked[0], set(field)
    start = len(seen)
    for step in STEPS:
        better = True
        while better:
            better = False
            for other in space.near(best, step):
                if other in seen:  # was not better than what was best then
                    continue
                if len(seen) - start >= most_runs:
                    return best
                seen.add(other)
                if (cost(other, 1.0), other.size) < (cost(best, 1.0), best.size):
                    best, better = other, True
                    break
    return best


def _quarters(span: Range) -> tuple[float, ...]:
    return (0.0, 0.25, 0.5, 0.75, 1.0) if span.spread else ()


def _text(span: Range, u: float) -> str:
    """The number at part `u` of a range, as one writes it."""
    value = span.low * (span.high / span.low) ** u if span.scale == "log" else span.low + u * (span.high - span.low)
    return str(round(value)) if span.whole else f"{float(f'{value:.3g}'):g}"


def _place(span: Range, text: str | None) -> float | None:
    """Which part of the range a text is, None where it is a word or as given."""
    if text is None or text in span.also or not span.spread:
        return None
    value = float(text)
    part = (
        math.log(value / span.low) / math.log(span.high / span.low)
        if span.scale == "log"
        else (value - span.low) / (span.high - span.low)
    )
    return min(max(part, 0.0), 1.0)
