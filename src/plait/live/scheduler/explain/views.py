"""The state as rows of tables and as JSON for people: jobs, attempts, nodes, the cluster in a few numbers."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from typing import Any

from plait.control.controller import Controller
from plait.control.job_store import refusal
from plait.control.snapshot import of_active, snapshot
from plait.core.jobs import Checkpoints, Phase
from plait.core.words import counted
from plait.live.layout import job_name
from plait.live.protocol.requests import command_text
from plait.live.protocol.wire import RUNNING
from plait.live.scheduler.context import COMPILING, Context
from plait.live.scheduler.explain import guests
from plait.live.scheduler.explain.gpu_demand import GpuDemand
from plait.live.scheduler.measured import adaptive_fields, profile_source, stop_fields, work_of
from plait.live.scheduler.network.shown import of_attempt
from plait.live.scheduler.records.attempts import NODE_STATES, Attempt, JobRecord, NodeRecord
from plait.live.scheduler.records.event_words import stop_in_words
from plait.live.scheduler.records.obstacles import obstacle
from plait.live.scheduler.state import RECENT, State
from plait.live.store.schema import Views

#: All states a job is shown in.
STATES = ("waiting", "starting", "running", "stopping", "unreachable", "finished", "failed", "cancelled")
FINAL = STATES[-3:]


def shown_state(ctx: Context, job: JobRecord) -> str:
    """The state for users: the controller's phase, refined by what the processes really do."""
    attempt = job.live
    phase = ctx.state.phase(job)
    if attempt is not None:
        nodes = [ctx.state.nodes[r.node] for r in attempt.ranks if not r.ended]
        if any(n.lost or n.suspect for n in nodes):
            return "unreachable"
        if attempt.stop is not None:
            return "stopping"
        running = all(r.ended or (r.seen is not None and r.seen.state == RUNNING) for r in attempt.ranks)
        return "running" if running else "starting"
    if phase is Phase.RUNNING:
        return "starting"
    return phase.name.lower()


def waiting_reason(ctx: Context, job: JobRecord) -> str:
    """Why a waiting job waits: the words of the last decision, or why there was none yet."""
    controller = ctx.state.controller
    if controller is None:
        return "no node has joined yet"
    if held_back := obstacle(job, ctx.now_s):
        return held_back
    if not job.admitted:
        return f"does not fit the nodes there are; more may join until {ctx.options.settle_s:.0f} s after the last"
    reason = too_large(ctx, controller, job) or controller.waiting_reason(job.number)
    if reason:
        return f"{reason}{_silent(ctx)}"
    if not ctx.ready:
        return COMPILING
    return "the next decision will place it" if controller.changed else "the policy did not choose it"


def _silent(ctx: Context) -> str:
    """Which nodes take no work because they are silent, as the end of a reason."""
    names = sorted(node.id for node in ctx.state.nodes.values() if node.state == "suspect")
    if not names:
        return ""
    has = "has" if len(names) == 1 else "have"
    return f" (nothing new starts on {', '.join(names)}, which {has} not reported lately)"


def too_large(ctx: Context, controller: Controller, job: JobRecord) -> str | None:
    """That a waiting job needs more than the nodes have that are there now, if so."""
    columns, most = controller.job_store.columns, ctx.room(job.request)
    needs, up = int(columns["min_gpus"][job.number]), controller.cluster.gpus_up
    if needs > up:
        why = f"needs {counted(needs, 'GPU')}; the nodes that are there have {up}"
    elif most and (columns["has_demands"][0] or len(controller.cluster.kinds) > 1):
        why = refusal(controller.job_store.spec(job.number), controller.cluster) or ""
    else:
        return None
    return why and (f"waits for more nodes: {why}" if most else why)


def _number(value: Any) -> float | None:
    return None if value is None or math.isnan(value) else float(value)


