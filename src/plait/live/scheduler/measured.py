"""Measurements of running jobs: profiles, estimates of adaptive jobs, costs of stops and restarts, progress.

Profiles, for jobs without measurements: from earlier jobs of the kind, otherwise from similar jobs. A profile is
measured while a job has its GPUs for itself, and a job without one stays out of groups. Until it has been measured, a
job is treated like the newest job of its model, or of its script with other arguments: a provisional profile, which its
own replaces as soon as there is one. With a provisional profile a job may be in groups from its start and never alone;
then its stage times are taken where a gate lets it have each resource for itself.

Jobs whose batch adapts (Pollux, OSDI'21): policies count their work in iterations at the first batch size (progress),
whatever the batch is now; users see the steps of the optimizer. Estimates of a job reach the job store as
`GoodputReported`, when they have changed so much that a decision could; the cost of a restart is measured here, not
reported.

Cost of a stop: a job counts as unable to resume from a checkpoint until all of its processes have reported that they
can (`saves`, which attached scripts send with their first iteration). From then on it saves when it has to stop, unless
its last checkpoint could not be written: then no policy stops it until one is. A guest that waits for its first step
loses nothing: it might wait for ever where it is. The cost of a restart is measured: of the job itself if it had any,
otherwise its own start and the stops of others, otherwise starts and stops on this cluster, otherwise the value stated
in `track_record`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from plait.control.controller import Controller
from plait.control.messages import GoodputReported, JobKept, JobProfiled, JobUpdated, ProgressReported, StopCostReported
from plait.core.arrays import FloatArray
from plait.core.errors import InputError
from plait.core.goodput import THETA, BatchLimits, Estimate
from plait.core.jobs import Checkpoints, JobBatch, Phase
from plait.core.resources import Resource
from plait.goodput.fixed_batch import fit_sizes
from plait.goodput.throughput import efficiency, gain
from plait.live.protocol.profile_keys import fit_key, known_profile, like_keys, profile_key
from plait.live.protocol.requests import limits_of
from plait.live.protocol.wire import RUNNING, Adaptive, Profile, Seen, sane_profile
from plait.live.scheduler.context import Context
from plait.live.scheduler.records.attempts import CAN, FAILS, FROM_START, NO_STEP, Attempt, JobRecord
from plait.live.scheduler.records.notes import ProfileRecorded, Restarted
from plait.live.scheduler.records.track_record import START_UP_S, STOP_S, TrackRecord

#: A profile in the making is waited for at most so long, seconds; it takes so many iterations at least and at most.
PROFILE_S, FEWEST_ITERATIONS, MOST_ITERATIONS = 120.0, 25, 60
#: A process is believed a new profile this often: each is an entry of the log and a reason to decide.
LEARN_S = 10.0
#: Shares from which values count as changed: a stage or iteration time (of the iteration), a cost of a stop, a number
#: of an estimate. Numbers of an estimate below `SMALL` are alike (parameters that are not used).
PROFILE_DRIFT, COST_DRIFT, ESTIMATE_DRIFT, SMALL = 0.2, 0.2, 0.05, 1e-6
#: A script that adapts has reported so after as many steps.
MANY_STEPS = 10
#: Reasons for which work is lost.
LOSSES = ("preempted", "requeued", "drained", "node lost", "failed")
_NOBODY = np.full(len(Estimate), math.nan)


def report_measurements(ctx: Context, job: JobRecord, attempt: Attempt, seen: Seen) -> None:
    """Report to the controller what a report on a process changes of these; most are those of the first process."""
    if seen.rank == 0:
        _learn(ctx, job, attempt, seen)
        _learn_beside(ctx, job, attempt, seen)
        _protect(ctx, job, attempt, seen)
        _report_restart(ctx, job, seen)
        _report_estimate(ctx, job, seen)
        _report_total(ctx, job, attempt, seen)
        _measure_size(ctx, job, attempt, seen)
    _report_stop_cost(ctx, job, attempt)


# -- profiles -----------------------------------------------------------------------------------------


def _learn(ctx: Context, job: JobRecord, attempt: Attempt, seen: Seen) -> None:
    """A profile measured alone: for the job itself and for later ones like it; not more often than anybody measures."""
    state, rank, now_s = ctx.state, attempt.ranks[0], ctx.now_s
    info, controller = state.nodes[rank.node].info, state.controller
    if info is None or controller is None or not _as_asked(job, attempt, seen):
        return
    key = profile_key(job.request, info.gpu_kind)
    known = state.learnt.get(key, {})
    if (
        now_s >= rank.learnt_s.get("skew", -math.inf) + LEARN_S
        and seen.skew is not None
        and 0 < seen.skew <= 1
        and known.get("skew") != seen.skew
    ):
        rank.learnt_s["skew"] = now_s
        ctx.record(ProfileRecorded(now_s, key=key, skew=seen.skew))
    profile = seen.profile
    if now_s < rank.learnt_s.get("profile", -math.inf) + LEARN_S:
        return
    if profile is None or state.phase(job) > Phase.RUNNING:
        return
    if attempt.guest and _beside_guests(ctx, attempt):
        return  # paced: its iterations do not show their own time
    columns = controller.job_store.columns
    job_store = columns["stage_s"][job.number].tolist(), float(columns["iteration_s"][job.number])
    if profile.outside and (job.profiled or job.measured_beside or job.request.get("profile")):
        return
    better = (job.measured_beside or job.seen_outside) and not job.profiled and not profile.outside
    if "stage_s" in known and not better and not _other_times(profile, *job_store):
        return
    rank.learnt_s["profile"] = now_s
    stage_s, iteration_s = [float(x) for x in profile.stage_s], float(profile.iteration_s)
    ctx.record(JobProfiled(now_s, np.array([job.number]), np.array([iteration_s]), np.array([stage_s])))
    ctx.record(
        ProfileRecorded(
            now_s,
            job=job.number,
            key=key,
            stage_s=stage_s,
            iteration_s=iteration_s,
            like=like_keys(job.request),
            outside=profile.outside,
        )
    )
    if rank.learnt_s.pop("kept", None) is not None:
        ctx.record(JobKept(now_s, np.array([job.number]), np.array([math.nan])))
    _pass_on(ctx, controller, job)


def _pass_on(ctx: Context, controller: Controller, learnt_from: JobRecord) -> None:
    """Give waiting jobs that have no profile what has just been learnt from one like them."""
    state = ctx.state
    columns, active = controller.job_store.columns, controller.active
    unknown = np.isnan(columns["stage_s"][active, 0]) & (columns["phase"][active] == int(Phase.WAITING))
    keys = set(like_keys(learnt_from.request))
    found = {}
    for number in active[unknown].tolist():
        request = state.jobs[number].request
        if request.get("profile") or keys.isdisjoint(like_keys(request)):
            continue
        known = known_profile(request, controller.cluster.kinds, state.learnt)
        if known.get("stage_s"):
            found[number] = known
    if found:
        iteration_s = np.array([known["iteration_s"] for known in found.values()])
        stage_s = np.array([known["stage_s"] for known in found.values()])
        ctx.record(JobProfiled(ctx.now_s, np.array(list(found)), iteration_s, stage_s))


def _as_asked(job: JobRecord, attempt: Attempt, seen: Seen) -> bool:
    """Whether the job has the requested size and batch: a profile is of these, whatever a policy chose."""
    if len(attempt.gpus) != int(job.request.get("gpus") or 1):
        return False
    initial = (job.request.get("batch") or {}).get("initial")
    return not initial or (seen.adaptive is not None and seen.adaptive.batch_size == int(initial))


def _beside_guests(ctx: Context, attempt: Attempt) -> bool:
    """Whether an attempt shares a GPU with guests, or as one."""
    shared = ctx.state.groups.shared
    return bool(shared) and any(len(shared.get(gpu, ())) > 1 for gpu in attempt.gpus)


def _protect(ctx: Context, job: JobRecord, attempt: Attempt, seen: Seen) -> None:
    """Have policies leave a job where it runs while it measures its profile: `MOST_ITERATIONS`, at most `PROFILE_S`.

    A stop would restart the measurement, and meanwhile the job stays out of groups. A job is not protected if its
    iterations are too long for that time, nor while it shares GPUs, where it measures nothing.
    """
    controller, learnt_s = ctx.state.controller, attempt.ranks[0].learnt_s
    if (
        controller is None
        or "kept" in learnt_s
        or seen.state != RUNNING
        or not seen.step_s
        or not _as_asked(job, attempt, seen)
    ):
        return
    group = ctx.state.groups.group_of(attempt)
    alone = attempt.stop is None and group is not None and len(group.members) == 1 and not _beside_guests(ctx, attempt)
    unknown = math.isnan(controller.job_store.columns["stage_s"][job.number, 0])
    if unknown and alone and seen.profile is None and FEWEST_ITERATIONS * seen.step_s <= PROFILE_S:
        learnt_s["kept"] = ctx.now_s
        until_s = ctx.now_s + min(PROFILE_S, MOST_ITERATIONS * seen.step_s)
        ctx.record(JobKept(ctx.now_s, np.array([job.number]), np.array([until_s])))


def _learn_beside(ctx: Context, job: JobRecord, attempt: Attempt, seen: Seen) -> None:
    """Replace a provisional profile by what a job measures behind the gate of its group, once in an attempt.

    Behind a gate a job has the resource of its stage for itself and waiting is not counted, so its stage times are its
    own, up to the interference of its group. How long its iteration takes alone cannot be seen there: it is taken to
    have changed as the sum of the stages has, and to be no longer than it is in the group. A job without marks, or in
    a group without a gate, keeps the provisional profile until it is alone.
    """
    controller, learnt_s, now_s = ctx.state.controller, attempt.ranks[0].learnt_s, ctx.now_s
    if controller is None or attempt.stop is not None or job.profiled or job.request.get("profile"):
        return
    group = ctx.state.groups.group_of(attempt)
    began = learnt_s.setdefault("steps", seen.steps)
    if group is None or len(group.members) < 2 or seen.gate == "none" or "beside" in learnt_s:
        return
    if seen.steps - began < MOST_ITERATIONS or not seen.step_s or not _as_asked(job, attempt, seen):
        return
    columns = controller.job_store.columns
    before, before_s = columns["stage_s"][job.number].tolist(), float(columns["iteration_s"][job.number])
    stage_s = [float(x) for x in seen.stage_s or ()]
    if len(stage_s) != len(Resource) or not sum(stage_s) > 0 or not sum(before) > 0:  # unknown (NaN) compares false
        return
    if not stage_s[Resource.NETWORK]:  # transfers are seen by torch's profiler, which runs only alone
        stage_s[Resource.NETWORK] = before[Resource.NETWORK]
    iteration_s = min(before_s * sum(stage_s) / sum(before), seen.step_s)
    found = Profile(stage_s, iteration_s, MOST_ITERATIONS)
    if not sane_profile(found):
        return
    learnt_s["beside"] = now_s
    if _other_times(found, before, before_s):
        ctx.record(JobProfiled(now_s, np.array([job.number]), np.array([iteration_s]), np.array([stage_s])))
    ctx.record(ProfileRecorded(now_s, job=job.number, beside=True))


def _other_times(profile: Profile, stage_s: Sequence[float], iteration_s: float) -> bool:
    """Whether a job's known `stage_s` and `iteration_s` (seconds) are missing or differ noticeably from `profile`."""
    if math.isnan(iteration_s) or any(math.isnan(t) for t in stage_s):
        return True
    pairs = [(profile.iteration_s, iteration_s), *zip(profile.stage_s, stage_s, strict=True)]
    return any(abs(new - old) > PROFILE_DRIFT * iteration_s for new, old in pairs)


