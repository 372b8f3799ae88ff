"""The MCP server: how its tools reach the service, the tools, and its instructions to hosts."""

import os
import re
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations
from pydantic import Field, WithJsonSchema

from plait.cli.mcp.skill import skill_text
from plait.cli.render.tables import plain_lines
from plait.cli.submission import as_submitted_here
from plait.core.errors import PlaitError
from plait.core.version import __version__
from plait.live.api import Answer
from plait.live.client.client import FINAL, Client
from plait.live.protocol.job_file import jobs_of_text, schema


@dataclass(frozen=True)
class Asking:
    """How tools reach the service. `connect` makes a client: one for each call, so that a service may move between two.

    `here`: whether its jobs run on this machine, so that their programs can be looked for before submission.
    """

    connect: Callable[[], Client]
    here: Callable[[], bool]

    @contextmanager
    def service(self) -> Iterator[Client]:
        """The service. Its errors, and errors of input, become errors of the tool: the sentence that users get."""
        with readable_errors(), self.connect() as client:
            yield client


@contextmanager
def readable_errors() -> Iterator[None]:
    """Errors raised on purpose become errors of the tool; all others are defects, of which agents get the name only."""
    try:
        yield
    except PlaitError as error:
        raise ToolError(str(error)) from error


def fields(answer: Answer) -> dict[str, Any]:
    """The fields of an answer of the service, as tools return them: the JSON of the HTTP API."""
    found: dict[str, Any] = msgspec.to_builtins(answer)
    return found


# Types of the arguments of tools; their descriptions and bounds become the schemas that agents read.

#: Bytes of a log that one call returns by default, and at most.
PART_BYTES, MOST_BYTES = 16_384, 262_144
#: Longest wait of one call, seconds: hosts give up on calls that take longer.
MOST_WAIT_S = 300.0

_JOB_SCHEMA = {key: value for key, value in schema().items() if not key.startswith("$")}

Job = Annotated[str, Field(description="Id of the job, e.g. j-12, or its name.", min_length=1, max_length=200)]
JobFields = Annotated[dict[str, Any], WithJsonSchema(_JOB_SCHEMA)]
MaybeJobFields = Annotated[
    JobFields | None,
    Field(
        description="The job as fields. `workdir` and `python` default to folder and environment of this MCP server. "
        "Give this or `job_file`."
    ),
]
JobFile = Annotated[
    str | None,
    Field(description="Text of a job file: one job, or `jobs:` with a list of them. Give this or `job`."),
]
Format = Annotated[Literal["yaml", "toml", "json"], Field(description="Format of `job_file`.")]
Key = Annotated[
    str | None,
    Field(
        description="Idempotency key of your own: a second call with the same key does nothing more, so a call "
        "whose answer was lost can be repeated. Default: a new one.",
        min_length=1,
        max_length=200,
    ),
]
State = Annotated[
    Literal["waiting", "starting", "running", "stopping", "unreachable", "finished", "failed", "cancelled"] | None,
    Field(description="Only jobs in this state. Default: all."),
]
User = Annotated[str | None, Field(description="Only jobs of this user. Default: of all.")]
Limit = Annotated[int, Field(description="Most entries to return.", ge=1, le=500)]
Offset = Annotated[int, Field(description="Entries to skip, from the beginning of the list.", ge=0)]
Rank = Annotated[int, Field(description="Process of the job whose log is read; 0 is the first.", ge=0)]
Attempt = Annotated[
    int | None,
    Field(description="Number of the attempt (`epoch` of show_job), from 1. Default: the newest.", ge=1),
]
FromCheckpoint = Annotated[bool, Field(description="Start from the last checkpoint of the other job.")]
LoseWork = Annotated[
    bool,
    Field(description="Do it also if the job has no checkpoint and would begin at the beginning."),
]


# Tools that change nothing: jobs, the queue, why and when, what if.

#: Seconds between two looks at a job that is waited for.
LOOK_S = 1.0
#: Fields of an explanation about times; the rest are reasons.
_WHEN = ("id", "state", "summary", "position", "waiting", "left_s", "forecast")


