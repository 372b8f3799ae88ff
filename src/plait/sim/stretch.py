"""Compiled stretches of a simulation: instant after instant in one kernel, until something outside its language.

A run whose policy is an order of fixed gangs needs no Python between two instants. `run_stretches` finds out, hands the
arrays that simulator and controller own to the kernel `run_stretch`, and passes on what happened in blocks of rows. All
rules are the parts that the other path calls, too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from plait.control.controller import Controller, describe
from plait.control.drive import ENDS, STARTS, Block, TakesBlocks
from plait.control.job_rows import FINISHED
from plait.control.job_store import LIFE_COLUMNS
from plait.control.messages import ReplanDue
from plait.control.plan_check.check import OK, plan_error
from plait.core.arrays import IntArray
from plait.core.errors import SimulationError
from plait.core.jit import announced
from plait.core.jobs import Checkpoints, placement_skew
from plait.core.jobs.keys import QUEUE
from plait.core.plan import Groups, Plan
from plait.core.preemption import PreemptionRule
from plait.placement import Scheme, SkewAware
from plait.placement.kernels import PLACED, Found, Left, Nodes, Running, Work
from plait.placement.packing import LazyReasons, WaitReasons
from plait.policies.compose import Composed, OrderKey, Urgency
from plait.policies.tiresias import Queues
from plait.sim import stretch_kernels as layout
from plait.sim.backend import PATIENCE, Simulator
from plait.sim.physics import StandardPhysics
from plait.sim.state import measure
from plait.sim.stretch_kernels import (
    Bodies,
    HeldGpus,
    Life,
    Rows,
    Stretch,
    StretchQueue,
    StretchRules,
    StretchTrace,
    StretchWalk,
    run_stretch,
)

#: Rows of a block, unless the cluster needs more for one instant.
BLOCK = 131_072
#: Columns of the job store that are equal after a run message by message. The others are what only the last decision
#: says of jobs that have ended, and scratch.
COMPARED = tuple(name for name in LIFE_COLUMNS if name not in ("position", "stamp", "reason"))
#: Without the compiler, arrays of all jobs at once are faster than loops over single jobs.
COMPILED = hasattr(run_stretch, "py_func")


def outside(controller: Controller, backend: Simulator, records: Sequence[object]) -> str | None:
    """Why a run is driven message by message; None if it is stretched.

    Kernels know classes of plait only: a class derived from one may have methods of its own.
    """
    policy, settings, cluster, jobs = controller.policy, backend.settings, backend.cluster, backend.reported
    if type(policy) is not Composed or type(policy.order) not in (OrderKey, Queues):
        return f"policy {describe(policy)} is not an order by keys"
    order, placing = policy.order, policy.place
    told = {
        "it promotes jobs": isinstance(order, Queues) and math.isfinite(order.knob) and bool(order.thresholds),
        "it orders jobs by an index": isinstance(order, Queues) and order.index is not None,
        "it orders jobs by their last places": isinstance(order, Queues) and order.within == "running_first",
        "its jobs share GPUs": policy.group is not None,
        "its placement looks at the jobs": not isinstance(placing, Scheme)
        and not (type(placing) is SkewAware and math.isinf(placing.patience_s)),
        "it has a shortest run": policy.min_run_s > 0,
        "it reserves GPUs": math.isfinite(policy.reserve_after_s),
        "priorities change in time": policy.urgency != Urgency(),
    }
    run = {
        "kernels are not compiled": not COMPILED,
        "preemption has a rule of its own": type(controller.rule) is not PreemptionRule,
        "a record takes single messages": not all(isinstance(record, TakesBlocks) for record in records),
        "nodes are reserved": bool(controller.reserved_ahead),
        "the cluster has a network": cluster.network is not None,
        "nodes are down or change": not cluster.all_up or backend.next_change is not None,
        "processes fail": math.isfinite(settings.job_mtbf_s),
        "the world has a physics of its own": type(settings.physics) is not StandardPhysics,
        "some are refused": bool(backend.refused) or int(jobs.gpus.max(initial=0)) > cluster.largest_gang(),
        "some adapt their batch": bool((jobs.column("batch_size") > 0).any()),
        "some are elastic": bool((jobs.column("min_gpus") != jobs.column("max_gpus")).any()),
        "some have needs beside GPUs": jobs.any_demands or jobs.any_kinds or jobs.any_requires,
        "some need GPU memory": cluster.limits_gpu_memory and bool(jobs.column("gpu_memory_bytes").any()),
        "some have a time limit": bool(np.isfinite(jobs.column("time_limit_s")).any()),
        "priorities differ": len(np.unique(jobs.column("priority"))) > 1,
        "some cannot stop at any time": bool((backend.saves_as != int(Checkpoints.ON_STOP)).any()),
        "the run has begun": backend.arrived > 0 or controller.events > 0,
    }
    reasons = [f"policy {describe(policy)}: {why}" for why, is_so in told.items() if is_so]
    return next(iter([*reasons, *(why for why, is_so in run.items() if is_so)]), None)


def run_stretches(
    controller: Controller, backend: Simulator, records: Sequence[TakesBlocks], twin: Twin | None = None
) -> None:
    """Drive a run to its end, of a controller and a simulator that are not `outside`; `records` take what happens.

    A `twin` goes through some instants as well and raises at the first difference.
    Raises `PlanError` for a plan that cannot run, and `SimulationError` if no job makes progress.
    """
    store = controller.job_store
    store.append(backend.reported, 0.0)
    s = _stretch(controller, backend)
    with announced("simulations at every event", 8):
        run_stretch(s, 0)
    while True:
        before, instants = int(s.counts[layout.EVENTS]), PATIENCE - int(s.counts[layout.INSTANTS]) % PATIENCE
        if twin is not None and s.counts[layout.INSTANTS] >= twin.due:
            twin.accompany(s, controller, backend, instants)
        else:
            run_stretch(s, instants)
        events = int(s.counts[layout.EVENTS]) - before
        n = s.counts[layout.ROWS]
        kind = s.rows.kind[:n].copy()
        starts = kind == STARTS
        gpus = s.rows.gpus[: s.counts[layout.ROW_GPUS]].copy()
        done, count = s.rows.done[:n][starts], s.rows.gpu_count[:n][starts]
        block = Block(kind, s.rows.job[:n].copy(), s.rows.at_ms[:n] / 1000, done, count, gpus, events,
                     float(s.at[layout.LAST_EVENT]))  # fmt: skip
        store.depart(block.job[block.kind == ENDS])
        for record in records:
            record.take(block)
        s.counts[layout.ROWS] = s.counts[layout.ROW_GPUS] = 0
        if s.counts[layout.FAULT] != OK:
            code, job, gpu = (int(s.counts[at]) for at in (layout.FAULT, layout.FAULT_JOB, layout.FAULT_GPU))
            raise plan_error(code, controller.job_store.name(job), gpu, controller.cluster, describe(controller.policy))
        if s.counts[layout.ENDED] == len(backend.truth) or block.events == 0:
            break
        if s.counts[layout.INSTANTS] % PATIENCE == 0:
            _show(s, backend)
            backend.note_progress()
    _show(s, backend)
    _adopt(s, controller, backend)


class Twin:
    """Some instants of a stretched run message by message, compared with it after each.

    It takes over the state of the run before the first of them. An instant costs about forty times as much as in the
    kernel, so after the first `DENSE` ones it takes a row of them, `LEAST` or one in `PART` of as many as there are
    jobs, and lets as many as there are jobs pass.
    """

    DENSE, PART, LEAST = 50, 50, 20

    def __init__(self, controller: Controller, backend: Simulator) -> None:
        """`controller` is that of the stretched run, `backend` another one of the same world that has not begun."""
        self.backend, self.controller = backend, Controller(controller.policy, backend.cluster, controller.rule)
        self.controller.job_store.append(backend.reported, 0.0)  # room for all; they arrive with the events
        self.controller.job_store.count = 0
        self.due, self.instants = 0, self.DENSE

    def accompany(self, s: Stretch, controller: Controller, backend: Simulator, most: int) -> None:
        """Go through at most so many instants with the kernel. Raises `SimulationError` at the first difference."""
        counts, ours, theirs = s.counts, _written(self.controller, self.backend), _written(controller, backend)
        if counts[layout.EVENTS] > 0:
            for name, values in ours.items():
                values[:] = theirs[name]
            _show(s, self.backend)
            _adopt(s, self.controller, self.backend)
            saving = (self.backend.is_running == 0) & (self.backend.free_ms > self.backend.now)
            self.backend.late = [np.flatnonzero(saving)] if counts[layout.LATE] > 0 else []
        events, last = self.backend.events(), int(counts[layout.INSTANTS]) + min(most, self.instants)
        departures = self.controller.job_store.departures
        while (done := counts[layout.INSTANTS]) < last:
            run_stretch(s, 1)
            if counts[layout.INSTANTS] == done or counts[layout.FAULT] != OK:
                return
            for event in events:
                for command in self.controller.handle(event):
                    self.backend.execute(command)
                if isinstance(event, ReplanDue):
                    break
            self._compare(s, theirs, ours, s.queue.order[: counts[layout.ACTIVE]])
        self._compare(s, theirs, ours, np.arange(counts[layout.ARRIVED]))
        left = s.rows.job[: counts[layout.ROWS]][s.rows.kind[: counts[layout.ROWS]] == ENDS]
        single = self.controller.job_store.departed[departures : self.controller.job_store.departures]
        _refuse_differences(self.controller, {"order of ends": left}, {"order of ends": single}, None)
        self.instants = max(len(backend.truth) // self.PART, self.LEAST)
        self.due = int(counts[layout.INSTANTS]) + max(len(backend.truth), self.LEAST)

    def _compare(self, s: Stretch, theirs: dict[str, Any], ours: dict[str, Any], jobs: IntArray) -> None:
        """What is known of these jobs, of all GPUs and of the run."""
        owner, single, when = np.full(len(s.held.owner), -1), self.controller, f", at {s.at[layout.NOW] / 1000} s"
        for job, gpus in self.backend.where.items():
            owner[gpus] = job
        names = [name for name in ours if name not in ("running_group", "gpu_free_ms")]  # a group's number is a handle
        values, others = ({name: columns[name][jobs] for name in names} for columns in (theirs, ours))
        _refuse_differences(single, values, others, jobs, when)
        figures = [single.events, single.now_s, single.competing, single.plan.valid_until_s, self.backend.wake_ms]
        run = [s.counts[layout.EVENTS], *s.at[[layout.LAST_EVENT, layout.COMPETING, layout.VALID_UNTIL, layout.WAKE]]]
        values = {"owner": s.held.owner, "gpu_free_ms": theirs["gpu_free_ms"], "figures": np.array(run)}
        others = {"owner": owner, "gpu_free_ms": ours["gpu_free_ms"], "figures": np.array(figures)}
        _refuse_differences(single, values, others, None, when)


def _written(controller: Controller, backend: Simulator) -> dict[str, Any]:
    """The columns that a stretch writes."""
    columns, n = controller.job_store.columns, len(backend.truth)
    of_jobs = {name: columns[name][:n] for name in Life._fields}
    return {name: getattr(backend, name) for name in Bodies._fields} | of_jobs


def _refuse_differences(
    controller: Controller, values: dict[str, Any], single: dict[str, Any], jobs: IntArray | None, when: str = ""
) -> None:
    """Raise `SimulationError` at the first difference of columns of these jobs, or None for those of something else."""
    for name, ours in values.items():
        same = (ours == single[name]) | (np.isnan(ours) & np.isnan(single[name]))
        if not same.all():
            row = int(np.argmin(same.reshape(len(same), -1).all(axis=1)))
            of = f"[{row}]" if jobs is None else f" of {controller.job_store.name(int(jobs[row]))}"
            raise SimulationError(
                "compiled instants come to another result than single ones under policy "
                f"{describe(controller.policy)}: {name}{of} is {ours[row]} instead of {single[name][row]}{when}"
            )


def compare_with_stretches(controller: Controller, backend: Simulator) -> None:
    """Raise `SimulationError` unless a stretched run comes to the same as one that is over, where both are possible.

    `controller` is that of the run, `backend` one of the same world that has not begun.
    """
    other = Controller(controller.policy, backend.cluster, controller.rule)
    other.reserved = controller.reserved
    if outside(other, backend, ()) is not None:
        return
    run_stretches(other, backend, ())
    n, stores = len(backend.truth), (other.job_store, controller.job_store)
    values, single = ({name: store.columns[name][:n] for name in COMPARED} for store in stores)
    _refuse_differences(controller, values, single, np.arange(n))


def _stretch(controller: Controller, backend: Simulator) -> Stretch:
    """The state before the first instant, whose columns are those of the controller's job store and the simulator."""
    n, cluster, columns, b = len(backend.truth), backend.cluster, controller.job_store.columns, backend
    gpus, nodes = cluster.gpus, len(cluster.nodes)
    physics, rows = b.settings.physics, max(BLOCK, 4 * gpus)
    assert isinstance(physics, StandardPhysics)

    def whole(size: int) -> IntArray:
        return np.zeros(size, dtype=np.int64)

    def walk(held: HeldGpus, order: IntArray) -> StretchWalk:
        found = Found(whole(n), np.zeros(n, dtype=np.bool_), whole(gpus + 1), whole(n), whole(n))
        return StretchWalk(order, np.zeros(n, dtype=np.bool_), Running(held.gpus, whole(n), whole(n), whole(n)), found)

    def left() -> Left:
        return Left(np.zeros(gpus, dtype=np.bool_), cluster.node_gpus.copy(), cluster.node_spare)

    held = HeldGpus(whole(4 * gpus), whole(4 * gpus), whole(4 * gpus + 2), np.full(gpus, -1, dtype=np.int64))
    order = whole(n)
    at = np.array([b.now, math.inf, controller.plan.valid_until_s, 0.0, 0.0])
    return Stretch(
        _rules(controller, backend),
        StretchTrace(
            b.submit_ms, columns["gpus"][:n], columns["iterations"][:n], columns["iteration_s"][:n],
            columns["checkpoints"][:n], columns["restart_s"][:n], columns["saved_run_s"][:n],
            columns["keep_until_s"][:n], b.truth.iteration_s, b.total_ms, b.cost_ms,
            physics.sensitive(b.truth, np.arange(n)),
        ),
        Life(*(columns[name][:n] for name in Life._fields)),
        Bodies(*(getattr(b, name) for name in Bodies._fields)),
        StretchQueue(order, np.zeros(n), np.zeros(n), np.zeros(n), whole(gpus + 1), whole(n), whole(n)),
        held,
        Nodes(
            cluster.cap_prefix, cluster.node_kind, cluster.node_rack, cluster.node_gpus, cluster.first_gpu,
            cluster.gpu_node, int(cluster.node_rack.max()) + 1, True, False, cluster.node_gpus, cluster.node_spare,
        ),
        left(), left(),
        Work(whole(nodes), whole(nodes), whole(nodes), whole(nodes), whole(gpus), whole(gpus + 1)),
        walk(held, order), walk(held, whole(n)), np.zeros(n, dtype=np.bool_), whole(n),
        Rows(np.zeros(rows), whole(rows), whole(rows), np.zeros(rows), whole(rows), whole(max(8 * BLOCK, 4 * gpus))),
        at, whole(15),
    )  # fmt: skip


