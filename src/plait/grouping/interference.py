"""Cost of sharing by pairs of jobs, learnt from reports of jobs that share.

A schedule says how long an iteration of a group takes if jobs on different resources do not disturb each other. They
do: on caches, memory bandwidth and the host. What a group takes beyond its schedule is its factor. Before any report
that of its size counts; each report of a group moves the factors of its pairs, of other pairs of the same models, and
of pairs that are alike in utilisation and memory, in this order of strength.

The logarithm of a member's factor is the mean over its mates of w x + a_m + b_j + c_mj: features x of the pair, effects
of the model m and of its mate j, and of the two together. All are Gaussian with mean 0, so the posterior is that of a
Gaussian process over the reported sets (Rasmussen and Williams, 2006, section 2.1), and has its uncertainty.

Start at `PairReports.costs`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import combinations, permutations
from typing import Any, NamedTuple

import numpy as np

from plait.core.arrays import FloatArray, IntArray
from plait.core.cluster import Cluster
from plait.core.turns import lock_step_s

#: Slow-down of a group of 1, 2, 3, 4 jobs beyond the ideal schedule, measured by Muri's authors on V100
#: (their artifact: 1.33, 1.5 and 1.37; the factor 1.015 of a lone job is part of the trace's own times).
MEASURED_INTERFERENCE = (1.0, 1.33 / 1.015, 1.5 / 1.015, 1.37 / 1.015)

#: Prior standard deviations of a feature's weight, of a model's effect and of a pair's, and that of a report. With
#: larger ones for features the first bad pair would keep all others from being tried.
FEATURE, MODEL, PAIR, REPORT = 0.1, 0.1, 0.1, 0.05
#: A report further than this from what is known (logarithm) is news; it counts at least this part.
NEWS, WEIGHT = 0.02, 0.5
#: Factors outside are errors of measurement: iterations of another group, or of a job that is just starting.
LEAST, MOST = math.log(0.5), math.log(4.0)
#: Pairs and groups whose reports are kept; the one without news for longest is dropped.
MOST_SETS = 768
#: Factors of pairs are rounded to this, in logarithms, so that results of grouping can be cached.
STEP = 0.01


def measured_interference(jobs: int, factors: Sequence[float] = MEASURED_INTERFERENCE) -> float:
    """The factor of a group of so many jobs; the last one counts for all larger groups."""
    return factors[min(jobs, len(factors)) - 1]


class SharingTraits(NamedTuple):
    """A job as it matters to jobs on the same GPUs.

    `model`: number of its model and size, otherwise of its script (`JobTable.kinds`), 0 if unknown; `busy`: the part of
    the time in which it uses its GPUs when alone; `memory`: the part of their memory that it takes.
    """

    model: int
    busy: float
    memory: float


def traits(
    kinds: IntArray, stage_gpu_s: FloatArray, iteration_s: FloatArray, memory_bytes: FloatArray, cluster: Cluster
) -> list[SharingTraits]:
    """The traits of these jobs; `kinds` as `JobTable.kinds`, seconds of an iteration alone, bytes a GPU."""
    model = np.where(kinds[:, 2] != 0, kinds[:, 2], kinds[:, 1])
    busy = np.round(np.clip(np.nan_to_num(stage_gpu_s / iteration_s, nan=1.0), 0.0, 1.0), 2)
    limit = min((n.gpu_memory_bytes for n in cluster if n.gpu_memory_bytes), default=0.0)
    memory = np.round(memory_bytes / limit, 2) if limit else np.zeros(len(model))
    return list(map(SharingTraits, model.tolist(), busy.tolist(), memory.tolist()))


def scheduled_s(stage_s: FloatArray, iteration_s: FloatArray, turns: Sequence[int] | None) -> FloatArray | None:
    """Seconds an iteration of each member by the schedule of its group alone; None if that is not known.

    `stage_s` (members, resources) and `iteration_s` (members,) alone. `turns` of a group in lock step; None for members
    that run at the same time and are slowed down until no resource is used more than all the time.
    """
    if np.isnan(stage_s).any() or np.isnan(iteration_s).any():
        return None
    if turns is None:
        asked = float((stage_s / iteration_s[:, None]).sum(axis=0).max())
        return iteration_s * max(asked, 1.0)
    if len(set(turns)) < len(turns):
        return None  # members that are on a resource together: their parts of it are not in the report
    return np.full(len(turns), max(lock_step_s(stage_s.tolist(), turns), float(iteration_s.max())))


@dataclass(frozen=True, eq=False)
class PairCosts:
    """Cost of sharing by pairs of jobs, on top of the factor of a group's size.

    `of_job[i]` is the number of the i-th job as a sharer; `log[a, b]`, symmetric, the logarithm of the factor of a pair
    of such. A group has the geometric mean of its pairs.
    """

    of_job: IntArray
    log: FloatArray

    def __getitem__(self, rows: IntArray) -> PairCosts:
        return PairCosts(self.of_job[rows], self.log)

    def factor(self, rows: Sequence[int]) -> float:
        """The factor of a group of these jobs: the plain form of `kernels.pair_cost`.

        >>> PairCosts(np.array([0, 1, 1]), np.log(np.array([[1.0, 1.2], [1.2, 0.9]]))).factor([0, 1])
        1.2
        """
        pairs = [self.log[self.of_job[a], self.of_job[b]] for a, b in combinations(rows, 2)]
        return math.exp(math.fsum(pairs) / len(pairs)) if pairs else 1.0


class Cost(NamedTuple):
    """An expected factor beyond that of a group's size, the standard deviation of its logarithm, and its reports."""

    factor: float
    deviation: float
    reports: float


