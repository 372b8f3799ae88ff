"""A controller as a JSON object and back: what a restarted scheduler needs to continue unchanged."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from plait.control import messages
from plait.control.controller import MAX_GUESTS_PER_GPU, Controller
from plait.control.job_store import JobStore
from plait.control.usage import figures_of_jobs, of_jobs
from plait.core.arrays import AS_LISTS, IntArray
from plait.core.cluster import Cluster
from plait.core.codec.values import Codec
from plait.core.errors import InputError
from plait.core.network_grants import NetworkFigures, NetworkGrant
from plait.core.plan import Groups, NodeReservation, Plan, Reservation
from plait.core.policy import Policy, Usage
from plait.core.preemption import PreemptionRule

#: Of snapshots that are written and read.
VERSION = 3
_FORM = Codec(nulls=True, own=AS_LISTS)


def snapshot(controller: Controller) -> dict[str, Any]:
    """Everything the controller knows, as plain JSON values."""
    return frozen(controller)()


def frozen(controller: Controller, keep: IntArray | None = None, recent: int = 0) -> Callable[[], dict[str, Any]]:
    """Copy what may change, which is quick; the function returned makes plain JSON values of it, in any thread.

    The plan's order and levels are in the job store already; its reasons are words and kept as they are. `keep` and
    `recent` leave out jobs that have ended (`JobStore.frozen`).
    """
    plan, running, cluster = controller.plan, controller.running, controller.cluster
    reasons, job_store = dict(plan.reasons), controller.job_store.frozen(keep, recent)
    facts = {
        "version": VERSION,
        "now_s": _number(controller.now_s),
        "events": controller.events,
        "changed": controller.changed,
        "competing": controller.competing,
        "active": controller.active.tolist(),
        "valid_until_s": _number(plan.valid_until_s),
        "settled": plan.settled,
        "preemption": controller.rule.to_json(),
    }
    usage = controller.usage
    if plan.reservations:
        facts["reservations"] = [_FORM.encode(one) for one in plan.reservations]
    if len(controller.held):
        facts["held"] = controller.held.tolist()
    if controller.silent:
        facts["silent"] = sorted(controller.silent)
    if controller.reserved:
        facts["reserved"] = [_FORM.encode(one) for one in controller.reserved]
    if controller.grants:
        facts["grants"] = [_FORM.encode(one) for one in controller.grants]
    if plan.network_notes:
        facts["network_notes"] = {str(job): note for job, note in plan.network_notes.items()}
    figures = controller.network

    def plain() -> dict[str, Any]:
        return {
            **facts,
            "cluster": {
                "nodes": [messages.node_to_json(node) for node in cluster.nodes],
                "up": list(cluster.up),
                **({} if cluster.network is None else {"network": messages.network_to_json(cluster.network)}),
            },
            "running": [messages.group_to_json(g) for g in running],
            "reasons": {str(job): reason for job, reason in reasons.items()},
            "books": job_store(),
            **({} if usage is None else {"usage": _FORM.encode(usage)}),
            **({} if figures is None else {"network": _FORM.encode(figures)}),
        }

    return plain


def of_active(controller: Controller, recent: int = 0) -> tuple[Controller, IntArray]:
    """A separate controller that knows only the jobs that have not left, and the `recent` ones that left last.

    They are renumbered in the same order; the second result has their former numbers. Its decisions are the
    controller's, at a cost that does not grow with the number of past jobs.
    """
    job_store, running, plan = controller.job_store, controller.running, controller.plan
    departed = job_store.last_departed(recent)
    numbers = np.unique(np.concatenate([controller.active, running.jobs, departed]))
    small = Controller(
        controller.policy, controller.cluster, controller.rule, controller.max_guests_per_gpu, controller.kills,
        controller.aggregates,
    )  # fmt: skip
    small.job_store = job_store.select(numbers, departed)
    small.now_s, small.events = controller.now_s, controller.events
    small.changed, small.competing = controller.changed, controller.competing
    small.active = np.searchsorted(numbers, controller.active)
    jobs = np.searchsorted(numbers, running.jobs)
    small.running = Groups(
        jobs, running.gpus, running.first_gpu, running.first_job, running.gate, running.details, running.guest
    )
    new = {number: i for i, number in enumerate(numbers.tolist())}
    reasons = {new[job]: reason for job, reason in plan.reasons.items() if job in new}
    reserved = tuple(Reservation(new[one.job], one.gpus) for one in controller.reservations)
    notes = {new[job]: note for job, note in plan.network_notes.items() if job in new}
    small.plan = Plan(
        small.running, reasons=reasons, valid_until_s=plan.valid_until_s, settled=plan.settled, reservations=reserved,
        network_notes=notes,
    )  # fmt: skip
    small.usage = None if controller.usage is None else of_jobs(controller.usage, numbers)
    small.silent, small.reserved = controller.silent, controller.reserved
    small.grants = tuple(replace(one, job=new[one.job]) for one in controller.grants)
    small.network = None if controller.network is None else figures_of_jobs(controller.network, numbers)
    return small, numbers


def restore(
    data: Mapping[str, Any],
    policy: Policy,
    max_guests_per_gpu: int = MAX_GUESTS_PER_GPU,
    kills: bool = True,
    aggregates: bool = True,
) -> Controller:
    """The controller of the snapshot `data`, under `policy` (the same one, or another from now on).

    `max_guests_per_gpu`, `kills` and `aggregates` as for `Controller`. Raises `InputError` for a snapshot of another
    version.
    """
    if data.get("version") != VERSION:
        raise InputError(
            f"snapshot has version {data.get('version')!r}; this plait reads version {VERSION}: use the plait that "
            "wrote it"
        )
    nodes = tuple(messages.node_from_json(node) for node in data["cluster"]["nodes"])
    rule = PreemptionRule.from_json(data.get("preemption"))
    network = data["cluster"].get("network")
    cluster = Cluster(
        nodes,
        tuple(bool(up) for up in data["cluster"]["up"]),
        None if network is None else messages.network_from_json(network),
    )
    controller = Controller(policy, cluster, rule, max_guests_per_gpu, kills, aggregates)
    controller.job_store = JobStore.from_json(data["books"])
    controller.now_s = _parse(data["now_s"], -math.inf)
    controller.events = int(data["events"])
    controller.changed = bool(data["changed"])
    controller.competing = float(data["competing"])
    controller.active = np.array(data["active"], dtype=np.int64)
    controller.held = np.array(data.get("held", ()), dtype=np.int64)
    controller.running = Groups.of(messages.group_from_json(g) for g in data["running"])
    controller.plan = Plan(
        controller.running,
        reasons={int(job): str(reason) for job, reason in data["reasons"].items()},
        valid_until_s=_parse(data["valid_until_s"], math.inf),
        settled=bool(data["settled"]),
        reservations=tuple(_FORM.decode(Reservation, one) for one in data.get("reservations", ())),
        network_notes={int(job): str(note) for job, note in data.get("network_notes", {}).items()},
    )
    controller.grants = tuple(_FORM.decode(NetworkGrant, one) for one in data.get("grants", ()))
    controller.silent = frozenset(data.get("silent", ()))
    controller.reserved = tuple(_FORM.decode(NodeReservation, one) for one in data.get("reserved", ()))
    if "usage" in data:
        controller.usage = _FORM.decode(Usage, data["usage"])
    if "network" in data:
        controller.network = _FORM.decode(NetworkFigures, data["network"])
    return controller


def _number(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _parse(value: float | None, missing: float) -> float:
    return missing if value is None else float(value)
