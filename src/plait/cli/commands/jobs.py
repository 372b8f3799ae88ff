"""`plait ls`, `queue`, `show`, `logs`, `cancel`, `wait`, `history`: jobs that wait, run or have ended."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from plait.cli.connection import (
    LOOK_S,
    HomeOption,
    JsonFlag,
    awaited,
    client,
    last_state,
    patiently,
    print_json,
    print_table,
    progress,
    respond,
    while_it_is_started,
)
from plait.cli.render import job_views
from plait.cli.render.tables import plain, plain_lines
from plait.core.errors import InputError, PlaitError
from plait.core.words import duration
from plait.live.layout import array_index, job_number
from plait.live.notes import note, time_of_day
from plait.live.scheduler.records.event_words import brief

if TYPE_CHECKING:
    from plait.live.api.cluster import Queue, QueuedJob
    from plait.live.api.costs import UsageOfJob
    from plait.live.api.jobs import JobAttempt, JobRow, JobState, LogPart, Stops, WholeJob
    from plait.live.client.client import Client

JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="Id of the job, e.g. j-12, or its name.")]
JobsArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="JOB...", help="Ids of jobs, e.g. j-12, or their names; a-12 is a whole array."),
]
TagOption = Annotated[
    list[str] | None,
    typer.Option("--tag", help="Your jobs with this tag that have not ended; of several tags jobs with all."),
]
#: Fields of a job that are points in time of the service's clock; all other seconds are durations.
_POINTS = ("created_s", "started_s", "ended_s")
#: Of the list of jobs; see `job_row`.
JOB_COLUMNS = (
    "job", "?~name", "?user", "state", "??>gpus", "?progress", "??>age", "?>submitted", "?>held", "~where or why",
)  # fmt: skip
#: Of the jobs that have ended.
HISTORY_COLUMNS = (
    "job", "?~name", "?user", "state", "??>gpus", "??>ended", "?>at", "?>held", "?>waited", "?>completion", "?>starts",
    "?>moved", "?>failed", "?class", "~why",
)  # fmt: skip
#: States of jobs that have not ended, as the service takes them.
ALIVE = "waiting,starting,running,stopping,unreachable"
#: Bytes at the end of a log that are read first for its last lines, and at most.
LOG_CHUNK, LOG_MOST = 1 << 16, 1_000_000
#: Of the queue.
QUEUE_COLUMNS = (
    ">place", "job", "?~name", "?user", "state", "??>gpus", "??>waits for", "?>priority", "?>left", "?>GPU-hours",
    "?>level", "?project", "?class", "~why it waits",
)  # fmt: skip


def ls(
    all_jobs: Annotated[bool, typer.Option("--all", "-a", help="Include jobs that have ended.")] = False,
    state: Annotated[
        str | None, typer.Option(help="Only jobs in this state: waiting, starting, running, finished, failed, ...")
    ] = None,
    user: Annotated[str | None, typer.Option(help="Only jobs of this user.")] = None,
    search: Annotated[
        str, typer.Option("--search", "-s", help="Only jobs with this in name, user, project, model, command or nodes.")
    ] = "",
    tag: Annotated[list[str] | None, typer.Option(help="Only jobs with this tag; may be repeated.")] = None,
    array: Annotated[str | None, typer.Option(help="The jobs of this array, e.g. a-12, ended ones included.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Largest number of jobs to list.")] = 50,
    offset: Annotated[int, typer.Option(min=0, help="Skip this many of the newest jobs.")] = 0,
    home: HomeOption = None,
    as_json: JsonFlag = False,
) -> None:
    """List jobs that wait or run, newest first.

    --all or --state also list jobs that have ended. An array is one row; --array lists its jobs.
    """
    states = state or (None if all_jobs or array else ALIVE)
    with client(home) as service:
        jobs = service.jobs(
            state=states, user=user, text=search, tags=tag or (), array=array, arrays=array is None, limit=limit,
            offset=offset,
        )  # fmt: skip
    if as_json:
        print_json(jobs)
        return
    filters = [f"state {state}"] * bool(state) + [f"user {user}"] * bool(user) + [f"{search!r} in it"] * bool(search)
    filters += [f"tag {one}" for one in tag or ()] + [f"array {array}"] * bool(array)
    # Print a line a job, or `nothing` if there is none.
    nothing = _no_jobs(filters, ended=states is None or bool(state))
    print_table(JOB_COLUMNS, (job_row(job) for job in jobs), nothing)
    if len(jobs) == limit:
        note(f"the newest {limit} are shown; more: --limit, --offset")


def _no_jobs(filters: Sequence[str], *, ended: bool) -> str:
    """The sentence for an empty list. `ended`: it would have jobs that have ended.

    >>> _no_jobs(["state running", "user bob"], ended=True)
    'no job with state running and user bob'
    >>> _no_jobs([], ended=False)
    'no job waits or runs; ended jobs: plait ls --all'
    """
    which = f" with {' and '.join(filters)}" if filters else ""
    if not ended:
        return f"no job{which} waits or runs; ended jobs: plait ls --all"
    return f"no job{which}" if which else "no jobs; submit one with: plait submit -- python train.py"


def queue(
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Largest number of jobs to list.")] = 50,
    offset: Annotated[int, typer.Option(min=0, help="Skip this many of the first jobs.")] = 0,
    home: HomeOption = None,
    as_json: JsonFlag = False,
) -> None:
    """List what runs and waits in the policy's order.

    With the numbers that policies order by: GPU-hours attained so far, time left when the job runs alone, priority and
    level.
    """

    def show(found: Queue) -> None:
        print_table(QUEUE_COLUMNS, (_queue_row(job) for job in found.jobs), "nothing runs or waits")
        if found.total > offset + len(found.jobs) > offset:
            note(f"{found.total} jobs in the order of {found.policy}; --limit and --offset show more")

    respond(home, as_json, lambda service: service.queue(limit=limit, offset=offset), show)


def _queue_row(job: QueuedJob) -> list[object]:
    return [
        job.place, job.id, plain(job.name), job.user, "waiting" if job.waits else "running", job.gpus,
        duration(job.waited_s) if job.waits else "",
        "" if job.priority is None else f"{job.priority:g}",
        "" if job.left_s is None else duration(job.left_s), f"{job.attained_gpu_s / 3600:.3g}",
        "" if job.level is None else job.level, job.project, job.class_,
        brief(job.reason) if job.waits else "",
    ]  # fmt: skip


def job_row(job: JobRow) -> list[object]:
    """The row of a job in a list; its age stops growing when it ends."""
    now_s = time.time()
    nodes = dict.fromkeys(place.node for place in job.places or ())
    others = [member for member in job.group.members if member != job.id] if job.group is not None else []
    nodes_text = ", ".join(nodes) + (f" with {', '.join(others)}" if others and nodes else "")
    where = "; ".join(
        part
        for part in (nodes_text, job_views.where_text(job.sharing), job_views.pace_text(job.adaptive) if nodes else "")
        if part
    )
    return [
        job.id, short_name(job), job.user, job.state, job_views.gpus_cell(job),
        progress(job), duration(_age_s(job)), time_of_day(now_s - job.age_s, now_s), duration(job.run_s),
        where or brief(job.reason),
    ]  # fmt: skip


def short_name(job: JobRow) -> str:
    """The job's name, otherwise its command, in at most 28 characters."""
    name = plain(job.name or " ".join(job.command))
    if job.array_index is not None:
        name = f"[{job.array_index}] {name}"
    return name if len(name) <= 28 else name[:27] + "…"


