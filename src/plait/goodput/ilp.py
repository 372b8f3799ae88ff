"""Sizes and placements of all jobs at once, exactly, as an integer program (homogeneous nodes).

The ladder lacks sizes such as 3, 5, 6 or 7 of 4-GPU nodes, which can be best where a fair share is about that. Here
every size may be chosen, on one node or on several. The identity of nodes does not matter to the value, so the
program counts patterns:

    x[j, c]  job j has configuration c: nothing, K GPUs of one node, or K GPUs of several
    y[j, l]  on how many nodes the distributed job j has room for l GPUs
    z[q]     how many nodes hold the multiset q of one-node jobs

A node with pattern q has room for one part of G - |q| GPUs of a distributed job, of which it holds at most one.

Sizes and placements of all jobs on named nodes, exactly, with jobs that stay and jobs that restart.

That program counts an unchanged size as unmoved, but sometimes no placement keeps all of these. Here
staying is a separate choice, on the same GPUs, and any other allocation costs a restart, also one of equal size. Nodes
may differ, be down, or be taken in part. Only configurations that can beat a known allocation are offered.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import fsum

import numpy as np

from plait.core.arrays import BoolArray, FloatArray, IntArray
from plait.core.errors import InputError
from plait.core.highs import Program, Solution, solve
from plait.goodput.fitness import FLOOR, HARMONIC, column_of, fitness, ladder, terms
from plait.goodput.knapsack import best_sizes, knapsack

#: No loss is more than this many units: solvers work with 1e-7 relative accuracy.
MOST_COST = 1e6


def useful(gain: FloatArray, configs: IntArray, total: int) -> BoolArray:
    """Columns (J, C) of `gain` that can be in an optimum of `total` GPUs: each worth more than all smaller ones.

    Configurations `configs` (C, 2) on one node and on several are compared separately.
    """
    found = np.zeros(gain.shape, dtype=bool)
    found[:, 0] = np.isfinite(gain[:, 0])
    for several in (False, True):
        at = np.flatnonzero(((configs[:, 0] > 1) == several) & (configs[:, 1] > 0) & (configs[:, 1] <= total))
        at = at[np.argsort(configs[at, 1], kind="stable")]
        least = np.where(found[:, 0], gain[:, 0], -np.inf)[:, None]
        before = np.maximum.accumulate(np.concatenate([least, gain[:, at]], axis=1), axis=1)[:, :-1]
        found[:, at] = gain[:, at] > before
    return found


def still_possible(gain: FloatArray, usable: BoolArray, gpus: IntArray, total: int, first: IntArray) -> BoolArray:
    """Which columns an arrangement better than `first` can hold, besides `first` itself.

    If every size could be placed, a knapsack would bound the optimum; if that is no better, none is. Else `affordable`.
    """
    rows = np.arange(len(gain))
    mine = np.zeros(gain.shape, dtype=bool)
    mine[rows, first] = True
    order = np.argsort(gpus, kind="stable")
    bound = order[knapsack(np.where(usable | mine, gain, -np.inf)[:, order], gpus[order], total)]
    if fsum([*gain[rows, bound].tolist(), *(-gain[rows, first]).tolist()]) <= 0:  # exact, as terms differ widely
        return mine
    return mine | affordable(gain, usable | mine, np.broadcast_to(gpus, gain.shape), total, gain[rows, first])


def affordable(gain: FloatArray, usable: BoolArray, gpus: IntArray, total: int, reached: FloatArray) -> BoolArray:
    """Which columns an allocation can hold whose gain is larger than that of one already known, `reached` (J,).

    A price for GPUs bounds the gain of all (Lagrange), also if a job takes a column against its interest at that price:
    what then falls short is dropped. `gain`, `usable`, `gpus` (J, C).
    """
    offered = np.where(usable, gain, -np.inf)
    low, high = 0.0, float((offered.max(axis=1) - reached).max() + np.abs(reached).max())
    rows = np.arange(len(gain))
    for _ in range(60):  # the price at which total demand equals supply
        price = (low + high) / 2
        wanted = gpus[rows, (offered - price * gpus).argmax(axis=1)].sum()
        low, high = (price, high) if wanted > total else (low, price)
    net = offered - high * gpus
    best = net.max(axis=1)
    spare = best.sum() + high * total - reached.sum()  # none is better than the known one by more than this
    slack = 1e-9 * (np.abs(best).sum() + high * total)
    kept: BoolArray = usable & (best[:, None] - net <= spare + slack)
    return kept


def losses(gain: FloatArray, usable: BoolArray, single: BoolArray) -> tuple[FloatArray, float]:
    """Loss of each usable (job, column) pair, in order, against the best of its job, and the factor of its unit.

    The unit is a typical loss: the median of the pairs of one GPU (`single`) that lose anything. Where losses differ
    too widely for a solver, the unit is coarser by that factor, and much smaller losses vanish.
    """
    job, column = np.nonzero(usable)
    best: FloatArray = np.where(usable, gain, -np.inf).max(axis=1)
    loss: FloatArray = best[job] - gain[job, column]
    typical = loss[single & (loss > 0)] if (loss[single] > 0).any() else loss[loss > 0]
    if not len(typical):
        return loss, 1.0
    unit = float(np.median(typical))
    coarse = max(float(loss.max()) / (unit * MOST_COST), 1.0)
    return loss / (unit * coarse), coarse


def patterns(most: int, largest: int | None = None) -> Iterator[tuple[int, ...]]:
    """All multisets of positive integers that sum to `most` or less, each falling.

    >>> sorted(patterns(2))
    [(), (1,), (1, 1), (2,)]
    """
    yield ()
    for k in range(min(most, largest or most), 0, -1):
        for rest in patterns(most - k, k):
            yield (k, *rest)


def fill(row: IntArray, size: int, parts: list[tuple[int, int]]) -> None:
    """`size` GPUs over (node, room) parts, the roomiest first, but on two nodes at least; writes into `row`."""
    for i, (node, room) in enumerate(parts):
        share = min(room, size - (1 if i == 0 else 0))
        row[node] = share
        size -= share


#: Cost of a node of a distributed job, in units of what the size of a typical job is about: large enough to prefer
#: 4 + 1 GPUs to 1 + 1 + 1 + 1 + 1, too small to change sizes.
NODE_COST = 1e-6


@dataclass(frozen=True)
class Arrangement:
    """Columns chosen for the jobs (J,), and GPUs (J, N) on nodes that are not named yet.

    `optimal`: proven best of all; else the best found within the limits, and never worse than the ladder's.
    """

    columns: IntArray
    gpus: IntArray
    optimal: bool


def best_arrangement(
    speedup: FloatArray,
    configs: IntArray,
    gpus_per_node: int,
    nodes: int,
    p: float = HARMONIC,
    *,
    floor: float = FLOOR,
    weights: FloatArray | None = None,
    most_nodes: int | None = None,
) -> Arrangement:
    """The sizes with the largest FITNESS_p that `nodes` nodes of `gpus_per_node` GPUs can hold.

    `speedup` (J, C) over `configs` (C, 2) = nodes, gpus, as `ladder.every_size` gives them, the first (0, 0); NaN marks
    what a job cannot have. Starts from the ladder's optimum. Jobs of weight 0 get what that leaves, or nothing. The
    limit on branchings ends the search early. Where terms differ by many orders of
    magnitude (a low p) the large ones are settled first: the best found so far excludes choices that lose more.
    """
    if len(configs) == 0 or configs[0].tolist() != [0, 0]:
        raise InputError(f"the first configuration has to be nothing, (0, 0) (got {configs[:1].tolist()})")
    jobs = len(speedup)
    if jobs == 0 or nodes == 0:
        return Arrangement(np.zeros(jobs, dtype=np.int64), np.zeros((jobs, nodes), dtype=np.int64), True)
    gain = terms(speedup, p, floor=floor, weights=weights)
    gain = np.where(np.isnan(gain), -np.inf, gain)
    first = _from_ladder(speedup, configs, gpus_per_node, nodes, p, floor, weights)
    total = gpus_per_node * nodes
    usable = useful(gain, configs, total)
    rows, coarse = np.arange(jobs), np.inf
    best: Arrangement | None = None
    while True:
        known = first if best is None else best.columns
        if known is not None:
            usable = still_possible(gain, usable, configs[:, 1], total, known)
        model = _Model(gain, usable, configs, gpus_per_node, nodes)
        start = None if first is None or best is not None else model.encode(first)
        if start is not None and first is not None:
            best = Arrangement(first, model.decode(start), False)
        if best is not None and (usable.sum(axis=1) == 1).all():  # nothing can be better than the known allocation
            return Arrangement(best.columns, best.gpus, True)
        found = solve(model.program, start=start, most_nodes=most_nodes)
        if found is None:
            if best is None:
                raise InputError(_none_found(jobs, nodes, gpus_per_node))
            return best
        columns = model.columns_of(found)
        if best is not None:  # a search cut short, or terms too wide apart for a solver: it may have been better
            pair = (best.columns, columns)
            old, new = (float(fitness(speedup[rows, c], p, floor=floor, weights=weights)) for c in pair)
            if new < old:
                return best
        best = Arrangement(columns, model.decode(found.values), found.optimal)
        if model.coarse == 1 or model.coarse > coarse / 10:  # the known allocation excludes no further large losses
            return best
        coarse = model.coarse


def _none_found(jobs: int, nodes: int, gpus_per_node: int) -> str:
    return (
        f"no arrangement of {jobs} jobs on {nodes} nodes of {gpus_per_node} GPUs was found; pinned or least sizes may "
        "not fit, or the limit on the search was too low"
    )


def _from_ladder(
    speedup: FloatArray,
    configs: IntArray,
    gpus_per_node: int,
    nodes: int,
    p: float,
    floor: float,
    weights: FloatArray | None,
) -> IntArray | None:
    """The ladder's optimum as columns of `configs`; None if pinned sizes are not on the ladder."""
    steps = ladder(gpus_per_node, nodes)
    at = column_of(configs, steps[:, 0], steps[:, 1])
    at = at[at >= 0]
    try:
        return at[best_sizes(speedup[:, at], configs[at, 1], gpus_per_node * nodes, p, floor=floor, weights=weights)]
    except InputError:
        return None


