"""Jobs: submit, list, show, change, cancel, explain, what happened to them, and what would be."""

import asyncio
import os
from collections import Counter
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct, field, structs

from plait.core.errors import Conflict, InputError, PlaitError
from plait.core.jobs import JobSpec, Phase
from plait.core.policy import Policy
from plait.core.words import command_line
from plait.live.agent.processes.node_environment import node_environment, passed
from plait.live.api.explain import ComparedQueues, Explanation, SubmissionOutlook
from plait.live.api.jobs import FINAL, STATES, CancelledJob, ChangedJob, JobId, JobRow, JobState, SubmittedJob, WholeJob
from plait.live.layout import array_name, job_name
from plait.live.protocol.arrays import extent, is_array, members
from plait.live.protocol.job_file import request_of
from plait.live.protocol.requests import PROJECT_TIME
from plait.live.protocol.runnable import missing
from plait.live.scheduler.engine import Engine
from plait.live.scheduler.explain.choices import Choice
from plait.live.scheduler.explain.queue_copy import QueueCopy
from plait.live.scheduler.live_policy import live_policy
from plait.live.scheduler.requests.admission import check_project, project_of, take_in
from plait.live.service.http import bodies
from plait.live.service.http.api import Api, Call, Json, Routes
from plait.live.service.http.auth import Denied, only_of
from plait.live.service.http.routes.cluster import PageQuery, entry
from plait.live.service.what_if import Busy
from plait.live.store import Token
from plait.live.store.schema import StoredJob
from plait.policies.catalog import check_named
from plait.training.state.checkpoint_store import CheckpointStore

#: The state of an array is the first of these that a job of it has.
_OF_ARRAYS: tuple[JobState, ...] = (
    "running", "starting", "stopping", "unreachable", "waiting", "failed", "cancelled", "finished",
)  # fmt: skip
#: Addresses of this machine for itself.
_LOOPBACK = ("127.0.0.1", "::1")
_ANOTHER = "A submission with other jobs had this key."
_REUSED = "The job has ended, or would lose work, or another request had this key."
_OVER = "The job has ended."
_CHANGE = ("admin", "user")
ROUTES = Routes("jobs")
#: Outlooks: of a submission that is not made, and of the queue under another choice.
WHAT_IF = Routes("jobs")
T = TypeVar("T")


@ROUTES.post(
    "/v1/jobs", SubmittedJob | list[SubmittedJob], body=bodies.SUBMISSION, roles=_CHANGE, conflict=_ANOTHER, key=True
)
async def submit(call: Call, said: tuple[list[dict[str, Any]], bool]) -> SubmittedJob | list[SubmittedJob]:
    """Submit one job, or several, all or none; they are stored when the answer comes.

    With an `Idempotency-Key` it may be repeated: the same key of the same user gets the jobs of the first time.
    """
    jobs, several = said
    requests = [in_project(job, call.token) for job in jobs]
    found = await _stored(call, requests, several=several)
    return found if several else found[0]


class ListJobs(PageQuery, frozen=True):
    """Which jobs."""

    state: str = ""
    """Only jobs in these states, separated by commas."""
    user: str = ""
    """Only jobs of this user."""
    text: Annotated[str, Meta(max_length=200)] = ""
    """Only jobs with this in id, user, project, model, tags or nodes, or in a name or command that you may see."""
    tag: Annotated[list[str], Meta(max_length=20)] = field(default_factory=list)
    """Only jobs with all of these tags, in any case."""
    array: Annotated[str, Meta(max_length=20)] = ""
    """Only members of this array, e.g. a-5."""
    arrays: bool = False
    """Whether each array is one row, whose `members` are its jobs by state."""


@ROUTES.get("/v1/jobs", list[JobRow], query=ListJobs)
async def list_jobs(call: Call, query: ListJobs) -> Json:
    """Jobs, newest first; `state` may be several, separated by commas."""
    api, only = call.api, only_of(call.token)
    states = [state for state in query.state.split(",") if state]
    for state in states:
        if state not in STATES:
            raise bodies.Invalid(f"{state[:40]!r} is no state; known: {', '.join(STATES)}", "state")

    def read() -> list[JobRow]:
        return api.store.jobs(
            states=states, user=query.user or None, text=query.text, mine=only, limit=query.limit,
            offset=query.offset, now_s=api.worker.clock(), tags=query.tag, array=query.array or None,
            one_each=query.arrays,
        )  # fmt: skip

    rows = await asyncio.to_thread(read)
    open_ones = [row.number for row in rows if row.state not in FINAL]
    live = await api.worker.look(lambda engine, now_s: engine.jobs(open_ones, now_s))

    states_of = await _array_states(api, {row.array for row in rows if row.array}) if query.arrays else {}

    def shown(row: JobRow) -> JobRow:
        row = live.get(row.number, row)
        row = row if only in (None, row.user) else hidden(row)
        return array_row(row, states_of[row.array]) if row.array in states_of else row

    return await asyncio.to_thread(lambda: Json([shown(row) for row in rows]))


