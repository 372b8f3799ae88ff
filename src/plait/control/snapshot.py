"""A controller as a JSON object and back: what a restarted scheduler needs to go on as if nothing happened."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from plait.control.books import Books
from plait.control.controller import Controller
from plait.control.messages import group_from_json, group_to_json
from plait.core.cluster import Cluster, Node
from plait.core.errors import InputError
from plait.core.plan import Groups, Plan
from plait.core.policy import Policy

VERSION = 1


def snapshot(controller: Controller) -> dict[str, Any]:
    """Everything the controller knows, as plain JSON values.

    The plan's order and levels are in the books already; its reasons are words and kept as they are.
    """
    plan = controller.plan
    return {
        "version": VERSION,
        "now_s": _number(controller.now_s),
        "events": controller.events,
        "changed": controller.changed,
        "competing": controller.competing,
        "active": controller.active.tolist(),
        "cluster": {
            "nodes": [{f.name: getattr(n, f.name) for f in fields(Node)} for n in controller.cluster.nodes],
            "up": list(controller.cluster.up),
        },
        "running": [group_to_json(g) for g in controller.running],
        "valid_until_s": _number(plan.valid_until_s),
        "settled": plan.settled,
        "reasons": {str(job): reason for job, reason in plan.reasons.items()},
        "books": controller.books.to_json(),
    }


def restore(data: Mapping[str, Any], policy: Policy) -> Controller:
    """The controller of a snapshot, under a policy (the same one, or another from now on).

    Raises `InputError` for a snapshot of another version.
    """
    if data.get("version") != VERSION:
        raise InputError(f"snapshot has version {data.get('version')!r}; this plait reads version {VERSION}")
    nodes = tuple(Node(**node) for node in data["cluster"]["nodes"])
    controller = Controller(policy, Cluster(nodes, tuple(bool(up) for up in data["cluster"]["up"])))
    controller.books = Books.from_json(data["books"])
    controller.now_s = _parse(data["now_s"], -math.inf)
    controller.events = int(data["events"])
    controller.changed = bool(data["changed"])
    controller.competing = float(data["competing"])
    controller.active = np.array(data["active"], dtype=np.int64)
    controller.running = Groups.of(group_from_json(g) for g in data["running"])
    controller.plan = Plan(
        controller.running,
        reasons={int(job): str(reason) for job, reason in data["reasons"].items()},
        valid_until_s=_parse(data["valid_until_s"], math.inf),
        settled=bool(data["settled"]),
    )
    return controller


def _number(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _parse(value: float | None, missing: float) -> float:
    return missing if value is None else float(value)
