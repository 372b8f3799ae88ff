"""Profiles for jobs without measurements: from earlier jobs of the kind, otherwise from similar jobs.

A profile is measured while a job has its GPUs for itself, and a job without one stays out of groups. Until it has been
measured, a job is treated like the newest job of its model, or of its script with other arguments: a provisional
profile, which its own replaces as soon as there is one. With a provisional profile a job may be in groups from its
start and never alone; then its stage times are taken where a gate lets it have each resource for itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from plait.control.messages import JobKept, JobProfiled
from plait.core.jobs import Phase
from plait.core.resources import Resource
from plait.live.protocol.profile_keys import known_profile, like_keys, profile_key
from plait.live.protocol.validation import sane_profile
from plait.live.protocol.wire import RUNNING, Profile, Seen
from plait.live.scheduler.context import Context, Step
from plait.live.scheduler.records.attempts import Attempt, JobRecord, Rank
from plait.live.scheduler.records.notes import ProfileRecorded
from plait.live.scheduler.records.observations import MeasurementTaken

#: A profile in the making is waited for at most so long, seconds; it takes so many iterations at least and at most.
PROFILE_S, FEWEST_ITERATIONS, MOST_ITERATIONS = 120.0, 25, 60

#: A process is believed a new profile this often: each is an entry of the log and a reason to decide.
LEARN_S = 10.0
#: A stage or iteration time counts as changed from this share of the iteration on.
DRIFT = 0.2


def learn(ctx: Context, job: JobRecord, rank: Rank, seen: Seen, now_s: float) -> Iterator[Step]:
    """A profile measured alone: for the job itself and for later ones like it; not more often than anybody measures."""
    state, attempt = ctx.state, job.live
    info, controller = state.nodes[rank.node].info, state.controller
    if info is None or controller is None or attempt is None or not as_asked(job, attempt, seen):
        return
    key = profile_key(job.request, info.gpu_kind)
    known = state.learnt.get(key, {})
    if (
        now_s >= rank.learnt_s.get("skew", -math.inf) + LEARN_S
        and seen.skew is not None
        and 0 < seen.skew <= 1
        and known.get("skew") != seen.skew
    ):
        yield MeasurementTaken(job.number, 0, "skew", now_s)
        yield ProfileRecorded(now_s, key=key, skew=seen.skew)
    profile = seen.profile
    if now_s < rank.learnt_s.get("profile", -math.inf) + LEARN_S:
        return
    if profile is None or not sane_profile(profile) or state.phase(job) > Phase.RUNNING:
        return
    if attempt.guest and _beside_guests(ctx, attempt):
        return  # paced: its iterations do not show their own time
    columns = controller.job_store.columns
    job_store = columns["stage_s"][job.number].tolist(), float(columns["iteration_s"][job.number])
    better = job.measured_beside and not job.profiled
    if "stage_s" in known and not better and not differs(profile, *job_store):
        return
    yield MeasurementTaken(job.number, 0, "profile", now_s)
    stage_s, iteration_s = [float(x) for x in profile.stage_s], float(profile.iteration_s)
    yield JobProfiled(now_s, np.array([job.number]), np.array([iteration_s]), np.array([stage_s]))
    yield ProfileRecorded(
        now_s, job=job.number, key=key, stage_s=stage_s, iteration_s=iteration_s, like=like_keys(job.request)
    )
    if "kept" in rank.learnt_s:
        yield MeasurementTaken(job.number, 0, "kept", None)
        yield JobKept(now_s, np.array([job.number]), np.array([math.nan]))
    yield from _pass_on(ctx, job, now_s)


def _pass_on(ctx: Context, learnt_from: JobRecord, now_s: float) -> Iterator[Step]:
    """Give waiting jobs that have no profile what has just been learnt from one like them."""
    state = ctx.state
    if state.controller is None:
        return
    columns, active = state.controller.job_store.columns, state.controller.active
    unknown = np.isnan(columns["stage_s"][active, 0]) & (columns["phase"][active] == int(Phase.WAITING))
    keys = set(like_keys(learnt_from.request))
    found = {}
    for number in active[unknown].tolist():
        request = state.jobs[number].request
        if request.get("profile") or keys.isdisjoint(like_keys(request)):
            continue
        known = known_profile(request, state.controller.cluster.kinds, state.learnt)
        if known.get("stage_s"):
            found[number] = known
    if found:
        iteration_s = np.array([known["iteration_s"] for known in found.values()])
        stage_s = np.array([known["stage_s"] for known in found.values()])
        yield JobProfiled(now_s, np.array(list(found)), iteration_s, stage_s)


def as_asked(job: JobRecord, attempt: Attempt, seen: Seen) -> bool:
    """Whether the job has the requested size and batch: a profile is of these, whatever a policy chose."""
    if len(attempt.gpus) != int(job.request.get("gpus") or 1):
        return False
    initial = (job.request.get("batch") or {}).get("initial")
    return not initial or (seen.adaptive is not None and seen.adaptive.batch_size == int(initial))


def _beside_guests(ctx: Context, attempt: Attempt) -> bool:
    """Whether an attempt shares a GPU with guests, or as one."""
    shared = ctx.state.groups.shared
    return bool(shared) and any(len(shared.get(gpu, ())) > 1 for gpu in attempt.gpus)


def protect(ctx: Context, job: JobRecord, attempt: Attempt, seen: Seen, now_s: float) -> Iterator[Step]:
    """Have policies leave a job where it runs while it measures its profile: `MOST_ITERATIONS`, at most `PROFILE_S`.

    A stop would restart the measurement, and meanwhile the job stays out of groups. A job is not protected if its
    iterations are too long for that time, nor while it shares GPUs, where it measures nothing.
    """
    controller, kept = ctx.state.controller, "kept" in attempt.ranks[0].learnt_s
    if controller is None or kept or seen.state != RUNNING or not seen.step_s or not as_asked(job, attempt, seen):
        return
    group = ctx.state.groups.group_of(attempt)
    alone = attempt.stop is None and group is not None and len(group.members) == 1 and not _beside_guests(ctx, attempt)
    unknown = math.isnan(controller.job_store.columns["stage_s"][job.number, 0])
    if unknown and alone and seen.profile is None and FEWEST_ITERATIONS * seen.step_s <= PROFILE_S:
        yield MeasurementTaken(job.number, 0, "kept", now_s)
        yield JobKept(now_s, np.array([job.number]), np.array([now_s + min(PROFILE_S, MOST_ITERATIONS * seen.step_s)]))


def learn_beside(ctx: Context, job: JobRecord, rank: Rank, seen: Seen, now_s: float) -> Iterator[Step]:
    """Replace a provisional profile by what a job measures behind the gate of its group, once in an attempt.

    Behind a gate a job has the resource of its stage for itself and waiting is not counted, so its stage times are its
    own, up to the interference of its group. How long its iteration takes alone cannot be seen there: it is taken to
    have changed as the sum of the stages has, and to be no longer than it is in the group. A job without marks, or in
    a group without a gate, keeps the provisional profile until it is alone.
    """
    controller, attempt = ctx.state.controller, job.live
    if controller is None or attempt is None or attempt.stop is not None or job.profiled or job.request.get("profile"):
        return
    group = ctx.state.groups.group_of(attempt)
    if "steps" not in rank.learnt_s:
        yield MeasurementTaken(job.number, 0, "steps", seen.steps)
    began = rank.learnt_s["steps"]
    if group is None or len(group.members) < 2 or seen.gate == "none" or "beside" in rank.learnt_s:
        return
    if seen.steps - began < MOST_ITERATIONS or not seen.step_s or not as_asked(job, attempt, seen):
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
    yield MeasurementTaken(job.number, 0, "beside", now_s)
    if differs(found, before, before_s):
        yield JobProfiled(now_s, np.array([job.number]), np.array([iteration_s]), np.array([stage_s]))
    yield ProfileRecorded(now_s, job=job.number, beside=True)


def differs(profile: Profile, stage_s: Sequence[float], iteration_s: float) -> bool:
    """Whether a job's known `stage_s` and `iteration_s` (seconds) are missing or differ noticeably from `profile`."""
    if math.isnan(iteration_s) or any(math.isnan(t) for t in stage_s):
        return True
    pairs = [(profile.iteration_s, iteration_s), *zip(profile.stage_s, stage_s, strict=True)]
    return any(abs(new - old) > DRIFT * iteration_s for new, old in pairs)


def profile_source(ctx: Context, job: JobRecord) -> str | None:
    """Where the profile of an unfinished job is from, in words; None if there is none yet."""
    if job.profiled:
        return "measured"
    if job.measured_beside:
        return "measured beside others"
    if job.request.get("profile"):
        return "given"
    if not job.admitted or ctx.state.controller is None:
        return None
    known = not np.isnan(ctx.state.controller.job_store.columns["stage_s"][job.number, 0])
    return "provisional, from jobs like it" if known else None
