"""Holders of GPUs over time, as data for the timelines that pages draw on a canvas, and for their tables.

Each is {from, to, lanes, bars}: seconds of the service; a lane is a GPU, or a node. A bar is [lane, start, end, text,
look, other]: the look is a state, or the hue of a job as in maps; `other` is true of a neighbour, drawn narrow below
the job or node of the page. Running attempts end now.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from plait.dashboard.figures import hue

#: A job on more GPUs has a lane a node.
MOST_GPUS = 32

Placement = Mapping[str, Any]


def timeline(job: Mapping[str, Any], now_s: float, others: Sequence[Placement] = ()) -> dict[str, Any]:
    """The attempts of a job, lanes in the order of their first use, and which `others` held the same GPUs."""
    gpus = {(rank["node"], rank["gpu"]) for one in job["attempts"] for rank in one["ranks"]}
    whole_nodes = len(gpus) > MOST_GPUS
    lanes: dict[str, int] = {}
    bars: list[list[Any]] = []
    for one in job["attempts"]:
        used = dict.fromkeys(
            rank["node"] if whole_nodes else f"{rank['node']} GPU {rank['gpu']}" for rank in one["ranks"]
        )
        text = f"{one['epoch']} {one['state']}"
        rows = [lanes.setdefault(name, len(lanes)) for name in used]
        bars += [[row, *_span(one, now_s), text, one["state"], False] for row in rows]
    end_s = job["ended_s"] or now_s
    for other in others:
        begin, end = _span(other, now_s)
        begin, end = max(begin, job["created_s"]), min(end, end_s)
        used = dict.fromkeys(node if whole_nodes else f"{node} GPU {gpu}" for node, gpu in other["gpus"])
        bars += [[lanes[name], begin, end, other["job"], other["state"], True] for name in used if name in lanes]
    return {"from": job["created_s"], "to": end_s, "lanes": list(lanes), "bars": bars}


def of_node(gpus: int, placements: Sequence[Placement], now_s: float, most_s: float) -> dict[str, Any]:
    """Which jobs held the GPUs of a node, in the last `most_s` seconds."""
    begin_s = max(min((one["started_s"] for one in placements), default=now_s), now_s - most_s)
    bars = []
    for one in placements:
        begin, end = _span(one, now_s)
        look = f"h{hue(one['job'])}"
        bars += [[gpu, max(begin, begin_s), end, one["job"], look, False] for _, gpu in one["gpus"] if gpu < gpus]
    return {"from": begin_s, "to": now_s, "lanes": [f"GPU {gpu}" for gpu in range(gpus)], "bars": bars, "ago": True}


def neighbours(job: Mapping[str, Any], others: Sequence[Placement], now_s: float) -> list[tuple[Placement, str, float]]:
    """The ones of `others` next to an attempt of the job: where, "GPU" if they shared one, and for how many seconds."""
    found = []
    for other in others:
        begin, end = _span(other, now_s)
        where, beside_s = "", 0.0
        for one in job["attempts"]:
            first, last = _span(one, now_s)
            both_s = min(end, last) - max(begin, first)
            mine = {(rank["node"], rank["gpu"]) for rank in one["ranks"]}
            if both_s <= 0 or not {node for node, _ in other["gpus"]} & {node for node, _ in mine}:
                continue
            beside_s += both_s
            shared = any((node, gpu) in mine for node, gpu in other["gpus"])
            where = "GPU" if shared or where == "GPU" else "node"
        if where:
            found.append((other, where, beside_s))
    return sorted(found, key=lambda one: (one[1] != "GPU", -one[2]))


def _span(one: Mapping[str, Any], now_s: float) -> tuple[float, float]:
    end_s = now_s if one["ended_s"] is None else one["ended_s"]
    return one["started_s"], max(end_s, one["started_s"])