class _Model:
    """The program, and conversions between its columns and allocations."""

    def __init__(self, gain: FloatArray, usable: BoolArray, configs: IntArray, per_node: int, nodes: int) -> None:
        self.configs, self.per_node, self.nodes = configs, per_node, nodes
        self.shape = gain.shape
        self.job, self.column = np.nonzero(usable)
        self.size, self.several = configs[self.column, 1], configs[self.column, 0] > 1
        self.spread = np.unique(self.job[self.several])  # jobs that may be distributed
        self.patterns = list(patterns(per_node))
        self.y0 = len(self.job)
        self.z0 = self.y0 + len(self.spread) * per_node
        costs, self.coarse = losses(gain, usable, self.size == 1)
        self.program = self._program(costs)

    def _program(self, costs: FloatArray) -> Program:
        wide, per_node = len(self.spread) * self.per_node, self.per_node
        cost = np.concatenate([costs, np.full(wide, NODE_COST), np.zeros(len(self.patterns))])
        upper = np.concatenate([np.ones(self.y0), np.full(wide + len(self.patterns), float(self.nodes))])
        program = Program(cost, upper)
        x = np.arange(self.y0)
        y = self.y0 + np.arange(wide).reshape(len(self.spread), per_node)
        z = self.z0 + np.arange(len(self.patterns))
        room = np.arange(1, per_node + 1)
        program.put(program.add(self.shape[0], 1, 1) + self.job, x, 1)
        one = ~self.several & (self.size > 0)
        slots = program.add(per_node, -np.inf, 0)  # one-node jobs of k GPUs and the slots of k GPUs
        program.put(slots + self.size[one] - 1, x[one], 1)
        for k in room.tolist():
            often = np.array([q.count(k) for q in self.patterns])
            program.put(slots + k - 1, z[often > 0], -often[often > 0])
        row = np.searchsorted(self.spread, self.job[self.several])
        enough = program.add(len(self.spread), 0, np.inf)
        program.put(
            enough + np.repeat(np.arange(len(self.spread)), per_node), y.ravel(), np.tile(room, len(self.spread))
        )
        program.put(enough + row, x[self.several], -self.size[self.several])
        apart = program.add(len(self.spread), 0, np.inf)
        program.put(apart + np.repeat(np.arange(len(self.spread)), per_node), y.ravel(), 1)
        program.put(apart + row, x[self.several], -2)
        parts = program.add(per_node, -np.inf, 0)  # parts with room l, and nodes that leave l
        program.put(parts + np.tile(room - 1, len(self.spread)), y.ravel(), 1)
        left = per_node - np.array([sum(q) for q in self.patterns])
        program.put(parts + left[left > 0] - 1, z[left > 0], -1)
        program.put(program.add(1, 0, self.nodes), z, 1)
        return program

    def columns_of(self, found: Solution) -> IntArray:
        columns = np.zeros(self.shape[0], dtype=np.int64)
        taken = found.values[: self.y0] > 0
        columns[self.job[taken]] = self.column[taken]
        return columns

    def encode(self, columns: IntArray) -> IntArray:
        """The program's columns for sizes of the ladder: whole nodes, and the rest packed the largest first."""
        values = np.zeros(self.z0 + len(self.patterns), dtype=np.int64)
        where = {(j, c): x for x, (j, c) in enumerate(zip(self.job.tolist(), self.column.tolist(), strict=True))}
        used = 0
        singles = []
        for job, column in enumerate(columns.tolist()):
            size = int(self.configs[column, 1])
            values[where[job, column]] = 1
            if self.configs[column, 0] > 1:
                row = int(np.searchsorted(self.spread, job))
                values[self.y0 + row * self.per_node + self.per_node - 1] = size // self.per_node
                used += size // self.per_node
            elif size:
                singles.append(size)
        packed: list[list[int]] = [[] for _ in range(used)]
        for size in sorted(singles, reverse=True):
            fits = [node for node in packed[used:] if sum(node) + size <= self.per_node]
            if not fits:
                fits = [[]]
                packed.append(fits[0])
            fits[0].append(size)
        for node in packed:
            values[self.z0 + self.patterns.index(tuple(node))] += 1
        return values

    def decode(self, values: IntArray) -> IntArray:
        """GPUs (J, N) on unnamed nodes."""
        gpus = np.zeros((self.shape[0], self.nodes), dtype=np.int64)
        slots: dict[int, list[int]] = {k: [] for k in range(1, self.per_node + 1)}
        rooms: dict[int, list[int]] = {k: [] for k in range(self.per_node + 1)}
        node = 0
        for pattern, often in zip(self.patterns, values[self.z0 :].tolist(), strict=True):
            for _ in range(often):
                for k in pattern:
                    slots[k].append(node)
                rooms[self.per_node - sum(pattern)].append(node)
                node += 1
        for x in np.flatnonzero(values[: self.y0]).tolist():
            job, size = int(self.job[x]), int(self.size[x])
            if not self.several[x]:
                if size:
                    gpus[job, slots[size].pop()] = size
                continue
            row = self.y0 + int(np.searchsorted(self.spread, job)) * self.per_node
            parts = [k for k in range(self.per_node, 0, -1) for _ in range(int(values[row + k - 1]))]
            fill(gpus[job], size, [(rooms[k].pop(), k) for k in parts])
        return gpus


