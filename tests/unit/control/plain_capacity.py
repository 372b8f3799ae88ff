"""Checks of the capacity of nodes as their definitions read: plain twins of the kernels of `plan_check.capacity`."""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from plait.control.plan_check.capacity import CORES, GPU_MEMORY, MEMORY, PART, UNITS
from plait.core.arrays import BoolArray, FloatArray
from plait.core.cluster import Cluster
from plait.core.plan import Groups


def reference_overfull(groups: Groups, changed: BoolArray, needed: FloatArray, cluster: Cluster) -> set[int]:
    """The plain reference of `overfull`: every overfull GPU with guests.

    `changed` (groups,) marks groups that start or change; `needed` (members,) is in bytes, contexts included.
    """
    found = set()
    for gpu in range(cluster.gpus):
        here = [g for g in range(len(groups)) if gpu in groups[g].gpus]
        total = sum(float(needed[groups.first_job[g] : groups.first_job[g + 1]].sum()) for g in here)
        there = cluster.nodes[cluster.gpu_node[gpu]].gpu_memory_bytes or float("inf")
        judged = any(groups[g].guest for g in here) and any(changed[g] for g in here)
        if judged and total > there * (1 + PART) + UNITS:
            found.add(gpu)
    return found


def reference_overload(
    groups: Groups, changed: BoolArray, columns: Mapping[str, Any], cluster: Cluster, kept: float = 1.0
) -> set[tuple[int, int]]:
    """The plain reference of `overload`: every (resource, node) on which `changed` groups need too much."""
    used: dict[tuple[int, int], float] = defaultdict(float)
    judged, found = set(), set()
    for group, new in zip(groups, changed.tolist(), strict=True):
        for gpu in group.gpus:
            node = int(cluster.gpu_node[gpu])
            for member in group.members:
                part = 1 / columns["gpus"][member.job]
                used[CORES, node] += columns["cpus"][member.job] * part
                used[MEMORY, node] += columns["memory_bytes"][member.job] * part
            if new:
                judged.add(node)
                peaks = sorted(columns["gpu_memory_bytes"][member.job] for member in group.members)
                of_gpu = peaks[-1] + kept * sum(peaks[:-1])
                there = cluster.nodes[node].gpu_memory_bytes
                if there and of_gpu > there * (1 + PART) + UNITS:
                    found.add((GPU_MEMORY, node))
    for (resource, node), asked in used.items():
        hardware = cluster.nodes[node]
        limit = hardware.cpus if resource == CORES else hardware.memory_bytes
        if node in judged and limit and asked > limit * (1 + PART) + UNITS:
            found.add((resource, node))
    return found
