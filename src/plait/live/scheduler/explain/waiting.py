"""Why a job waits; how a running job fares next to the jobs that share its GPUs.

Known facts are collected in the engine's thread, quickly. The changes that would start a waiting job are a `Question`,
which calls the policy itself and is answered elsewhere; see `plait.live.scheduler.explain.submission`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from plait.control.controller import Controller
from plait.core.goodput import THETA, Estimate
from plait.core.jobs import Phase
from plait.core.jobs.keys import CLOCK_S
from plait.core.plan import NodeReservation
from plait.core.policy import Preempts, layers
from plait.core.resources import Resource
from plait.core.words import counted, duration
from plait.goodput.batch import best_batch
from plait.goodput.fitness import ladder
from plait.goodput.fixed_batch import UNIT
from plait.goodput.jobs import GoodputJobs
from plait.goodput.throughput import replica_cap
from plait.grouping.interference import measured_interference
from plait.live.api import explain as api
from plait.live.api.cluster import ReservationRow
from plait.live.api.jobs import Stops
from plait.live.layout import job_name
from plait.live.protocol.requests import limits_of
from plait.live.scheduler.context import Context
from plait.live.scheduler.explain import guests, views
from plait.live.scheduler.measured import kept, row_of, stop_fields, work_of
from plait.live.scheduler.network.shown import of_attempt
from plait.live.scheduler.records.attempts import Attempt, JobRecord
from plait.live.scheduler.records.event_words import stop_in_words
from plait.live.scheduler.stops import NAMED, UNPLACED, time_left_s
from plait.placement.reserved_nodes import barred_from
from plait.policies.compose import DUE_SHARE, LEAST_WAIT_S, Composed, Ranking
from plait.policies.fair_share import half_life_s, used
from plait.policies.interleave import traits_of
from plait.policies.kinds import LEVELS
from plait.policies.predicted import predicted_of
from plait.policies.sizing.pools import goodput_jobs

#: Sizes that are shown at most.
MOST_SIZES = 12
#: Blockers that are named at most.
BLOCKERS = 8


def explain(ctx: Context, number: int, now_s: float) -> api.Explanation:
    """Everything known about the state of the unfinished job `number`; `LookupError` for one that has ended.

    `would_start` is empty: a `plait.live.scheduler.explain.submission.Question` fills it.
    """
    job = ctx.state.jobs.get(number)
    if job is None:
        raise LookupError(f"job {job_name(number)} has ended; `plait show {job_name(number)}` shows how")
    out: dict[str, Any] = {}
    attempt, controller = job.live, ctx.state.controller
    if attempt is not None:
        out.update(_running(ctx, job, attempt))
        if attempt.stop is None and ctx.state.phase(job) is Phase.RUNNING:
            out["preemption"] = _risk(ctx, job, attempt, now_s)
        if attempt.stop is not None:
            out["summary"] = f"asked to stop: {attempt.cause or stop_in_words(attempt.stop, attempt.stop_reason)}"
    if attempt is None or ctx.state.phase(job) is Phase.WAITING:
        out.update(_waiting(ctx, job, now_s))
    return api.Explanation(
        id=job_name(number),
        number=number,
        state=views.shown_state(ctx, job),
        policy=ctx.state.policy_text,
        network=controller.network_reason(number) if controller is not None and job.admitted else None,
        ina=None if attempt is None else of_attempt(ctx, attempt),
        last_trouble=job.reason or None,
        predicted=_predicted(ctx, job),
        sharing_costs=_sharing_costs(ctx, job),
        last_stop=_last_stop(job),
        stops=Stops(**stop_fields(ctx, job)),
        fair=_fair_share(ctx, job),
        reservations=_reservations_of(ctx, job, now_s) or None,
        **out,
    )


def _fair_share(ctx: Context, job: JobRecord) -> api.FairShare | None:
    """The past use of a job's project and user, if the policy goes by it."""
    controller, fair_s = ctx.state.controller, half_life_s(ctx.state.policy)
    if controller is None or fair_s is None or not job.admitted or job.number not in controller.active:
        return None
    jobs = controller.view().jobs
    known, row = used(jobs, fair_s), int(np.searchsorted(jobs.number, job.number))
    project, user = int(jobs.project_number[row]), int(jobs.user_number[row])
    member = np.flatnonzero((known.members == (project, user)).all(axis=1))[0]
    times = float(known.project_times[np.searchsorted(known.projects, project)]), float(known.member_times[member])
    return api.FairShare(fair_s, job.project, *times)