def profile_source(ctx: Context, job: JobRecord) -> str | None:
    """Where the profile of an unfinished job is from, in words; None if there is none yet."""
    if job.profiled:
        return "measured"
    if job.measured_beside:
        return "measured beside others"
    if job.request.get("profile"):
        return "given"
    if job.seen_outside:
        return "seen from outside its processes, or next to others"
    if not job.admitted or ctx.state.controller is None:
        return None
    known = not np.isnan(ctx.state.controller.job_store.columns["stage_s"][job.number, 0])
    return "provisional, from jobs like it" if known else None


# -- adaptive jobs and progress -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WorkDone:
    """Work done by a job, its total, and the current seconds of one iteration, as policies count; None unknown.

    In iterations: steps of the optimizer, of an adaptive job such as one at its first batch size is worth.
    """

    done: float | None
    total: float | None
    each_s: float | None


def work_of(ctx: Context, job: JobRecord, attempt: Attempt) -> WorkDone:
    """The work of a job by the last reports of its processes."""
    lead, limits = attempt.lead, limits_of(job.request)
    if lead is None:
        return WorkDone(None, job.total, None)
    if limits is None:
        return WorkDone(attempt.steps, lead.total_steps, lead.step_s)
    report = lead.adaptive
    if report is None:  # it has not begun, or its script does not adapt
        return WorkDone(None, job.total, None)
    each_s = None
    if lead.step_s and report.batch_size:
        sqr, var = _noise(row_of(ctx, job))
        each_s = lead.step_s / float(gain(sqr, var, _scale(report.batch_size, limits)))
    return WorkDone(attempt.progress, job.total, each_s)


