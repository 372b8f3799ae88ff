"""From a user's request to the `JobSpec` that the policies see."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, Any

from plait.core.errors import InputError, suggest
from plait.core.goodput import ANY, BatchLimits, BoundNames, check_bounds
from plait.core.ina_request import InaRequest
from plait.core.options import declared
from plait.core.resources import CPU_KIND, Resource, StageProfile
from plait.live.layout import job_name, job_number
from plait.live.protocol.job import Batch
from plait.live.protocol.profile_keys import LearnedProfiles, known_profile, processes_per_gpu, run_keys
from plait.runtime.command_line import parse_script

if TYPE_CHECKING:
    from plait.core.jobs import JobSpec

#: Events of a job that notifications tell.
EVENTS = ("started", "finished", "failed", "cancelled", "preempted", "hung", "time-limit")
#: Fields that name jobs to wait for, and how these have to end.
AFTER = {"after": ("finished",), "after_any": ("finished", "failed", "cancelled"), "after_fail": ("failed",)}
#: Field of a stored request whose time limit is of its project, and was not given by the user.
PROJECT_TIME = "project_time"
#: Fields that jobs without GPUs do not have.
_NEED_GPUS = ("min_gpus", "max_gpus", "batch", "gpu_kinds", "gpu_memory", "exclusive", "merge")
_FLAGS = {one.name: f"--{one.word}" for one in declared(Batch)}
#: Options of `plait submit` for fields that are bounds of the batch.
OPTIONS = BoundNames(
    _FLAGS["initial"], _FLAGS["most"], f"least of {_FLAGS['least_local']}", f"most of {_FLAGS['most_local']}",
    _FLAGS["accumulation"],
)  # fmt: skip


def command_of(request: Mapping[str, Any]) -> list[str]:
    """The command as it was written, `python` being the interpreter of the submitting user.

    >>> command_of({"command": ["python", "train.py"], "python": "/venv/bin/python"})
    ['/venv/bin/python', 'train.py']
    """
    program, *rest = request["command"]
    python = request.get("python")
    return [python if python and program in ("python", "python3") else program, *rest]


def dependencies(
    requests: Sequence[Mapping[str, Any]], first: int, arrays: Mapping[str, Sequence[int]] | None = None
) -> tuple[list[dict[str, str]], dict[str, Sequence[int]]]:
    """What each of these new jobs waits for, with the field that names it, and the numbers of the jobs it stands for.

    A job waits for jobs (`j-3`) and for arrays as a whole (`a-5`); the fields are those of `AFTER`. The new jobs get
    the numbers `first`, `first + 1`, ... They may name each other by `name`, which of an array means all its members.
    `arrays`: the members of arrays by their names, such as a-5 and a-5.3. Raises `InputError` for an unknown name, a
    job that is named twice, and for a cycle.
    """
    known, several = {name: _awaited(name, numbers) for name, numbers in (arrays or {}).items()}, set()
    named: dict[str, list[int]] = defaultdict(list)
    for i, request in enumerate(requests):
        if name := request.get("name"):
            named[name].append(first + i)
    for name, own in named.items():
        of = {(requests[number - first].get("member") or {}).get("array", job_name(number)) for number in own}
        if len(of) == 1:
            known[name] = _awaited(of.pop(), own)
        else:
            several.add(name)
    array_of = {number: awaited for awaited, numbers in known.values() if len(numbers) > 1 for number in numbers}
    found: list[dict[str, str]] = []
    meant: dict[str, Sequence[int]] = {}
    for request in requests:
        waits: dict[str, str] = {}
        parts: dict[str, str] = {}  # arrays of which this job names single members
        for field in AFTER:
            for name in request.get(field) or ():
                if (entry := known.get(name)) is None:
                    match = re.fullmatch(r"j-([0-9]{1,15})", name)
                    if match is None or int(match[1]) >= first:
                        what = "there are several of this name" if name in several else "there is none of this name"
                        raise InputError(f"{field} is {name[:80]!r}, needs a job such as j-3; {what}")
                    entry = _awaited(name, [int(match[1])])
                awaited, numbers = entry
                whole = array_of.get(numbers[0], "")
                if before := waits.get(awaited) or waits.get(whole) or parts.get(awaited):
                    raise InputError(f"{field} names {name[:80]} twice, or beside {before}; name each job once")
                waits[awaited], meant[awaited] = field, numbers
                if whole != awaited:
                    parts[whole] = field
        found.append(waits)
    graph: dict[str, Iterable[str]] = {job_name(first + i): waits for i, waits in enumerate(found)}
    for awaited, numbers in meant.items():
        if len(numbers) > 1 and numbers[0] >= first:
            graph[awaited] = [job_name(number) for number in numbers]
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        numbers_ = [number for name in error.args[1][1:] if (number := job_number(name)) is not None]
        names_ = " -> ".join(requests[number - first]["name"] for number in (*reversed(numbers_), numbers_[-1]))
        raise InputError(f"jobs wait for each other in a circle: {names_}; leave one of these out") from None
    return found, meant


def _awaited(name: str, numbers: Sequence[int]) -> tuple[str, Sequence[int]]:
    """The name of these jobs, of which a single one has its own, and their numbers."""
    return (job_name(numbers[0]) if len(numbers) == 1 else name), numbers


def channels_of(request: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """The channels of notifications that a job names, with the events that it names for them; `InputError` for others.

    >>> channels_of({"notify": ["mail", "chat:failed+hung"]})
    {'mail': (), 'chat': ('failed', 'hung')}
    """
    found: dict[str, tuple[str, ...]] = {}
    for text in request.get("notify") or ():
        name, colon, events = text.partition(":")
        found[name] = tuple(events.split("+")) if colon else ()
        for event in found[name]:
            if event not in EVENTS:
                raise InputError(f"notify is {text[:80]!r}: unknown event {event[:40]!r}; {suggest(event, EVENTS)}")
    return found


def never_met(name: str, state: str, field: str) -> str:
    """The reason why a job cannot start that waits by `field` for the job `name`, which ended in this state.

    >>> never_met("j-3", "cancelled", "after")
    'j-3 was cancelled, so this job can never start (--after j-3)'
    """
    return (
        f"{name} {'was' if state == 'cancelled' else 'has'} {state}, so this job can never start "
        f"(--{field.replace('_', '-')} {name})"
    )


def most_gpus(request: Mapping[str, Any]) -> int:
    """The size of the job, of an elastic one the largest."""
    return max(int(request.get("gpus") or 1), int(request.get("max_gpus") or 1))


def needs_no_gpu(request: Mapping[str, Any]) -> bool:
    """Whether a job runs on a CPU slot."""
    return request.get("gpus") == 0


def given_profile(request: Mapping[str, Any]) -> StageProfile | None:
    """The profile that the user wrote down, if any; `InputError` for an invalid one."""
    given = request.get("profile")
    if not given:
        return None
    stages = {r.name.lower(): float(given.get(r.name.lower()) or 0.0) for r in Resource}
    return StageProfile.of(iteration_s=given.get("iteration_s"), **stages)


def ina_of(request: Mapping[str, Any]) -> InaRequest:
    """A job's request for in-network aggregation."""
    return InaRequest.of(request.get("ina"))