def _predicted(ctx: Context, job: JobRecord) -> str | None:
    """The prediction that decides the job's place in the order, in words; None if there is none."""
    controller = ctx.state.controller
    if controller is None or not job.admitted:
        return None
    jobs = controller.view().jobs
    row = np.flatnonzero(jobs.number == job.number)
    found = predicted_of(ctx.state.policy, jobs, int(row[0])) if len(row) else None
    if found is None:
        return None
    low, median, high = (duration(seconds) for seconds in (found.low_s, found.median_s, found.high_s))
    if not found.ends:
        basis = "an assumption, because no job has ended yet"
    elif found.level == LEVELS[-1]:
        basis = f"from all {counted(found.ends, 'job')} that ended"
    else:
        basis = f"from {counted(found.ends, 'job')} that ended with the same {found.level}"
    memory_bytes = 0.0 if jobs.starts[row[0]] else float(jobs.gpu_memory_bytes[row[0]])
    learnt = memory_bytes and not controller.job_store.spec(job.number).gpu_memory_bytes
    memory = (
        f"; {memory_bytes / 1e9:.3g} GB of GPU memory, as measured of an earlier run, with a margin" if learnt else ""
    )
    return f"about {median} of work left (half of such jobs: {low} to {high}), {basis}{memory}"


def _sharing_costs(ctx: Context, job: JobRecord) -> list[str] | None:
    """What the policy expects each mate of a running job to cost it, in words; None if it does not learn that."""
    controller, policy = ctx.state.controller, ctx.state.policy
    if controller is None or not job.admitted or not any(getattr(one, "learns", False) for one in layers(policy)):
        return None
    view = controller.view()
    jobs, reports = view.jobs, view.jobs.pair_reports
    row = np.flatnonzero((jobs.number == job.number) & jobs.running)
    mates = np.flatnonzero(np.isin(jobs.running_group, jobs.running_group[row]) & (jobs.number != job.number))
    if not len(mates):
        return None
    one, *others = traits_of(view, np.concatenate([row, mates]))
    count = len(others) + 1
    lines = [f"a group of {count} is expected to take {measured_interference(count):.2f} times its schedule"]
    for number, mate in zip(jobs.number[mates].tolist(), others, strict=True):
        cost = reports.cost(one, mate)
        low, high = (cost.factor * math.exp(sign * cost.deviation) for sign in (-1, 1))
        basis = f"{counted(math.ceil(cost.reports), 'report')} of such pairs" if cost.reports else "reports of others"
        basis = basis if reports.pairs else "no report that differs from that"
        lines.append(f"next to {job_name(number)} {cost.factor:.2f} times that ({low:.2f} to {high:.2f}), from {basis}")
    return lines


def _last_stop(job: JobRecord) -> api.LastStop | None:
    """The last request to stop this attempt or the previous one; None without one."""
    attempt = job.attempt
    if attempt is None or attempt.stop is None or attempt.stop_s is None or not attempt.stop_reason:
        return None
    why = stop_in_words(attempt.stop, attempt.stop_reason)
    return api.LastStop(attempt.epoch, attempt.stop_s, why, [job_name(number) for number in attempt.takers])


# -- waiting ------------------------------------------------------------------------------------------


def _waiting(ctx: Context, job: JobRecord, now_s: float) -> dict[str, Any]:
    controller = ctx.state.controller
    out: dict[str, Any] = {
        "summary": views.waiting_reason(ctx, job),
        "decision": views.last_decision(ctx),
        "blockers": [],
        "would_start": [],
    }
    if controller is None or not job.admitted:
        return out
    columns = controller.job_store.columns
    if columns["phase"][job.number] == int(Phase.RUNNING):
        out["summary"] = _starting(ctx, job)
        return out
    if job.number in controller.held:
        return out
    active, rank = controller.active, columns["position"][job.number]
    waiting = active[columns["phase"][active] == int(Phase.WAITING)]
    ranks = columns["position"][waiting]
    out["position"] = 1 + int(((ranks < rank) | ((ranks == rank) & (waiting < job.number))).sum())
    out["waiting"] = len(waiting)
    out["waited_s"] = now_s - float(columns["pending_since_s"][job.number])
    if views.too_large(ctx, controller, job) is None:  # otherwise it would wait in an empty queue, too
        out["first"] = _first(ctx, controller, job, now_s)
        out["blockers"] = _blockers(ctx, controller, job)
    return out