def _report_total(ctx: Context, job: JobRecord, attempt: Attempt, seen: Seen) -> None:
    """Pass on how many iterations a job makes in all, by its script, where its request leaves that open.

    A job that makes more than it reported is as unknown as one that reports nothing: it would go before all others.
    """
    learnt_s = attempt.ranks[0].learnt_s
    if ctx.state.controller is None or not seen.total_steps or not _total_is_open(job):
        return
    if ctx.state.phase(job) is not Phase.RUNNING or ctx.now_s < learnt_s.get("total", -math.inf) + LEARN_S:
        return
    total = seen.total_steps if (seen.steps or 0.0) <= seen.total_steps else None
    known = float(ctx.state.controller.job_store.columns["iterations"][job.number])
    if total != (None if math.isnan(known) else known):
        learnt_s["total"] = ctx.now_s
        _set_total(ctx, job, total)


def settle_total(ctx: Context, job: JobRecord, attempt: Attempt) -> None:
    """Correct the total that a script reported if it ends after another number: it would count as done."""
    known = float(ctx.state.in_charge.job_store.columns["iterations"][job.number])
    if attempt.steps and _total_is_open(job) and not math.isnan(known) and known != attempt.steps:
        _set_total(ctx, job, attempt.steps)


def _total_is_open(job: JobRecord) -> bool:
    return not (job.request.get("iterations") or job.request.get("batch"))