@dataclass(frozen=True)
class ExactPlacement:
    """GPUs (J, N) on the nodes; whether they were proven best, or else are the best that is known."""

    gpus: IntArray
    optimal: bool


def realised(
    gpus: IntArray, speedup: FloatArray, configs: IntArray, running: IntArray, factor: FloatArray
) -> FloatArray:
    """(J,) speed-ups of an allocation (J, N), discounted for jobs whose GPUs differ from the running ones.

    A combination that is not among `configs` is worth 0.
    """
    at = column_of(configs, (gpus > 0).sum(axis=1), gpus.sum(axis=1))
    value = np.where(at >= 0, np.nan_to_num(speedup[np.arange(len(gpus)), at]), 0.0)
    worth: FloatArray = np.where((gpus == running).all(axis=1), 1.0, factor) * value
    return worth


def best_placement(
    speedup: FloatArray,
    configs: IntArray,
    running: IntArray,
    capacity: IntArray,
    factor: FloatArray,
    known: IntArray,
    p: float = HARMONIC,
    *,
    floor: float = FLOOR,
    weights: FloatArray | None = None,
    most_nodes: int | None = None,
) -> ExactPlacement:
    """The allocation with the largest FITNESS_p, restarts counted, with at most one distributed job on a node.

    `speedup` (J, C) over `configs` (C, 2) as `ladder.every_size` gives them, the first (0, 0), not discounted; NaN
    marks what is impossible. `running` (J, N), `capacity` (N,), `factor` (J,) of a job that does not stay, NaN if it
    has to (pinned). `known` (J, N) is an allocation that keeps the rules, such as a placed optimum of `programs`: the
    better it is, the less is searched.
    """
    if len(configs) == 0 or configs[0].tolist() != [0, 0]:
        raise InputError(f"the first configuration has to be nothing, (0, 0) (got {configs[:1].tolist()})")
    mean = {"floor": floor, "weights": weights}
    reached = realised(known, speedup, configs, running, factor)
    here = column_of(configs, (running > 0).sum(axis=1), running.sum(axis=1))
    able = (here > 0) & (running <= capacity).all(axis=1)
    stay = np.where(able, speedup[np.arange(len(speedup)), here], np.nan)
    table = np.concatenate([speedup * factor[:, None], stay[:, None]], axis=1)
    gain = terms(table, p, floor=floor, weights=weights)
    gain = np.where(np.isnan(gain), -np.inf, gain)
    total = int(capacity.sum())
    gpus = np.concatenate([np.tile(configs[:, 1], (len(speedup), 1)), running.sum(axis=1)[:, None]], axis=1)
    usable = np.concatenate([useful(gain[:, :-1], configs, total), np.isfinite(gain[:, -1:])], axis=1)
    if len(speedup) == 0 or not usable.any(axis=1).all():
        return ExactPlacement(known, len(speedup) == 0)
    usable[:, :-1] &= (configs[:, 0] > 1) | (configs[:, 1] <= capacity.max(initial=0))
    usable = affordable(gain, usable, gpus, total, terms(reached, p, floor=floor, weights=weights))
    if not usable.any(axis=1).all():  # for some job nothing beats the known allocation
        return ExactPlacement(known, True)
    model = _NamedNodes(gain, usable, gpus, configs, running, capacity)
    found = solve(model.program, most_nodes=most_nodes)
    if found is None:
        return ExactPlacement(known, False)
    made = model.decode(found.values)
    old = float(fitness(reached, p, **mean))  # type: ignore[arg-type]
    new = float(fitness(realised(made, speedup, configs, running, factor), p, **mean))  # type: ignore[arg-type]
    # A coarse unit hides small losses.
    return ExactPlacement(made if new >= old else known, found.optimal and model.coarse == 1)