@dataclass(frozen=True)
class Questions:
    """Tools that only read. Points in time are seconds of the service's clock, `now_s`; other seconds are durations."""

    asking: Asking

    def cluster_status(self) -> dict[str, Any]:
        """Show the cluster: policy, GPUs held and free, counts of jobs and nodes by state, and troubles.

        Also shows whose token is used: `me.role` is admin, user (own jobs) or viewer (reads only).
        """
        with self.asking.service() as service:
            return {**fields(service.status()), "me": fields(service.me())}

    def list_nodes(self) -> dict[str, Any]:
        """List the nodes: state, GPUs, their kind, what they run, and when they last reported."""
        with self.asking.service() as service:
            return {"nodes": [fields(node) for node in service.nodes()]}

    def list_jobs(
        self, state: State = None, user: User = None, limit: Limit = 20, offset: Offset = 0
    ) -> dict[str, Any]:
        """List jobs, newest first: state, GPUs, progress, age, where they run, and the reason why they wait."""
        with self.asking.service() as service:
            jobs = service.jobs(state=state, user=user, limit=limit, offset=offset)
            return {"jobs": [fields(one) for one in jobs]}

    def list_queue(self, limit: Limit = 20, offset: Offset = 0) -> dict[str, Any]:
        """List jobs that run or wait in the order of the policy's last decision, with the numbers behind that order."""
        with self.asking.service() as service:
            return fields(service.queue(limit, offset))

    def show_job(self, job: Job) -> dict[str, Any]:
        """Show everything about a job: request, state, progress, places, checkpoint, and each attempt with its end.

        `would_lose` states what a stop would lose now, which requeue_job and update_job refuse without may_lose_work.
        """
        with self.asking.service() as service:
            return {**fields(service.job(job)), "would_lose": service.losses(jobs=[job]).text}

    def explain_job(self, job: Job) -> dict[str, Any]:
        """Explain why a job waits, or how it runs: jobs ahead of it, what would start it now, sharers of its GPUs.

        Of a job that has ended, how it ended. `summary` is the one sentence to tell a user.
        """
        with self.asking.service() as service:
            return fields(service.explain(job))

    def forecast_job(self, job: Job) -> dict[str, Any]:
        """Forecast when a job will start and end.

        `forecast.start` (null once it runs) and `forecast.end` are in seconds from now: `middle_s`, the interval
        `half_s` that holds in one of two cases, and `wide_s` that holds in four of five; null for never. `forecast` is
        null for a job that has ended, and where no forecast is possible; `summary` has the reason.
        """
        with self.asking.service() as service:
            found = fields(service.explain(job))
        return {"forecast": None} | {name: found[name] for name in _WHEN if name in found}

    def job_usage(self, job: Job) -> dict[str, Any]:
        """Show what a job uses over time: GPU, CPU, memory, disk, stages of an iteration, goodput and batch size."""
        with self.asking.service() as service:
            return fields(service.usage(job, points=60))

    def job_events(self, job: Job, limit: Limit = 50) -> dict[str, Any]:
        """List the newest entries of the event log about a job, oldest first: events, requests and decisions."""
        with self.asking.service() as service:
            return {"events": service.job_events(job, newest=limit)}

    def what_if_queue(
        self,
        policy: Annotated[
            str | None,
            Field(description="Another policy, with options: srsf, muri-l:quantum_s=60. Default: the current one."),
        ] = None,
        nodes: Annotated[
            str | None, Field(description="Additional nodes as +NODESxGPUS[:KIND], e.g. +2x8 or +1x8:a100.")
        ] = None,
        without: Annotated[list[str] | None, Field(description="Names of nodes that would not be there.")] = None,
        priority: Annotated[
            dict[str, float] | None, Field(description='Other priorities by job, higher first: {"j-3": 10}.')
        ] = None,
    ) -> dict[str, Any]:
        """Compare the queue with what another choice would make of it: who gains and who loses, in hours.

        Nothing is changed. All arguments together are one choice; give at least one. `hours` are five quantiles
        (10, 25, 50, 75, 90 %) of the change of the end of a job; less than 0 is sooner.
        """
        with self.asking.service() as service:
            return fields(service.what_if_queue(policy=policy, nodes=nodes, without=without or (), priority=priority))

    def wait_for_job(
        self,
        job: Job,
        timeout_s: Annotated[float, Field(description="Seconds to wait at most.", gt=0, le=MOST_WAIT_S)] = 60.0,
    ) -> dict[str, Any]:
        """Wait until a job has ended, or for `timeout_s` seconds: {id, state, ended, reason, exit_code}.

        `ended` false means that it still waits or runs: call again, or ask explain_job why.
        """
        until = time.monotonic() + timeout_s
        with self.asking.service() as service:
            while (found := service.job(job)).state not in FINAL and time.monotonic() < until:
                time.sleep(min(LOOK_S, max(0.0, until - time.monotonic())))
        ended = found.state in FINAL
        return {"ended": ended} | {name: getattr(found, name) for name in ("id", "state", "reason", "exit_code")}


