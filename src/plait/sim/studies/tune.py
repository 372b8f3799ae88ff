"""Fit the options of a policy to a workload, and measure the gain on jobs that the fit has not seen.

    fit = fit_policy(jobs, Cluster.parse("8x8"), "tiresias-l")
    fit.policy             # 'tiresias-l:thresholds=115200,knob=8'
    fit.second["fitted"]   # average completion time on jobs it has not seen, seconds

The first half of the history (by submission) is replayed without overheads under GPU counting, and the average
completion time is made small by `search`: over queue bounds, within the service that jobs of that half took, and
over all options for which the catalog declares a range. Options that are given stay. The result is judged on the second
half.

A search for the options of a policy: successive halving over a seeded sample, then smaller and smaller steps.

Choices are evaluated on a part of the jobs (a ninth, a third, all), so poor choices cost little.
The best on all jobs is then improved one option at a time by steps that are halved until they are fine
(about 3 % of a range), so an optimum between two of the first candidates is not jumped over. Everything follows from
the seed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from plait.core.arrays import FloatArray
from plait.core.cluster import Cluster
from plait.core.errors import InputError, suggest
from plait.core.jobs import JobBatch, Phase
from plait.policies.catalog import PLACEMENT_OPTIONS, Row, make_policy, row_of, rows
from plait.policies.options import Range
from plait.sim.run import simulate
from plait.sim.world import make_world

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
class Setting:
    """Options as text, sorted by name, and thresholds (None: as given); what is not named stays as given."""

    options: tuple[tuple[str, str], ...] = ()
    thresholds: Thresholds | None = None

    @property
    def size(self) -> tuple[int, int]:
        """How much a choice asks for: queues, then options that are not as given."""
        return len(self.thresholds or ()), len(self.options)

    def with_option(self, name: str, value: str | None) -> Setting:
        """With an option set, or as given again."""
        rest = {k: v for k, v in self.options if k != name}
        return Setting(tuple(sorted((rest | ({} if value is None else {name: value})).items())), self.thresholds)


Cost = Callable[[Setting, float], float]


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

    def first(self, seed: int, samples: int) -> list[Setting]:
        """What is tried on few jobs: as given, every threshold and option alone, and `samples` mixtures."""
        found = [Setting()]
        if self.most is not None:
            found += [Setting(thresholds=ONE_QUEUE), *(Setting(thresholds=(t,)) for t in self.grid if self.most)]
        for name, span in self.ranges.items():
            found += [Setting(((name, value),)) for value in (*span.also, *(_text(span, u) for u in _quarters(span)))]
        rng = np.random.default_rng((seed, 0x70E))
        found += [self._mixture(rng) for _ in range(samples)]
        return list(dict.fromkeys(found))

    def _mixture(self, rng: np.random.Generator) -> Setting:
        thresholds: Thresholds | None = None if self.most is None else ONE_QUEUE
        if self.most:
            drawn = self.low * (self.high / self.low) ** rng.random(int(rng.integers(1, self.most + 1)))
            thresholds = tuple(sorted({max(float(round(t)), 1.0) for t in drawn.tolist()}))
        options = {}
        for name, span in self.ranges.items():
            as_given, u, word = rng.random() < 0.5, float(rng.random()), int(rng.integers(len(span.also) + span.spread))
            if not as_given:
                options[name] = span.also[word] if word < len(span.also) else _text(span, u)
        return Setting(tuple(sorted(options.items())), thresholds)

    def near(self, choice: Setting, step: float) -> Iterator[Setting]:
        """Choices one step away: a threshold moved, added or left out, an option changed or as given again."""
        if self.most:
            current = () if choice.thresholds in (None, ONE_QUEUE) else choice.thresholds or ()
            factor = (self.high / self.low) ** step
            for i, old in enumerate(current):
                rest = current[:i] + current[i + 1 :]
                moved = (float(round(min(max(old * f, 1.0), 1e14))) for f in (factor, 1 / factor))
                for bounds in (*((*rest, t) for t in moved), rest or ONE_QUEUE):
                    yield Setting(choice.options, tuple(sorted(set(bounds))))
            if len(current) < self.most and step == STEPS[0]:
                for t in self.grid[1::2]:
                    yield Setting(choice.options, tuple(sorted({*current, t})))
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


def search(space: Space, cost: Cost, *, seed: int = 0, samples: int = 24, most_runs: float = math.inf) -> Setting:
    """The choice of least cost that was found; of equals the one with fewer queues and options, then found first.

    `cost(choice, part)` evaluates a choice on a part of the jobs; `most_runs` bounds the calls of the second half.
    """
    field = space.first(seed, samples)
    for part, after in zip(RUNGS, (*RUNGS[1:], None), strict=True):
        ranked = sorted(field, key=lambda choice: (cost(choice, part), choice.size))
        if after is not None:
            field = [Setting(), *(c for c in ranked[: max(math.ceil(len(ranked) * KEEP), 2)] if c != Setting())]
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


#: Below this many departures a fit is noise.
FEWEST_DEPARTURES = 200
#: Thresholds lie between these quantiles of observed service, percent.
QUANTILES = (10.0, 99.5)
#: Fewest jobs of a replay, mixtures of options tried on few jobs, and replays of the whole half that refine the best.
FEWEST_JOBS, SAMPLES, MOST_RUNS = 50, 24, 200


@dataclass(frozen=True)
class TunedPolicy:
    """What `fit_policy` found. Averages are completion times in seconds.

    `options` are those chosen, as text. `first` and `second` hold the averages on the two halves of `fitted`,
    `default` (the policy as given), `fifo` and `srsf`. `candidates` are the thresholds that were tried alone. `tried`
    lists every policy with the number of jobs of its replay and the average there, in order of trial.
    """

    policy: str
    default: str
    options: Mapping[str, str]
    thresholds: Thresholds
    queues: int
    candidates: Thresholds
    first: Mapping[str, float]
    second: Mapping[str, float]
    jobs_first: int
    jobs_second: int
    left_out: int
    tried: Sequence[tuple[str, int, float]] = field(repr=False)

    @property
    def worth_it(self) -> bool:
        """Whether the fitted options beat those of the policy as given on the half they have not seen."""
        return self.second["fitted"] < self.second["default"]

    @property
    def verdict(self) -> str:
        """The result as one sentence."""
        fitted, default = self.second["fitted"], self.second["default"]
        change = abs(fitted - default) / default
        if self.worth_it:
            return f"on the second half the fitted options beat {self.default} by {change:.1%}"
        if fitted == default:
            return f"on the second half the fitted options do not beat {self.default}: they do the same"
        return f"on the second half the fitted options do not beat {self.default}: they are {change:.1%} worse"

    def to_json(self) -> dict[str, Any]:
        """Everything, as JSON takes it."""
        out = {**asdict(self), "worth_it": self.worth_it, "verdict": self.verdict}
        out["tried"] = [{"policy": p, "jobs": n, "avg_jct_s": None if math.isinf(v) else v} for p, n, v in self.tried]
        return out


def fit_policy(
    jobs: JobBatch,
    cluster: Cluster,
    policy: str = "tiresias-l",
    *,
    max_queues: int = 4,
    only: Sequence[str] | None = None,
    seed: int = 0,
    samples: int = SAMPLES,
    most_runs: int = MOST_RUNS,
    tried: Callable[[], None] | None = None,
) -> TunedPolicy:
    """Options of `policy` for this history of jobs; see the module docstring.

    `max_queues` bounds the queues of a policy that has them; `only` names the options to fit, all that have a range
    unless given. `samples` and `most_runs` say how much to try (see `search`). `tried()` is called after every replay.
    The same inputs give the same answer. Raises `InputError` for a policy with nothing to fit or a history of fewer
    than 200 departures.
    """
    if max_queues < 1:
        raise InputError(f"max_queues must be at least 1, got {max_queues}")
    row, given = _row_of(policy)
    make_policy(policy)
    names = _to_fit(policy, row, given, only)
    fitting = np.flatnonzero(jobs.gpus <= cluster.largest_gang())
    if len(fitting) < FEWEST_DEPARTURES:
        raise InputError(
            f"{len(fitting)} jobs that fit the cluster are too few to fit a policy to: "
            f"{FEWEST_DEPARTURES} departures or more are needed for a result above chance"
        )
    cut = fitting[: len(fitting) // 2], fitting[len(fitting) // 2 :]
    first, second = (_rebased(jobs[half]) for half in cut)
    service: FloatArray = first.gpus * first.iterations * first.iteration_s
    low, high = (max(float(q), 1.0) for q in np.percentile(service, QUANTILES))
    ranges = {name: fit for name in names if (fit := row.options[name].fit) is not None}
    space = Space(ranges, max_queues - 1 if "thresholds" in names else None, low, max(high, 2 * low))
    replay = _Replay(first, cluster, policy, given, seed, tried)
    if space.most is not None and _queues(policy) > max_queues:
        replay.as_given_fits = False  # as given it has more queues than were asked for
    best = search(space, replay, seed=seed, samples=samples, most_runs=most_runs)
    fitted = replay.text(best)
    texts = {"fitted": fitted, "default": policy, "fifo": "fifo", "srsf": "srsf"}
    thresholds = () if best.thresholds in (None, ONE_QUEUE) else best.thresholds or ()
    return TunedPolicy(
        policy=fitted,
        default=policy,
        options=dict(best.options),
        thresholds=thresholds,
        queues=_queues(fitted),
        candidates=space.grid if space.most else (),
        first={name: average_jct_s(first, cluster, text, seed) for name, text in texts.items()},
        second={name: average_jct_s(second, cluster, text, seed) for name, text in texts.items()},
        jobs_first=len(first),
        jobs_second=len(second),
        left_out=len(jobs) - len(fitting),
        tried=tuple((replay.text(choice), n, value) for (choice, n), value in replay.known.items()),
    )


def average_jct_s(jobs: JobBatch, cluster: Cluster, policy: str, seed: int = 0) -> float:
    """Average completion time in seconds of a replay of `jobs` on `cluster`, without overheads, under GPU counting.

    `policy` is the text of a policy; `seed` is for what it draws.
    """
    name, _, rest = policy.partition(":")
    row = row_of(name)
    if row is not None and "placement" in row.options:
        parts = [p for p in rest.split(",") if p and p.partition("=")[0] not in PLACEMENT_OPTIONS]
        policy = f"{name}:" + ",".join([*parts, "placement=counting"])
    run = simulate(jobs, cluster, make_policy(policy), make_world("ideal"), seed=seed)
    columns, n = run.controller.job_store.columns, run.controller.job_store.count
    finished = columns["phase"][:n] == int(Phase.FINISHED)
    return float(np.mean((columns["end_s"][:n] - jobs.submit_s)[finished]))


class _Replay:
    """The objective: each choice computed once for each number of jobs; infinite where a policy refuses it."""

    def __init__(
        self,
        jobs: JobBatch,
        cluster: Cluster,
        policy: str,
        given: Mapping[str, str],
        seed: int,
        tried: Callable[[], None] | None,
    ) -> None:
        self.jobs, self.cluster, self.policy, self.given = jobs, cluster, policy, given
        self.seed, self.tried = seed, tried
        self.known: dict[tuple[Setting, int], float] = {}
        self.as_given_fits = True

    def __call__(self, choice: Setting, part: float) -> float:
        n = min(max(round(len(self.jobs) * part), FEWEST_JOBS), len(self.jobs))
        if choice.thresholds is None and not self.as_given_fits:
            return math.inf
        if (choice, n) not in self.known:
            try:
                value = average_jct_s(self.jobs[np.arange(n)], self.cluster, self.text(choice), self.seed)
            except InputError:
                value = math.inf
            self.known[choice, n] = value
            if self.tried is not None:
                self.tried()
        return self.known[choice, n]

    def text(self, choice: Setting) -> str:
        """The policy with these options; those given stay."""
        if choice == Setting():
            return self.policy
        options = dict(self.given)
        if choice.thresholds is not None:
            options["thresholds"] = "/".join(map(_number, choice.thresholds))
        options |= dict(choice.options)
        return f"{self.policy.partition(':')[0]}:" + ",".join(f"{k}={v}" for k, v in options.items())


def _row_of(policy: str) -> tuple[Row, dict[str, str]]:
    """The row of the catalog, and the options that are given."""
    name, _, rest = policy.partition(":")
    known = rows()
    if name not in known:
        raise InputError(f"unknown policy {name!r}; {suggest(name, known)}")
    return known[name], dict(part.partition("=")[::2] for part in rest.split(",") if part)


def _to_fit(policy: str, row: Row, given: Mapping[str, str], only: Sequence[str] | None) -> list[str]:
    """Names of the options to fit; thresholds are fitted from those given, other options that are given stay."""
    able = [name for name, option in row.options.items() if option.fit is not None or name == "thresholds"]
    wrong = [name for name in only or () if name not in able]
    if wrong:
        raise InputError(f"policy {policy} has no option {wrong[0]!r} to fit; {suggest(wrong[0], able)}")
    names = [name for name in able if (name not in given or name == "thresholds") and (only is None or name in only)]
    if not names:
        others = [
            name for name, row in rows().items() if any(option.fit is not None for option in row.options.values())
        ]
        raise InputError(f"policy {policy} has nothing to fit; these have: {', '.join(others)}")
    return names


def _queues(policy: str) -> int:
    """How many queues a policy has; 1 where it has no thresholds."""
    thresholds = getattr(getattr(make_policy(policy), "order", None), "thresholds", ())
    return 1 + len([t for t in thresholds if t < ONE_QUEUE[0]])


def _rebased(jobs: JobBatch) -> JobBatch:
    """The same jobs with the first submission at 0."""
    return jobs.replace(submit_s=jobs.submit_s - jobs.submit_s[0])


def _number(value: float) -> str:
    return f"{value:g}" if value >= 1e15 else f"{value:.0f}"
