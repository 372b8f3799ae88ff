"""Outlook of a submission: start and end as intervals, what blocks it, and cheaper or sooner variants.

Each variant of the job is a probe in the same runs of the queue, so that all see the same durations of the others, and
a dozen variants cost as much as one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
from msgspec import structs

from plait.control.controller import Controller
from plait.control.snapshot import of_active
from plait.core.arrays import FloatArray, IntArray
from plait.core.jobs import JobClass, JobSpec
from plait.core.policy import JOB_CLASS, UsesRequests, has_guests
from plait.core.words import counted, duration
from plait.live.api.explain import BlockedBy, NamedBlocker, SubmissionOutlook, SubmissionVariant, WouldStart
from plait.live.api.explain import Times as ShownTimes
from plait.live.layout import job_name
from plait.live.scheduler.context import COMPILING
from plait.live.scheduler.explain.durations import History, Unknown, draw
from plait.live.scheduler.explain.list_schedule import STRICT
from plait.live.scheduler.explain.next_starts import Release, started
from plait.live.scheduler.explain.outlook import Outlook, Times, assumptions, middles, played
from plait.live.scheduler.explain.queue_arrays import QueueArrays, Who, kind_masks
from plait.live.scheduler.explain.queue_copy import QueueCopy, order_with
from plait.live.scheduler.state import State

#: Variants that are shown, and jobs that are named, at most.
SHOWN, NAMED = 3, 4
#: A variant is sooner if it ends this much earlier, of the time until then; and a wait that is worth a word, seconds.
SOONER, LONG_S = 0.95, 600.0


@dataclass(frozen=True)
class RequestVariant:
    """The job with one thing changed: the option for it, and how much longer the job would run."""

    change: str
    option: str
    text: str
    spec: JobSpec
    factor: float = 1.0


def what_if(
    copy: QueueCopy, now: Outlook, history: History, spec: JobSpec, name: str, command: str = ""
) -> SubmissionOutlook:
    """The answer for a job that is not submitted: `spec` with its `name` and `command`, in seconds from now.

    Pure except for `copy`, which is unchanged afterwards. Raises any exception of the policy.
    """
    controller = copy.controller
    variants = [RequestVariant("none", "", "as requested", spec), *_variants(copy, spec)]
    first = controller.job_store.count
    order = order_with(controller, [replace(v.spec, id=f"what if {i}") for i, v in enumerate(variants)])
    place = np.empty(first + len(variants), dtype=np.int64)
    place[order] = np.arange(len(order))
    old = order[order < first]
    queue = now.queue.reordered(np.array([now.row[number] for number in old.tolist()], dtype=np.int64))
    left_s = now.left_s[:, [now.row[number] for number in old.tolist()]]
    before = np.searchsorted(np.sort(place[old]), place[first:])
    # A new job stands before other jobs of the same place in its own order: probes run by growing place.
    sorted_rows = np.argsort(before, kind="stable")
    gpus = np.array([min(v.spec.min_gpus, v.spec.gpus) for v in variants], dtype=np.int64)
    cluster = copy.controller.cluster
    named = np.array([cluster.kind_mask(v.spec.gpu_kinds) for v in variants], dtype=np.int64)
    mask = kind_masks(named, np.array([v.spec.gpu_memory_bytes for v in variants]), cluster)
    probes = before[sorted_rows], gpus[sorted_rows], mask[sorted_rows]
    starts_s = np.empty((len(left_s), len(variants)))
    starts_s[:, sorted_rows] = played(queue, left_s, probes)[2]
    ran_s = middles(now.queue, now.left_s)
    releases = [copy.releases(ran_s, replace(v.spec, id=f"what if {i}")).get(-1) for i, v in enumerate(variants)]
    starts_s = started(starts_s, now.ends_s, releases)
    took_s, basis = _durations(history, spec, Who(spec.user, name, command), len(left_s))
    found = [
        _answer(copy, variant, starts_s[:, i], took_s * variant.factor)
        for i, variant in enumerate(variants)
        if i == 0 or np.isfinite(starts_s[:, i]).any()
    ]
    requested = found[0]
    waiting = int((queue.place < 0).sum())
    return SubmissionOutlook(
        start=requested.start, end=requested.end, gpu_hours=requested.gpu_hours, policy=copy.policy, gpus=spec.gpus,
        duration=basis,
        place=1 + int((queue.place[: before[0]] < 0).sum()), waiting=waiting + 1,
        blocked_by=_blocked(
            copy, queue, now, int(before[0]), int(gpus[0]), int(mask[0]), requested.start.middle_s == 0, releases[0]
        ),
        variants=_best(requested, found[1:]),
        assumptions=[*assumptions(queue, copy.policy, copy.by), *(releases[0] or Release()).limits],
        decision=copy.decision,
    )  # fmt: skip


def _variants(copy: QueueCopy, spec: JobSpec) -> list[RequestVariant]:
    """Possible changes of a job."""
    out: list[RequestVariant] = []
    cluster, policy = copy.controller.cluster, copy.controller.policy
    size = spec.gpus
    while size > 1 and len(out) < 2 and spec.batch is None:
        size //= 2
        smaller = replace(spec, gpus=size, min_gpus=0, max_gpus=0)
        text = f"with {counted(size, 'GPU')}, if it then takes {spec.gpus / size:g} times as long"
        out.append(RequestVariant("gpus", f"--gpus {size}", text, smaller, spec.gpus / size))
    memory = cluster.kind_gpu_memory_bytes
    for kind, there in zip(cluster.kinds, memory.tolist(), strict=True):
        if there < spec.gpu_memory_bytes and len(out) < 5:
            less = replace(spec, gpu_memory_bytes=there)
            text = f"with {there / 1e9:g} GB a GPU, as {kind} has"
            out.append(RequestVariant("kind", f"--gpu-memory {there / 1e9:g}G", text, less))
    if isinstance(policy, UsesRequests) and JOB_CLASS in policy.uses:
        for one in (JobClass.OPPORTUNISTIC, JobClass.AUTO):
            if one != spec.job_class and spec.job_class != JobClass.OPPORTUNISTIC:
                word = one.name.lower()
                sharing = has_guests(policy) and one is JobClass.OPPORTUNISTIC
                text = "as a guest on what others leave" if sharing else f"in class {word}"
                out.append(
                    RequestVariant(
                        "sharing" if sharing else "class", f"--class {word}", text, replace(spec, job_class=one)
                    )
                )
    return out


def _durations(history: History, spec: JobSpec, who: Who, draws: int) -> tuple[FloatArray, str]:
    stated_s, limit_s = (np.array([math.nan if s is None else s]) for s in (spec.duration_s, spec.time_limit_s))
    one = Unknown(
        [who.user], [who.name], np.array([spec.gpus]), np.zeros(1), np.full(1, math.nan), stated_s, limit_s,
        [who.command],
    )  # fmt: skip
    took_s, words = draw(one, history, draws, seed=1)
    return took_s[:, 0], words[0]


def _answer(copy: QueueCopy, variant: RequestVariant, starts_s: FloatArray, took_s: FloatArray) -> SubmissionVariant:
    """A variant with its times; a guest has no end, for its pace is what others leave."""
    guest = variant.change == "sharing"
    start, end = Times.of(starts_s, copy.by.start), Times.of(starts_s + took_s, copy.by.end)
    end = end.after(start)
    hours = np.quantile(took_s, [0.1, 0.5, 0.9]) * variant.spec.gpus / 3600
    return SubmissionVariant(
        change=variant.change, option=variant.option, text=variant.text, gpus=variant.spec.gpus, start=start.shown,
        end=None if guest else end.shown, gpu_hours=[round(float(h), 4) for h in hours], gains=[], sooner_s=None,
    )  # fmt: skip


def _best(requested: SubmissionVariant, others: Sequence[SubmissionVariant]) -> list[SubmissionVariant]:
    """Up to `SHOWN` variants that are sooner or cheaper than the request, soonest end first."""

    def late(times: ShownTimes | None) -> float:
        return math.inf if times is None or times.middle_s is None else times.middle_s

    def sooner(name: str, then: ShownTimes | None, now: ShownTimes | None) -> list[str]:
        """Whether a `start` or `end` is sooner in the middle, and whether it is later at worst all the same."""
        if not late(then) < SOONER * late(now) or (name == "start" and late(now) - late(then) <= 1):
            return []
        worst = [math.inf if times is None or (end := times.wide_s[1]) is None else end for times in (then, now)]
        return [f"{name}s sooner" if worst[0] <= worst[1] else f"usually {name}s sooner, may {name} later"]

    out = []
    for one in others:
        sooner_s = late(requested.end) - late(one.end)
        gains = sooner("end", one.end, requested.end) + sooner("start", one.start, requested.start)
        if one.gpu_hours[1] < SOONER * requested.gpu_hours[1]:
            gains.append("costs less")
        if gains:
            out.append(
                structs.replace(one, gains=gains, sooner_s=round(sooner_s, 3) if math.isfinite(sooner_s) else None)
            )
    out.sort(key=lambda one: (late(one.end), late(one.start)))
    if len(out) < SHOWN and math.isfinite(wait_s := late(requested.start)) and wait_s > LONG_S:
        text = f"submitted in {duration(wait_s)} it would hardly wait, if no others come; until then it holds no place"
        out.append(structs.replace(requested, change="later", option="", text=text, gains=["waits less"]))
    return out[:SHOWN]


# -- what blocks it -----------------------------------------------------------------------------------


def _blocked(
    copy: QueueCopy,
    queue: QueueArrays,
    now: Outlook,
    before: int,
    gpus: int,
    mask: int,
    at_once: bool,
    release: Release | None,
) -> BlockedBy:
    """The one dominant reason, in words and as a `kind`, and the jobs that it is about."""
    if not copy.ready:
        later = _blocked(replace(copy, ready=True), queue, now, before, gpus, mask, at_once, release)
        return structs.replace(later, kind="compiling", text=f"{COMPILING}; after that: {later.text}")
    if at_once:
        return BlockedBy("nothing", "nothing: it would start at once", [])
    usable = [k for k in range(len(queue.kinds)) if mask >> k & 1]
    most = max((int(queue.capacity[k]) for k in usable), default=0)
    if gpus > most:
        text = f"needs {counted(gpus, 'GPU')} of one kind; the nodes that are there now have {most}"
        return BlockedBy("size", text, [])
    held = np.bincount(queue.place[queue.place >= 0], queue.gpus[queue.place >= 0], len(queue.kinds))
    free = max(max(0, int(queue.capacity[k] - held[k])) for k in usable)
    waits = np.flatnonzero((queue.place[:before] < 0) & (queue.mask[:before] & mask > 0))
    if len(waits):
        wanted = int(queue.gpus[waits].sum())
        if queue.how & STRICT:
            ahead = waits[:1]
            who = copy.name(int(queue.numbers[waits[0]]))
            text = f"{who} is first, needs {counted(int(queue.gpus[waits[0]]), 'GPU')}, and no job may pass it"
        else:
            left_s = now.left_s.mean(axis=0)[[now.row[int(n)] for n in queue.numbers[waits]]]
            ahead = waits[np.argsort(-queue.gpus[waits] * left_s, kind="stable")]
            has = "job ahead of it waits" if len(waits) == 1 else "jobs ahead of it wait"
            room = f"only {counted(free, 'GPU')} of a kind {'is' if free == 1 else 'are'} free"
            text = f"{len(waits):,} {has} for {counted(wanted, 'GPU')}; {room}"
        return BlockedBy("queue", text, [_named(copy, queue, now, row) for row in ahead[:NAMED].tolist()])
    if gpus <= free and release is not None and release.reason:
        return BlockedBy("placement", release.reason, [])
    holders = np.flatnonzero((queue.place >= 0) & np.isin(queue.place, usable))
    ends_s = np.median(now.ends_s[:, [now.row[int(n)] for n in queue.numbers[holders]]], axis=0)
    soonest = holders[np.argsort(ends_s, kind="stable")]
    enough = int(np.searchsorted(np.cumsum(queue.gpus[soonest]), gpus - free)) + 1
    text = f"needs {counted(gpus, 'GPU')} of one kind, and {free} are free; the others are held"
    rows = soonest[: min(enough, NAMED)].tolist()
    return BlockedBy("held", text, [_named(copy, queue, now, row) for row in rows])


def _named(copy: QueueCopy, queue: QueueArrays, now: Outlook, row: int) -> NamedBlocker:
    """A job in the way: who, its GPUs, and when it is expected to end."""
    number = int(queue.numbers[row])
    ends_s = float(np.median(now.ends_s[:, now.row[number]]))
    verb, user = ("holds" if queue.place[row] >= 0 else "waits for"), copy.who(number).user
    text = f"{copy.name(number)} of {user} {verb} {counted(int(queue.gpus[row]), 'GPU')}"
    if math.isfinite(ends_s):
        text += f" and ends in about {duration(ends_s)}"
    return NamedBlocker(
        id=copy.name(number), user=user, gpus=int(queue.gpus[row]),
        end_s=round(ends_s, 3) if math.isfinite(ends_s) else None, text=text,
    )  # fmt: skip


# -- Changes that would start a waiting job now: the policy decides about the same cluster with one thing changed ---
# The change is another size of the job, or the absence of one that holds GPUs: nothing of it is decided or recorded.
# A decision about a thousand jobs takes a policy up to a third of a second, and there may be a dozen of them: they
# use a copy of the active jobs, and may run in another thread (`plait.live.service.what_if`).

#: Maximum number of changes that the policy tries.
QUESTIONS = 8


@dataclass(frozen=True)
class Copy:
    """The active jobs as they were after a decision: `numbers` are the jobs' own, the controller has others."""

    decision: int
    controller: Controller
    numbers: IntArray

    @classmethod
    def of(cls, state: State) -> Copy | None:
        """Made in the engine's thread; None before any node has joined."""
        if state.controller is None:
            return None
        small, numbers = of_active(state.controller)
        small.policy = state.policy_again()  # what a policy remembers is not shared between threads
        return cls(state.decision_seq, small, numbers)

    def index(self, number: int) -> int | None:
        """The number of a job in the copy; None for a job that came later."""
        at = int(np.searchsorted(self.numbers, number))
        return at if at < len(self.numbers) and self.numbers[at] == number else None