def _set_total(ctx: Context, job: JobRecord, total: float | None) -> None:
    spec = replace(ctx.state.in_charge.job_store.spec(job.number), iterations=total)
    ctx.record(JobUpdated(ctx.now_s, np.array([job.number]), JobBatch.of([spec])))


def _report_estimate(ctx: Context, job: JobRecord, seen: Seen) -> None:
    """Report a job's estimate of itself to the controller if it changed and the last one is old enough.

    `seen`: report of the job's first process.
    """
    report = seen.adaptive
    if report is None or not job.request.get("batch"):
        return
    if (
        report.batch_size
    ):  # it has made a step, and reports with each the number of steps to come, or that it is unknown
        job.total = report.total or None
    if report.estimate is None:
        return
    if ctx.state.controller is None or ctx.state.phase(job) > Phase.RUNNING:
        return
    if ctx.now_s < job.estimated_s + ctx.options.estimate_s:
        return
    known = row_of(ctx, job)
    new = np.array([math.nan if x is None else x for x in report.estimate])
    most = Estimate.PROFILED_GPUS
    new[most] = np.fmax(new[most], known[most])
    new[Estimate.RESTART_S] = known[Estimate.RESTART_S]  # measured here: a job cannot know what its end and start cost
    passed_on = _shared_fit(ctx, job)
    if passed_on is not None and not new[most] >= passed_on[most]:  # fitted to fewer GPUs; NaN: to none
        new[[*range(THETA), most]] = passed_on[[*range(THETA), most]]
    if differs(new, known):
        job.estimated_s = ctx.now_s
        ctx.record(GoodputReported(ctx.now_s, np.array([job.number]), new.reshape(1, -1)))
        if passed_on is None or new[most] > passed_on[most] or differs(new[:THETA], passed_on[:THETA]):
            fit = [*new[:THETA].tolist(), float(new[most])]
            if np.isfinite(fit).all():
                ctx.record(ProfileRecorded(ctx.now_s, key=fit_key(job.request, _kind_of(ctx, job)), fit=fit))