def job_row(ctx: Context, job: JobRecord) -> dict[str, Any]:
    """A job as the table `jobs` has it."""
    request, attempt, state = job.request, job.attempt, shown_state(ctx, job)
    last = attempt if attempt is not None and (not attempt.over or state in FINAL) else None
    row: dict[str, Any] = {
        "number": job.number,
        "name": request.get("name") or "",
        "owner": job.owner,
        "project": job.project,
        "model": request.get("model") or "",
        "gpus": len(last.gpus) if last else int(request.get("gpus") or 1),
        "class": request.get("class") or "guaranteed",
        "iterations": None if request.get("batch") else request.get("iterations"),  # steps may be fewer
        "state": state,
        "reason": job.reason,
        "epoch": job.epoch,
        "created_s": job.created_s,
        "started_s": None,
        "ended_s": None,
        "steps": 0.0,
        "run_s": job.held_s,
        "held_gpu_s": job.held_gpu_s,
        "starts": 0,
        "preemptions": 0,
        "failures": 0,
        "exit_code": None,
        "command": command_text(request),
        "nodes": " ".join(dict.fromkeys(r.node for r in attempt.ranks)) if attempt else "",
        "request": json.dumps(request, separators=(",", ":")),
    }
    if attempt is not None and attempt.over:
        row["exit_code"] = next((r.exit_code for r in attempt.ranks if r.exit_code), attempt.ranks[0].exit_code)
    if job.admitted and ctx.state.controller is not None:
        columns, n = ctx.state.controller.job_store.columns, job.number
        row["started_s"], row["ended_s"] = _number(columns["first_start_s"][n]), _number(columns["end_s"][n])
        row["steps"] = 0.0 if _starts_over(ctx, job, state) else float(columns["iterations_done"][n])
        if request.get("batch"):
            row.update(_adaptive_work(job, row["steps"], ended=state in FINAL))
        row["run_s"] = max(job.held_s, float(columns["run_s"][n]))
        row["held_gpu_s"] = max(job.held_gpu_s, float(columns["attained_gpu_s"][n]))
        for name in ("starts", "preemptions", "failures"):
            row[name] = int(columns[name][n])
        if columns["phase"][n] == int(Phase.FAILED):
            row["reason"] = str(columns["reason"][n])
    if row["state"] == "finished":
        row["reason"] = ""
    return row


def _starts_over(ctx: Context, job: JobRecord, state: str) -> bool:
    """Whether the work of a job is lost: it starts again, and has no checkpoint to resume from."""
    controller = ctx.state.controller
    assert controller is not None
    never = int(controller.job_store.columns["checkpoints"][job.number]) == int(Checkpoints.NEVER)
    return never and state in ("waiting", "starting") and job.epoch > 0


def _adaptive_work(job: JobRecord, progress: float, *, ended: bool) -> dict[str, Any]:
    """Work of an adaptive job for its row: steps while it runs; in the end progress, as its share was shown before."""
    if ended and progress > 0:
        return {"steps": progress, "iterations": job.request.get("iterations") or job.total}
    return {"steps": max(job.mark, (job.attempt.steps if job.attempt else None) or 0.0)}


def attempt_row(attempt: Attempt) -> dict[str, Any]:
    """An attempt as the table `attempts` has it."""
    ranks = [
        {"node": r.node, "gpu": r.gpu, "exit_code": r.exit_code, "reason": r.reason, "ended": r.ended}
        for r in attempt.ranks
    ]
    return {
        "job": attempt.job,
        "epoch": attempt.epoch,
        "began_s": attempt.began_s,
        "ended_s": attempt.ended_s,
        "outcome": attempt.outcome,
        "cause": attempt.cause or attempt.leaves or stop_in_words(attempt.stop or "", attempt.stop_reason),
        "ranks": json.dumps(ranks, separators=(",", ":")),
        "batch_size": attempt.batch_size,
        "lost_work_s": attempt.lost_work_s if attempt.over else None,
    }