async def _array_states(api: Api, arrays: set[str]) -> dict[str, Counter[str]]:
    """How many jobs of each of these arrays are in each state, and `gpus` that they hold.

    Jobs that have not ended are read first: one that ends in between is in both, and never in neither.
    """
    still_open = await api.worker.look(lambda engine, _: engine.open_members(arrays))
    ended = await asyncio.to_thread(api.store.ended_members, sorted(arrays))
    return {array: still_open[array] + Counter(ended[array]) for array in arrays}


def array_row(row: JobRow, counts: Counter[str]) -> JobRow:
    """An array as one row: its member `row`, with the GPUs, the state and the counts of all its members."""
    members = {state: counts[state] for state in _OF_ARRAYS if counts[state]}
    return structs.replace(
        row, id=row.array, state=next(iter(members), row.state), gpus=counts["gpus"],
        members=members, reason=", ".join(f"{count} {state}" for state, count in members.items()), tags=row.tags,
        iterations=None, iterations_done=0.0, nodes=[], places=None, group=None, stops=None, sharing=None, ina=None,
        adaptive=None, array_index=None,
    )  # fmt: skip


def hidden(row: JobRow) -> JobRow:
    """A job for other users: commands are private, and so are reasons of failures, which quote their logs."""
    return structs.replace(row, name="", command=[], reason=row.reason if row.state == "waiting" else "")


@ROUTES.get("/v1/jobs/{job}", WholeJob, own=True)
async def show(call: Call) -> WholeJob:
    """Everything about one job."""
    job = await call.job()
    row = await call.api.live(job.row.number) or job.row
    secrets = call.token.role == "admin" or call.token.user == row.user
    return whole_job(job, row, secrets=secrets)


#: Fields of a request that the answer about one job has, too.
_REQUEST = tuple(one for one in WholeJob.__struct_fields__ if one not in (*JobRow.__struct_fields__, "attempts"))


def whole_job(job: StoredJob, row: JobRow, *, secrets: bool) -> WholeJob:
    """Everything about one job, of which `row` is the present row; its environment only with `secrets`."""
    request = {name: job.request[name] for name in _REQUEST if job.request.get(name) is not None}
    if not secrets or not request.get("env"):
        request.pop("env", None)
    return WholeJob(**{**structs.asdict(row), "command": job.request["command"]}, **request, attempts=job.attempts)


@ROUTES.route("DELETE", "/v1/jobs/{job}", CancelledJob, roles=_CHANGE, own=True, conflict=_OVER)
async def cancel(call: Call) -> CancelledJob:
    """Cancel a job, or all jobs of an array; asking twice is the same as once."""
    if (array := call.array) is not None:

        def cancel_one(engine: Engine, number: int, now_s: float) -> None:
            engine.cancel(number, now_s, by=call.token.user)

        try:
            return CancelledJob(array, (await _each(call, array, cancel_one)).state)
        except Conflict:
            if (await _array_states(call.api, {array}))[array]["cancelled"]:
                return CancelledJob(array, "cancelled")
            raise
    row = (await call.job(change=True)).row
    number = row.number
    if row.state != "cancelled":
        try:
            await call.api.worker.call(lambda engine, now_s: engine.cancel(number, now_s, by=call.token.user))
        except Conflict:
            now = await call.api.live(number) or (await call.job()).row
            if now.state not in ("stopping", "cancelled"):
                raise
    live = await call.api.live(number)
    return CancelledJob(row.id, "cancelled" if live is None else live.state)


@ROUTES.route(
    "PATCH", "/v1/jobs/{job}", ChangedJob, body=bodies.UPDATE, roles=_CHANGE, own=True, conflict=_REUSED, key=True
)
async def update(call: Call, said: bodies.Update) -> ChangedJob:
    """Change priority, class, deadline or size of a job that waits or runs.

    A size that no longer fits stops a running job after a checkpoint, and it continues at the new size; all else counts
    from the next decision on and touches no process. Of an array all jobs that have not ended. With an
    `Idempotency-Key` it may be sent again.
    """

    def change(engine: Engine, number: int, now_s: float, key: str | None) -> list[str]:
        engine.update(number, said.fields, now_s, by=call.token.user, key=key, may_lose_work=said.may_lose_work)
        known = engine.state.jobs.get(number)
        return [] if known is None else engine.remarks(known.request)

    return await _changed(call, change)