def would_start(
    copy: Copy, number: int, blockers: list[int], now_s: float, in_time: Callable[[], bool]
) -> list[WouldStart]:
    """Changes after which the policy would start a job at once; `blockers` hold GPUs, most likely to yield first.

    The policy is not called again after `in_time` returns False.
    """
    out: list[WouldStart] = []
    job = copy.index(number)
    if job is None:
        return out
    asked = 0
    size = int(copy.controller.job_store.columns["gpus"][job])
    while size > 1 and asked < QUESTIONS // 2 and in_time():
        size, asked = size // 2, asked + 1
        if _starts(copy.controller, job, now_s, gpus=size):
            text = f"with {size} GPU{'s' * (size > 1)} it would start now"
            out.append(WouldStart("gpus", text, gpus=size))
            break
    gone: list[int] = []
    for other in [at for b in blockers if (at := copy.index(b)) is not None]:
        if asked == QUESTIONS or not in_time():
            break
        gone.append(other)
        asked += 1
        if _starts(copy.controller, job, now_s, without=gone):
            alone = len(gone) > 1 and _starts(copy.controller, job, now_s, without=[other])
            names = [job_name(int(copy.numbers[n])) for n in ([other] if alone else gone)]
            text = f"if {', '.join(names)} ended, it would start now"
            out.append(WouldStart("ended", text, jobs=names))
            break
    return out


def _starts(
    controller: Controller, job: int, now_s: float, *, gpus: int | None = None, without: Collection[int] = ()
) -> bool:
    """Whether the policy would run the job now if it were of this size, or these jobs had ended."""
    view = controller.view(now_s)
    sized = {}
    if gpus is not None:
        sized = {name: controller.job_store.columns[name].copy() for name in ("gpus", "min_gpus", "max_gpus")}
        for column in sized.values():
            column[job] = gpus
    left = view.jobs.number[~np.isin(view.jobs.number, list(without))]
    try:
        plan = controller.planned(replace(view, jobs=view.jobs.subset(left, **sized)))
    except Exception:
        return False  # a policy that fails here fails in its decisions too, and the status shows it
    return bool(np.isin(job, plan.groups.jobs))


@dataclass(frozen=True)
class Question:
    """The question which changes would start this job."""

    copy: Copy
    number: int
    blockers: list[int]
    now_s: float

    def answer(self, in_time: Callable[[], bool]) -> list[WouldStart]:
        """Call the policy, while `in_time`."""
        return would_start(self.copy, self.number, self.blockers, self.now_s, in_time)