def changed(ctx: Context, over: Iterable[Attempt], projects: Mapping[str, dict[str, Any] | None]) -> Views:
    """Rows of everything that looks different since the last commit; `over`: attempts that have ended since."""
    state, out = ctx.state, Views(projects=dict(projects))
    tries = {(a.job, a.epoch): a for a in over}
    for number in sorted(state.touched):
        job = state.jobs.get(number)
        if job is None:
            continue
        out.jobs.append(job_row(ctx, job))
        if job.attempt is not None:
            tries[job.number, job.attempt.epoch] = job.attempt
    out.attempts += [attempt_row(attempt) for _, attempt in sorted(tries.items())]
    for name in sorted(state.touched_nodes):
        record = state.nodes.get(name)
        if record is None:
            out.forgotten.append(name)
            continue
        out.nodes.append({"id": name, "state": record.state, "info": json.dumps(_info(record))})
    return out


def _info(record: NodeRecord) -> dict[str, Any]:
    return asdict(record.info) if record.info is not None else {}


def live_fields(ctx: Context, number: int) -> dict[str, Any]:
    """Fields of an unfinished job that only memory has: state, steps, pace, place; empty for others."""
    job = ctx.state.jobs.get(number)
    if job is None:
        return {}
    out: dict[str, Any] = {"state": shown_state(ctx, job)}
    if out["state"] == "waiting":
        out["reason"] = waiting_reason(ctx, job)
    attempt = job.live
    if adaptive := adaptive_fields(ctx, job):
        out["adaptive"] = adaptive
    out["stops"] = stop_fields(ctx, job)
    if source := profile_source(ctx, job):
        out["profile_source"] = source
    if attempt is None:
        return out
    out["run_s"] = job.held_s + attempt.held_s
    out["held_gpu_s"] = job.held_gpu_s + attempt.held_s * len(attempt.gpus)
    out["nodes"] = " ".join(dict.fromkeys(r.node for r in attempt.ranks))
    if attempt.steps is not None:
        out["steps"] = attempt.steps
    lead = attempt.lead
    if lead is not None:
        out.update(step_s=lead.step_s, total_steps=lead.total_steps, gate=lead.gate, stage_s=lead.stage_s)
        out.update(checkpoint_steps=lead.checkpoint_steps, checkpoint_age_s=lead.checkpoint_age_s, saves=lead.saves)
    out["places"] = [
        {
            "rank": i, "node": r.node, "gpu": r.gpu, "state": r.seen.state if r.seen else "assigned",
            "pid": r.seen.pid if r.seen else 0,
        }
        for i, r in enumerate(attempt.ranks)
    ]  # fmt: skip
    group = ctx.state.groups.group_of(attempt)
    if group is not None and attempt.stop is None:
        out["group"] = {"id": group.id, "gate": group.gate, "members": [job_name(m.job) for m in group.members]}
    if (sharing := guests.shown(ctx, attempt)) is not None:
        out["sharing"] = sharing
    if (ina := of_attempt(ctx, attempt)) is not None:
        out["ina"] = ina
    return out