# Tools that read what a job wrote: the end of a log, any part of it, and lines that match a pattern.

#: Bytes of a log that one search reads at most, and characters of a line that it looks at and returns.
SEARCHED_BYTES, LINE_CHARACTERS = 32_000_000, 2_000


@dataclass(frozen=True)
class Logs:
    """Tools that read logs. Offsets and sizes are bytes since the process started; terminal escapes are removed."""

    asking: Asking

    def read_log(
        self,
        job: Job,
        offset: Annotated[
            int | None,
            Field(description="Where to begin, bytes; `next` of an earlier answer goes on there. Default: the end."),
        ] = None,
        limit: Annotated[int, Field(description="Most bytes to return.", ge=1, le=MOST_BYTES)] = PART_BYTES,
        rank: Rank = 0,
        attempt: Attempt = None,
    ) -> dict[str, Any]:
        """Read what a job wrote: by default the last 16 KiB of its newest attempt.

        `next` is where the next part begins, `size` how much there is now. A job that never started has size 0.
        """
        with self.asking.service() as service:
            if offset is None:
                size = service.logs(job, rank=rank, limit=1, epoch=attempt).size
                offset = max(0, size - limit)
            part = service.logs(job, rank=rank, offset=max(0, offset), limit=limit, epoch=attempt)
        return {**fields(part), "text": plain_lines(part.text)}

    def search_log(
        self,
        job: Job,
        pattern: Annotated[str, Field(description="Regular expression (Python's).", min_length=1, max_length=500)],
        ignore_case: Annotated[bool, Field(description="Take upper and lower case as the same.")] = True,
        context: Annotated[int, Field(description="Lines to return before each match.", ge=0, le=20)] = 2,
        limit: Annotated[int, Field(description="Most matches to return: the newest ones.", ge=1, le=200)] = 20,
        offset: Annotated[int, Field(description="Where to begin, bytes.", ge=0)] = 0,
        rank: Rank = 0,
        attempt: Attempt = None,
    ) -> dict[str, Any]:
        """Search a log for lines that match a pattern: {matches: [{line, text, before}], found, next, size}.

        `line` counts from 1 at `offset`; `found` counts all matches, of which the newest are returned. One search reads
        at most 32 MB; if `next` is less than `size`, continue with `offset` = `next`.
        """
        try:
            wanted = re.compile(pattern, re.IGNORECASE if ignore_case else 0)
        except (re.error, OverflowError, RecursionError) as error:
            raise ToolError(f"pattern {pattern!r} is not a regular expression: {error}; \\ escapes a sign") from error
        matches: deque[dict[str, Any]] = deque(maxlen=limit)
        before: deque[str] = deque(maxlen=context)
        found, end = 0, {"next": offset, "size": 0}
        with self.asking.service() as service:
            for number, line in enumerate(_lines(service, job, rank, offset, attempt, end), start=1):
                if wanted.search(line):
                    found += 1
                    matches.append({"line": number, "text": line, "before": list(before)})
                before.append(line)
        return {"matches": list(matches), "found": found, **end}


def _lines(
    service: Client, job: str, rank: int, offset: int, attempt: int | None, end: dict[str, int]
) -> Iterator[str]:
    """Lines of a log from `offset` on; `end` gets where the reading ended, and the size of the log."""
    began, rest = offset, ""
    while True:
        part = service.logs(job, rank=rank, offset=offset, limit=1_000_000, epoch=attempt)
        attempt = attempt or part.epoch or None  # a new attempt that begins meanwhile has another log
        lines = (rest + part.text).split("\n")
        rest = lines.pop()[-LINE_CHARACTERS:]
        for line in lines:
            yield plain_lines(line[:LINE_CHARACTERS])
        over = part.next <= offset or part.next >= part.size or part.next - began >= SEARCHED_BYTES
        offset = part.next
        end |= {"next": offset, "size": part.size}
        if over:
            break
    if rest:
        yield plain_lines(rest)