def _first(ctx: Context, controller: Controller, job: JobRecord, now_s: float) -> str | None:
    """When the policy puts a waiting job before others because of its wait, in words; None if it never does."""
    policy = next((one for one in layers(ctx.state.policy) if isinstance(one, Composed)), None)
    if policy is None:
        return None
    view = controller.view(max(now_s, controller.now_s))
    row, ranking = int(np.searchsorted(view.jobs.number, job.number)), policy.order(view)
    bounds = [(policy.reserve_after_s - float(view.jobs.waiting_s[row]), duration(policy.reserve_after_s))]
    cut = False
    length_s = ranking.length_s if isinstance(ranking, Ranking) else None
    if length_s is not None and (left_s := policy.first_in_s(view.jobs, length_s)) is not None:
        times, length = f"{policy.wait_lengths:g} times its length", duration(length_s[row])
        bounds.append((float(left_s[row]), f"{times} of about {length}, and at least {duration(LEAST_WAIT_S)}"))
        cut = bounds[0][0] > CLOCK_S and not policy.due(view, left_s)[row]
    in_s, bound = min(bounds)
    then = "it is among the first" if policy.preempt else "jobs behind wait for it"
    above = []
    if in_s < bounds[0][0] and any((key < key[row]).any() for key in policy.urgency(view.jobs)[0]):
        above.append("jobs of a higher class")
    if (ctx.state.projects.get(job.project) or {}).get("gpu_quota") is not None:
        above.append(f"the quota of project {job.project}")
    limits = f", but after {' and '.join(above)}" if above else ""
    if in_s <= CLOCK_S:
        late = f"it has waited {bound}; others that have waited too long go first, on {DUE_SHARE:.0%} of the GPUs"
        return late + limits if cut else f"{then}, because it has waited {bound}{limits}"
    return f"{then} in {duration(in_s)}, when it has waited {bound}{limits}" if math.isfinite(in_s) else None


def _starting(ctx: Context, job: JobRecord) -> str:
    wanted = ctx.state.wanted(job)
    if job.live is not None:
        return "its last attempt has to end first"
    controller = ctx.state.controller
    if wanted and controller is not None:
        names = {controller.cluster.nodes[int(n)].id for n in controller.cluster.gpu_node[list(wanted)]}
        silent = sorted(n for n in names if ctx.state.nodes[n].suspect or ctx.state.nodes[n].lost)
        if silent:
            return f"has GPUs, but node {', '.join(silent)} has not reported lately"
    return "has GPUs and starts"


def _blockers(ctx: Context, controller: Controller, job: JobRecord) -> list[api.Blocker]:
    """Jobs ahead that hold GPUs, or that no policy may stop, last in the order first: the first to yield."""
    columns = controller.job_store.columns
    rank = int(columns["position"][job.number])
    found = []
    # A guaranteed job waits for no guest, except for the memory and cores of a guest that cannot move.
    amounts = controller.cluster.limits_gpu_memory or bool(columns["has_demands"][0])
    passes = (job.request.get("class") or "guaranteed") == "guaranteed"
    for number, gpus in ctx.state.groups.of_job.items():
        if passes and ctx.state.groups.by_job[number].guest and not (amounts and kept(controller, number)):
            continue
        ahead = int(columns["position"][number]) <= rank or rank >= 1 << 60
        if columns["running_group"][number] >= 0 and (ahead or kept(controller, number)):
            found.append((int(columns["position"][number]), number, gpus))
    out = []
    for _, number, gpus in sorted(found, reverse=True)[:BLOCKERS]:
        other = ctx.state.jobs[number]
        left = _seconds_left(ctx, other)
        shares = [job_name(m.job) for m in ctx.state.groups.by_job[number].members if m.job != number]
        text = f"{job_name(number)} of {other.owner} has {len(gpus)} GPU{'s' * (len(gpus) > 1)}"
        text += f", shared with {', '.join(shares)}" if shares else ""
        if left is not None:
            text += f" and ends in about {duration(left)}" if left >= 1 else " and is about to end"
        stays = kept(controller, number)
        text += "; it cannot resume from a checkpoint, so no policy stops it" if stays else ""
        out.append(api.Blocker(job_name(number), number, len(gpus), left, stays, text))
    return out


def _seconds_left(ctx: Context, job: JobRecord) -> float | None:
    attempt = job.live
    if attempt is None:
        return None
    work = work_of(ctx, job, attempt)
    total = job.request.get("iterations") or work.total
    if not total or not work.each_s:
        return None
    return max(float(total) - (work.done or 0.0), 0.0) * work.each_s


# -- running ------------------------------------------------------------------------------------------


