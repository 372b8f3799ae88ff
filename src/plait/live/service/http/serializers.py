"""How jobs and entries of the log look in answers."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

from plait.core.words import arguments
from plait.live.layout import job_name
from plait.live.store import Entry

FINAL = frozenset({"finished", "failed", "cancelled"})
#: what memory knows beyond the table, of jobs that run
_LIVE = (
    "step_s", "total_steps", "gate", "stage_s", "checkpoint_steps", "checkpoint_age_s", "places", "group",
    "adaptive", "saves", "stops", "sharing", "ina",
)  # fmt: skip


def job(row: dict[str, Any], live: dict[str, Any], now_s: float, *, mine: bool) -> dict[str, Any]:
    """A row of the table, with what memory knows laid over it.

    Commands of other users' jobs are private; so are reasons of failures, which quote their logs.
    """
    known = row | live if live else row
    created_s, started_s, ended_s = known["created_s"], known["started_s"], known["ended_s"]
    nodes = known["nodes"]
    out = {
        "id": job_name(known["number"]),
        "number": known["number"],
        "name": known["name"] if mine else "",
        "user": known["owner"],
        "project": known["project"],
        "model": known["model"],
        "class": known["class"],
        "command": arguments(known["command"]) if mine else [],
        "gpus": known["gpus"],
        "state": known["state"],
        "reason": known["reason"] if mine else live.get("reason", ""),
        "iterations": known["iterations"],
        "iterations_done": known["steps"],
        "nodes": nodes.split() if nodes else [],
        "epoch": known["epoch"],
        "exit_code": known["exit_code"],
        "starts": known["starts"],
        "preemptions": known["preemptions"],
        "failures": known["failures"],
        "created_s": round(created_s, 3),
        "started_s": started_s and round(started_s, 3),
        "ended_s": ended_s and round(ended_s, 3),
        "age_s": round(now_s - created_s, 3),
        "jct_s": None if ended_s is None else round(ended_s - created_s, 3),
        "run_s": round(known["run_s"], 3),
        "attained_gpu_s": round(known["held_gpu_s"], 3),
    }
    for name in _LIVE:
        if name in live:
            out[name] = live[name]
    return out


#: columns of a long listing: name in the answer, name in the table
_COLUMNS = {
    "number": "number", "name": "name", "user": "owner", "project": "project", "model": "model", "class": "class",
    "command": "command", "gpus": "gpus", "state": "state", "reason": "reason", "iterations": "iterations",
    "iterations_done": "steps", "nodes": "nodes", "epoch": "epoch", "exit_code": "exit_code", "starts": "starts",
    "preemptions": "preemptions", "failures": "failures", "created_s": "created_s", "started_s": "started_s",
    "ended_s": "ended_s", "run_s": "run_s", "attained_gpu_s": "held_gpu_s",
}  # fmt: skip
_ROUNDED = ("created_s", "started_s", "ended_s", "run_s", "attained_gpu_s")
_CHANGING = [(name, source) for name, source in _COLUMNS.items() if name not in ("number", "user", "created_s")]


def table(
    found: Mapping[str, list[Any]], fields: Mapping[int, Mapping[str, Any]], now_s: float, only: str | None
) -> dict[str, Any]:
    """Many jobs as columns; `jobs_of_table` of the client makes the rows of `job` from them.

    `fields` has the facts that only memory has, by number; `only` the user whose jobs are shown in full, None for all.
    """
    columns = {name: list(found[source]) for name, source in _COLUMNS.items()}
    more: dict[int, dict[str, Any]] = {}
    hidden = [only is not None and owner != only for owner in columns["user"]]
    if any(hidden):
        for name in ("name", "command", "reason"):
            columns[name] = ["" if hide else value for hide, value in zip(hidden, columns[name], strict=True)]
    for i, number in enumerate(columns["number"] if fields else ()):
        live = fields.get(number)
        if live is None:
            continue
        if not live.keys() - {"state", "reason", "profile_source"}:  # a job that waits, as most of a long listing do
            columns["state"][i] = live["state"]
            columns["reason"][i] = live.get("reason", columns["reason"][i])
            continue
        for name, source in _CHANGING:
            if source in live:
                columns[name][i] = live[source]
        more[number] = {name: live[name] for name in _LIVE if name in live}
    for name in _ROUNDED:
        columns[name] = [value and round(value, 3) for value in columns[name]]
    return {"now_s": now_s, "columns": columns, "more": more}


def whole_job(row: Mapping[str, Any], live: dict[str, Any], now_s: float, *, secrets: bool) -> dict[str, Any]:
    """Everything about one job: its `row` of the store and its `live` fields; its environment only with `secrets`."""
    request = row["request"]
    out = job({k: v for k, v in row.items() if k not in ("request", "attempts")}, live, now_s, mine=True)
    out["command"] = request["command"]
    for name in (
        "python", "container", "workdir", "retries", "gpu_memory", "cpus", "memory", "deadline_s", "checkpoint_s",
        "time_limit_s", "signal_s", "hold", "begin_s", "after", "after_any", "after_fail", "priority", "wait_for_nodes",
    ):  # fmt: skip
        if request.get(name) is not None:
            out[name] = request[name]
    for name in ("min_gpus", "max_gpus", "batch", "profile", "skew", "merge", "ina"):
        if request.get(name) is not None:
            out[name] = request[name]
    if live.get("profile_source"):
        out["profile_source"] = live["profile_source"]
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
        "gpus": len({(r["node"], r["gpu"]) for r in row["ranks"]}),
        "batch_size": row["batch_size"],
        "lost_work_s": row["lost_work_s"],
        "reason": row["cause"] or None,
        "exit_code": next((c for c in codes if c), codes[0] if codes else None),
        "ranks": row["ranks"],
    }


def placement(row: Mapping[str, Any], nodes: Collection[str]) -> dict[str, Any]:
    """An attempt for readers who may not see its job: where it was and how long."""
    ranks = json.loads(row["ranks"])
    return {
        "job": job_name(row["job"]),
        "user": row["owner"],
        "epoch": row["epoch"],
        "state": row["outcome"] or "running",
        "started_s": row["began_s"],
        "ended_s": row["ended_s"],
        "gpus": sorted({(rank["node"], rank["gpu"]) for rank in ranks if rank["node"] in nodes}),
    }


def entry(row: Entry, *, secrets: bool) -> dict[str, Any]:
    """An entry of the log; environments only for readers who may see them."""
    event = json.loads(row.entry)
    if not secrets and event["type"] == "Requested":
        for request in event["requests"]:
            request.pop("env", None)
    return {"seq": row.seq, "at_s": row.at_s, "event": event, "commands": json.loads(row.commands)}
