"""Commands and options of other schedulers are answered with what does the same here."""

from __future__ import annotations

import re
import shlex
from typing import Any

import pytest
import typer

from plait.cli.app import ENTRIES, app
from plait.cli.elsewhere import COMMANDS, OPTIONS
from plait.cli.submission import Asked
from plait.core.options import declared


def refusal(words: list[str]) -> str:
    """The error of the command line for these words; runs nothing."""
    command: Any = typer.main.get_command(app)
    context = command.make_context("plait", words)
    try:
        name, command, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        command.make_context(name, list(rest), parent=context)
    except Exception as error:
        return str(getattr(error, "message", error))
    return ""


@pytest.mark.parametrize(
    ("typed", "answer"),
    [
        ("submit --gres=gpu:2 -- true", "No such option: --gres; in plait: --gpus 2"),
        ("submit -p gpu -- true", "No such option: -p; in plait: all nodes are one pool; --project names"),
        ("submit --mem 16G -- true", "No such option: --mem; in plait: --memory 16G, of the whole job"),
        ("submit --dependency afterok:3 -- true", "No such option: --dependency; in plait: --after j-3"),
        ("squeue", "No such command 'squeue'; in plait: plait ls lists jobs"),
        ("kill j-3", "No such command 'kill'; in plait: plait cancel j-3 ends a job"),
        ("submit --gpsu 2 -- true", "No such option: --gpsu"),
        ("update --gres 2 j-3", "No such option: --gres"),
    ],
)
def test_words_of_other_tools_get_an_answer(typed: str, answer: str) -> None:
    assert refusal(shlex.split(typed)).startswith(answer)


def test_the_answers_name_commands_and_options_that_exist() -> None:
    words = {f"--{one.word}" for one in declared(Asked)}
    said = " ".join([*OPTIONS.values(), *COMMANDS.values()])
    assert set(re.findall(r"--[a-z][a-z-]*", said)) <= words
    assert set(re.findall(r"plait ([a-z-]+)", said)) <= set(ENTRIES)
    assert set(OPTIONS) & words == set()
    assert set(COMMANDS) & set(ENTRIES) == set()