def limits_of(request: Mapping[str, Any]) -> BatchLimits | None:
    """The bounds of the batch of an adaptive job; None if the job does not adapt. `InputError` for invalid ones.

    >>> limits_of({"batch": {"initial": 128, "most": 1024}})  # doctest: +NORMALIZE_WHITESPACE
    BatchLimits(initial=128, most=1024, least_local=1, most_local=1024, accumulation=False, parameters=0,
                example_bytes=0, zero_stage=-1)
    """
    given = request.get("batch")
    if not given:
        return None
    if processes_per_gpu(request) > 1:
        raise InputError("batch: a job adapts its batch with one process a GPU; leave processes_per_gpu out")
    initial = int(given["initial"])
    try:
        return BatchLimits(
            initial=initial,
            most=int(given.get("most") or initial),
            least_local=int(given.get("least_local") or 1),
            most_local=int(given.get("most_local") or given.get("most") or initial),
            accumulation=bool(given.get("accumulation")),
            parameters=int(given.get("parameters") or 0),
            example_bytes=int(given.get("example_bytes") or 0),
            zero_stage=ANY if given.get("zero_stage") is None else int(given["zero_stage"]),
        )
    except InputError as error:
        raise InputError(f"batch: {error}") from None


def check_sizes(request: Mapping[str, Any], where: str, options: Collection[str], command: bool) -> None:
    """Refuse sizes and requests of aggregation that cannot be before anything is sent.

    The error names `where` and the options or fields that set them.

    `options` are the fields (of the batch: `batch.initial`) that were given as options; with `command` what was not
    given is named as an option too. Raises `InputError`.
    """

    def name(field: str, option: str) -> str:
        return option if command or field in options else field

    gpus = {field: int(request.get(field) or 0) for field in ("min_gpus", "gpus", "max_gpus")}
    asked = gpus["gpus"] or 1
    least, most = gpus["min_gpus"] or asked, gpus["max_gpus"] or asked
    if not least <= asked <= most:
        names = {field: name(field, "--" + field.replace("_", "-")) for field in gpus}
        said = [f"{names[field]} {value or 1}" for field, value in gpus.items() if value or field == "gpus"]
        order = " <= ".join(names[field] for field in gpus if gpus[field] or field == "gpus")
        raise InputError(
            f"{where}: {', '.join(said)}: needs {order}" + ("" if gpus["gpus"] else "; gpus is 1 if left out")
        )
    try:
        ina_of(request)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    given = request.get("batch")
    if given:
        names_ = BoundNames(*(name(f"batch.{f}", o) for f, o in zip(BoundNames._fields, OPTIONS, strict=True)))
        initial = int(given["initial"])
        most_batch = int(given.get("most") or initial)
        bounds = int(given.get("least_local") or 1), int(given.get("most_local") or most_batch)
        try:
            check_bounds(initial, most_batch, *bounds, bool(given.get("accumulation")), names_)
        except InputError as error:
            raise InputError(f"{where}: {error}") from None
        fed = most_batch // bounds[0]
        if many := [f"{name(f, '--' + f.replace('_', '-'))} {gpus[f]}" for f in gpus if gpus[f] > fed]:
            raise InputError(
                f"{where}: {', '.join(many)}: a batch of {most_batch} ({names_.most}) feeds at most {fed} "
                f"with {bounds[0]} each ({names_.least_local}); give at most {fed}, or other bounds of the batch"
            )


