"""The state as rows of tables and as JSON for people: jobs, attempts, nodes, the cluster in a few numbers."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from typing import Any, cast

import numpy as np

from plait.control.controller import Controller
from plait.control.job_store import refusal
from plait.control.snapshot import of_active, snapshot
from plait.core.jobs import Phase
from plait.core.resources import CPU_KIND
from plait.core.words import arguments, command_line, counted
from plait.live.api import cluster
from plait.live.api import jobs as api
from plait.live.layout import job_name
from plait.live.protocol.requests import needs_no_gpu
from plait.live.protocol.wire import RUNNING
from plait.live.scheduler.context import COMPILING, Context
from plait.live.scheduler.explain import guests
from plait.live.scheduler.explain.gpu_demand import GpuDemand
from plait.live.scheduler.measured import adaptive_fields, never_saved, profile_source, stop_fields, work_of
from plait.live.scheduler.network.shown import of_attempt
from plait.live.scheduler.records.attempts import Attempt, JobRecord
from plait.live.scheduler.records.event_words import stop_in_words
from plait.live.scheduler.records.obstacles import obstacle, waits_for_turn
from plait.live.scheduler.state import RECENT, State
from plait.live.store.schema import Views


def shown_state(ctx: Context, job: JobRecord) -> api.JobState:
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
    return cast("api.JobState", phase.name.lower())


def waiting_reason(ctx: Context, job: JobRecord) -> str:
    """Why a waiting job waits: the words of the last decision, or why there was none yet."""
    controller = ctx.state.controller
    if controller is None:
        return "no node has joined yet"
    if held_back := obstacle(job, ctx.now_s):
        return held_back
    if job.number in controller.held:
        return waits_for_turn(job)
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


def job_row(ctx: Context, job: JobRecord, *, stored: bool = False) -> api.JobRow:
    """The row of a job; if `stored`, without what only memory has of it: the store keeps the rest."""
    request, attempt, state = job.request, job.attempt, shown_state(ctx, job)
    member = request.get("member") or {}
    final = state in api.FINAL
    last = attempt if attempt is not None and (not attempt.over or final) else None
    done, run_s, attained_gpu_s, reason = 0.0, job.held_s, job.held_gpu_s, job.reason
    started_s = ended_s = exit_code = None
    starts = preemptions = failures = 0
    iterations = None if request.get("batch") else request.get("iterations")  # steps may be fewer
    if attempt is not None and attempt.over:
        exit_code = next((r.exit_code for r in attempt.ranks if r.exit_code), attempt.ranks[0].exit_code)
    if job.admitted and ctx.state.controller is not None:
        columns, n = ctx.state.controller.job_store.columns, job.number
        started_s, ended_s = _number(columns["first_start_s"][n]), _number(columns["end_s"][n])
        starts_over = never_saved(ctx, job) and state in ("waiting", "starting") and job.epoch > 0
        done = 0.0 if starts_over else float(columns["iterations_done"][n])
        if request.get("batch"):
            if final and done > 0:  # in the end progress, as its share was shown before
                iterations = request.get("iterations") or job.total
            else:
                done = max(job.mark, (attempt.steps if attempt else None) or 0.0)
        run_s = max(run_s, float(columns["run_s"][n]))
        attained_gpu_s = max(attained_gpu_s, float(columns["attained_gpu_s"][n]))
        starts, preemptions, failures = (int(columns[name][n]) for name in ("starts", "preemptions", "failures"))
        if columns["phase"][n] == int(Phase.FAILED):
            reason = str(columns["reason"][n])
    live = None if stored else job.live
    if live is not None:
        run_s, attained_gpu_s = job.held_s + live.held_s, job.held_gpu_s + live.held_s * len(live.gpus)
        done = done if live.steps is None else live.steps
    if needs_no_gpu(request):
        attained_gpu_s = 0.0
    if not stored and state == "waiting":
        reason = waiting_reason(ctx, job)
    return api.JobRow(
        id=job_name(job.number),
        number=job.number,
        name=request.get("name") or "",
        user=job.owner,
        project=job.project,
        model=request.get("model") or "",
        class_=request.get("class") or "guaranteed",
        command=arguments(command_line(request["command"])),
        tags=request.get("tags") or [],
        array=member.get("array"),
        array_index=member.get("index"),
        gpus=len(last.gpus) if last and not needs_no_gpu(request) else int(request.get("gpus", 1)),
        state=state,
        reason="" if state == "finished" else reason,
        iterations=iterations,
        iterations_done=done,
        nodes=list(dict.fromkeys(r.node for r in attempt.ranks)) if attempt else [],
        epoch=job.epoch,
        exit_code=exit_code,
        starts=starts,
        preemptions=preemptions,
        failures=failures,
        created_s=round(job.created_s, 3),
        started_s=started_s and round(started_s, 3),
        ended_s=ended_s and round(ended_s, 3),
        age_s=round(ctx.now_s - job.created_s, 3),
        jct_s=None if ended_s is None else round(ended_s - job.created_s, 3),
        run_s=round(run_s, 3),
        attained_gpu_s=round(attained_gpu_s, 3),
        **({} if stored or final else _live_fields(ctx, job)),
    )


def _live_fields(ctx: Context, job: JobRecord) -> dict[str, Any]:
    """Fields of the row of an unfinished job that only memory has."""
    attempt = job.live
    out: dict[str, Any] = {
        "stops": api.Stops(**stop_fields(ctx, job)),
        "profile_source": profile_source(ctx, job) or None,
        "adaptive": adaptive_of(ctx, job),
    }
    if attempt is None:
        return out
    if (lead := attempt.lead) is not None:
        out.update(step_s=lead.step_s, total_steps=lead.total_steps, gate=lead.gate, stage_s=lead.stage_s)
        out.update(checkpoint_steps=lead.checkpoint_steps, checkpoint_age_s=lead.checkpoint_age_s, saves=lead.saves)
    out["places"] = [
        api.Place(
            i, r.node, r.gpu, cast("api.RankState", r.seen.state) if r.seen else "assigned", r.seen.pid if r.seen else 0
        )
        for i, r in enumerate(attempt.ranks)
    ]
    group = ctx.state.groups.group_of(attempt)
    if group is not None and attempt.stop is None:
        out["group"] = api.GroupOfJob(group.id, group.gate, [job_name(m.job) for m in group.members])
    return {**out, "sharing": guests.shown(ctx, attempt), "ina": of_attempt(ctx, attempt)}


def adaptive_of(ctx: Context, job: JobRecord) -> api.AdaptiveJob | None:
    """State of an unfinished job whose batch adapts; None for others."""
    found = adaptive_fields(ctx, job)
    return None if found is None else api.AdaptiveJob(**{**found, "limits": api.BatchBounds(**found["limits"])})


def attempt_row(attempt: Attempt) -> api.JobAttempt:
    """One try to run a job."""
    return api.JobAttempt.of(
        epoch=attempt.epoch,
        state=attempt.outcome or "running",
        started_s=attempt.began_s,
        ended_s=attempt.ended_s,
        ranks=[api.RankOfAttempt(r.node, r.gpu, r.exit_code, r.reason, r.ended) for r in attempt.ranks],
        batch_size=attempt.batch_size,
        lost_work_s=attempt.lost_work_s if attempt.over else None,
        reason=attempt.cause or attempt.leaves or stop_in_words(attempt.stop or "", attempt.stop_reason) or None,
    )


def changed(ctx: Context, over: Iterable[Attempt], projects: Mapping[str, dict[str, Any] | None]) -> Views:
    """Rows of everything that looks different since the last commit; `over`: attempts that have ended since."""
    state, out = ctx.state, Views(projects=dict(projects))
    tries = {(a.job, a.epoch): a for a in over}
    for number in sorted(state.touched):
        job = state.jobs.get(number)
        if job is None:
            continue
        out.jobs.append((job_row(ctx, job, stored=True), job.request))
        if job.attempt is not None:
            tries[job.number, job.attempt.epoch] = job.attempt
    out.attempts += [(number, attempt_row(attempt)) for (number, _), attempt in sorted(tries.items())]
    for name in sorted(state.touched_nodes):
        record = state.nodes.get(name)
        if record is None:
            out.forgotten.append(name)
            continue
        out.nodes.append(
            {
                "id": name,
                "state": record.state,
                "info": json.dumps(asdict(record.info) if record.info is not None else {}),
            }
        )
    return out


def nodes(ctx: Context, now_s: float) -> list[cluster.NodeRow]:
    """Nodes with usage and the holder of each GPU."""
    reserved = guests.reserved_by_node(ctx)
    holders: dict[str, dict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
    states: dict[str, api.JobState] = {}
    for job, attempt in ctx.state.attempts:
        if (state := shown_state(ctx, job)) != "running":
            states[job_name(job.number)] = state
        for rank in attempt.ranks:
            if not rank.ended:
                holders[rank.node][rank.gpu].append(job_name(job.number))
    out = []
    for record in ctx.state.nodes.values():
        info, usage = record.info, record.usage
        held = holders[record.id]
        jobs = sorted({job for some in held.values() for job in some}, key=lambda j: (len(j), j))
        out.append(
            cluster.NodeRow(
                id=record.id,
                state=record.state,
                drained=record.drained,
                gone=bool(record.gone),
                leaving_s=record.leaving_s,
                silent_s=round(max(now_s - record.heard_s, 0.0), 3),
                usage=cluster.NodeUsage(
                    usage.cpu,
                    usage.memory_bytes,
                    [cluster.GpuReading(one.utilisation, one.memory_bytes) for one in usage.gpus],
                    [cluster.GpuTenSeconds(one.utilisation, one.memory_bytes) for one in usage.means],
                    None if usage.peaks is None else usage.peaks.disk_bytes_s,
                    None if usage.peaks is None else usage.peaks.link_bytes_s,
                ),
                gpus_used=len(held),
                jobs=jobs,
                job_states={job: states[job] for job in jobs if job in states},
                gpu_jobs=[held.get(gpu, []) for gpu in range(0 if info is None else info.gpus)],
                reserved_for=reserved.get(record.id, {}),
                **({} if info is None else {name: getattr(info, name) for name in cluster.HARDWARE}),
            )
        )
    return out


def status(ctx: Context, demand: GpuDemand, now_s: float) -> cluster.ClusterFigures:
    """The cluster in a few numbers; `demand` computes the GPUs that jobs want."""
    state = ctx.state
    counts, open_jobs = dict.fromkeys(api.STATES, 0), []
    held_back = set() if state.controller is None else set(state.controller.held.tolist())
    for job in state.jobs.values():
        shown = shown_state(ctx, job)
        counts[shown] += 1
        if shown not in api.FINAL and job.number not in held_back and not obstacle(job, now_s):
            open_jobs.append(job)
    wanted = cluster.WantedGpus(**demand.of(ctx, open_jobs))
    alive = [n for n in state.nodes.values() if not n.lost]
    total = sum(n.info.gpus for n in alive if n.info and n.info.gpu_kind != CPU_KIND)
    running = (attempt for job, attempt in state.attempts if not needs_no_gpu(job.request))
    held = {(r.node, r.gpu) for attempt in running for r in attempt.ranks if not r.ended}
    return cluster.ClusterFigures(
        now_s=now_s,
        policy=state.policy_text,
        may_lose_work=state.may_lose_work,
        policy_error=state.policy_error or None,
        round_s=ctx.options.round_s,
        lost=cluster.LostWork(dict(state.record.lost_gpu_s), state.record.restarts_gpu_s),
        reserved_idle_gpu_s=state.reserved_idle_gpu_s(now_s),
        term=ctx.term,
        log_seq=state.seq,
        decision=last_decision(ctx),
        nodes={s: sum(n.state == s for n in state.nodes.values()) for s in cluster.NODE_STATES},
        gpus=cluster.Gpus(
            total=total, held=len(held), free=max(total - len(held), 0), wanted=wanted.gpus, **guests.counts(ctx)
        ),
        wanted=wanted,
        jobs=counts,
    )


def last_decision(ctx: Context) -> api.LastDecision:
    """The newest decision of the policy."""
    at_s = ctx.state.decision_s
    return api.LastDecision(ctx.state.decision_seq, at_s if math.isfinite(at_s) else None)


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
    for job, attempt in state.attempts:
        if job.number in new:
            work = work_of(ctx, job, attempt)
            pace = {"step_s": work.each_s, "steps": work.done, "total_steps": work.total}
            pace["starting"] = attempt.lead is None or attempt.lead.first_step_s is None
            facts["paces"][str(new[job.number])] = pace
    return lambda: {**facts, "controller": snapshot(small)}


# -- The order of the queue with the numbers that policies order by ----------------------------------------


def queue(ctx: Context, now_s: float, limit: int, offset: int) -> cluster.Queue:
    """`limit` jobs after `offset` in the order of the last decision, first the first."""
    controller, jobs = ctx.state.controller, list[cluster.QueuedJob]()
    if controller is None:
        return cluster.Queue(now_s, ctx.state.policy_text, 0, jobs)
    columns, active = controller.job_store.columns, controller.active
    shown = active[np.lexsort((active, columns["position"][active]))][offset : offset + limit]
    for place, number in enumerate(shown.tolist(), offset + 1):
        job = ctx.state.jobs[number]
        left_s = float(
            (columns["iterations"][number] - columns["iterations_done"][number]) * columns["iteration_s"][number]
        )
        waits = int(columns["phase"][number]) == int(Phase.WAITING)
        level = int(columns["level"][number])
        jobs.append(
            cluster.QueuedJob(
                place=place,
                id=job_name(number),
                number=number,
                name=job.request.get("name") or "",
                user=job.owner,
                project=job.project,
                class_=job.request.get("class") or "guaranteed",
                priority=job.request.get("priority"),
                gpus=int(columns["gpus"][number]),
                waits=waits,
                level=None if level < 0 else level,
                attained_gpu_s=round(float(columns["attained_gpu_s"][number]), 3),
                waited_s=round(now_s - float(columns["pending_since_s"][number]), 3) if waits else None,
                left_s=round(left_s, 3) if math.isfinite(left_s) else None,
                reason=waiting_reason(ctx, job) if waits else "",
            )
        )
    return cluster.Queue(now_s, ctx.state.policy_text, len(active), jobs)