@ROUTES.post(
    "/v1/jobs/{job}/requeue", ChangedJob, body=bodies.RequeueIn, body_required=False, roles=_CHANGE, own=True,
    conflict=_REUSED, key=True,
)  # fmt: skip
async def requeue(call: Call, said: bodies.RequeueIn) -> ChangedJob:
    """Send a job back to the queue: it stops after a checkpoint and waits again, and no failure is counted.

    A job that has ended is not run again under its name; see `clone`. Of an array all jobs that have not ended. With an
    `Idempotency-Key` it may be sent again.
    """

    def change(engine: Engine, number: int, now_s: float, key: str | None) -> list[str]:
        engine.requeue(number, now_s, by=call.token.user, key=key, may_lose_work=said.may_lose_work)
        return []

    return await _changed(call, change)


@ROUTES.post(
    "/v1/jobs/{job}/clone", SubmittedJob, body=bodies.DIFFERENT, body_required=False, roles=_CHANGE, own=True,
    conflict=_ANOTHER, key=True,
)  # fmt: skip
async def clone(call: Call, different: tuple[dict[str, Any], bool]) -> SubmittedJob:
    """Submit a job like this one, of any state, as a new job of the caller; it starts from scratch.

    The body has the fields that are to be different, as in a submission; null: as if it had not been given. With
    `from_checkpoint` the new job starts from the last checkpoint of this one, which has ended and is the caller's.
    """
    job = await call.job(change=True)
    drop = ("member", PROJECT_TIME, "time_limit_s") if job.request.get(PROJECT_TIME) else ("member",)
    request = {name: value for name, value in job.request.items() if name not in drop}
    fields, from_checkpoint = different
    wanted = in_project(bodies.parse(_JOB, {**request, **fields}), call.token)
    if wanted.get("env"):  # a clone of a clone
        wanted["env"] = {name: value for name, value in wanted["env"].items() if name != FROM_VARIABLE}
    if from_checkpoint:
        await asyncio.to_thread(_check_checkpoint, call, job.row)
        wanted["env"] = {**(wanted.get("env") or {}), FROM_VARIABLE: job_name(job.row.number)}
    (found,) = await _stored(call, [wanted])
    return found


#: In the environment of a job: the ended job from whose last checkpoint it starts. Its processes read that under their
#: own account, so a user who sets it by hand reaches no file that is not open to the job anyway.
FROM_VARIABLE = "PLAIT_FROM_JOB"


def _check_checkpoint(call: Call, row: JobRow) -> None:
    """Raise `Denied` or `Conflict` unless a new job of the caller can start from the last checkpoint of this one."""
    if row.user != call.token.user:
        raise Denied(403, f"{row.id} is of {row.user}, who alone may continue it from its checkpoint")
    if row.state not in FINAL:
        raise Conflict(f"{row.id} has not ended, and may still write checkpoints; wait for it, or cancel it first")
    folder = call.api.worker.engine.layout.job(row.number) / "checkpoints"
    if not CheckpointStore(folder).complete():
        raise Conflict(f"{row.id} has no complete checkpoint in {folder}; from the beginning: plait clone {row.id}")


_JOB = bodies.Schema({}, request_of)


async def _stored(call: Call, requests: list[dict[str, Any]], *, several: bool = False) -> list[SubmittedJob]:
    key = call.key
    await check_files(call.api, [next(members(request, 0)) for request in requests], several=several)

    def submit(engine: Engine, now_s: float) -> list[SubmittedJob]:
        # Store the jobs; `InputError` for one of a project that does not exist.
        for project in dict.fromkeys(str(request["project"]) for request in requests):
            if project != call.token.project:
                engine.check_project(project)
        number, *_ = engine.submit(requests, owner=call.token.user, now_s=now_s, key=key)
        out = []
        for request in requests:
            array, jobs = is_array(request), extent(request)[0]
            name = array_name(number) if array else job_name(number)
            out.append(SubmittedJob(name, number, jobs, engine.remarks(request)))
            number += jobs
        return out

    submitted: list[SubmittedJob] = await call.api.worker.call(submit)
    return submitted