# Tools that submit and change jobs, and the question that takes a job but submits nothing.

Priority = Annotated[float | None, Field(description="Higher comes first, where the policy orders by it.")]
JobClass = Annotated[Literal["guaranteed", "opportunistic", "auto"] | None, Field(description="Class of the job.")]
Deadline = Annotated[
    float | None, Field(description="Seconds from submission until it should have ended; 0 removes the deadline.", ge=0)
]
Hold = Annotated[
    bool | None, Field(description="true: a waiting job does not start until it is released; false: release it.")
]
Gpus = Annotated[int | None, Field(description="Number of GPUs.", ge=1, le=100_000)]
LeastGpus = Annotated[int | None, Field(description="Minimum GPUs of an elastic job.", ge=1, le=100_000)]
MostGpus = Annotated[int | None, Field(description="Most GPUs of an elastic job.", ge=1, le=100_000)]


@dataclass(frozen=True)
class Actions:
    """Tools that take a job to submit, or change jobs; the role of the token decides whether they may."""

    asking: Asking

    def submit_job(
        self,
        job: MaybeJobFields = None,
        job_file: JobFile = None,
        file_format: Format = "yaml",
        key: Key = None,
    ) -> dict[str, Any]:
        """Submit a job, or all jobs of a job file (all or none): {jobs: [{id, number, remarks}]}.

        When this returns the jobs are stored and run as soon as the policy gives them GPUs. `remarks` are fields
        that the policy ignores. The command is started without a shell: write ["sh", "-c", "..."] for one.
        """
        ready = self._jobs(job, job_file, file_format)
        with self.asking.service() as service:
            return {"jobs": [fields(one) for one in service.submit(ready, key=key)]}

    def what_if_submit(
        self,
        job: MaybeJobFields = None,
        job_file: JobFile = None,
        file_format: Format = "yaml",
    ) -> dict[str, Any]:
        """Forecast when a job would start and end, what blocks it, and what would be sooner or cheaper; submit nothing.

        `start` and `end` are in seconds from now: `middle_s`, `half_s` (holds in one of two cases), `wide_s` (in four
        of five). `variants` are other sizes, GPU kinds, classes or times. Each job of a file is forecast by itself.
        """
        ready = self._jobs(job, job_file, file_format)
        with self.asking.service() as service:
            return {"jobs": [fields(service.what_if(one)) for one in ready]}

    def clone_job(
        self, job: Job, priority: Priority = None, job_class: JobClass = None, deadline_s: Deadline = None,
        gpus: Gpus = None, min_gpus: LeastGpus = None, max_gpus: MostGpus = None,
        from_checkpoint: FromCheckpoint = False, key: Key = None,
    ) -> dict[str, Any]:  # fmt: skip
        """Submit a job like another one, which may have ended; it begins at the beginning.

        Arguments that are left out are as in the other job. `from_checkpoint` needs one that has ended.
        """
        changes = _changes(priority, job_class, deadline_s, gpus, min_gpus, max_gpus)
        with self.asking.service() as service:
            return fields(service.clone(job, changes, from_checkpoint=from_checkpoint, key=key))

    def update_job(
        self, job: Job, priority: Priority = None, job_class: JobClass = None, deadline_s: Deadline = None,
        gpus: Gpus = None, min_gpus: LeastGpus = None, max_gpus: MostGpus = None, hold: Hold = None,
        may_lose_work: LoseWork = False, key: Key = None,
    ) -> dict[str, Any]:  # fmt: skip
        """Change priority, class, deadline or size of an unfinished job, hold or release it: {id, state, remarks}.

        Priority, class and deadline touch no process. A running job whose size no longer fits stops after a checkpoint
        and continues at its new size. Fields that are left out stay.
        """
        changes = _changes(priority, job_class, deadline_s, gpus, min_gpus, max_gpus)
        if hold is not None:
            changes["hold"] = hold
        if not changes:
            raise ToolError(
                "nothing is to change; give priority, job_class, deadline_s, hold, gpus, min_gpus or max_gpus"
            )
        with self.asking.service() as service:
            return fields(service.update(job, changes, may_lose_work=may_lose_work, key=key))

    def requeue_job(self, job: Job, may_lose_work: LoseWork = False, key: Key = None) -> dict[str, Any]:
        """Stop a running job after a checkpoint and send it back to the queue, without a failure: {id, state}."""
        with self.asking.service() as service:
            return fields(service.requeue(job, may_lose_work=may_lose_work, key=key))

    def cancel_job(self, job: Job) -> dict[str, Any]:
        """Cancel a job; a running one is stopped. It does not come back: clone_job submits it again."""
        with self.asking.service() as service:
            return fields(service.cancel(job))

    def _jobs(self, job: dict[str, Any] | None, job_file: str | None, file_format: str) -> list[dict[str, Any]]:
        if (job is None) == (job_file is None):
            raise ToolError("give either job (fields) or job_file (text); one of them, not both")
        with readable_errors():
            given = [job] if job is not None else jobs_of_text(job_file or "", f"job_file.{file_format}")
            names = ["job"] if job is not None else [f"job_file: job {i}" for i in range(1, len(given) + 1)]
            here = self.asking.here()
            return [as_submitted_here(one, name, os.environ, here=here) for one, name in zip(given, names, strict=True)]


