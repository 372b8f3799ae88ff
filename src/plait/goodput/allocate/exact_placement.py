"""Sizes and placements of all jobs on named nodes, exactly, with jobs that stay and jobs that restart.

The integer program of `ilp` counts an unchanged size as unmoved, but sometimes no placement keeps all of these. Here
staying is a separate choice, on the same GPUs, and any other allocation costs a restart, also one of equal size. Nodes
may differ, be down, or be taken in part. Only configurations that can beat a known allocation are offered.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from plait.core.arrays import BoolArray, FloatArray, IntArray
from plait.core.errors import InputError
from plait.goodput.allocate.candidates import affordable, fill, losses, patterns, useful
from plait.goodput.allocate.fitness import FLOOR, HARMONIC, fitness, terms
from plait.goodput.allocate.ilp import NODE_COST
from plait.goodput.allocate.ladder import column_of
from plait.goodput.allocate.solver import Program, solve


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
    time_limit_s: float | None = None,
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
    model = _Model(gain, usable, gpus, configs, running, capacity)
    found = solve(model.program, time_limit_s=time_limit_s, most_nodes=most_nodes)
    if found is None:
        return ExactPlacement(known, False)
    made = model.decode(found.values)
    old = float(fitness(reached, p, **mean))  # type: ignore[arg-type]
    new = float(fitness(realised(made, speedup, configs, running, factor), p, **mean))  # type: ignore[arg-type]
    # A coarse unit hides small losses.
    return ExactPlacement(made if new >= old else known, found.optimal and model.coarse == 1)


class _Model:
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