def _rules(controller: Controller, backend: Simulator) -> StretchRules:
    """The numbers of policy, preemption rule and world."""
    policy, rule, cluster, physics = controller.policy, controller.rule, backend.cluster, backend.settings.physics
    assert isinstance(policy, Composed)
    assert isinstance(physics, StandardPhysics)
    order, placing = policy.order, policy.place
    assert isinstance(order, OrderKey | Queues)
    queues = order if isinstance(order, Queues) else Queues(())
    if isinstance(placing, SkewAware):
        scheme = placing.schemes(placement_skew(*map(backend.reported.column, ("skew", "servers"))))
    else:
        assert isinstance(placing, Scheme)
        scheme = np.array([int(placing)], dtype=np.int64)
    losses = bool(controller.job_store.columns["has_losses"][0]) and not rule.free
    return StretchRules(
        order.kind if isinstance(order, OrderKey) else QUEUE, np.array(queues.thresholds, dtype=np.float64),
        queues.dimensions == 2, queues.within == "first_start", policy.preempt, float(policy.quantum_s), policy.seed,
        scheme, np.array([policy.strict]), cluster.any_kind, np.zeros((1, 2)),
        losses, rule.may_lose_work, float(rule.runs_for), rule.finishes, float(backend.round_ms),
        float(physics.spread_slowdown), np.array([physics.kind_speed.get(kind, 1.0) for kind in cluster.kinds]),
        cluster.node_up,
    )  # fmt: skip


