"""A bucket of jobs as classes of equal jobs, packed for the kernels; worth of its groups, computed once a kind.

Jobs of one GPU count whose profile, memory and shares are equal are one class. Classes are numbered in the order of
their values, so nothing depends on the order in which the jobs came. A group here is a sorted tuple of class
numbers.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np

from plait.core.arrays import BoolArray, FloatArray, IntArray
from plait.core.compile_policy import compiled, run
from plait.core.errors import InputError
from plait.grouping import kernels
from plait.grouping.interference import PairCosts, measured_interference
from plait.grouping.times import Order, packed_rows, packed_turns, times_by_columns

R = TypeVar("R")


class GroupingCache:
    """The last `limit` results of matching, local search and exact grouping.

    Keep one between calls of `group`: a bucket with the same candidates as before, in whatever order, costs a
    look-up. Everything the result depends on is in the key, so a cache changes times only.
    """

    def __init__(self, limit: int = 1024) -> None:
        """Remember at most `limit` results; the one not used for longest goes first."""
        self.limit = limit
        self._results: OrderedDict[Hashable, Any] = OrderedDict()

    def __len__(self) -> int:
        return len(self._results)

    def remember(self, key: Hashable, make: Callable[[], R]) -> R:
        """The result for `key`, computed by `make` if it is not cached; callers must not modify it."""
        if key in self._results:
            self._results.move_to_end(key)
            found: R = self._results[key]
            return found
        made = make()
        self._results[key] = made
        if len(self._results) > self.limit:
            self._results.popitem(last=False)
        return made


@dataclass(frozen=True, eq=False)
class Candidates:
    """The jobs to group, one a row, in priority order.

    `stage_s` (n, k) seconds of each stage alone; `iteration_s` (n,) of the whole iteration alone; `gpus` (n,);
    `memory_bytes` (n,) of GPU memory on each GPU, None = not limited; `shares` (n, k) the part of each resource that a
    stage needs, in (0, 1], None = all of it (see `interleave`). `costs`: what pairs of these jobs are known to cost;
    None = the factors by size alone. Raises `InputError` that names the row.
    """

    stage_s: FloatArray
    iteration_s: FloatArray
    gpus: IntArray
    memory_bytes: FloatArray | None = None
    shares: FloatArray | None = None
    costs: PairCosts | None = None

    def __post_init__(self) -> None:
        stage = np.ascontiguousarray(self.stage_s, dtype=np.float64)
        if stage.ndim != 2 or stage.shape[1] == 0:
            raise InputError(f"stage_s must have shape (jobs, resources), got {stage.shape}")
        gpus = np.asarray(self.gpus)
        columns = {
            "stage_s": stage,
            "iteration_s": np.asarray(self.iteration_s, dtype=np.float64),
            "gpus": gpus.astype(np.int64),
        }
        if self.memory_bytes is not None:
            columns["memory_bytes"] = np.asarray(self.memory_bytes, dtype=np.float64)
        if self.shares is not None:
            columns["shares"] = np.asarray(self.shares, dtype=np.float64)
        for name, column in columns.items():
            wanted = stage.shape if name in ("stage_s", "shares") else stage.shape[:1]
            if column.shape != wanted:
                raise InputError(f"{name} must have shape {wanted}, as for {len(stage)} jobs, got {column.shape}")
            object.__setattr__(self, name, column)
        self._check()

    def _check(self) -> None:
        stage, alone, memory, shares = self.stage_s, self.iteration_s, self.memory_bytes, self.shares
        total: FloatArray = stage.sum(axis=1)
        _need(
            (stage.min(axis=1) >= 0) & np.isfinite(total) & (total > 0),
            stage,
            "stage_s must be finite, >= 0 and not all 0 seconds",
        )
        _need((alone > 0) & np.isfinite(alone), alone, "iteration_s must be a positive number of seconds")
        _need(self.gpus >= 1, self.gpus, "gpus must be at least 1")
        if memory is not None:
            _need((memory >= 0) & np.isfinite(memory), memory, "memory_bytes must be finite and >= 0")
        if shares is not None:
            _need((shares.min(axis=1) > 0) & (shares.max(axis=1) <= 1), shares, "shares must be in (0, 1]")

    def __len__(self) -> int:
        return len(self.gpus)

    @cached_property
    def keys(self) -> list[bytes]:
        """Equal for jobs with equal stages, iterations and memory."""
        columns = (self.stage_s, self.iteration_s, self.memory_bytes)
        data = np.column_stack([column for column in columns if column is not None])
        data += 0.0  # no -0.0
        rows, width = data.tobytes(), data.itemsize * data.shape[1]
        return [rows[i : i + width] for i in range(0, len(rows), width)]

    def some(self, rows: IntArray) -> Candidates:
        """The jobs at these positions, in this order; they have been checked."""
        made = object.__new__(Candidates)
        columns = [(field.name, getattr(self, field.name)) for field in fields(self)]
        made.__dict__.update({name: None if column is None else column[rows] for name, column in columns})
        return made


def _need(fine: BoolArray, column: FloatArray | IntArray, rule: str) -> None:
    if not fine.all():
        row = int(np.argmin(fine))
        raise InputError(f"row {row}: {rule}, got {column[row].tolist()}")


Objective = Literal["efficiency", "speedup"]
OBJECTIVES = ("efficiency", "speedup")
Node = tuple[int, ...]


@dataclass(frozen=True)
class GroupingOptions:
    """Settings for the value of a group; hashable, so that it can be part of a cache's key.

    Members need the largest peak of their memory and the part `memory_kept` of the others': 1 is the sum.
    """

    max_jobs: int = 4
    objective: Objective = "efficiency"
    order: Order = "best"
    idle_slots: bool = True
    interference: tuple[float, ...] = (1.0,)
    guard: float | None = 0.0
    memory_limit_bytes: float = float("inf")
    memory_kept: float = 1.0

    def factor(self, jobs: int) -> float:
        """Slow-down of a group of so many jobs; the last one given counts for all larger groups."""
        return measured_interference(jobs, self.interference)

    def monotone(self, shared: bool) -> bool:
        """Whether a group takes at least as long as each part of it: every part may take its turns as in the group."""
        return self.idle_slots and (self.order == "best" or not shared)

    @property
    def floor(self) -> float:
        """Summed normalised throughput that a group has to exceed."""
        return -1.0 if self.guard is None else 1.0 + self.guard


@dataclass(frozen=True, eq=False)
class Values:
    """Values of the requested groups, in their order. Groups that may not be have value and speedup 0."""

    iteration_s: FloatArray
    turn_row: IntArray
    value: FloatArray
    speedup: FloatArray


@dataclass(frozen=True, eq=False)
class ClassedBucket:
    """Classes of one bucket: `of_job[i]` is the class of its i-th job, `counts[c]` how many there are."""

    options: GroupingOptions
    resources: int
    shared: bool
    rows: FloatArray
    of_job: IntArray
    counts: IntArray

    @classmethod
    def of(
        cls,
        options: GroupingOptions,
        stage_s: FloatArray,
        iteration_s: FloatArray,
        memory_bytes: FloatArray | None,
        shares: FloatArray | None,
        costs: PairCosts | None = None,
    ) -> ClassedBucket:
        """Find the classes among the jobs of a bucket, one a row."""
        jobs, k = stage_s.shape
        rows = packed_rows(stage_s, shares, more=kernels.EXTRAS)
        after = rows[:, 3 * k :]
        after[:, kernels.MEMORY] = 0.0 if memory_bytes is None else memory_bytes
        after[:, kernels.SOLO] = iteration_s
        keys: list[FloatArray | IntArray] = [*rows[:, :k].T, iteration_s]
        keys += [] if memory_bytes is None else [memory_bytes]
        keys += [] if shares is None else [shares[:, r] for r in range(k)]
        keys += [] if costs is None else [costs.of_job]
        order = np.lexsort(keys[::-1])
        new = np.zeros(jobs, dtype=bool)
        new[0] = True
        for key in keys:
            ordered = key[order]
            new[1:] |= ordered[1:] != ordered[:-1]
        of_job = np.empty(jobs, dtype=np.int64)
        of_job[order] = np.cumsum(new) - 1
        rows = np.ascontiguousarray(rows[order[new]])
        if costs is not None:
            kinds = costs.of_job[order[new]]
            rows = np.column_stack([rows, costs.log[np.ix_(kinds, kinds)]])
        _fill_worth(rows, k, options.objective)
        return cls(options, k, shares is not None and _some_may_share(shares), rows, of_job, np.bincount(of_job))

    @cached_property
    def key(self) -> tuple[object, ...]:
        """Equal for buckets with the same classes and the same options."""
        return self.options, self.resources, self.shared, self.rows.tobytes()

    @cached_property
    def packed(self) -> tuple[FloatArray, IntArray, IntArray, IntArray]:
        """Numbers, shape, table and first of the kernels, with the guard on."""
        numbers, shape, table, first = _packed(self.options, self.resources, self.shared)
        return np.append(numbers, [self.least_cost, self.options.memory_kept]), shape, table, first

    @property
    def least_cost(self) -> float:
        """The least factor by which pairs change the time of a group; 1 where nothing has been learnt."""
        return math.exp(float(self._pair_logs.min(initial=0.0)))

    @property
    def most_cost(self) -> float:
        """The largest factor by which pairs change the time of a group."""
        return math.exp(float(self._pair_logs.max(initial=0.0)))

    @property
    def _pair_logs(self) -> FloatArray:
        return self.rows[:, 3 * self.resources + kernels.EXTRAS :]

    @property
    def factors(self) -> list[float]:
        """The least factor of a group of 1, 2, ... jobs."""
        more = [self.options.factor(p) * self.least_cost for p in range(2, self.options.max_jobs + 1)]
        return [self.options.factor(1), *more]

    def nodes_of_jobs(self) -> list[Node]:
        """Every job alone, by class."""
        return [(c,) for c in sorted(self.of_job.tolist())]

    def padded(self, nodes: Sequence[Node]) -> IntArray:
        """Groups under each other, padded with -1 to `max_jobs`."""
        most = self.options.max_jobs
        flat = [c for node in nodes for c in (*node, *(-1,) * (most - len(node)))]
        return np.array(flat, dtype=np.int64).reshape(len(nodes), most)

    def values(self, nodes: Sequence[Node]) -> Values:
        """Time, turns, objective and summed normalised throughput of some groups."""
        return self.values_of(self.padded(nodes))

    def values_of(self, members: IntArray) -> Values:
        """As `values`, for groups that are already padded."""
        _, shape, table, first = self.packed
        if compiled(kernels.fill_times, members.size):
            time = np.empty(len(members))
            turns = np.empty_like(members)
            at = np.empty(len(members), dtype=np.int64)
            run(kernels.fill_times, self.rows, members, shape, table, first, time, turns, at)
        else:
            time, at = times_by_columns(self.rows, members, shape, table, first)
        return self._values(members, time, at)

    def _values(self, members: IntArray, time: FloatArray, at: IntArray) -> Values:
        """Objective of groups whose formula (3) is known; sums in member order, as the kernels do."""
        numbers = self.packed[0]
        after = 3 * self.resources
        most = self.options.max_jobs
        sizes = (members >= 0).sum(axis=1)
        worth, solo, memory, peak, longest = np.zeros((5, len(members)))
        for i in range(members.shape[1]):
            there = members[:, i] >= 0
            own = self.rows[members[:, i], after:]
            worth += np.where(there, own[:, kernels.WORTH], 0.0)
            solo += np.where(there, own[:, kernels.SOLO], 0.0)
            memory += np.where(there, own[:, kernels.MEMORY], 0.0)
            peak = np.maximum(peak, np.where(there, own[:, kernels.MEMORY], 0.0))
            longest = np.maximum(longest, np.where(there, own[:, kernels.SOLO], 0.0))
        time = np.maximum(time, longest) * (numbers[sizes - 1] * self._pair_factors(members, sizes))
        fine = (at >= 0) & (memory - (1.0 - numbers[most + 2]) * (memory - peak) <= numbers[most])
        value = np.where(fine, worth / time, 0.0)
        speedup = np.where(fine, solo / time, 0.0)
        alone = sizes == 1
        if alone.any():
            own = self.rows[members[alone, 0], after:]
            time[alone], value[alone], speedup[alone] = own[:, kernels.SOLO], own[:, kernels.ALONE], 1.0
        return Values(time, at, value, speedup)

    def _pair_factors(self, members: IntArray, sizes: IntArray) -> FloatArray | float:
        """`kernels.pair_cost` of many groups."""
        logs = self._pair_logs
        if not logs.size:
            return 1.0
        total = np.zeros(len(members))
        for i in range(1, members.shape[1]):
            for other in range(i):
                total += np.where(members[:, i] >= 0, logs[members[:, i], members[:, other]], 0.0)
        factors: FloatArray = np.exp(2.0 * total / np.maximum(sizes * (sizes - 1), 1))
        return factors

    def weights(self, nodes: Sequence[Node], *, guarded: bool) -> FloatArray:
        """Objective of the union of every two nodes, also of a node with its like; 0 where they may not join.

        With `guarded`, unions that the guard would split count as such.
        """
        numbers, shape, table, first = self.packed
        floor = self.options.floor if guarded else -1.0
        members = self.padded(nodes)
        if compiled(kernels.fill_weights, len(nodes) ** 2):
            weight = np.empty((len(nodes), len(nodes)))
            run(kernels.fill_weights, self.rows, members, floor, numbers, shape, table, first, weight)
            return weight
        return self._weights_by_columns(members, floor)

    def _weights_by_columns(self, members: IntArray, floor: float) -> FloatArray:
        most = members.shape[1]
        u, v = np.tril_indices(len(members))
        both = np.concatenate([members[u], members[v]], axis=1)
        both[both < 0] = np.iinfo(np.int64).max
        both.sort(axis=1)
        both[both == np.iinfo(np.int64).max] = -1
        fits = (both[:, most:] < 0).all(axis=1)
        union = np.ascontiguousarray(both[fits, :most])
        found = self._values(union, *times_by_columns(self.rows, union, *self.packed[1:]))
        weight = np.zeros((len(members), len(members)))
        value = np.where(found.speedup > floor, found.value, 0.0)
        weight[u[fits], v[fits]] = value
        weight[v[fits], u[fits]] = value
        return weight

    def turns(self, node: Node, turn_row: int) -> tuple[int, ...]:
        """The turn of each member of a group, given the row of the table that `values` named."""
        return tuple(self.packed[2][turn_row, : len(node)].tolist())


def _some_may_share(shares: FloatArray) -> bool:
    """Whether two jobs could have the same turn: not if every job needs most of one and the same resource.

    If not, groups follow formula (3), which has ten times fewer turns to try.
    """
    return not bool((2.0 * shares.min(axis=0) > 1.0 + kernels.SLACK).any())


def _fill_worth(rows: FloatArray, k: int, objective: Objective) -> None:
    after = rows[:, 3 * k :]
    busy = np.zeros(len(rows))
    for r in range(k):
        busy += rows[:, r]
    after[:, kernels.LEAST] = np.maximum(busy, after[:, kernels.SOLO])
    if objective == "speedup":
        after[:, kernels.WORTH] = after[:, kernels.SOLO]
        after[:, kernels.ALONE] = 1.0
    else:
        after[:, kernels.WORTH] = busy / k
        after[:, kernels.ALONE] = np.minimum(busy / k / after[:, kernels.SOLO], 1.0)


@lru_cache(maxsize=64)
def _packed(options: GroupingOptions, resources: int, shared: bool) -> tuple[FloatArray, IntArray, IntArray, IntArray]:
    most = options.max_jobs
    numbers = np.array([*(options.factor(p) for p in range(1, most + 1)), options.memory_limit_bytes])
    shape = np.array([resources, most, options.order == "worst", shared, options.monotone(shared)], dtype=np.int64)
    return numbers, shape, *packed_turns(resources, most, options.idle_slots, shared)


class Worth(NamedTuple):
    """One kind of group, as `model.Values` has it."""

    iteration_s: float
    turn_row: int
    value: float
    speedup: float


class KnownWorth:
    """Results of `model` for groups; valid for every model with the same key, so it can be cached."""

    def __init__(self, model: ClassedBucket) -> None:
        self.model = model
        self._worth: dict[Node, Worth] = {}
        self._arranged: dict[Node, tuple[tuple[int, ...], float]] = {}

    def worth(self, nodes: Sequence[Node]) -> list[Worth]:
        """Value of each of some groups; new ones are computed together."""
        known = self._worth
        unknown = [node for node in dict.fromkeys(nodes) if node not in known]
        if unknown:
            found = self.model.values(unknown)
            columns = (found.iteration_s, found.turn_row, found.value, found.speedup)
            known.update(zip(unknown, map(Worth, *(column.tolist() for column in columns)), strict=True))
        return [known[node] for node in nodes]

    def arranged(self, classes: Node) -> tuple[tuple[int, ...], float]:
        """Turns and efficiency of a group whose members have these classes, best priority first, which has turn 0."""
        found = self._arranged.get(classes)
        if found is None:
            found = self._arranged[classes] = self._arrange(classes)
        return found

    def _arrange(self, classes: Node) -> tuple[tuple[int, ...], float]:
        k = self.model.resources
        by_class = sorted(range(len(classes)), key=lambda i: (classes[i], i))
        node = tuple(classes[i] for i in by_class)
        (worth,) = self.worth([node])
        turn_of = dict(zip(by_class, self.model.turns(node, worth.turn_row), strict=True))
        busy = float(np.ascontiguousarray(self.model.rows[list(classes), :k]).sum()) / (k * worth.iteration_s)
        return tuple((turn_of[i] - turn_of[0]) % k for i in range(len(classes))), min(busy, 1.0)


#: Classes that `LastingClasses` number at most; there can be 20,000 groups of four of so many.
MOST_LASTING = 24


class LastingClasses:
    """Classes that last from one decision to the next, so that what is known of their groups does, too.

    All classes that one bucket has had are numbered together, in the order of their values. Absent ones change no
    result of a matching, as classes are only ever compared; exact grouping counts them and needs its own.
    """

    def __init__(self) -> None:
        self._number: dict[bytes, int] = {}

    def of(self, options: GroupingOptions, jobs: Candidates, keys: Sequence[bytes]) -> tuple[ClassedBucket, KnownWorth]:
        """The classes of jobs with these `Candidates.keys`, and their groups."""
        if not self._number.keys() >= set(keys):
            self._learn(options, jobs, keys)
        model = object.__new__(ClassedBucket)
        of_job = np.array([self._number[key] for key in keys], dtype=np.int64)
        counts = np.bincount(of_job, minlength=len(self._number))
        model.__dict__.update(self._known.model.__dict__, of_job=of_job, counts=counts)
        return model, self._known

    def _learn(self, options: GroupingOptions, jobs: Candidates, keys: Sequence[bytes]) -> None:
        """Number these classes, with all earlier ones unless they become too many."""
        every = list(dict.fromkeys((*self._number, *keys)))
        if len(every) > MOST_LASTING:
            every = list(dict.fromkeys(keys))
        data, k = np.frombuffer(b"".join(every)).reshape(len(every), -1), jobs.stage_s.shape[1]
        memory = None if jobs.memory_bytes is None else data[:, k + 1]
        model = ClassedBucket.of(options, data[:, :k], data[:, k], memory, None)
        self._number = dict(zip(every, model.of_job.tolist(), strict=True))
        self._known = KnownWorth(model)
