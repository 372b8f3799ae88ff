"""How jobs and entries of the log look in answers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from plait.live.layout import job_name
from plait.live.store import Entry

FINAL = frozenset({"finished", "failed", "cancelled"})


def job(row: Mapping[str, Any], live: Mapping[str, Any], now_s: float, *, mine: bool) -> dict[str, Any]:
    """A row of the table, with what memory knows laid over it. What others run is not for everybody."""
    out = {"id": job_name(row["number"]), **row, **live}
    out["user"] = out.pop("owner")
    out["iterations_done"] = out.pop("steps")
    out["attained_gpu_s"] = out.pop("held_gpu_s")
    out["nodes"] = out["nodes"].split()
    ended = out["ended_s"]
    out["age_s"] = now_s - out["created_s"]
    out["jct_s"] = None if ended is None else ended - out["created_s"]
    out["command"] = out["command"].split(" ") if mine else []
    if not mine:
        out["name"] = ""
    return out


def whole_job(row: Mapping[str, Any], live: Mapping[str, Any], now_s: float, *, secrets: bool) -> dict[str, Any]:
    """Everything about one job; its environment only for its owner."""
    request = row["request"]
    out = job({k: v for k, v in row.items() if k not in ("request", "attempts")}, live, now_s, mine=True)
    out["command"] = request["command"]
    for name in ("workdir", "retries", "gpu_memory", "cpus", "memory", "deadline_s", "checkpoint_s", "priority"):
        if request.get(name) is not None:
            out[name] = request[name]
    for name in ("profile", "skew"):
        if request.get(name) is not None:
            out[name] = request[name]
    if secrets and request.get("env"):
        out["env"] = request["env"]
    out["attempts"] = [attempt(a) for a in row["attempts"]]
    return out


def attempt(row: Mapping[str, Any]) -> dict[str, Any]:
    """One try to run a job."""
    codes = [r["exit_code"] for r in row["ranks"] if r["ended"]]
    return {
        "epoch": row["epoch"],
        "state": row["outcome"] or "running",
        "started_s": row["began_s"],
        "ended_s": row["ended_s"],
        "nodes": list(dict.fromkeys(r["node"] for r in row["ranks"])),
        "reason": row["cause"] or None,
        "exit_code": next((c for c in codes if c), codes[0] if codes else None),
        "ranks": row["ranks"],
    }


def entry(row: Entry, *, secrets: bool) -> dict[str, Any]:
    """An entry of the log; environments only for those who may see them."""
    event = json.loads(row.entry)
    if not secrets and event["type"] == "Requested":
        for request in event["requests"]:
            request.pop("env", None)
    return {"seq": row.seq, "at_s": row.at_s, "event": event, "commands": json.loads(row.commands)}
