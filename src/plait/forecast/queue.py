"""The answer of `GET /v1/state` as a controller to play forward."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from plait.control.controller import Controller
from plait.control.messages import group_from_json, spec_from_json
from plait.core.cluster import Cluster, Node
from plait.core.errors import InputError
from plait.core.jobs import JobBatch, Phase
from plait.core.plan import Group, Groups, Member
from plait.core.policy import Policy
from plait.core.resources import Resource
from plait.live.quota import Quotas
from plait.policies.catalog import make_policy

_AS_SAID = (
    "iterations_done", "attained_gpu_s", "run_s", "iteration_s", "pending_since_s", "first_start_s", "last_start_s",
    "starts", "preemptions", "failures", "promotions",
)  # fmt: skip


def controller_of(state: Mapping[str, Any]) -> tuple[Callable[[], Controller], list[int]]:
    """What makes controllers in this state, and the numbers of its jobs in the service, by their numbers here.

    Only jobs that have not ended are in it, so they are numbered anew. Raises `InputError` if no node is there.
    """
    if not state["nodes"]:
        raise InputError("no node has joined yet, so nothing can be foreseen; look at: plait nodes")
    policy = make_policy(state["policy"])
    if state.get("quotas"):
        policy = Quotas(policy, tuple(sorted((name, int(gpus)) for name, gpus in state["quotas"].items())))
    rows = sorted(state["jobs"], key=lambda row: row["number"])
    numbers = [int(row["number"]) for row in rows]
    return lambda: _make(state, rows, policy), numbers


def _make(state: Mapping[str, Any], rows: list[dict[str, Any]], policy: Policy) -> Controller:
    nodes = tuple(Node(**{k: v for k, v in node.items() if k != "up"}) for node in state["nodes"])
    controller = Controller(policy, Cluster(nodes, tuple(bool(node["up"]) for node in state["nodes"])))
    controller.now_s, controller.changed = float(state["now_s"]), True
    if not rows:
        return controller
    books = controller.books
    specs = [spec_from_json(row["spec"]) for row in rows]
    controller.active = books.append(JobBatch.of(specs), 0.0)
    columns = books.columns
    for i, row in enumerate(rows):
        for name in _AS_SAID:
            columns[name][i] = math.nan if row[name] is None else row[name]
        stages = row.get("stage_s") or [None] * len(Resource)
        columns["stage_s"][i] = [math.nan if v is None else v for v in stages]
        if math.isnan(columns["iterations"][i]) and row.get("total_steps"):
            columns["iterations"][i] = row["total_steps"]
    number = {int(row["number"]): i for i, row in enumerate(rows) if row["running"]}
    groups = []
    for data in state["running"]:
        group = group_from_json(data)
        members = tuple(
            Member(number[m.job], m.turn, m.batch_size, m.accumulation, m.gpu_share, m.gpu_memory_bytes)
            for m in group.members
            if m.job in number
        )
        if members:
            groups.append(Group(members, group.gpus, group.gate))
    controller.running = Groups.of(groups)
    for slot, group in enumerate(groups):
        for member in group.members:
            columns["phase"][member.job], columns["slot"][member.job] = int(Phase.RUNNING), slot
    return controller
