"""`plait submit`: a job, or several, from a command or a file."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import typer

from plait.cli.commands.jobs import await_ends
from plait.cli.connection import client, print_json
from plait.cli.declared import command
from plait.cli.render.forecast_lines import what_if_lines
from plait.cli.render.panels import TYPED
from plait.cli.render.tables import plain_lines
from plait.cli.submission import Asked, misplaced, requests_of, runs_here
from plait.live.notes import note
from plait.live.protocol.job_file import schema_text


def _submit(asked: Asked, context: typer.Context) -> None:
    """Carry out `plait submit`."""
    if asked.show_schema:
        typer.echo(schema_text(), nl=False)
        return
    ready = requests_of(asked, os.environ, here=runs_here(asked.home, os.environ))
    if asked.what_if:
        _what_if(ready, asked)
        return
    with client(asked.home) as service:
        answers = service.submit(ready)
    if strays := misplaced(asked.command or (), context.meta.get(TYPED, ())):
        note(strays)
    _tell(answers, asked.as_json)
    if asked.wait:
        await_ends([answer["id"] for answer in answers], None, asked.home)


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


def _what_if(ready: Sequence[Mapping[str, Any]], asked: Asked) -> None:
    """Say what each job would get by itself; nothing is submitted."""
    with client(asked.home) as service:
        found = [service.what_if(job) for job in ready]
    if asked.as_json:
        print_json(found)
        return
    for i, one in enumerate(found, start=1):
        if len(found) > 1:
            typer.echo(f"job {i} of {len(found)}, without the others:")
        for line in what_if_lines(one):
            typer.echo(plain_lines(line))
        for remark in one.get("remarks", ()):
            note(f"warning: {remark}")


def _tell(answers: Sequence[Mapping[str, Any]], as_json: bool) -> None:
    """Print the names of the submitted jobs and the service's remarks."""
    if as_json:
        print_json(answers)
        return
    said: Counter[str] = Counter()
    for answer in answers:
        typer.echo(answer["id"])
        said.update(answer.get("remarks", ()))
    for remark, jobs in said.items():
        note(f"warning: {remark}" + (f" (of {jobs} jobs)" if len(answers) > 1 else ""))
    note(f"submitted; follow it with: plait logs -f {answers[0]['id']}")
