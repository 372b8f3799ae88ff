"""Sizes and placements of all jobs at once, exactly, as an integer program (homogeneous nodes).

The ladder lacks sizes such as 3, 5, 6 or 7 of 4-GPU nodes, which can be best where a fair share is about that. Here
every size may be chosen, on one node or on several. The identity of nodes does not matter to the value, so the
program counts patterns:

    x[j, c]  job j has configuration c: nothing, K GPUs of one node, or K GPUs of several
    y[j, l]  on how many nodes the distributed job j has room for l GPUs
    z[q]     how many nodes hold the multiset q of one-node jobs

A node with pattern q has room for one part of G - |q| GPUs of a distributed job, of which it holds at most one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from plait.core.arrays import BoolArray, FloatArray, IntArray
from plait.core.errors import InputError
from plait.goodput.allocate.candidates import fill, losses, patterns, still_possible, useful
from plait.goodput.allocate.fitness import FLOOR, HARMONIC, fitness, terms
from plait.goodput.allocate.knapsack import best_sizes
from plait.goodput.allocate.ladder import column_of, ladder
from plait.goodput.allocate.solver import Program, Solution, solve

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
    node_cost: float = NODE_COST,
    time_limit_s: float | None = None,
    most_nodes: int | None = None,
) -> Arrangement:
    """The sizes with the largest FITNESS_p that `nodes` nodes of `gpus_per_node` GPUs can hold.

    `speedup` (J, C) over `configs` (C, 2) = nodes, gpus, as `ladder.every_size` gives them, the first (0, 0); NaN marks
    what a job cannot have. Starts from the ladder's optimum. Jobs of weight 0 get what that leaves, or nothing. The
    limits end the search early, seconds not repeatably (see `solver.solve`). Where terms differ by many orders of
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
    within = partial(solve, time_limit_s=time_limit_s, most_nodes=most_nodes)
    rows, coarse = np.arange(jobs), np.inf
    best: Arrangement | None = None
    while True:
        known = first if best is None else best.columns
        if known is not None:
            usable = still_possible(gain, usable, configs[:, 1], total, known)
        model = _Model(gain, usable, configs, gpus_per_node, nodes, node_cost)
        start = None if first is None or best is not None else model.encode(first)
        if start is not None and first is not None:
            best = Arrangement(first, model.decode(start), False)
        if best is not None and (usable.sum(axis=1) == 1).all():  # nothing can be better than the known allocation
            return Arrangement(best.columns, best.gpus, True)
        found = within(model.program, start=start)
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

    def __init__(
        self, gain: FloatArray, usable: BoolArray, configs: IntArray, per_node: int, nodes: int, node_cost: float
    ) -> None:
        self.configs, self.per_node, self.nodes = configs, per_node, nodes
        self.shape = gain.shape
        self.job, self.column = np.nonzero(usable)
        self.size, self.several = configs[self.column, 1], configs[self.column, 0] > 1
        self.spread = np.unique(self.job[self.several])  # jobs that may be distributed
        self.patterns = list(patterns(per_node))
        self.y0 = len(self.job)
        self.z0 = self.y0 + len(self.spread) * per_node
        costs, self.coarse = losses(gain, usable, self.size == 1)
        self.program = self._program(costs, node_cost)

    def _program(self, costs: FloatArray, node_cost: float) -> Program:
        wide, per_node = len(self.spread) * self.per_node, self.per_node
        cost = np.concatenate([costs, np.full(wide, node_cost), np.zeros(len(self.patterns))])
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
        """The configuration of each job."""
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