def _running(ctx: Context, job: JobRecord, attempt: Attempt) -> dict[str, Any]:
    controller = ctx.state.in_charge
    columns, lead = controller.job_store.columns, attempt.lead
    group = ctx.state.groups.group_of(attempt) if attempt.stop is None else None
    shares = [] if group is None else [m.job for m in group.members if m.job != job.number]
    out: dict[str, Any] = {
        "epoch": attempt.epoch,
        "gpus": [api.GpuOfJob(r.node, r.gpu) for r in attempt.ranks],
        "gate": lead.gate if lead else (group.gate if group else "none"),
        "shares_with": [job_name(n) for n in shares],
    }
    solo_s, solo = float(columns["iteration_s"][job.number]), columns["stage_s"][job.number]
    if limits_of(job.request) is not None:  # measured at another batch: that it takes longer now is not the neighbours'
        solo_s, solo = math.nan, [math.nan] * len(Resource)
    measured = lead.stage_s if lead and lead.stage_s and len(lead.stage_s) == len(Resource) else None
    stages = {
        r.name.lower(): api.StageTime(
            measured[r] if measured else None, None if math.isnan(solo[r]) else float(solo[r])
        )
        for r in Resource
    }
    whole = api.StageTime(lead.step_s if lead else None, None if math.isnan(solo_s) else solo_s)
    out["stages"] = {**stages, "iteration": whole}
    if lead and lead.step_s and not math.isnan(solo_s):
        out["slowdown"] = lead.step_s / solo_s
        grown = [
            (one.now_s - one.alone_s, name) for name, one in stages.items() if one.now_s is not None and one.alone_s
        ]
        out["contended"] = max(grown)[1] if shares and grown and max(grown)[0] > 0 else None
    unseen = [f"rank {i} on {r.node}" for i, r in enumerate(attempt.ranks) if r.seen is None and not r.ended]
    if (unfenced := ctx.unfenced.get(job.number)) is not None and unfenced.why:
        out["summary"] = f"{unfenced.why}; waits until its folder can be written"
    elif unseen and attempt.stop is None:
        out["summary"] = f"assigned; the agent has not reported {', '.join(unseen)} yet"
    elif any(r.seen and r.seen.state == "starting" for r in attempt.ranks):
        out["summary"] = "starts as soon as its GPUs are free"
    if (how := guests.shown(ctx, attempt)) is not None:
        out["sharing"] = how
        out.setdefault("summary", guests.sentence(ctx, job, attempt, how))
    out["adaptive"], out["sizes"] = views.adaptive_of(ctx, job), sizes(ctx, job)
    out["left_s"], limit_left_s = _seconds_left(ctx, job), time_left_s(job)
    if math.isfinite(limit_left_s):
        out["limit_left_s"] = max(limit_left_s, 0.0)
    return out


def _risk(ctx: Context, job: JobRecord, attempt: Attempt, now_s: float) -> api.PreemptionRisk:
    """Whether the policy may stop a running job for others: what the rule, the policy and the order say now."""
    controller = ctx.state.in_charge
    policy: Any = [*layers(ctx.state.policy)][-1]  # without quotas, and without memory of switches
    stops = getattr(policy, "preempt", policy.preempts if isinstance(policy, Preempts) else None)
    if kept(controller, job.number):
        return api.PreemptionRisk(False, None, [], "no policy stops it, because it cannot resume from a checkpoint")
    if attempt.guest:
        return api.PreemptionRisk(True, 0.0, [], "a guest, it makes room when the jobs that own its GPUs need them")
    if stops is False:
        return api.PreemptionRisk(False, None, [], f"policy {ctx.state.policy_text} stops no job for others")
    active = controller.active
    until_s = float(controller.view(now_s).keeps.until_s[int(np.flatnonzero(active == job.number)[0])])
    after_s = None if until_s == math.inf else max(until_s - now_s, 0.0)
    columns = controller.job_store.columns
    position, waits = columns["position"], columns["phase"][active] == int(Phase.WAITING)
    if position[job.number] >= UNPLACED:
        text = f"policy {ctx.state.policy_text} has no order of jobs, and may stop, move or resize it when it decides"
        return api.PreemptionRisk(True, after_s, [], text)
    before = active[waits & (position[active] < position[job.number])]
    ahead = [int(number) for number in before[np.argsort(position[before])] if int(number) not in controller.held]
    named = [job_name(number) for number in ahead[:BLOCKERS]]
    if not ahead:
        text = "no waiting job stands before it in the order; a new one, or a change of the order, may stop it"
    else:
        gpus = sum(int(columns["gpus"][number]) for number in ahead)
        more = f" and {len(ahead) - NAMED} more" if len(ahead) > NAMED else ""
        wait = "waits" if len(ahead) == 1 else "wait"
        who = f"{', '.join(named[:NAMED])}{more} {wait} before it in the order"
        text = f"{who} for {counted(gpus, 'GPU')}, and may stop it"
    if after_s is None:
        text += ", but not before its next checkpoint"
    elif after_s > 0:
        text += f", but not within the next {duration(after_s)}"
    return api.PreemptionRisk(True, after_s, named, text)


