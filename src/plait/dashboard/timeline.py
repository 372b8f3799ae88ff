"""The attempts of a job over time, as data for the timeline that the page draws on a canvas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def timeline(job: Mapping[str, Any], now_s: float) -> dict[str, Any]:
    """{from, to, lanes, bars}: seconds of the service; a lane is a GPU by name, in the order of its first use.

    A bar is [lane, start, end, epoch, outcome]; an attempt that runs ends now. Jobs on many GPUs have a lane a node.
    """
    gpus = {(rank["node"], rank["gpu"]) for one in job["attempts"] for rank in one["ranks"]}
    whole_nodes = len(gpus) > 32
    lanes: dict[str, int] = {}
    bars = []
    for one in job["attempts"]:
        used = dict.fromkeys(
            rank["node"] if whole_nodes else f"{rank['node']} GPU {rank['gpu']}" for rank in one["ranks"]
        )
        end_s = now_s if one["ended_s"] is None else one["ended_s"]
        for name in used:
            lane = lanes.setdefault(name, len(lanes))
            bars.append([lane, one["started_s"], max(end_s, one["started_s"]), one["epoch"], one["state"]])
    return {"from": job["created_s"], "to": job["ended_s"] or now_s, "lanes": list(lanes), "bars": bars}
