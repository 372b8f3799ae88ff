"""AntMan as in the artifact, whose authors mark it as unfinished.

No job is preempted. Guaranteed jobs (priority 0) hoard GPUs until they have all they need; opportunistic ones (1) run
with at most one guaranteed job a GPU, which slows only them. Which GPU an opportunistic job gets depends on `util`, a
sum of tenths with accumulated rounding errors: they are part of the world, so every addition is made in the original
order.
"""

from __future__ import annotations

import math

import numpy as np

from plait.core.arrays import BoolArray, FloatArray, IntArray
from plait.core.errors import InputError
from plait.core.jit import kernel
from plait_papers.muri.artifact.state import Rule, State
from plait_papers.muri.artifact.trace import ArtifactTrace
from plait_papers.muri.artifact.yarn import GPUS, NODE_GPUS, NODES

FULL = 0.8
"""Utilisation from which a GPU takes no opportunistic job."""


class AntMan(Rule):
    """Guaranteed jobs hoard, opportunistic ones fill in."""

    near_s = 1e-4

    def __init__(self, trace: ArtifactTrace) -> None:
        """For this trace. Raises `InputError` for a guaranteed job of one stage: the rule divides by pairs."""
        pairs = np.minimum(np.minimum(trace.gpu_s + trace.network_s, trace.data_s + trace.network_s),
                           trace.data_s + trace.gpu_s)  # fmt: skip
        bad = np.flatnonzero((pairs <= 0) & (trace.priority == 0) & (trace.priority == 1).any())
        if len(bad):
            raise InputError(
                f"policy antman of world muri-artifact cannot run row {int(trace.row[bad[0]])}: a guaranteed job needs "
                "at least two stages that take time; the other policies of that world can"
            )
        jobs = len(trace)
        self.util = np.zeros(GPUS)
        self.holder = np.full(GPUS, -1, dtype=np.int64)  # the guaranteed job of each GPU
        self.held = np.zeros((jobs, GPUS), dtype=np.bool_)
        self.waits_for = np.full(jobs, -1, dtype=np.int64)  # node a small guaranteed job hoards on

    def leave(self, state: State, jobs: IntArray) -> None:
        """Their GPUs are free again."""
        release(jobs, state.trace.priority, self.util, self.holder, self.held)

    def decide(self, state: State) -> None:
        """Try every waiting job; then everyone's speed."""
        trace, jobs = state.trace, state.listed
        # The list itself is sorted: the order of completions depends on it, and so do the rounding errors of `util`.
        state.listed = jobs = jobs[np.lexsort((jobs, trace.submit_s[jobs], trace.priority[jobs]))]
        pending = jobs[~state.running[jobs]]
        admit(
            pending, trace.gpus, trace.priority, self.util, self.holder, self.held, self.waits_for, state.running,
            state.where,
        )  # fmt: skip
        slow_down(
            jobs, trace.priority, state.running, self.holder, self.held, trace.data_s, trace.gpu_s, trace.network_s,
            trace.iteration_s, state.current_s,
        )  # fmt: skip


@kernel
def release(jobs: IntArray, priority: IntArray, util: FloatArray, holder: IntArray, held: BoolArray) -> None:
    """Take the GPUs from ended `jobs`: update `util`, `holder` (guaranteed job of each GPU) and `held` (jobs, GPUs)."""
    for job in jobs:
        for gpu in range(GPUS):
            if held[job, gpu]:
                held[job, gpu] = False
                if priority[job] == 0:
                    util[gpu] -= 0.1
                    holder[gpu] = -1
                else:
                    util[gpu] -= 0.9


@kernel
def hoard(job: int, node: int, most: int, util: FloatArray, holder: IntArray, held: BoolArray) -> int:
    """Take up to `most` GPUs of a node that no guaranteed job holds, lowest numbers first; how many."""
    taken = 0
    for gpu in range(node * NODE_GPUS, (node + 1) * NODE_GPUS):
        if taken < most and holder[gpu] < 0:
            holder[gpu] = job
            held[job, gpu] = True
            util[gpu] += 0.1 - 0.01
            taken += 1
    return taken