# -- reservations of nodes ----------------------------------------------------------------------------


def reservations(ctx: Context, now_s: float) -> list[ReservationRow]:
    """Reservations that have not ended, the first to begin first."""
    return [reservation(ctx, one, now_s) for one in sorted(_current(ctx, now_s), key=lambda one: (one.from_s, one.id))]


def reservation(ctx: Context, one: NodeReservation, now_s: float) -> ReservationRow:
    """A reservation, and the jobs that are in its way."""
    controller, jobs = ctx.state.controller, [job.number for job in _in_the_way(ctx, one, now_s)]
    stay = [number for number in jobs if controller is not None and kept(controller, number)]
    leave = [job_name(number) for number in jobs if number not in stay]
    return ReservationRow(
        one.id, list(one.nodes), one.project, round(one.from_s, 3), round(one.until_s, 3),
        round(max(one.from_s - now_s, 0.0), 3), round(one.until_s - now_s, 3), one.by, leave,
        [*map(job_name, stay)],
    )  # fmt: skip


def _reservations_of(ctx: Context, job: JobRecord, now_s: float) -> list[ReservationRow]:
    """Reservations by which a job waits, or in whose way it runs."""
    controller = ctx.state.controller
    if controller is None or not controller.reserved or not job.admitted:
        return []
    if job.live is not None:
        found = [one for one in _current(ctx, now_s) if job in _in_the_way(ctx, one, now_s)]
    else:
        at = controller.active.tolist()
        view = controller.view(max(now_s, controller.now_s))
        found = barred_from(view, controller.reserved, at.index(job.number)) if job.number in at else []
    return [reservation(ctx, one, now_s) for one in found]


def _in_the_way(ctx: Context, one: NodeReservation, now_s: float) -> Iterator[JobRecord]:
    """Jobs of other projects that run on its nodes and are not sure to end before it begins."""
    for job, attempt in ctx.state.attempts:
        here = any(rank.node in one.nodes and not rank.ended for rank in attempt.ranks)
        if here and job.project != one.project and time_left_s(job) > one.from_s - now_s:
            yield job


def _current(ctx: Context, now_s: float) -> list[NodeReservation]:
    known = () if ctx.state.controller is None else ctx.state.controller.reserved
    return [one for one in known if one.until_s > now_s]


def sizes(ctx: Context, job: JobRecord) -> api.SizeOptions | None:
    """Goodput and batch on each size of the ladder that the job may have, none without a fit, and its bounds now.

    Of an elastic job with a fixed batch: iterations a second, by what it measured or else the prior, and batch 0. None
    for a job of one size.
    """
    limits, controller = limits_of(job.request), ctx.state.controller
    if controller is None:
        return None
    row = row_of(ctx, job)
    known = row[Estimate.PROFILED_GPUS]
    profiled = 0 if math.isnan(known) else int(known)
    asked = int(job.request.get("gpus") or 1)
    least, most = (int(job.request.get(name) or asked) for name in ("min_gpus", "max_gpus"))
    if limits is None and least == most:
        return None
    cap = 2 * max(profiled, asked) if limits is None else int(replica_cap(profiled, limits.most, limits.least_local))
    cap = max(cap, least)
    until_s = controller.plan.valid_until_s
    out = api.SizeOptions(
        profiled, min(cap, most), [], max(0.0, until_s - ctx.now_s) if math.isfinite(until_s) else None
    )
    if not job.admitted or (limits is not None and np.isnan(row[:THETA]).any()):
        return out
    per_node = max((n.info.gpus for n in ctx.state.nodes.values() if n.info), default=1)
    nodes = max(-(-controller.cluster.gpus_up // per_node), 1)
    configs = [(n, k) for n, k in ladder(per_node, nodes, most).tolist() if k >= least][:MOST_SIZES]
    if not configs:
        return out
    table = controller.view().jobs.subset(np.array([job.number]))
    best = best_batch(goodput_jobs(table, per_node) if limits is None else GoodputJobs.of(table), *np.array(configs).T)
    for i, (n, k) in enumerate(configs):
        local, passes, value = int(best.local[0, i]), int(best.passes[0, i]), float(best.goodput[0, i])
        if local and limits is None:
            out.at.append(api.SizeOption(n, k, 0, value / UNIT))
        elif local:
            out.at.append(api.SizeOption(n, k, k * local * (passes + 1), value))
    return out
