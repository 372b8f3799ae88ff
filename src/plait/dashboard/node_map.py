"""Nodes as a map: a small drawing of each node, its GPUs coloured by the job that holds them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from plait.core.words import counted, number
from plait.dashboard.figures import hue
from plait.live.scheduler.explain.resources import IDLE

#: States of silent nodes: the last reports of their GPUs are out of date.
UNHEARD = ("suspect", "lost", "left")
#: The side of a GPU, and from one to the next, in units of the drawing; GPUs in a row.
SIDE, STEP, ROW = 12, 14, 8


@dataclass(frozen=True)
class NodeDrawing:
    """One node: `paths` are (class, path of SVG) by colour; `text` has the same in words."""

    id: str
    state: str
    width: int
    height: int
    paths: tuple[tuple[str, str], ...]
    text: str


def drawings(nodes: Sequence[Mapping[str, Any]]) -> list[NodeDrawing]:
    """A drawing of each node of an answer of `GET /v1/nodes`; nodes that have left are not in it.

    A GPU without a holder is `free`; one whose holder uses less than `IDLE` of it is hollow; on a shared one the second
    job has the lower right half.
    """
    return [_drawing(node) for node in nodes if not node["gone"]]


def _drawing(node: Mapping[str, Any]) -> NodeDrawing:
    held, busy = node["gpu_jobs"], utilisation(node)
    paths: dict[str, list[str]] = {}
    idle = 0
    for gpu, jobs in enumerate(held):
        x, y = gpu % ROW * STEP + 1, gpu // ROW * STEP + 1
        square = f"M{x} {y}h{SIDE}v{SIDE}h-{SIDE}z"
        if not jobs:
            paths.setdefault("free", []).append(square)
            continue
        if number(busy[gpu]) < IDLE and node["state"] not in UNHEARD:
            idle += 1
            square += f"m3 3v{SIDE - 6}h{SIDE - 6}v-{SIDE - 6}z"
        paths.setdefault(f"h{hue(jobs[0])}", []).append(square)
        if len(jobs) > 1:
            paths.setdefault(f"h{hue(jobs[1])}", []).append(f"M{x + SIDE} {y}v{SIDE}h-{SIDE}z")
    count = len(held)
    return NodeDrawing(
        node["id"], node["state"], STEP * min(max(count, 1), ROW), STEP * max(-(-count // ROW), 1),
        tuple((name, "".join(each)) for name, each in paths.items()), _words(node, idle),
    )  # fmt: skip


def _words(node: Mapping[str, Any], idle: int) -> str:
    text = f"{node['id']}, {node['state']}: {node['gpus_used']} of {counted(node['gpus'], 'GPU')} held"
    jobs = node["jobs"]
    if jobs:
        text += f" by {', '.join(jobs[:8])}" + (f" and {len(jobs) - 8} more" if len(jobs) > 8 else "")
    waiting = node.get("reserved_for") or {}
    if waiting:
        text += f"; {len(waiting)} held for {', '.join(sorted(set(waiting.values())))}"
    return text + (f"; {idle} held but idle" if idle else "")


def utilisation(node: Mapping[str, Any]) -> list[float | None]:
    """How busy each GPU of a node is, 0..1: its mean of the last 10 s, else its last reading; None if not known."""
    usage, count = node["usage"], len(node["gpu_jobs"])
    out: list[float | None] = [None] * count
    for name in ("gpus", "means"):
        for gpu, one in enumerate(usage.get(name) or ()):
            value = number(one.get("utilisation"))
            if gpu < count and value == value:
                out[gpu] = value
    return out


def idle_gpus(nodes: Sequence[Mapping[str, Any]]) -> int:
    """GPUs that a job holds and hardly uses."""
    return sum(
        bool(jobs) and busy is not None and busy < IDLE
        for node in nodes
        if not node["gone"] and node["state"] not in UNHEARD
        for jobs, busy in zip(node["gpu_jobs"], utilisation(node), strict=True)
    )