def _shared_fit(ctx: Context, job: JobRecord, kinds: Iterable[str] = ()) -> FloatArray | None:
    """What jobs of its model or command have fitted on most GPUs, by `Estimate`; None before there is a fit.

    On the kind of GPU where the job runs, or else on the first of `kinds` on which there is a fit. The noise of
    gradients is not passed on: it changes as a job trains.
    """
    for kind in [_kind_of(ctx, job)] if job.live else kinds:
        learnt = ctx.state.learnt.get(fit_key(job.request, kind), {})
        if limits_of(job.request) is None and learnt.get("sizes"):
            return _of_sizes(learnt["sizes"])
        if limits_of(job.request) is not None and learnt.get("fit"):
            row = _NOBODY.copy()
            row[[*range(THETA), Estimate.PROFILED_GPUS]] = learnt["fit"]
            return row
    return None


def _kind_of(ctx: Context, job: JobRecord) -> str:
    """The kind of GPU that a running job has; "" while its node is not known."""
    info = ctx.state.nodes[job.live.ranks[0].node].info if job.live else None
    return info.gpu_kind if info else ""


def _of_sizes(sizes: Mapping[str, float]) -> FloatArray:
    """The row by `Estimate` of an elastic job with a fixed batch, from seconds by "NODESxGPUS"."""
    measured = {(int(nodes), int(gpus)): s for size, s in sizes.items() for nodes, gpus in [size.split("x")]}
    row = _NOBODY.copy()
    row[:THETA] = fit_sizes(measured)
    row[Estimate.PROFILED_GPUS] = max(gpus for _, gpus in measured)
    return row


def pass_on_fits(ctx: Context, numbers: Iterable[int]) -> None:
    """Report for these new jobs what jobs of their model have fitted, so that they need not explore sizes again."""
    controller = ctx.state.controller
    if controller is None or not ctx.state.learnt:
        return
    found = {n: _shared_fit(ctx, ctx.state.jobs[n], controller.cluster.kinds) for n in numbers}
    known = {n: row for n, row in found.items() if row is not None and _sizable(ctx.state.jobs[n])}
    if known:
        ctx.record(GoodputReported(ctx.now_s, np.array(list(known)), np.array(list(known.values()))))


def _sizable(job: JobRecord) -> bool:
    requested = int(job.request.get("gpus") or 1)
    bounds = [int(job.request.get(name) or requested) for name in ("min_gpus", "max_gpus")]
    return limits_of(job.request) is not None or bounds[0] < bounds[1]