class _NamedNodes:
    """The program.

    x[j, c]   job j takes column c, the last of which is to stay
    y[j, l]   on how many nodes the distributed job j has room for l GPUs
    z[n, q, l] node n gets the multiset q of one-node jobs, and room for l GPUs of a distributed one
    """

    def __init__(
        self,
        gain: FloatArray,
        usable: BoolArray,
        gpus: IntArray,
        configs: IntArray,
        running: IntArray,
        capacity: IntArray,
    ) -> None:
        self.running, self.capacity = running, capacity
        self.job, column = np.nonzero(usable)
        self.stays = column == len(configs)
        self.size = gpus[self.job, column]
        several = configs[np.minimum(column, len(configs) - 1), 0] > 1
        self.several = several & ~self.stays
        self.single = ~several & ~self.stays & (self.size > 0)
        self.spread = np.unique(self.job[self.several])
        self.room = int(capacity.max(initial=0))
        wanted = set(self.size[self.single].tolist())
        parts = range(self.room + 1) if len(self.spread) else range(1)
        self.shapes = [
            (q, part)
            for q in patterns(self.room)
            for part in parts
            if sum(q) + part <= self.room and set(q) <= wanted and (q or part)
        ]
        self.y0 = len(self.job)
        self.z0 = self.y0 + len(self.spread) * self.room
        costs, self.coarse = losses(gain, usable, self.single & (self.size == 1))
        self.program = self._program(costs)

    def _program(self, costs: FloatArray) -> Program:
        nodes, shapes, room = len(self.capacity), len(self.shapes), self.room
        wide = len(self.spread) * room
        used = np.array([sum(q) + part for q, part in self.shapes], dtype=np.int64)
        fits = (used <= self.capacity[:, None]).astype(np.float64).ravel()
        cost = np.concatenate([costs, np.full(wide, NODE_COST), np.zeros(nodes * shapes)])
        program = Program(cost, np.concatenate([np.ones(self.y0), np.full(wide, float(nodes)), fits]))
        x, y = np.arange(self.y0), self.y0 + np.arange(wide).reshape(len(self.spread), room)
        z = self.z0 + np.arange(nodes * shapes).reshape(nodes, shapes)
        program.put(program.add(len(self.running), 1, 1) + self.job, x, 1)
        slots = program.add(room, -np.inf, 0)
        program.put(slots + self.size[self.single] - 1, x[self.single], 1)
        rooms = program.add(room, -np.inf, 0)
        lengths = np.arange(1, room + 1)
        program.put(rooms + np.tile(lengths - 1, len(self.spread)), y.ravel(), 1)
        for i, (q, part) in enumerate(self.shapes):
            for k in set(q):
                program.put(slots + k - 1, z[:, i], -q.count(k))
            if part:
                program.put(rooms + part - 1, z[:, i], -1)
        row = np.searchsorted(self.spread, self.job[self.several])
        each = np.repeat(np.arange(len(self.spread)), room)
        for least, held in ((self.size[self.several], lengths), (np.full(len(row), 2), np.ones_like(lengths))):
            first = program.add(len(self.spread), 0, np.inf)  # as many GPUs as chosen, and two nodes
            program.put(first + each, y.ravel(), np.tile(held, len(self.spread)))
            program.put(first + row, x[self.several], -least)
        self._nodes(program, x[self.stays], z, used)
        return program

    def _nodes(self, program: Program, stay: IntArray, z: IntArray, used: IntArray) -> None:
        """One shape a node, within the GPUs that staying jobs leave, and no room where one of them is distributed."""
        nodes, shapes = z.shape
        each = np.repeat(np.arange(nodes), shapes)
        program.put(program.add(nodes, -np.inf, 1) + each, z.ravel(), 1)
        held = self.running[self.job[self.stays]]
        whose, node = np.nonzero(held)
        space = program.add(nodes, -np.inf, self.capacity.astype(np.float64))
        program.put(space + each, z.ravel(), np.tile(used, nodes))
        program.put(space + node, stay[whose], held[whose, node])
        part = np.array([part > 0 for _, part in self.shapes], dtype=bool)
        alone = program.add(nodes, -np.inf, 1)
        program.put(alone + np.repeat(np.arange(nodes), int(part.sum())), z[:, part].ravel(), 1)
        wide = ((held > 0).sum(axis=1) > 1)[whose]
        program.put(alone + node[wide], stay[whose[wide]], 1)

    def decode(self, values: IntArray) -> IntArray:
        """GPUs (J, N)."""
        gpus = np.zeros_like(self.running)
        slots: dict[int, list[int]] = {k: [] for k in range(1, self.room + 1)}
        rooms: dict[int, list[int]] = {k: [] for k in range(1, self.room + 1)}
        taken = values[self.z0 :].reshape(len(self.capacity), len(self.shapes))
        for node, shape in zip(*(at.tolist() for at in np.nonzero(taken)), strict=True):
            q, part = self.shapes[shape]
            for k in q:
                slots[k].append(node)
            if part:
                rooms[part].append(node)
        for x in np.flatnonzero(values[: self.y0]).tolist():
            job, size = int(self.job[x]), int(self.size[x])
            if self.stays[x]:
                gpus[job] = self.running[job]
            elif self.several[x]:
                row = self.y0 + int(np.searchsorted(self.spread, job)) * self.room
                parts = [k for k in range(self.room, 0, -1) for _ in range(int(values[row + k - 1]))]
                fill(gpus[job], size, [(rooms[k].pop(), k) for k in parts])
            elif size:
                gpus[job, slots[size].pop()] = size
        return gpus