async def _each(call: Call, array: str, change: Callable[[Engine, int, float], object]) -> ChangedJob:
    """Change all jobs of an array that have not ended; the error of the first if it is refused for all of them."""
    numbers = await call.members(array)

    def work(engine: Engine, now_s: float) -> list[PlaitError]:
        refused: list[PlaitError] = []
        known = (engine.state.jobs[number] for number in numbers if number in engine.state.jobs)
        unfinished = [job.number for job in known if engine.state.phase(job) <= Phase.RUNNING]
        if not unfinished:
            raise Conflict(f"all {len(numbers)} jobs of {array} have already ended")
        with engine.together(now_s):
            for number in unfinished:
                try:
                    change(engine, number, now_s)
                except (Conflict, InputError) as error:
                    refused.append(error)
        if len(refused) == len(unfinished):
            raise refused[0]
        return refused

    refused = await call.api.worker.call(work)
    states = (await _array_states(call.api, {array}))[array]
    remarks = [str(error) for error in refused[:1]]
    if len(refused) > 1:
        remarks.append(f"refused for {len(refused) - 1} more of the {len(numbers)} jobs of {array}")
    return ChangedJob(array, next(state for state in _OF_ARRAYS if states[state]), remarks)


async def _changed(call: Call, change: Callable[[Engine, int, float, str | None], list[str]]) -> ChangedJob:
    """Change the job that the path names, or all of an array that have not ended; `change` returns remarks."""
    if (array := call.array) is not None:
        return await _each(call, array, lambda engine, job, now_s: change(engine, job, now_s, call.key_of(job)))
    number, key = (await call.job(change=True)).row.number, call.key
    remarks = await call.api.worker.call(lambda engine, now_s: change(engine, number, now_s, key))
    row = await call.api.live(number) or (await call.job()).row
    return ChangedJob(row.id, row.state, remarks)


@ROUTES.get("/v1/jobs/{job}/explain", Explanation, own=True)
async def explain(call: Call) -> Explanation:
    """Why it waits and what would start it now; or how it runs."""
    api, row = call.api, (await call.job()).row
    number = row.number
    try:
        found, question, copy = await api.worker.look(
            lambda engine, now_s: (*api.what_if.explain(engine, number, now_s), api.what_if.queue(engine, now_s))
        )
    except LookupError:
        job = await call.job()
        return Explanation(
            id=row.id,
            number=number,
            state=job.row.state,
            summary=job.row.reason,
            started=bool(job.attempts),
            attempts=job.attempts if job.request.get("batch") else None,
        )
    more: dict[str, Any] = {}
    answer = None if question is None else api.what_if.ask(question)
    if answer is not None:
        more["would_start"] = await asyncio.shield(asyncio.wrap_future(answer))
    elif question is not None:
        more["note"] = "many ask at the moment: ask again for what would start it"
    if copy is not None:
        try:
            later = api.what_if.later(lambda: api.what_if.forecast(copy, number), call.token.user)
        except Busy as error:
            more["note"] = str(error)
        else:
            more["forecast"] = await asyncio.shield(asyncio.wrap_future(later))
    return structs.replace(found, **more)


@ROUTES.post("/v1/jobs/{job}/forecast", JobId, body=bodies.ForecastIn, roles=_CHANGE, own=True)
async def tell_forecast(call: Call, said: bodies.ForecastIn) -> JobId:
    """Keep a forecast that a client made of its job: what comes of it makes later ones honest."""
    row = (await call.job(change=True)).row
    await call.api.worker.call(lambda engine, now_s: engine.foreseen(row.number, said.start, said.end, now_s))
    return JobId(row.id)


class JobEventsQuery(Struct, frozen=True):
    """Which entries of the log."""

    after: Annotated[int, Meta(ge=0, le=bodies.LARGEST)] = 0
    """The entry to begin after, its `seq`."""
    limit: Annotated[int, Meta(ge=1, le=5000)] = 1000
    """Entries at most."""
    newest: bool = False
    """The last entries instead of the first."""


@ROUTES.get("/v1/jobs/{job}/events", bodies.ENTRIES, query=JobEventsQuery, own=True)
async def job_events(call: Call, query: JobEventsQuery) -> Json:
    """Log entries of a job, oldest first: `limit` entries after entry `after`, or with `newest=1` the last ones."""
    number, token = (await call.job()).row.number, call.token

    def read() -> Json:
        entries = call.api.store.entries(query.after, query.limit, number, query.newest)
        shown = (entry(one, secrets=token.role == "admin") for one in entries)
        return Json({"events": [_only(one, number, token) for one in shown]})

    return await asyncio.to_thread(read)