def _show(s: Stretch, backend: Simulator) -> None:
    """Let the simulator have the time, what runs, and how far the run is."""
    backend.now, backend.arrived = float(s.at[layout.NOW]), int(s.counts[layout.ARRIVED])
    backend.ended, backend.instants = int(s.counts[layout.ENDED]), int(s.counts[layout.INSTANTS])
    backend.wake_ms = float(s.at[layout.WAKE])
    backend.running = np.sort(s.queue.heap[: s.counts[layout.RUNNING]])


def _adopt(s: Stretch, controller: Controller, backend: Simulator) -> None:
    """Let simulator and controller have what message by message they would have come to."""
    store, order, held = controller.job_store, s.queue.order[: s.counts[layout.ACTIVE]].copy(), s.held
    columns, count = store.columns, int(s.counts[layout.ARRIVED])
    store.count = count
    jobs = np.arange(count)
    done, attained, ran, _ = measure(jobs, backend.now, backend.is_running, backend.state)
    ended = columns["phase"][:count] == FINISHED
    columns["iterations_done"][:count] = np.where(ended, columns["iterations"][:count], done)
    columns["attained_gpu_s"][:count], columns["run_s"][:count] = attained, ran
    columns["position"][order] = np.arange(len(order))
    runs = order[columns["running_group"][order] >= 0]
    slots = columns["running_group"][runs]
    gpus = [held.gpus[held.first[g] : held.first[g + 1]].copy() for g in slots.tolist()]
    first = np.concatenate([[0], np.cumsum(held.first[slots + 1] - held.first[slots])]).astype(np.int64)
    columns["running_group"][runs] = np.arange(len(runs))
    backend.where = dict(zip(runs.tolist(), gpus, strict=True))
    controller.active = np.sort(order)
    controller.running = Groups(runs, np.concatenate([*gpus, runs[:0]]), first)
    controller.now_s, controller.events = float(s.at[layout.LAST_EVENT]), int(s.counts[layout.EVENTS])
    controller.competing, controller.changed = (
        float(s.at[layout.COMPETING]),
        bool(s.counts[layout.CHANGED]),
    )
    view = controller.view()
    view = replace(view, jobs=view.jobs.subset(order))
    why = np.where(columns["running_group"][order] >= 0, PLACED, s.queue.why[order])
    reasons = LazyReasons(partial(WaitReasons, view, np.arange(len(order)), why))
    controller.plan = Plan(
        controller.running, order, reasons=reasons, valid_until_s=float(s.at[layout.VALID_UNTIL]),
        settled=bool(s.counts[layout.SETTLED]),
    )  # fmt: skip