@kernel
def guarantee(job: int, need: int, util: FloatArray, holder: IntArray, held: BoolArray, waits_for: IntArray) -> bool:
    """Take further GPUs for the guaranteed job `job`, which needs `need`; whether it now has them all.

    `util`, `holder`, `held` and `waits_for` (the node where each job collects GPUs) are updated.
    """
    has = 0
    for gpu in range(GPUS):
        if held[job, gpu]:
            has += 1
    free = np.zeros(NODES, dtype=np.int64)
    for gpu in range(GPUS):
        if holder[gpu] < 0:
            free[gpu // NODE_GPUS] += 1
    if need > NODE_GPUS:
        for node in range(NODES):
            if has < need and free[node] == NODE_GPUS:
                has += hoard(job, node, NODE_GPUS, util, holder, held)
    else:
        node = waits_for[job]
        if node < 0:
            most = 0
            for i in range(NODES):
                if free[i] >= need:
                    node = i
                    break
                if free[i] > most:
                    node, most = i, free[i]
        if node >= 0:
            waits_for[job] = node
            has += hoard(job, node, need - has, util, holder, held)
    if has < need:
        return False
    for gpu in range(GPUS):
        if held[job, gpu]:
            util[gpu] += 0.01
    return True


@kernel
def fill_in(job: int, need: int, util: FloatArray, held: BoolArray) -> bool:
    """Give the opportunistic job `job` the `need` least used GPUs on any nodes; whether there were enough.

    `util` and `held` (jobs, GPUs) are updated.
    """
    open_gpus, count = np.zeros(GPUS, dtype=np.int64), 0
    for gpu in range(GPUS):
        if util[gpu] < FULL:
            open_gpus[count] = gpu
            count += 1
    if count < need:
        return False
    open_gpus = open_gpus[:count]
    for at in np.argsort(util[open_gpus], kind="mergesort")[:need]:
        gpu = open_gpus[at]
        held[job, gpu] = True
        util[gpu] += 0.9
    return True


@kernel
def admit(
    pending: IntArray,
    gpus: IntArray,
    priority: IntArray,
    util: FloatArray,
    holder: IntArray,
    held: BoolArray,
    waits_for: IntArray,
    running: BoolArray,
    where: IntArray,
) -> None:
    """Start the waiting jobs `pending` in order; one that cannot start does not block the next.

    `gpus` and `priority` are by job; the rest are columns and matrices that this updates.
    """
    for job in pending:
        if priority[job] == 0:
            running[job] = guarantee(job, gpus[job], util, holder, held, waits_for)
        else:
            running[job] = fill_in(job, gpus[job], util, held)
        if running[job]:
            where[job] = 0
            for gpu in range(GPUS):
                if held[job, gpu]:
                    where[job] |= 1 << (gpu // NODE_GPUS)


@kernel
def slow_down(
    listed: IntArray,
    priority: IntArray,
    running: BoolArray,
    holder: IntArray,
    held: BoolArray,
    data_s: FloatArray,
    gpu_s: FloatArray,
    network_s: FloatArray,
    iteration_s: FloatArray,
    current_s: FloatArray,
) -> None:
    """Write seconds of an iteration of `listed` running jobs into `current_s`, given guaranteed jobs on the same GPUs.

    `data_s`, `gpu_s`, `network_s` and `iteration_s` are the times of each job alone.
    """
    for job in listed:
        current_s[job] = iteration_s[job]
        if priority[job] == 0 or not running[job]:
            continue
        last = -1
        for gpu in range(GPUS):
            host = holder[gpu]
            if held[job, gpu] and host >= 0 and host != last and running[host]:
                last = host
                turns = host_turns(data_s[job], gpu_s[job], network_s[job], data_s[host], gpu_s[host], network_s[host])
                current_s[job] = max(current_s[job], turns * iteration_s[host])


@kernel
def host_turns(d: float, g: float, n: float, data: float, gpu: float, network: float) -> float:
    """Host iterations that one iteration (`d`, `g`, `n`) of a guest takes, in gaps of `data`, `gpu`, `network`."""
    # Floor of the rounded quotient, not `//`: the two differ when a stage is a multiple of a gap.
    turns = math.floor(d / (gpu + network))
    rest = d % (gpu + network)
    if rest > 0:
        turns += 1
        g -= min(g, network, gpu + network - rest)
    turns += math.floor(g / (data + network))
    rest = g % (data + network)
    if rest > 0:
        turns += 1
        if rest < data:
            n -= min(n, data + gpu - rest)
    turns += math.floor(n / (data + gpu))
    if n % (data + gpu) > data:
        turns += 1
    return turns