class _Posterior(NamedTuple):
    """Column of each weight that pairs share, with the means, and the row and mean of the effect of each two models.

    The effects of two models are integrated out, so that the largest matrix has a row for each model, not for each two:
    `inner` is the inverse covariance of the shared weights then, `scale` that of the effects without them, and `outer`
    (effects, weights) what both have in common.
    """

    column: dict[object, int]
    mean: FloatArray
    row: dict[tuple[int, int], int]
    effect: FloatArray
    inner: FloatArray
    outer: FloatArray
    scale: FloatArray


class PairReport(NamedTuple):
    """Reports of a pair: the logarithms of the factors of both, and the number of reports.

    A report of a larger group counts for each of its pairs as one report shared among the mates of a member.
    """

    logs: tuple[float, float]
    weight: float


@dataclass(eq=False)
class PairReports:
    """What was reported of jobs that shared GPUs, and what follows for all pairs.

    `pairs` by the traits of two jobs, ascending; `sets`, the last measured factors of whole groups: logarithms, the
    mean of their members, beyond the factor of their size. A fold of reports in their order: equal reports, equal bits.
    """

    pairs: dict[tuple[SharingTraits, SharingTraits], PairReport] = field(default_factory=dict)
    sets: dict[tuple[SharingTraits, ...], float] = field(default_factory=dict)
    _known: _Posterior | None = None

    def note(self, members: Sequence[SharingTraits], logs: Sequence[float]) -> bool:
        """Note the logarithm of each member's factor beyond that of their number; return whether that is news.

        Impossible values are left out. Losses that the pairs of a member do not explain are attributed to all of them
        alike.
        """
        if not all(LEAST <= log <= MOST for log in logs):
            return False
        key = tuple(sorted(members))
        self.sets.pop(key, None)
        self.sets[key] = math.fsum(logs) / len(logs)
        mates = len(members) - 1
        known = {(i, j): self._log(members[i], members[j]) for i, j in permutations(range(len(members)), 2)}
        more = [log - math.fsum(known[i, j] for j in range(mates + 1) if j != i) / mates for i, log in enumerate(logs)]
        news = max(map(abs, more)) > NEWS
        if news:
            for i, j in combinations(range(len(members)), 2):
                self._attribute(members[i], members[j], (more[i], more[j]), mates)
            self._known = None
        while len(self.sets) > MOST_SETS:
            del self.sets[next(iter(self.sets))]
        while len(self.pairs) > MOST_SETS:
            del self.pairs[next(iter(self.pairs))]
        return news

    def _log(self, one: SharingTraits, mate: SharingTraits) -> float:
        """The reported logarithm of the factor of `one` next to `mate`; 0 without a report."""
        report = self.pairs.get((one, mate) if one <= mate else (mate, one))
        return 0.0 if report is None else report.logs[0 if one <= mate else 1]

    def _attribute(self, one: SharingTraits, mate: SharingTraits, more: tuple[float, float], mates: int) -> None:
        first, second = (one, mate) if one <= mate else (mate, one)
        ours, theirs = more if one <= mate else more[::-1]
        logs, count = self.pairs.pop((first, second), PairReport((0.0, 0.0), 0.0))
        part = max(WEIGHT, 1 / (count + 1))
        moved = logs[0] + part * ours, logs[1] + part * theirs
        self.pairs[first, second] = PairReport(moved, count + 1 / mates)

    def costs(self, jobs: Sequence[SharingTraits]) -> PairCosts | None:
        """The expected costs of all pairs of these jobs; None while they are those of the sizes."""
        if not self.pairs:
            return None
        number = {one: i for i, one in enumerate(sorted(set(jobs)))}
        known, at, log = self._posterior(), list(number), np.zeros((len(number), len(number)))
        busy, memory = (np.array([one[i] for one in at]) for i in (1, 2))
        log += np.tensordot(known.mean[: len(_FEATURES)], _features(busy[:, None], busy, memory[:, None], memory), 1)
        models = {one.model: None for one in at}
        effect = {
            (a, b): math.fsum(
                [size * known.mean[known.column[name]] for name, size in _effects(a, b).items() if name in known.column]
                + [_of_two(a, b) * known.effect[known.row[a, b]] if (a, b) in known.row else 0.0]
            )
            for a in models
            for b in models
        }
        log += np.array([[effect[a.model, b.model] for b in at] for a in at])
        log = np.round((log + log.T) / (2 * STEP)) * STEP
        return PairCosts(np.array([number[one] for one in jobs], dtype=np.int64), log)

    def cost(self, one: SharingTraits, mate: SharingTraits) -> Cost:
        """The expected cost of `mate` for `one`."""
        known, entries, of_two = self._posterior(), _entries(one, mate), _of_two(one.model, mate.model)
        row = np.zeros(len(known.column))
        for name, value in entries.items():
            if name in known.column:
                row[known.column[name]] = value
        # Effects that no report has touched have their prior variance, 1.
        variance = math.fsum(v * v for name, v in entries.items() if name not in known.column)
        log, at = float(row @ known.mean), known.row.get((one.model, mate.model))
        if at is None:
            variance += of_two**2
        else:
            log += of_two * known.effect[at]
            row -= known.outer[at] * of_two / known.scale[at]
            variance += of_two**2 / known.scale[at]
        variance += float(row @ np.linalg.solve(known.inner, row))
        report = self.pairs.get((one, mate) if one <= mate else (mate, one))
        count = 0.0 if report is None else report.weight
        return Cost(math.exp(log), math.sqrt(variance), count)

    def measured(self, members: Iterable[SharingTraits]) -> float | None:
        """The last measured factor of exactly this group beyond that of its size; None without."""
        log = self.sets.get(tuple(sorted(members)))
        return None if log is None else math.exp(log)

    def _posterior(self) -> _Posterior:
        if self._known is not None:
            return self._known
        rows = [(one, mate, report.logs[0], report.weight) for (one, mate), report in self.pairs.items()]
        rows += [(mate, one, report.logs[1], report.weight) for (one, mate), report in self.pairs.items()]
        column: dict[object, int] = {name: i for i, name in enumerate(_FEATURES)}
        row: dict[tuple[int, int], int] = {}
        for one, mate, _, _ in rows:
            row.setdefault((one.model, mate.model), len(row))
            for name in _entries(one, mate):
                column.setdefault(name, len(column))
        design = np.zeros((len(rows), len(column)))
        for r, (one, mate, _, _) in enumerate(rows):
            entries = _entries(one, mate)
            design[r, [column[name] for name in entries]] = list(entries.values())
        of = np.array([row[one.model, mate.model] for one, mate, _, _ in rows], dtype=np.int64)
        of_two = np.array([_of_two(one.model, mate.model) for one, mate, _, _ in rows])
        logs, counts = np.array([[log, min(count, 1 / WEIGHT)] for _, _, log, count in rows]).reshape(-1, 2).T
        precision = counts / REPORT**2
        scale: Any = 1.0 + np.bincount(of, precision * of_two**2, len(row))
        of_logs = np.bincount(of, precision * of_two * logs, len(row))
        outer = np.zeros((len(row), len(column)))
        np.add.at(outer, of, design * (precision * of_two)[:, None])
        weighed = design.T * precision
        inner = weighed @ design + np.eye(len(column)) - outer.T @ (outer / scale[:, None])
        mean: Any = np.linalg.solve(inner, weighed @ logs - outer.T @ (of_logs / scale))
        self._known = _Posterior(column, mean, row, (of_logs - outer @ mean) / scale, inner, outer, scale)
        return self._known

    def copy(self) -> PairReports:
        """A copy that changes by itself."""
        return PairReports(dict(self.pairs), dict(self.sets), self._known)

    def to_json(self) -> dict[str, Any]:
        """All that `from_json` needs, as plain lists."""
        return {
            "pairs": [[*map(list, pair), *report.logs, report.weight] for pair, report in self.pairs.items()],
            "sets": [[[list(one) for one in members], log] for members, log in self.sets.items()],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> PairReports:
        """The reports that `to_json` wrote."""
        pairs = {
            (SharingTraits(*a), SharingTraits(*b)): PairReport((x, y), n) for a, b, x, y, n in data.get("pairs", ())
        }
        return cls(pairs, {tuple(SharingTraits(*one) for one in members): log for members, log in data.get("sets", ())})


_FEATURES = ("1", "busy", "busy mate", "both busy", "above all the time", "memory", "memory of the mate")


def _features(busy: Any, mate_busy: Any, memory: Any, mate_memory: Any) -> FloatArray:
    """Features of pairs times their prior deviations, first axis by `_FEATURES`."""
    alike = np.zeros(np.broadcast(busy, mate_busy).shape)
    columns = (1.0, busy, mate_busy, busy * mate_busy, np.maximum(busy + mate_busy - 1.0, 0.0), memory, mate_memory)
    return FEATURE * np.array([alike + column for column in columns])


def _effects(model: int, mate: int) -> dict[object, float]:
    """The effects of a model and of its mate, with prior deviations; without those of unknown models."""
    of_model: dict[object, float] = {("slowed", model): MODEL} if model else {}
    of_mate: dict[object, float] = {("slows", mate): MODEL} if mate else {}
    return {**of_model, **of_mate}


def _of_two(model: int, mate: int) -> float:
    """The prior deviation of the effect of two models together; 0 if one is unknown."""
    return PAIR if model and mate else 0.0


@lru_cache(maxsize=4096)
def _entries(one: SharingTraits, mate: SharingTraits) -> Mapping[object, float]:
    """The entries of a pair's row of the design that are not 0, times the prior deviations, without that of the two."""
    values = _features(one.busy, mate.busy, one.memory, mate.memory).tolist()
    return {**dict[object, float](zip(_FEATURES, values, strict=True)), **_effects(one.model, mate.model)}