def kinds_of(request: Mapping[str, Any], there: Iterable[str]) -> tuple[str, ...] | None:
    """The GPU kinds that a job may use, those of the cluster by a part of their names; None: all.

    >>> kinds_of({"gpu_kinds": ["a100", "h200"]}, ["NVIDIA A100-SXM4-80GB", "Tesla V100"])
    ('NVIDIA A100-SXM4-80GB', 'h200')
    """
    if needs_no_gpu(request):
        return (CPU_KIND,)
    if not request.get("gpu_kinds"):
        return None
    there = tuple(there)
    found = [[kind for kind in there if one.lower() in kind.lower()] or [one] for one in request["gpu_kinds"]]
    return tuple(dict.fromkeys(kind for kinds in found for kind in kinds))


def merge_key(request: Mapping[str, Any], owner: str, project: str) -> str:
    """Common key of jobs that may share a process: owner, project, folder, environment, Python, script's folder.

    Raises `InputError` for a job that cannot be a thread of another process.
    """
    if most_gpus(request) != 1:
        raise InputError(f"merge is for jobs of one process; this one has {most_gpus(request)}: leave merge out")
    if request.get("container"):
        raise InputError("merge is not for jobs in containers: leave merge or container out")
    script = parse_script(command_of(request))
    folder = os.path.normpath(os.path.join(request.get("workdir") or "", script.folder))
    env = sorted((request.get("env") or {}).items())
    same = [owner, project, request.get("workdir"), env, script.python, script.options, folder]
    return hashlib.sha256(json.dumps(same).encode()).hexdigest()[:16]


def spec_of(
    number: int,
    request: Mapping[str, Any],
    *,
    owner: str,
    project: str,
    submit_s: float,
    weight: float = 1.0,
    kinds: Iterable[str] = (),
    learnt: LearnedProfiles | None = None,
) -> JobSpec:
    """The spec of a request. The user's own profile and skew take precedence over measured ones.

    Raises `InputError` for a job that cannot run anywhere.
    """
    from plait.core.jobs import Checkpoints, JobClass, JobSpec  # they need NumPy, and checks by a client do not

    for field in _NEED_GPUS if needs_no_gpu(request) else ():
        if request.get(field):
            raise InputError(f"gpus is 0, and {field} is for jobs with GPUs; leave one of them out")
    if request.get("merge"):
        merge_key(request, owner, project)
    found = known_profile(request, kinds, learnt or {})
    profile = given_profile(request)
    if profile is None and found.get("stage_s"):
        profile = StageProfile.from_sequence(found["stage_s"], found["iteration_s"])
    skew = request.get("skew")
    name = str(request.get("class") or "guaranteed").upper()
    if name not in JobClass.__members__:
        raise InputError(f"class is {request['class']!r}, needs guaranteed, opportunistic or auto")
    limit_s, signal_s = request.get("time_limit_s"), request.get("signal_s")
    if signal_s and (limit_s is None or signal_s >= limit_s):
        than = "a time limit (--time)" if limit_s is None else f"a longer time limit than {limit_s:g} s (--time)"
        raise InputError(f"signal_s is {signal_s:g} s before the time limit (--signal), needs {than}")
    return JobSpec(
        id=job_name(number),
        submit_s=submit_s,
        gpus=int(request.get("gpus") or 1),
        min_gpus=int(request.get("min_gpus") or 0),
        max_gpus=int(request.get("max_gpus") or 0),
        iterations=request.get("iterations"),
        user=owner,
        project=project,
        model=request.get("model") or "",
        like=run_keys(request),
        profile=profile,
        job_class=JobClass[name],
        gpu_kinds=kinds_of(request, kinds),
        gpu_memory_bytes=float(request.get("gpu_memory") or 0.0),
        cpus=float(request.get("cpus") or needs_no_gpu(request)),
        memory_bytes=float(request.get("memory") or 0.0),
        skew=found.get("skew") if skew is None else skew,
        deadline_s=request.get("deadline_s"),
        time_limit_s=request.get("time_limit_s"),
        priority=float(request.get("priority") or 0.0),
        weight=weight,
        retries=int(request["retries"]) if request.get("retries") is not None else 3,
        ina=ina_of(request),
        gradient_bytes=request.get("gradient_bytes"),
        servers=int(request.get("servers") or 0),
        batch=limits_of(request),
        checkpoints=Checkpoints.NEVER,  # until it reports that it can resume from one
    )