def _age_s(job: JobRow) -> float:
    return job.age_s if job.jct_s is None else job.jct_s


def show(
    job: JobArgument,
    usage: Annotated[bool, typer.Option("--usage", help="Show what it uses over time instead.")] = False,
    home: HomeOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Show everything about a job."""
    with client(home) as service:
        if usage:
            used = service.usage(job)
            if as_json:
                print_json(used)
            else:
                _print_usage(used)
            return
        found = service.job(job)
        bill = None if as_json else service.costs(hours=744, job=found.id, limit=1)
        trackers: list[str] = []
        with contextlib.suppress(PlaitError):  # its node may be gone
            trackers = service.addresses(found.id) if found.attempts and not as_json else []
    if as_json:
        print_json(found)
        return
    rows: list[tuple[str, object]] = []
    for one in msgspec.structs.fields(found):
        key, value = one.encode_name, getattr(found, one.name)
        if value is None or value in ("", [], {}) or key in ("attempts", "places", "number"):
            continue
        if key == "epoch":  # of the job's folder, not of its data; a job that waits for its first has none
            if value:
                rows.append(("attempt", value))
            continue
        if key == "adaptive":
            rows += job_views.adaptive_rows(value)
        elif key == "sharing":
            rows += job_views.sharing_rows(value)
        elif key == "checkpoint_s":
            rows.append(("checkpoint every", duration(value)))
            if found.state == "running":
                rows.append(("newest checkpoint", _newest(found)))
        elif key in ("checkpoint_steps", "checkpoint_age_s", "jct_s", "saves"):
            continue
        elif key == "stops":
            rows += stop_rows(value, found.state, begun=bool(found.attempts))
        elif key == "age_s":
            rows.append(("age", duration(_age_s(found))))
        elif key == "attained_gpu_s":
            rows.append(("attained service", f"{value:,.1f} GPU-seconds"))
        elif key in _POINTS:
            now_s, ago_s = time.time(), max(0.0, found.created_s + found.age_s - value)
            rows.append((key.removesuffix("_s"), f"{time_of_day(now_s - ago_s, now_s)}, {duration(ago_s)} ago"))
        else:
            rows.append((key.removesuffix("_s").replace("_", " "), _shown(key, value)))
    rows += [("tracked at", one) for one in trackers]
    if bill is not None and bill.by_job:
        rows += job_views.cost_rows(bill)
    print_table(("", "~"), rows, "", most_lines=1000)
    if found.places:
        typer.echo("")
        places = ([place.rank, place.node, place.gpu, place.state, place.pid] for place in found.places)
        print_table((">rank", "node", ">gpu", "state", "?>pid"), places, "")
    if found.attempts:
        typer.echo("")
        heads = (
            ">attempt", "?>began", "?>lasted", "?>gpus", "?>batch", "?>work lost", "state", "?>exit", "~why", "?nodes",
        )  # fmt: skip
        print_table(heads, (_attempt_row(a, found) for a in found.attempts), "")


def _print_usage(usage: UsageOfJob) -> None:
    typer.echo(f"{usage.id}: {job_views.headline(usage)}")
    if usage.series:
        heads: tuple[str, ...] = ("~what", "~of", "over time", ">least", ">mean", ">most", ">last")
        print_table(heads, job_views.usage_rows(usage), "", most_lines=1000)
    if usage.ranks:
        typer.echo("")
        heads = (">rank", "node", ">gpu", ">GPU busy", ">GPU memory", ">CPU", ">memory", ">read", ">written")
        print_table(heads, job_views.rank_rows(usage), "", most_lines=1000)


def stop_rows(stops: Stops, state: JobState, *, begun: bool = False) -> list[tuple[str, object]]:
    """Rows of `plait show`: what a stop would cost the job now, and what stops have cost it so far.

    `stops`: field of the service's answer; `state`: of the job; `begun`: it has run before.
    """
    rows: list[tuple[str, object]] = []
    if state == "running":
        rows.append(("if stopped", stop_text(stops)))
    if begun and state == "waiting" and stops.resumable is False:
        rows.append(("when it starts", "it begins at the beginning: it has no checkpoint to go on from"))
    if had := stopped_text(stops):
        rows.append(("stops so far", had))
    return rows


def stop_text(stops: Stops) -> str:
    """The cost of a stop now.

    >>> from plait.live.api.jobs import Stops
    >>> stop_text(Stops(0.0, 0, None, resumable=True, kept=False, stop_costs_s=4.2))
    'goes on from a checkpoint after about 4.2 s'
    >>> stop_text(Stops(0.0, 0, None, unbegun=True, resumable=True))
    'loses nothing, as it has made no step yet'
    """
    if stops.unbegun:
        return "loses nothing, as it has made no step yet"
    if stops.resumable:
        cost_s = stops.stop_costs_s
        return "goes on from a checkpoint" + ("" if cost_s is None else f" after about {duration(cost_s)}")
    return "begins at the beginning" + ("; no policy may stop it" if stops.kept else "")


def stopped_text(stops: Stops) -> str:
    """The cost of a job's stops so far; empty for none.

    >>> from plait.live.api.jobs import Stops
    >>> stopped_text(Stops(lost_work_s=30.0, restarts=2, restart_s=4.2))
    '2 restarts of about 4.2 s, 30.0 s of work lost'
    """
    count, parts = stops.restarts, []
    if count:
        parts.append(f"{count} restart{'s' * (count > 1)} of about {duration(stops.restart_s)}")
    if stops.lost_work_s:
        parts.append(f"{duration(stops.lost_work_s)} of work lost")
    return ", ".join(parts)


#: Why a running job could not resume from a checkpoint, by the report of its process.
_NOT_SAVED = {
    "nothing": "its work cannot be saved: the script registers nothing; its log lists what to add",
    "not_resumed": "its loop begins at step 0 whatever was saved; its log lists what to add",
}
#: The same if it could resume from an older one.
_FAILED = "the last one could not be written; its log has the reason"


def _newest(job: JobRow) -> str:
    """The step of the checkpoint from which a running job would resume."""
    steps, age_s = job.checkpoint_steps, job.checkpoint_age_s
    if (why := _NOT_SAVED.get(job.saves or "")) is not None:
        return why
    if steps is None:
        newest = "none yet" if job.epoch == 1 else "none yet of this attempt"
    else:
        newest = f"step {steps:,.0f}" + ("" if age_s is None else f", {duration(age_s)} ago")
    return f"{newest}; {_FAILED}" if job.saves == "failed" else newest


def _shown(key: str, value: Any) -> object:
    """A value as text; durations in words."""
    if key == "command":
        import shlex

        return shlex.join(value)
    if key == "stage_s":
        return ", ".join(f"{1000 * v:.1f} ms" for v in value)
    if key in ("iterations", "iterations_done"):
        return f"{value:,.0f}"
    if key in ("step_s", "iteration_s"):
        return f"{1000 * value:.1f} ms"
    if key.endswith("_s") and isinstance(value, (int, float)):
        return duration(value)
    if key in ("memory", "gpu_memory", "gradient_bytes"):
        return f"{value / 1e9:,.6g} GB"
    if key == "profile":
        return ", ".join(f"{stage} {1000 * seconds:,.1f} ms" for stage, seconds in value.items())
    if isinstance(value, msgspec.Struct):
        value = msgspec.structs.asdict(value)
    if isinstance(value, dict):
        return ", ".join(f"{k}={_shown('', v)}" for k, v in value.items() if v is not None)
    if isinstance(value, list):
        return ", ".join(str(_shown("", v)) for v in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return plain_number(value) if isinstance(value, (int, float)) else value


def plain_number(value: float) -> str:
    """A number as people write it.

    >>> plain_number(3000.0), plain_number(3.0), plain_number(0.25), plain_number(12345678)
    ('3,000', '3', '0.25', '12,345,678')
    """
    return f"{value:,.0f}" if value % 1 == 0 else f"{value:,.6g}"  # what is infinite is the latter


def _attempt_row(attempt: JobAttempt, job: WholeJob) -> list[object]:
    began, ended = attempt.started_s or job.created_s, attempt.ended_s
    lasted = None if ended is None else ended - began
    return [
        attempt.epoch, f"+{duration(max(0.0, began - job.created_s))}", duration(lasted),
        attempt.gpus if job.gpus else 0, job_views.batch_text(attempt), duration(attempt.lost_work_s or None),
        attempt.state, attempt.exit_code, brief(attempt.reason or ""), ", ".join(attempt.nodes),
    ]  # fmt: skip


def logs(
    job: JobArgument,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Keep printing until the job ends.")] = False,
    rank: Annotated[int, typer.Option(min=0, help="Rank of the process whose log is printed.")] = 0,
    tail: Annotated[int | None, typer.Option("--tail", min=1, metavar="N", help="Print only the last N lines.")] = None,
    attempt: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Print the log of attempt N, see `plait show`.")
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Keep terminal escape sequences.")] = False,
    home: HomeOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Print the log of a job's newest attempt, or of attempt N.

    Escape sequences, which a terminal at the end of a pipe would obey too, are removed unless --raw is given. --json
    prints one part, of at most 1 MB, with its place in the log in bytes: the last --tail lines, else the beginning.
    """
    if as_json:
        if follow:
            raise InputError("--json and --follow exclude each other; --follow prints the log as it comes")
        with client(home) as it:
            if tail is None:
                print_json(it.logs(job, rank=rank, limit=LOG_MOST, epoch=attempt))
            else:
                print_json(last_lines(it, it.id_of(job), rank, tail, attempt))
        return
    if follow and attempt is not None:
        raise InputError("--follow and --attempt exclude each other; --follow prints the attempts as they come")
    shown = str if raw else plain_lines

    with client(home) as service:
        patience = while_it_is_started(home) if follow else lambda: False
        job = awaited(lambda: service.id_of(job), patience)
        if not follow and attempt is None:
            found = service.job(job)
            if never := _never_ran(found):
                note(never)
                return
            if waits := _between_attempts(found):
                note(f"{waits}; plait logs -f {job} shows more as it comes")
        offset = 0
        if tail is not None:
            part = awaited(lambda: last_lines(service, job, rank, tail, attempt), patience)
            typer.echo(shown(part.text), nl=False, color=raw or None)
            offset = part.next
            if not follow:
                return
        if follow:
            from plait.live.client.client import NotRunning

            wrote = tail is not None and part.size > 0
            try:
                for text in service.follow(
                    job, rank=rank, offset=offset, notice=lambda text: note(f"{job}: {text}"), waits=patience
                ):
                    typer.echo(shown(text), nl=False, color=raw or None)
                    wrote = True
                if not wrote and (never := _never_ran(service.job(job))):
                    note(never)
            except NotRunning:
                if not service.answered:
                    raise
                _without_service(job, home)
            return
        while True:  # up to the present end of the log
            part = service.logs(job, rank=rank, offset=offset, epoch=attempt)
            attempt = part.epoch or None  # of the same attempt, whatever begins meanwhile
            typer.echo(shown(part.text), nl=False, color=raw or None)
            offset = part.next
            if not part.text or offset >= part.size:
                return


def last_lines(service: Client, job: str, rank: int, count: int, attempt: int | None = None) -> LogPart:
    """The last `count` lines of a log, of at most 1 MB, as a part.

    `attempt`: its number, None for the newest one.
    """
    first, reach = service.logs(job, rank=rank, limit=1, epoch=attempt), LOG_CHUNK
    size, attempt, part = first.size, first.epoch or None, first
    while True:
        at = start = max(size - reach, 0)
        text = ""
        while at < size:
            part = service.logs(job, rank=rank, offset=at, limit=size - at, epoch=attempt)
            if part.next <= at:
                break
            text, at = text + part.text, part.next
        if start == 0 or reach >= LOG_MOST or text.count("\n", 0, -1) >= count:
            break
        reach = min(4 * reach, LOG_MOST)
    begins = [0, *(match.end() for match in re.finditer("\n", text) if match.end() < len(text))]
    kept = text[begins[-count:][0] :]
    offset = size - len(kept.encode())
    return msgspec.structs.replace(part, text=kept, offset=offset, next=size, size=size)


def _without_service(job: str, home: str | None) -> None:
    """After the service stopped answering: print how the followed job ended; exit code 1 if it has not ended."""
    from plait.live.client.client import FINAL

    state = last_state(job, home)
    if state in FINAL:
        note(f"{job} has {state}" if state != "cancelled" else f"{job} was cancelled")
        return
    known = f", and {job} had not ended" if state else ""
    note(f"the service does not answer any more{known}; go on with: plait up, then plait logs -f {job}")
    raise typer.Exit(1)


def _never_ran(found: WholeJob) -> str:
    """Why a job that has ended has no log; empty if it has one, or has not ended."""
    from plait.live.client.client import FINAL

    if found.state not in FINAL or found.attempts:
        return ""
    why = f" ({plain(found.reason)})" if found.reason and found.reason != found.state else ""
    return f"{found.id} has no log, because it never started: {found.state}{why}"


def _between_attempts(found: WholeJob) -> str:
    """Why an unfinished job writes no log now; empty if it does."""
    attempts = found.attempts
    if found.state == "waiting" and not attempts:
        return f"{found.id} has not started yet; plait explain {found.id} says why"
    if found.state not in ("waiting", "starting") or not attempts:
        return ""
    last = attempts[-1]
    if found.state == "starting" and last.state == "running":
        return f"{found.id} is starting: attempt {last.epoch}"
    why = f" ({plain(last.reason)})" if last.reason and last.reason != last.state else ""
    return f"{found.id} waits to start again; this is attempt {last.epoch}, which is over: {last.state}{why}"


def chosen(service: Client, jobs: Sequence[str] | None, tags: Sequence[str] | None) -> list[str]:
    """The jobs and arrays to change: the named ones, or one's own that have these tags and have not ended."""
    if bool(jobs) == bool(tags):
        raise InputError("name jobs, e.g. j-12, or give --tag; one of the two")
    if jobs:
        return list(jobs)
    found = service.jobs(state=ALIVE, user=service.me().user, tags=tags or (), arrays=True, limit=10_000)
    if not found:
        raise InputError(f"no job of yours with {' and '.join(f'tag {tag}' for tag in tags or ())} waits or runs")
    return [job.id for job in found]


def cancel(
    jobs: JobsArgument = None, tag: TagOption = None, home: HomeOption = None, as_json: JsonFlag = False
) -> None:
    """Cancel jobs; running ones are stopped."""
    answers = []
    with client(home) as service:
        for job in chosen(service, jobs, tag):
            before = ""
            if not _is_array(job):
                found = service.job(job)
                job, before = found.id, found.state
            answers.append(service.cancel(job))
            if not as_json:
                typer.echo(f"{job} {_cancelled(before, answers[-1].state)}")
    if as_json:
        print_json(answers)


def _is_array(job: str) -> bool:
    return (member := array_index(job)) is not None and member[1] is None


def _cancelled(before: str, state: str) -> str:
    """The result of a cancel, from the state of the job before and after it.

    >>> _cancelled("waiting", "cancelled"), _cancelled("running", "stopping")
    ('cancelled', 'cancelled; its processes are being stopped')
    """
    if before == "cancelled":
        return "was cancelled already"
    if state == "unreachable":
        return "cancelled; its node does not answer, and its processes end there when their lease is over"
    return "cancelled; its processes are being stopped" if state == "stopping" else state


def wait(
    jobs: JobsArgument = None,
    timeout: Annotated[float | None, typer.Option(help="Give up after this many seconds; exit code 1.")] = None,
    home: HomeOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Wait until jobs have ended.

    Exit code 1 if a job failed or was cancelled.
    """
    await_ends(jobs or [], timeout, home, as_json=as_json)


def await_ends(jobs: list[str], timeout: float | None, home: str | None, *, as_json: bool = False) -> None:
    """Wait until `jobs` have ended and print how; exit code 1 if one failed, or after `timeout` seconds.

    An array stands for all its jobs. As JSON it prints a list of {id, state, reason, exit_code}: of jobs that ended in
    time, in the given order.
    """
    from plait.live.client.client import FINAL

    ends = None if timeout is None else time.monotonic() + timeout
    bad: list[str] = []
    ended: list[dict[str, Any]] = []
    with client(home) as service:
        for given in _without_arrays(service, jobs):
            job = patiently(service, given).id if job_number(given) is None else given
            while (found := patiently(service, job)).state not in FINAL:
                if ends is not None and time.monotonic() >= ends:
                    if as_json:
                        print_json(ended)
                    note(f"{job} is still {found.state} after {timeout:g} s; ask why with: plait explain {job}")
                    raise typer.Exit(1)
                time.sleep(LOOK_S)
            if found.state != "finished":
                bad.append(job)
            ended.append({name: getattr(found, name) for name in ("id", "state", "reason", "exit_code")})
            if not as_json:
                why = f": {plain(found.reason)}" if found.reason and job in bad else ""
                typer.echo(f"{job} {found.state}{why}")
    if as_json:
        print_json(ended)
    if bad:
        note(f"what it wrote: plait logs {bad[0]}")
        raise typer.Exit(1)


def _without_arrays(service: Client, jobs: Sequence[str]) -> list[str]:
    """The jobs, each array as its members, oldest first."""
    out: list[str] = []
    for job in jobs:
        rows = service.jobs(array=job, limit=10_000)[::-1] if _is_array(job) else None
        out += [job] if not rows else [row.id for row in rows]
    return out


def history(
    limit: Annotated[int, typer.Option(min=1, help="Largest number of jobs to list.")] = 50,
    user: Annotated[str | None, typer.Option(help="Only jobs of this user.")] = None,
    home: HomeOption = None,
    as_json: JsonFlag = False,
) -> None:
    """List jobs that have ended: how they waited, ran and moved."""
    from plait.live.client.client import FINAL

    with client(home) as service:
        jobs = service.jobs(state=",".join(FINAL), user=user, limit=limit)
    if as_json:
        print_json(jobs)
        return
    print_history(jobs)


def costs(
    hours: Annotated[int, typer.Argument(metavar="[HOURS]", min=1, max=744, help="How many hours back.")] = 24,
    limit: Annotated[int, typer.Option(min=1, help="Largest number of jobs to list.")] = 50,
    home: HomeOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Show what the last hours cost: by project, user and job.

    Prices are given with `plait up --price`; without them these are GPU-hours.
    """
    with client(home) as service:
        job_views.print_costs(service.costs(hours=hours, limit=limit), as_json=as_json)


def print_history(jobs: Sequence[JobRow]) -> None:
    """A line a job that has ended; classes where there are any but the usual one."""
    columns = list(HISTORY_COLUMNS)
    rows = [_history_row(job) for job in jobs]
    if all(job.class_ == "guaranteed" for job in jobs):
        columns.remove("?class")
        rows = [[*row[:-2], row[-1]] for row in rows]
    print_table(columns, rows, "no job has ended yet; waiting and running jobs: plait ls")


def _history_row(job: JobRow) -> list[object]:
    jct, held = job.jct_s, job.run_s
    waited = None if jct is None else max(0.0, jct - held)
    now_s, ago_s = time.time(), None if jct is None else max(0.0, job.age_s - jct)
    return [
        job.id, short_name(job), job.user, job.state, job.gpus,
        None if ago_s is None else f"{duration(ago_s)} ago",
        None if ago_s is None else time_of_day(now_s - ago_s, now_s), duration(held), duration(waited),
        duration(jct), job.starts, job.preemptions, job.failures, job.class_,
        brief(job.reason),
    ]  # fmt: skip