def _measure_size(ctx: Context, job: JobRecord, attempt: Attempt, seen: Seen) -> None:
    """Record how long an iteration of an elastic job with a fixed batch takes on its GPUs, if that is news.

    Measured alone, over `FEWEST_ITERATIONS` of this attempt. Jobs of its model or command use it, too.
    """
    controller, learnt_s, now_s = ctx.state.controller, attempt.ranks[0].learnt_s, ctx.now_s
    if controller is None or limits_of(job.request) is not None or not _sizable(job) or attempt.stop is not None:
        return
    group = ctx.state.groups.group_of(attempt)
    began = learnt_s.setdefault("first_step", seen.steps)
    alone = group is not None and len(group.members) == 1 and not _beside_guests(ctx, attempt)
    if not alone or seen.state != RUNNING or not seen.step_s or seen.steps - began < FEWEST_ITERATIONS:
        return
    if now_s < learnt_s.get("size", -math.inf) + LEARN_S or ctx.state.phase(job) > Phase.RUNNING:
        return
    key = fit_key(job.request, _kind_of(ctx, job))
    sizes = ctx.state.learnt.get(key, {}).get("sizes", {})
    size = f"{len({rank.node for rank in attempt.ranks})}x{len(attempt.gpus)}"
    learnt_s["size"] = now_s
    if size not in sizes or abs(seen.step_s - sizes[size]) > PROFILE_DRIFT * sizes[size]:
        sizes = {**sizes, size: float(seen.step_s)}
        ctx.record(ProfileRecorded(now_s, key=key, sizes=sizes))
    asked, alone_s = int(job.request.get("gpus") or 1), float(controller.job_store.columns["iteration_s"][job.number])
    nodes = -(-asked // int(controller.cluster.node_gpus.max()))
    given = {f"{nodes}x{asked}": alone_s} if alone_s > 0 else {}  # NaN unknown
    known, new = row_of(ctx, job), _of_sizes({**given, **sizes})
    new[Estimate.RESTART_S] = known[Estimate.RESTART_S]
    if differs(new, known):
        ctx.record(GoodputReported(now_s, np.array([job.number]), new.reshape(1, -1)))


def _report_restart(ctx: Context, job: JobRecord, seen: Seen) -> None:
    """At the first step after a requested stop: report how long the job was kept from training; not of a guest."""
    if job.down_s is None or seen.first_step_s is None or (job.live is not None and job.live.guest):
        return
    cost_s = job.down_s + seen.first_step_s
    ctx.record(Restarted(ctx.now_s, job.number, seen.epoch, cost_s))
    if ctx.state.controller is not None and job.admitted and ctx.state.phase(job) <= Phase.RUNNING:
        new = row_of(ctx, job).copy()
        new[Estimate.RESTART_S] = job.restart_s
        ctx.record(GoodputReported(ctx.now_s, np.array([job.number]), new.reshape(1, -1)))


def differs(new: FloatArray, known: FloatArray) -> bool:
    """Whether an estimate has changed noticeably; both by `Estimate`, NaN not known."""
    unknown = np.isnan(new)
    if (unknown != np.isnan(known)).any():
        return True
    a, b = new[~unknown], known[~unknown]
    larger = np.maximum(a, b)
    return bool(((larger > SMALL) & (np.abs(a - b) > ESTIMATE_DRIFT * larger)).any())


def adaptive_fields(ctx: Context, job: JobRecord) -> dict[str, Any] | None:
    """Fields of an unfinished adaptive job for display; None for others.

    `goodput` is progress in examples a second (examples at the first batch size that would have taught as much),
    `efficiency` the part of it that an example is worth compared to one at that size.
    """
    limits = limits_of(job.request)
    if limits is None:
        return None
    requested = int(job.request.get("gpus") or 1)
    out: dict[str, Any] = {
        "min_gpus": int(job.request.get("min_gpus") or requested),
        "max_gpus": int(job.request.get("max_gpus") or requested),
        "limits": asdict(limits),
        "restarts": job.restarts,
        "restart_s": job.restart_s,
    }
    attempt = job.live
    report = attempt.lead.adaptive if attempt is not None and attempt.lead is not None else None
    if report is not None or job.total is not None:  # also while it starts again, or waits for that
        done = (attempt.progress if attempt is not None else None) or _done(ctx, job)
        out.update(progress=done, total_progress=job.request.get("iterations") or job.total)
    if attempt is None or report is None:
        if attempt is not None and (attempt.steps or 0.0) >= MANY_STEPS:
            out["difference"] = "its script does not adapt; load its data by plait.training.adaptive.AdaptiveDataLoader"
        return out
    work = work_of(ctx, job, attempt)
    out["batch_size"] = report.batch_size
    if report.batch_size:
        sqr, var = _noise(row_of(ctx, job))
        out["efficiency"] = float(efficiency(sqr, var, _scale(report.batch_size, limits)))
    if work.each_s:
        out["goodput"] = limits.initial / work.each_s
    if difference := difference_of(attempt.limits or limits, report):
        out["difference"] = difference
    if report.not_finite:
        number = "its newest step was" if report.not_finite == 1 else f"its newest {report.not_finite:,.0f} steps were"
        out["not_finite"] = f"{number} no progress: gradients are not finite, as of a loss that is NaN"
    return out


def difference_of(limits: BatchLimits, report: Adaptive) -> str:
    """The difference between the bounds of the script and of the submission, in words; empty if there is none."""
    if report.limits is None:
        return ""
    *bounds, accumulation = report.limits
    try:
        own = replace(
            limits, initial=bounds[0], most=bounds[1], least_local=bounds[2], most_local=bounds[3],
            accumulation=bool(accumulation),
        )  # fmt: skip
    except (InputError, IndexError):
        return ""
    pairs = [(name, asdict(own)[name], value) for name, value in asdict(limits).items() if asdict(own)[name] != value]
    if not pairs:
        return ""
    text = ", ".join(f"{name} {own_value} and not {submitted}" for name, own_value, submitted in pairs)
    return f"its script uses batch {text}: it keeps to that, but its GPUs are chosen by what was submitted"


def row_of(ctx: Context, job: JobRecord) -> FloatArray:
    """The values of a job in the job store, by `Estimate`."""
    controller = ctx.state.controller
    if controller is None or not job.admitted:
        return _NOBODY
    row: FloatArray = controller.job_store.columns["goodput"][job.number]
    return row


def _done(ctx: Context, job: JobRecord) -> float | None:
    if ctx.state.controller is None or not job.admitted:
        return None
    return float(ctx.state.controller.job_store.columns["iterations_done"][job.number])


def _noise(row: FloatArray) -> tuple[float, float]:
    """Squared gradient norm and variance; before any statistics a batch of any size is worth its examples."""
    sqr, var = float(row[Estimate.SQR]), float(row[Estimate.VAR])
    return (0.0, 1.0) if math.isnan(sqr) or math.isnan(var) else (sqr, var)


def _scale(batch: float, limits: BatchLimits) -> float:
    """First batch sizes in a step; less than one counts as one, as training counts it: a gain is never 0 then."""
    return max(batch / limits.initial, 1.0)


def report_progress(ctx: Context, jobs: Iterable[int]) -> None:
    """Record one `ProgressReported` for the measured ones of these jobs (numbers, ascending), if any."""
    controller = ctx.state.controller
    if controller is None:
        return
    columns = controller.job_store.columns
    rows = []
    for number in jobs:
        job = ctx.state.jobs[number]
        attempt = job.live
        if attempt is None or attempt.lead is None or columns["phase"][number] > Phase.RUNNING:
            continue
        work = work_of(ctx, job, attempt)
        done = float(columns["iterations_done"][number]) if work.done is None else work.done
        ran = max(float(columns["run_s"][number]), job.held_s + attempt.held_s)
        service = job.held_gpu_s + attempt.held_s * len(attempt.gpus)
        pace = work.each_s
        served = max(float(columns["attained_gpu_s"][number]), service)
        rows.append((number, done, served, ran, math.nan if pace is None or not pace > 0 else pace))
    if rows:
        numbers = np.array([r[0] for r in rows], dtype=np.int64)
        done_, attained, ran_, paces = (np.array([r[i] for r in rows]) for i in range(1, 5))
        ctx.record(ProgressReported(ctx.now_s, numbers, done_, attained, ran_, paces))


# -- costs of stops -----------------------------------------------------------------------------------


def restart_s(record: TrackRecord, job: JobRecord, attempt: Attempt | None) -> float:
    """Seconds that a stop and the start after it keep a job from training.

    The start of a guest is no measure: it may wait long for its host before its first step. Pass None for an attempt
    whose processes started next to the previous one: the next start may be cold.
    """
    if job.restart_s is not None:
        return job.restart_s
    stop_s = _median(list(record.stops_s), STOP_S)
    lead = None if attempt is None else attempt.lead
    if lead is not None and lead.first_step_s is not None and attempt is not None and not attempt.guest:
        return lead.first_step_s + stop_s
    return _median(list(record.starts_s), START_UP_S) + stop_s


def _median(values: list[float], unknown: float) -> float:
    return float(np.median(values)) if values else unknown


def _report_stop_cost(ctx: Context, job: JobRecord, attempt: Attempt) -> None:
    """Report to the controller what a stop of the job would lose, if that changed."""
    state = ctx.state
    if state.controller is None or not job.admitted or state.phase(job) > Phase.RUNNING:
        return
    columns, number = state.controller.job_store.columns, job.number
    known = Checkpoints(int(columns["checkpoints"][number]))
    says = [rank.seen.saves for rank in attempt.ranks if rank.seen is not None]
    now_it = known
    if any(one in (*FROM_START, FAILS) for one in says):
        now_it = Checkpoints.NEVER
    elif len(says) == len(attempt.ranks) and all(one == CAN or (one == NO_STEP and attempt.guest) for one in says):
        now_it = Checkpoints.ON_STOP
    before_s = float(columns["restart_s"][number])
    overlapped = ctx.overlapped.get(number) == attempt.epoch
    cost_s = before_s if overlapped and before_s > 0 else restart_s(state.record, job, None if overlapped else attempt)
    changed = math.isnan(before_s) or abs(cost_s - before_s) > COST_DRIFT * max(cost_s, before_s)
    if now_it is known and (known is Checkpoints.NEVER or not changed):
        return
    values = np.array([number]), np.array([int(now_it)]), np.array([math.nan]), np.array([cost_s])
    ctx.record(StopCostReported(ctx.now_s, *values))


def lost_work_s(attempt: Attempt, held_s: float, never: bool) -> float:
    """Seconds of work of a finished attempt from which no job resumes; 0 for one that finished its work.

    The work after its newest checkpoint; all of it, from its start on, for a job that has none. `held_s`: how long it
    had its GPUs; `never`: the job cannot resume from a checkpoint, as far as it has reported.
    """
    lead = attempt.lead
    if lead is None:  # it reported to an earlier service, and checkpoints since then are unknown
        return held_s if never else 0.0
    if lead.checkpoint_age_s is None or lead.saves in FROM_START:
        return max(attempt.held_s, 0.0)
    last_s, first_s = lead.last_step_s, lead.first_step_s
    if last_s is None or first_s is None:
        return 0.0  # it made no iteration, and begins where the last attempt had saved
    saved_s = max(lead.held_s - lead.checkpoint_age_s, first_s - (lead.step_s or 0.0))
    done = lead.checkpoint_steps is not None and lead.checkpoint_steps >= lead.steps
    return 0.0 if done else max(last_s - saved_s, 0.0)


def why_lost(attempt: Attempt, outcome: str) -> str:
    """The reason of a loss: one of `LOSSES`."""
    if attempt.stop in ("preempted", "moved", "yields"):
        return "preempted"
    if attempt.stop in ("requeued", "resized"):
        return "requeued"
    if attempt.stop in ("drained", "leaving"):
        return "drained"
    return "node lost" if outcome == "lost" or attempt.stop == "lost" else "failed"


def served_s(ctx: Context, job: JobRecord, attempt: Attempt) -> float:
    """Seconds an attempt had its GPUs, as far as anybody knows.

    If its node never reported to this service, what an earlier one had reported to the controller.
    """
    controller = ctx.state.controller
    if controller is None or not job.admitted:
        return attempt.held_s
    return max(attempt.held_s, float(controller.job_store.columns["run_s"][job.number]) - job.held_s)


def never_saved(ctx: Context, job: JobRecord) -> bool:
    """Whether the job cannot resume from a checkpoint, as far as its processes have reported."""
    controller = ctx.state.controller
    if controller is None or not job.admitted:
        return False
    return int(controller.job_store.columns["checkpoints"][job.number]) == int(Checkpoints.NEVER)


def kept(controller: Controller, number: int) -> bool:
    """Whether no policy may stop a job because it cannot resume from a checkpoint."""
    never = int(controller.job_store.columns["checkpoints"][number]) == int(Checkpoints.NEVER)
    return never and not controller.rule.may_lose_work


def stop_fields(ctx: Context, job: JobRecord) -> dict[str, Any]:
    """Fields of an unfinished job for display: whether a policy may stop it, at which cost, and the costs so far."""
    controller = ctx.state.controller
    out: dict[str, Any] = {"lost_work_s": job.lost_work_s, "restarts": job.restarts, "restart_s": job.restart_s}
    if controller is None or not job.admitted:
        return out
    columns, number = controller.job_store.columns, job.number
    saves = Checkpoints(int(columns["checkpoints"][number]))
    cost_s = float(columns["restart_s"][number])
    lead = job.live.lead if job.live is not None else None
    return {
        **out,
        "unbegun": lead is not None and lead.saves == NO_STEP and saves is not Checkpoints.NEVER,
        "resumable": saves is not Checkpoints.NEVER,
        "kept": kept(controller, number),
        "stop_costs_s": None if saves is Checkpoints.NEVER or math.isnan(cost_s) else cost_s,
    }
