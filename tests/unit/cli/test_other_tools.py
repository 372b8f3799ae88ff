"""Commands and options of other schedulers are answered with what does the same here."""

from __future__ import annotations

import re
import shlex

import pytest
from typer.testing import CliRunner

from plait.cli.app import ENTRIES, app
from plait.cli.elsewhere import COMMANDS, OPTIONS
from plait.cli.submission import Asked
from plait.core.options import declared


def refusal(words: list[str]) -> str:
    """The error of the command line for these words, on one line."""
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2, done.output
    return done.output.partition("Error: ")[2].strip()


@pytest.mark.parametrize(
    ("typed", "answer"),
    [
        ("submit --gres=gpu:2 -- true", "No such option: --gres; in plait: --gpus 2"),
        ("submit -p gpu -- true", "No such option: -p; in plait: all nodes are one pool; --project names"),
        ("submit --mem 16G -- true", "No such option: --mem; in plait: --memory 16G, of the whole job"),
        ("submit --dependency afterok:3 -- true", "No such option: --dependency; in plait: --after j-3"),
        ("squeue", "No such command 'squeue'; in plait: plait slurm squeue; plait ls lists jobs"),
        ("kill j-3", "No such command 'kill'; in plait: plait cancel j-3 ends a job"),
        ("submit --nodelist n1 -- true", "No such option: --nodelist; in plait: nodes are chosen for the job"),
        ("submit --image torch -- true", "No such option: --image; in plait: --container"),
        ("submit --gpsu 2 -- true", "No such option: --gpsu (Possible options: --gpus)"),
        ("update --gres 2 j-3", "No such option: --gres"),
        ("resume j-3", "No such command 'resume'; in plait: plait release j-3, of a held job"),
        ("ls --stat failed", "No such option: --stat (Possible options: --state)"),
    ],
)
def test_words_of_other_tools_get_an_answer(typed: str, answer: str) -> None:
    assert refusal(shlex.split(typed)).startswith(answer)


MISTYPED = {
    "sumbit": "submit", "subm": "submit", "cancle": "cancel", "queu": "queue", "shw": "show", "explian": "explain",
    "exlpain": "explain", "tpo": "top", "lgs": "logs", "hisotry": "history", "relase": "release", "requeu": "requeue",
    "udpate": "update", "whatif": "what-if", "evnts": "events", "simlate": "simulate", "comapre": "compare",
    "polcy": "policy", "projct": "project", "sim": "simulate",
}  # fmt: skip


@pytest.mark.parametrize("typed", [*MISTYPED, "xhodl", "conifg", "xyz", "wrlod"])
def test_mistyped_commands_suggest_what_was_meant_or_nothing(typed: str) -> None:
    meant = f"did you mean plait {MISTYPED[typed]}" if typed in MISTYPED else "plait -h lists all"
    assert refusal([typed]).startswith(f"No such command {typed!r}; {meant}")


def test_the_answers_name_commands_and_options_that_exist() -> None:
    words = {f"--{one.word}" for one in declared(Asked)}
    said = " ".join([*OPTIONS.values(), *COMMANDS.values()])
    assert set(re.findall(r"--[a-z][a-z-]*", said)) <= words
    assert set(re.findall(r"plait ([a-z-]+)", said)) <= set(ENTRIES)
    assert set(OPTIONS) & words == set()
    assert set(COMMANDS) & set(ENTRIES) == set()