async def check_files(api: Api, requests: list[dict[str, Any]], *, several: bool = False) -> None:
    """Raise `Invalid` for a job whose folder, program or script is not there, as `plait submit` does.

    Files are looked for only if all nodes run on this machine; other machines may have others.
    """

    def nodes(engine: Engine, _: float) -> list[tuple[str, str]]:
        return [(one.id, one.address) for one in engine.state.nodes.values() if not one.lost]

    known, layout = await api.worker.look(nodes), api.worker.engine.layout

    def check() -> None:
        here = bool(known) and all(at in _LOOPBACK and layout.lease(name).exists() for name, at in known)
        path = node_environment(os.environ, passed(layout.home, os.environ))["PATH"] if here else None
        for i, request in enumerate(requests):
            if (found := missing(request, path)) is not None:
                raise bodies.Invalid(found.reason, f"jobs.{i}.{found.field}" if several else found.field)

    await asyncio.to_thread(check)


def in_project(request: dict[str, Any], token: Token) -> dict[str, Any]:
    """The request with its project; raises `Denied` for one of others."""
    project = request.setdefault("project", token.project)
    if token.role != "admin" and project != token.project:
        raise Denied(403, f"{token.user} belongs to project {token.project}, not {project}")
    return request


def _only(shown: dict[str, Any], number: int, token: Token) -> dict[str, Any]:
    """The requested job of a submission of several."""
    event = shown["event"]
    if event["type"] == "Requested":
        event["requests"] = [event["requests"][number - event["first"]]]
        event["first"] = number
    elif event["type"] == "JobSubmitted" and token.role == "user":
        event["jobs"] = [event["jobs"][number - event["first"]]]
        event["first"] = number
    return shown


@WHAT_IF.post("/v1/what-if", SubmissionOutlook, body=bodies.JOB, roles=("admin", "user"))
async def what_if(call: Call, request: dict[str, Any]) -> SubmissionOutlook:
    """When a job like this would start and end, what blocks it, and what would be cheaper or sooner.

    The body is that of a submission; it is refused like one, and nothing is submitted.
    """
    api, token = call.api, call.token
    asked = in_project(next(members(request, 0)), token)  # of an array the first member alone
    await check_files(api, [asked])

    def look(engine: Engine, now_s: float) -> tuple[QueueCopy | None, JobSpec, list[str]]:
        ctx, project, now_s = engine.context, project_of(asked), engine.clock(now_s)
        if project != token.project:
            check_project(ctx, project)
        take_in(ctx, [asked], token.user, None, engine.store.states, engine.members)
        limited = ctx.state.with_time_limit(asked)
        spec = ctx.spec(ctx.state.numbers, limited, token.user, project, now_s)
        return api.what_if.queue(engine, now_s), spec, engine.remarks(asked)

    copy, spec, remarks = await api.worker.look(look)
    if copy is None:
        raise LookupError("no node has joined yet, so nothing can be forecast; look at: plait nodes")
    name = str(asked.get("name") or asked.get("model") or "")
    found = await _later(api, token, lambda: api.what_if.submission(copy, spec, name, command_line(asked["command"])))
    return msgspec.structs.replace(found, remarks=remarks or None)


@WHAT_IF.post("/v1/what-if/queue", ComparedQueues, body=bodies.ChoiceIn)
async def compare_queues(call: Call, said: bodies.ChoiceIn) -> ComparedQueues:
    """Who of the queue would end sooner and who later under another choice; nothing is changed."""
    api, token = call.api, call.token
    engine = api.worker.engine
    network = engine.state.network.declared is not None
    policy = None
    if said.policy is not None:
        policy = await asyncio.to_thread(
            _named, said.policy, engine.options.policy_modules, engine.layout.home, network
        )
    copy = await api.worker.look(api.what_if.queue)
    if copy is None:
        raise LookupError("no node has joined yet, so nothing can be forecast; look at: plait nodes")
    priority = {int(job[2:]): value for job, value in said.priority.items()}
    choice = Choice(said.policy or "", policy, said.nodes or "", tuple(said.without), priority)
    return await _later(api, token, lambda: api.what_if.choice(copy, choice))


def _named(text: str, modules: Collection[str], folder: Path, network: bool) -> Policy:
    """A policy that may be named over HTTP; `InputError` for others."""
    check_named(text, modules, folder)
    return live_policy(text, network)


async def _later(api: Api, token: Token, work: Callable[[], T]) -> T:
    return await asyncio.shield(asyncio.wrap_future(api.what_if.later(work, token.user)))
