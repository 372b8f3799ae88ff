"""`plait submit`, `requeue`, `update`, `clone`: jobs, new or changed; `plait what-if`: another choice."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from plait.cli.commands.jobs import JobArgument, JobsArgument, TagOption, await_ends, chosen
from plait.cli.connection import HomeOption, JsonFlag, LoseWork, client, print_json
from plait.cli.lazy import command
from plait.cli.render.console import TYPED
from plait.cli.render.forecast_lines import choice_lines, what_if_lines
from plait.cli.render.tables import plain_lines
from plait.cli.submission import Asked, misplaced, requests_of, runs_here
from plait.core.errors import InputError
from plait.core.options import declared, option, same
from plait.live.layout import job_number
from plait.live.notes import note
from plait.live.protocol.job import Job, JobField, key_of
from plait.live.protocol.job_file import read_text, schema_text

if TYPE_CHECKING:
    from plait.live.api.jobs import ChangedJob, SubmittedJob
    from plait.live.client.client import Client

_STAYS = "as it is"


def _submit(request: Asked, context: typer.Context) -> None:
    if request.show_schema:
        typer.echo(schema_text(), nl=False)
        return
    ready = requests_of(request, os.environ, here=runs_here(request.home, os.environ))
    if request.what_if:
        _what_if(ready, request)
        return
    with client(request.home) as service:
        answers = service.submit(ready)
    if strays := misplaced(request.command or (), context.meta.get(TYPED, ())):
        note(strays)
    _tell(answers, request.as_json)
    if request.wait:
        await_ends([answer.id for answer in answers], None, request.home)


@command(Asked, _submit, context=True)
def submit() -> None:
    """Submit a job: a command, or a file.

    \b
    plait submit -- python train.py --epochs 3
    plait submit --gpus 2 --model gpt2 -- python train.py
    plait submit --batch-size 128 --max-batch-size 4096 --local-batch 32..1024 --max-gpus 8 -- python train.py
    plait submit -f job.yaml
    plait submit --what-if --gpus 8 -- python train.py
    """


def _what_if(ready: Sequence[Mapping[str, Any]], request: Asked) -> None:
    """Show the outlook of each job by itself; nothing is submitted."""
    with client(request.home) as service:
        found = [service.what_if(job) for job in ready]
    if request.as_json:
        print_json(found)
        return
    for i, one in enumerate(found, start=1):
        if len(found) > 1:
            typer.echo(f"job {i} of {len(found)}, without the others:")
        for line in what_if_lines(one):
            typer.echo(plain_lines(line))
        for remark in one.remarks or ():
            note(f"warning: {remark}")


def _tell(answers: Sequence[SubmittedJob], as_json: bool) -> None:
    if as_json:
        print_json(answers)
        return
    said: Counter[str] = Counter()
    for answer in answers:
        typer.echo(answer.id)
        said.update(answer.remarks)
    for remark, jobs in said.items():
        note(f"warning: {remark}" + (f" (of {jobs} jobs)" if len(answers) > 1 else ""))
    name = answers[0].id
    note(f"submitted; follow it with: plait {'logs -f' if job_number(name) is not None else 'ls --array'} {name}")


@dataclass(frozen=True)
class _Fields:
    """Fields of a job that may change; None if not given."""

    priority: float | None = same(Job, "priority", unset=_STAYS)
    job_class: str | None = same(Job, "job_class", unset=_STAYS)
    deadline_s: float | None = same(Job, "deadline_s", unset=_STAYS)
    no_deadline: bool = option("Remove the deadline", default=False)
    time_limit_s: str | None = same(Job, "time_limit_s", unset=_STAYS)
    no_time: bool = option("Remove the time limit", default=False)
    gpus: int | None = same(Job, "gpus", unset=_STAYS)
    min_gpus: int | None = same(Job, "min_gpus", unset=_STAYS)
    max_gpus: int | None = same(Job, "max_gpus", unset=_STAYS)

    @property
    def given(self) -> dict[str, Any]:
        if self.no_deadline and self.deadline_s is not None:
            raise InputError(f"--no-deadline and --deadline {self.deadline_s:g} exclude each other")
        fields = [one for one in declared(type(self)) if isinstance(one.option, JobField)]
        said = {key_of(one): getattr(self, one.name) for one in fields if getattr(self, one.name) is not None}
        if self.time_limit_s is not None:
            if self.no_time:
                raise InputError(f"--no-time and --time {self.time_limit_s} exclude each other")
            said["time_limit_s"] = read_text("time_limit_s", self.time_limit_s, "--time")
        said |= {"time_limit_s": None} if self.no_time else {}
        return said | ({"deadline_s": None} if self.no_deadline else {})


@dataclass(frozen=True, kw_only=True)
class UpdateRequest(_Fields):
    """The arguments of `plait update`."""

    jobs: JobsArgument = None
    tag: TagOption = None
    may_lose_work: LoseWork = False
    home: HomeOption = None
    as_json: JsonFlag = False


@dataclass(frozen=True, kw_only=True)
class CloneRequest(_Fields):
    """The arguments of `plait clone`."""

    job: JobArgument
    from_checkpoint: bool = option("Start from the last checkpoint of the job, which has to have ended", default=False)
    home: HomeOption = None
    as_json: JsonFlag = False


def requeue(
    jobs: JobsArgument = None, tag: TagOption = None, may_lose_work: LoseWork = False, home: HomeOption = None,
    as_json: JsonFlag = False,
) -> None:  # fmt: skip
    """Checkpoint running jobs and send them back to the queue.

    They keep their names and wait by the order of the policy; no failure is counted. A job that has ended is run again
    as a new one with `plait clone`.
    """
    with client(home) as service:
        answers = [service.requeue(job, may_lose_work=may_lose_work) for job in chosen(service, jobs, tag)]
    _print(answers, as_json)


def hold(jobs: JobsArgument = None, tag: TagOption = None, home: HomeOption = None, as_json: JsonFlag = False) -> None:
    """Hold waiting jobs: they do not start until `plait release`."""
    with client(home) as service:
        _print([service.update(job, {"hold": True}) for job in chosen(service, jobs, tag)], as_json)


def release(
    jobs: JobsArgument = None, tag: TagOption = None, home: HomeOption = None, as_json: JsonFlag = False
) -> None:
    """Release held jobs: they wait for GPUs like others."""
    with client(home) as service:
        _print([service.update(job, {"hold": False}) for job in chosen(service, jobs, tag)], as_json)


def _update(request: UpdateRequest) -> None:
    fields = request.given
    if not fields:
        raise InputError("nothing is to change; give e.g. --priority 5, --gpus 2 or --class opportunistic")
    with client(request.home) as service:
        jobs = chosen(service, request.jobs, request.tag)
        answers = [service.update(job, fields, may_lose_work=request.may_lose_work) for job in jobs]
    _print(answers, request.as_json)


@command(UpdateRequest, _update)
def update() -> None:
    """Change priority, class, deadline, time limit or size of jobs.

    Priority, class and deadline count from the next decision on and touch no process. A job that runs on a number of
    GPUs that no longer fits stops after a checkpoint and continues at its new size.

    \b
    plait update j-12 j-13 --priority 5
    plait update --tag sweep --priority 5
    plait update j-12 --time 4h
    plait update j-12 --gpus 4
    plait update j-12 --class opportunistic --no-deadline
    """


def _clone(request: CloneRequest) -> None:
    with client(request.home) as service:
        answer = service.clone(request.job, request.given, from_checkpoint=request.from_checkpoint)
    if request.as_json:
        print_json(answer)
        return
    typer.echo(answer.id)
    for remark in answer.remarks:
        note(remark)


@command(CloneRequest, _clone)
def clone() -> None:
    """Submit a job like another one, which may have ended.

    The new job has the same command, files and environment, and begins at the beginning unless --from-checkpoint is
    given. Options change it.

    \b
    plait clone j-12
    plait clone j-12 --gpus 8 --priority 5
    plait clone j-12 --from-checkpoint --time 8h
    """


def _print(answers: Sequence[ChangedJob], as_json: bool) -> None:
    """A line a job with the state that it has now, and what its policy ignores."""
    if as_json:
        print_json(answers)
        return
    for answer in answers:
        typer.echo(f"{answer.id} {answer.state}")
        for remark in answer.remarks:
            note(f"{answer.id}: {remark}")


# -- the queue under another choice -------------------------------------------------------------------


@dataclass(frozen=True)
class Choices:
    """The options of `plait what-if`; all of them together are one choice."""

    policy: str | None = option("Another policy, with options: muri-l:quantum_s=60", default=None)
    nodes: str | None = option("More nodes: +2x8, +1x8:a100", default=None)
    without: list[str] | None = option("A node that would not be there", default=None)
    priority: list[str] | None = option("Another priority of a job: j-3=10, j-3=high, j-3=low", default=None)
    log: Path | None = option("JSON file of saved events, instead of the service's queue", default=None)
    home: HomeOption = None
    as_json: JsonFlag = False


def _choose(request: Choices) -> None:
    from plait.live.scheduler.explain.choices import parse_priorities

    if request.log is not None:
        from plait.cli.commands.explain import saved_events
        from plait.cli.policy_modules import only_allowed
        from plait.live.scheduler.context import Context
        from plait.live.scheduler.explain.choices import Choice, compare
        from plait.live.scheduler.explain.outlook import foresee
        from plait.live.scheduler.explain.queue_copy import QueueCopy
        from plait.live.scheduler.live_policy import live_policy
        from plait.live.scheduler.options import Options
        from plait.outlook.coverage import LogCoverage
        from plait.outlook.log_replay import read_rows, replay

        watch = LogCoverage(forecasts=False)
        rows = list(read_rows(only_allowed(saved_events(request.log), ())))
        state = replay(rows, compare=False, observe=watch).state
        copy = QueueCopy.of(Context(state, Options(), 0, 0), state.now_s)
        if copy is None:
            raise InputError(f"{request.log}: no node ever joined this cluster, so it has no queue")
        network = state.network.declared is not None
        policy = None if request.policy is None else live_policy(request.policy, network)
        choice = Choice(
            request.policy or "", policy, request.nodes or "", tuple(request.without or ()),
            parse_priorities(request.priority or ()),
        )  # fmt: skip
        found = compare(copy, foresee(copy.arrays(), watch.coverage.history, state.now_s), choice)
    else:
        with client(request.home) as service:
            found = service.what_if_queue(
                policy=request.policy, nodes=request.nodes, without=request.without or (),
                priority={f"j-{job}": value for job, value in parse_priorities(
                    [_by_id(service, one) for one in request.priority or ()]
                ).items()},
            )  # fmt: skip
    if request.as_json:
        print_json(found)
        return
    for line in choice_lines(found):
        typer.echo(plain_lines(line))


@command(Choices, _choose)
def what_if() -> None:
    """Show the queue under another choice: who gains, who loses.

    Nothing is changed. Options combine.

    \b
    plait what-if --policy srsf
    plait what-if --nodes +2x8
    plait what-if --without n3 --priority j-7=high
    """


def _by_id(service: Client, choice: str) -> str:
    """`train=high` with the id of the job instead of its name."""
    job, equals, value = choice.partition("=")
    known = not equals or not job.strip() or job.strip().removeprefix("j-").isdigit()
    return choice if known else f"{service.id_of(job.strip())}={value}"