def _changes(
    priority: float | None, job_class: str | None, deadline_s: float | None, gpus: int | None, min_gpus: int | None,
    max_gpus: int | None,
) -> dict[str, Any]:  # fmt: skip
    given = {"priority": priority, "class": job_class, "gpus": gpus, "min_gpus": min_gpus, "max_gpus": max_gpus}
    found: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    return found if deadline_s is None else found | {"deadline_s": deadline_s or None}


# The MCP server: its tools, and its instructions to hosts.

INSTRUCTIONS = (
    "plait schedules training jobs on a GPU cluster. Call what_if_submit before submit_job; explain_job shows why a "
    "job waits and forecast_job when it starts and ends; read_log and search_log show its output. Tools act with the "
    "token of the user and refuse what its role may not do (cluster_status shows it). An error is a sentence that "
    "names the next step. Seconds and bytes everywhere."
)
#: Where hosts find the skill file.
SKILL_URI = "plait://skill"

_READS = ToolAnnotations(read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False)
_ADDS = ToolAnnotations(read_only_hint=False, destructive_hint=False, idempotent_hint=False, open_world_hint=False)
_CHANGES = ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=False, open_world_hint=False)
_ENDS = ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=True, open_world_hint=False)


def make_server(asking: Asking, *, read_only: bool = False) -> MCPServer[Any]:
    """The server with its tools; with `read_only` only tools that change nothing."""
    server: MCPServer[Any] = MCPServer(
        "plait", title="plait, a scheduler of GPU clusters", instructions=INSTRUCTIONS, version=__version__,
        log_level="WARNING",
    )  # fmt: skip
    ask, logs, act = Questions(asking), Logs(asking), Actions(asking)
    reads: list[Callable[..., dict[str, Any]]] = [
        ask.cluster_status, ask.list_nodes, ask.list_jobs, ask.list_queue, ask.show_job, ask.explain_job,
        ask.forecast_job, ask.job_usage, ask.job_events, ask.wait_for_job, logs.read_log, logs.search_log,
        act.what_if_submit, ask.what_if_queue,
    ]  # fmt: skip
    tools: list[tuple[Callable[..., dict[str, Any]], ToolAnnotations]] = [
        *((tool, _READS) for tool in reads),
        (act.submit_job, _ADDS),
        (act.clone_job, _ADDS),
        (act.update_job, _CHANGES),
        (act.requeue_job, _CHANGES),
        (act.cancel_job, _ENDS),
    ]
    for tool, hints in tools:
        if hints.read_only_hint or not read_only:
            server.add_tool(tool, annotations=hints, structured_output=True)
    server.resource(SKILL_URI, name="skill", title="How to work with plait", mime_type="text/markdown")(skill_text)
    return server
