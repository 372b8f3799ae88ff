"""Fit the queue thresholds of Tiresias to a workload, and say honestly what that is worth.

    fit = fit_thresholds(jobs, Cluster.parse("8x8"))
    fit.policy             # 'tiresias-l:thresholds=4480/61824'
    fit.second["fitted"]   # average completion time on jobs it has not seen, seconds

The first half of the history (by submission) is replayed without overheads under GPU counting, and the average
completion time is made small by coordinate descent, for one queue, two, and so on. Candidates are quantiles of the
service that jobs of that half took. The second half is the judge.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from plait.core.arrays import FloatArray
from plait.core.cluster import Cluster
from plait.core.errors import InputError, suggest
from plait.core.jobs import JobBatch, Phase
from plait.policies.catalog import make_policy, rows
from plait.sim.run import simulate
from plait.sim.world import make_world

Thresholds = tuple[float, ...]

#: Below this many departures a fit is noise.
FEWEST_DEPARTURES = 200
#: Quantiles of observed service that may become thresholds, percent.
QUANTILES = (30, 45, 60, 75, 90, 95)
#: A bound that no job reaches: one queue, written so that it can be pasted.
ONE_QUEUE = (1e15,)


@dataclass(frozen=True)
class Fit:
    """What `fit_thresholds` found. Averages are completion times in seconds.

    `first` and `second` hold the averages on the two halves of `fitted`, `default` (the policy as given), `fifo`
    and `srsf`. `tried` lists every set of thresholds with its average on the first half, in order of trial.
    """

    policy: str
    default: str
    thresholds: Thresholds
    queues: int
    candidates: Thresholds
    first: Mapping[str, float]
    second: Mapping[str, float]
    jobs_first: int
    jobs_second: int
    left_out: int
    tried: Sequence[tuple[Thresholds, float]] = field(repr=False)

    @property
    def worth_it(self) -> bool:
        """Whether the fitted thresholds beat those of the policy as given on the half they have not seen."""
        return self.second["fitted"] < self.second["default"]

    @property
    def verdict(self) -> str:
        """One sentence for people."""
        fitted, default = self.second["fitted"], self.second["default"]
        change = abs(fitted - default) / default
        if self.worth_it:
            return f"on the second half the fitted thresholds beat {self.default} by {change:.1%}"
        if fitted == default:
            return f"on the second half the fitted thresholds do not beat {self.default}: they do the same"
        return f"on the second half the fitted thresholds do not beat {self.default}: they are {change:.1%} worse"

    def to_json(self) -> dict[str, Any]:
        """Everything, as JSON takes it."""
        out = {**asdict(self), "worth_it": self.worth_it, "verdict": self.verdict}
        out["tried"] = [{"thresholds": list(t), "avg_jct_s": value} for t, value in self.tried]
        return out


def fit_thresholds(
    jobs: JobBatch,
    cluster: Cluster,
    max_queues: int = 4,
    *,
    policy: str = "tiresias-l",
    seed: int = 0,
    tried: Callable[[], None] | None = None,
) -> Fit:
    """Thresholds for up to `max_queues` queues of `policy` on this history of jobs; see the module docstring.

    The other options of `policy` stay as they are. `tried()` is told of every replay. The same inputs give the same
    answer. Raises `InputError` for a policy without thresholds or a history of fewer than 200 departures.
    """
    if max_queues < 1:
        raise InputError(f"max_queues must be at least 1, got {max_queues}")
    pattern = _pattern(policy)
    fitting = np.flatnonzero(jobs.gpus <= cluster.largest_gang())
    if len(fitting) < FEWEST_DEPARTURES:
        raise InputError(
            f"{len(fitting)} jobs that fit the cluster are too few to fit thresholds to: "
            f"{FEWEST_DEPARTURES} departures are the least that says more than chance"
        )
    cut = fitting[: len(fitting) // 2], fitting[len(fitting) // 2 :]
    first, second = (_rebased(jobs[half]) for half in cut)
    replay = _Replay(first, cluster, pattern, seed, tried)
    candidates = _candidates(first)
    best = _descend(replay, candidates, max_queues)
    fitted = pattern(best)
    names = {"fitted": fitted, "default": policy, "fifo": "fifo", "srsf": "srsf"}
    return Fit(
        policy=fitted,
        default=policy,
        thresholds=() if best == ONE_QUEUE else best,
        queues=1 if best == ONE_QUEUE else len(best) + 1,
        candidates=candidates,
        first={name: average_jct_s(first, cluster, text, seed) for name, text in names.items()},
        second={name: average_jct_s(second, cluster, text, seed) for name, text in names.items()},
        jobs_first=len(first),
        jobs_second=len(second),
        left_out=len(jobs) - len(fitting),
        tried=tuple(replay.known.items()),
    )


def average_jct_s(jobs: JobBatch, cluster: Cluster, policy: str, seed: int = 0) -> float:
    """Average completion time of a replay without overheads under GPU counting, seconds."""
    row = rows().get(policy.partition(":")[0])
    counting = row is not None and "placement" in row.options
    text = f"{policy}{',' if ':' in policy else ':'}placement=counting" if counting else policy
    run = simulate(jobs, cluster, make_policy(text), make_world("ideal"), seed=seed)
    columns, n = run.controller.books.columns, run.controller.books.count
    finished = columns["phase"][:n] == int(Phase.FINISHED)
    return float(np.mean((columns["end_s"][:n] - jobs.submit_s)[finished]))


class _Replay:
    """The objective, each set of thresholds computed once."""

    def __init__(
        self,
        jobs: JobBatch,
        cluster: Cluster,
        pattern: Callable[[Thresholds], str],
        seed: int,
        tried: Callable[[], None] | None,
    ) -> None:
        self.jobs, self.cluster, self.pattern, self.seed, self.tried = jobs, cluster, pattern, seed, tried
        self.known: dict[Thresholds, float] = {}

    def __call__(self, thresholds: Thresholds) -> float:
        if thresholds not in self.known:
            self.known[thresholds] = average_jct_s(self.jobs, self.cluster, self.pattern(thresholds), self.seed)
            if self.tried is not None:
                self.tried()
        return self.known[thresholds]


def _descend(cost: Callable[[Thresholds], float], candidates: Thresholds, max_queues: int) -> Thresholds:
    """Coordinate descent for 1 to `max_queues` queues; of equals the one with fewer queues, then found first."""
    best: Thresholds = ONE_QUEUE
    lowest = cost(best)
    current: Thresholds = ()
    for _ in range(min(max_queues - 1, len(candidates))):
        current = min((_with(current, None, c) for c in candidates if c not in current), key=cost)
        while True:
            moved = current
            for threshold in current:
                options = [moved, *(_with(moved, threshold, c) for c in candidates if c not in moved)]
                moved = min(options, key=cost) if threshold in moved else moved
            if moved == current:
                break
            current = moved
        if cost(current) < lowest:
            best, lowest = current, cost(current)
    return best


def _with(thresholds: Thresholds, old: float | None, new: float) -> Thresholds:
    """The thresholds with one exchanged, or one more; ascending."""
    return tuple(sorted([t for t in thresholds if t != old] + [new]))


def _candidates(jobs: JobBatch) -> Thresholds:
    """Quantiles of the service that jobs took, whole GPU-seconds, ascending."""
    service: FloatArray = jobs.gpus * jobs.iterations * jobs.iteration_s
    return tuple(sorted({max(round(float(q)), 1) * 1.0 for q in np.percentile(service, QUANTILES)}))


def _rebased(jobs: JobBatch) -> JobBatch:
    """The same jobs with the first submission at 0."""
    return jobs.replace(submit_s=jobs.submit_s - jobs.submit_s[0])


def _pattern(policy: str) -> Callable[[Thresholds], str]:
    """Thresholds -> the policy with these; its other options stay."""
    name, _, rest = policy.partition(":")
    known = rows()
    with_thresholds = [n for n, row in known.items() if "thresholds" in row.options]
    if name not in known:
        raise InputError(f"unknown policy {name!r}; {suggest(name, with_thresholds)}")
    if name not in with_thresholds:
        raise InputError(f"policy {name!r} has no thresholds to fit; these have: {', '.join(with_thresholds)}")
    make_policy(policy)
    others = [part for part in rest.split(",") if part and not part.startswith("thresholds=")]
    return lambda thresholds: f"{name}:" + ",".join(["thresholds=" + "/".join(map(_number, thresholds)), *others])


def _number(value: float) -> str:
    return f"{value:g}" if value >= 1e15 else f"{value:.0f}"