def nodes(ctx: Context, now_s: float) -> list[dict[str, Any]]:
    """Nodes with usage and the holder of each GPU; `job_states` has the jobs that do not simply run.

    `reserved_for`: GPU number as a text -> the waiting job for which it is held.
    """
    reserved = guests.reserved_by_node(ctx)
    holders: dict[str, dict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
    states: dict[str, str] = {}
    for number in sorted(ctx.state.live):
        attempt = ctx.state.jobs[number].live
        if (state := shown_state(ctx, ctx.state.jobs[number])) != "running":
            states[job_name(number)] = state
        for rank in attempt.ranks if attempt else ():
            if not rank.ended:
                holders[rank.node][rank.gpu].append(job_name(number))
    out = []
    for record in ctx.state.nodes.values():
        info = _info(record)
        held = holders[record.id]
        jobs = sorted({job for some in held.values() for job in some}, key=lambda j: (len(j), j))
        out.append(
            {
                **info,
                "state": record.state,
                "drained": record.drained,
                "gone": bool(record.gone),
                "leaving_s": record.leaving_s,
                "silent_s": round(max(now_s - record.heard_s, 0.0), 3),
                "usage": asdict(record.usage),
                "gpus_used": len(held),
                "jobs": jobs,
                "job_states": {job: states[job] for job in jobs if job in states},
                "gpu_jobs": [held.get(gpu, []) for gpu in range(info.get("gpus", 0))],
                "reserved_for": reserved.get(record.id, {}),
            }
        )
    return out


def status(ctx: Context, demand: GpuDemand, now_s: float) -> dict[str, Any]:
    """The cluster in a few numbers; `demand` computes the GPUs that jobs want."""
    state = ctx.state
    counts, open_jobs = dict.fromkeys(STATES, 0), []
    for job in state.jobs.values():
        shown = shown_state(ctx, job)
        counts[shown] += 1
        if shown not in FINAL and not obstacle(job, now_s):
            open_jobs.append(job)
    wanted = demand.of(ctx, open_jobs)
    alive = [n for n in state.nodes.values() if not n.lost]
    total = sum(n.info.gpus for n in alive if n.info)
    held = {(r.node, r.gpu) for n in ctx.state.live if (a := state.jobs[n].live) for r in a.ranks if not r.ended}
    return {
        "now_s": now_s,
        "policy": state.policy_text,
        "may_lose_work": state.may_lose_work,
        "policy_error": state.policy_error or None,
        "round_s": ctx.options.round_s,
        "lost": {"work_gpu_s": dict(state.record.lost_gpu_s), "restarts_gpu_s": state.record.restarts_gpu_s},
        "reserved_idle_gpu_s": state.reserved_idle_gpu_s(now_s),
        "term": ctx.term,
        "log_seq": state.seq,
        "decision": {"seq": state.decision_seq, "at_s": _number(_finite(state.decision_s))},
        "nodes": {s: sum(n.state == s for n in state.nodes.values()) for s in NODE_STATES},
        "gpus": {
            "total": total,
            "held": len(held),
            "free": max(total - len(held), 0),
            "wanted": wanted["gpus"],
            **guests.counts(ctx),
        },
        "wanted": wanted,
        "jobs": counts,
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def forecast(ctx: Context, now_s: float) -> Callable[[], dict[str, Any]]:
    """Input of a forward simulation: unfinished jobs, and a few that ended last, renumbered.

    The state is copied now; the function returned makes JSON values of it, in any thread. Commands and environments of
    jobs, and reasons of failures, which quote their logs, are left out: every user may request this. `job_numbers` has
    the jobs' own numbers.
    """
    state = ctx.state
    facts: dict[str, Any] = {
        **State().to_json(), "seq": state.seq, "now_s": state.now_s, "policy": state.policy_text,
        "policy_error": state.policy_error, "projects": dict(state.projects), "nodes": state.node_rows(),
        "asked_s": now_s, "round_s": ctx.options.round_s, "paces": {}, "job_numbers": [],
        "record": state.record.facts(),
    }  # fmt: skip
    if state.controller is None:
        return lambda: {**facts, "nodes": []}
    small, numbers = of_active(state.controller, RECENT)
    small.job_store.columns["reason"][:] = ""
    for node in small.cluster:
        if node.id in state.nodes and state.nodes[node.id].state == "suspect":  # it will probably report again
            small.cluster = small.cluster.with_node(node)
    facts["job_numbers"] = numbers.tolist()
    new = {number: i for i, number in enumerate(facts["job_numbers"])}
    for number in ctx.state.live:
        attempt = state.jobs[number].live
        if attempt is not None and number in new:
            work = work_of(ctx, state.jobs[number], attempt)
            pace = {"step_s": work.each_s, "steps": work.done, "total_steps": work.total}
            pace["starting"] = attempt.lead is None or attempt.lead.first_step_s is None
            facts["paces"][str(new[number])] = pace
    return lambda: {**facts, "controller": snapshot(small)}
