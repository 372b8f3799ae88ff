"""Options are declared once: parsers, `plait up`, the words that start a service and tables in the docs agree."""

from __future__ import annotations

import argparse
import re
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

import click
import pytest
import typer

from plait.cli.app import app
from plait.cli.submission import Asked
from plait.core.options import declared, option, parse, parser, same, words
from plait.live.agent.__main__ import main as agent_main
from plait.live.agent.node import AgentOptions
from plait.live.backends.slurm.backend import OWN, SlurmOptions
from plait.live.protocol.job import Batch, Job, key_of
from plait.live.protocol.job_file import schema
from plait.live.scheduler.options import Options as EngineOptions
from plait.live.service.options import BY_HAND, SERVICE_OPTIONS, ServiceOptions, read_options
from plait.live.supervisor.options import COMMAND, UpOptions

DOCS = Path(__file__).parents[3] / "docs"


@dataclass(frozen=True)
class Some:
    name: str | None = option("Its name", default=None, short="n")
    wait_s: float = option("Seconds to wait", default=2.5)
    most: int = option("How many", default=7, unset="as many as there are")
    loud: bool = option("Say more", default=False)
    folder: tuple[str, ...] = option("Where to look", default=(), metavar="FOLDER")
    store: str | None = option("Where it is", default=None, env="PLAIT_TEST_STORE")
    other: int = 3


@dataclass(frozen=True)
class More:
    wait_s: float | None = same(Some, "wait_s")
    loud: bool = same(Some, "loud")


def test_help_says_the_default_once_and_names_are_those_of_fields() -> None:
    assert {one.word: one.text for one in declared(Some)} == {
        "name": "Its name.",
        "wait": "Seconds to wait; default: 2.5.",
        "most": "How many; default: as many as there are.",
        "loud": "Say more.",
        "folder": "Where to look; may be repeated.",
        "store": "Where it is.",
    }
    assert [(one.text, one.default) for one in declared(More)] == [
        ("Seconds to wait; default: 2.5.", None), ("Say more.", False)
    ]  # fmt: skip


def test_words_of_values_are_parsed_back_to_them(monkeypatch: pytest.MonkeyPatch) -> None:
    said = words(Some, {"name": "a b", "wait": 0.5, "loud": True, "folder": ["x", "y"], "most": 0, "unknown": 1})
    assert said == ["--name", "a b", "--wait", "0.5", "--most", "0", "--loud", "--folder", "x", "--folder", "y"]
    assert parse(Some, said) == Some("a b", 0.5, 0, True, ("x", "y"))
    assert parse(Some, ["-n", "x"]).name == "x"
    monkeypatch.setenv("PLAIT_TEST_STORE", "there")
    assert parse(Some, words(Some, {"name": None, "loud": False})) == Some(store="there")


def test_a_service_understands_every_word_that_plait_up_says() -> None:
    known = declared(ServiceOptions)
    values: dict[str, Any] = {o.word: True if o.type is bool else ["a", "b"] if o.many else o.type(3) for o in known}
    found = read_options(words(ServiceOptions, values))
    many = {o.word: ("a", "b") for o in known if o.many}
    assert set(many) == {"allow-policy", "price"}
    assert {one.word: getattr(found, one.name) for one in known} == {**values, **many}


def test_the_scheduler_has_its_defaults_from_a_service_without_options() -> None:
    made, own = read_options([]).engine, EngineOptions()
    differing = {f.name for f in fields(EngineOptions) if getattr(made, f.name) != getattr(own, f.name)}
    assert differing == {"first_step_s"}  # tests of the scheduler are not to wait for first steps


def test_plait_up_has_each_option_of_a_service_but_those_that_it_finds_out_itself() -> None:
    own = {one.word for one in declared(UpOptions)}
    hidden = {one.word for one in declared(ServiceOptions)} - own
    assert hidden - {one.word for one in declared(ServiceOptions) if one.option.group == BY_HAND} == {
        "most-gpus", "expect-gpus", "policy-path"
    }  # fmt: skip
    for one in declared(UpOptions):
        if one.word in SERVICE_OPTIONS and one.option.group != COMMAND:
            theirs = next(other for other in declared(ServiceOptions) if other.word == one.word)
            assert (one.text, one.type if not one.many else str) == (theirs.text, theirs.type if not one.many else str)


def _click(*names: str) -> Any:
    found: Any = typer.main.get_command(app)
    for name in names:
        found = found.get_command(click.Context(found), name)
    return found


def test_the_help_of_plait_up_and_of_the_service_are_the_declaration() -> None:
    shown = {p.opts[0]: p for p in _click("up").params if p.opts[0] != "--help"}
    for one in declared(UpOptions):
        assert (shown[f"--{one.word}"].help, shown[f"--{one.word}"].metavar) == (one.text, one.option.metavar)
    assert len(shown) == len(declared(UpOptions))
    made: argparse.ArgumentParser = parser(ServiceOptions)
    for two in declared(ServiceOptions):
        assert f"--{two.word}" in made.format_help()


def test_what_was_not_said_is_not_remembered() -> None:
    assert UpOptions().given == {}
    assert UpOptions(nodes=2, fake=True, round_s=0.5, allow_policy=[], port=0, pass_env=["A"], home="/h").given == {
        "nodes": 2, "fake": True, "round": 0.5, "port": 0
    }  # fmt: skip


def _rows(page: str, head: str) -> dict[str, list[str]]:
    text = (DOCS / page).read_text(encoding="utf-8")
    lines = text[text.index(head) :].splitlines()[2:]
    cells = [re.split(r"(?<!\\) *\| *", line.strip("| ")) for line in lines[: lines.index("")]]
    return {row[0].strip("`"): row[1:] for row in cells}


def test_the_table_of_options_for_slurm_is_the_declaration() -> None:
    rows = _rows("how-to/run-on-slurm.md", "| name | meaning | default |")
    assert tuple(rows) == OWN
    for one in declared(SlurmOptions):
        default = one.option.unset or f"{one.default:g}"
        assert rows[one.word] == [one.option.help[0].lower() + one.option.help[1:], default]


def test_plait_submit_says_of_a_field_what_job_files_say() -> None:
    shown = {p.opts[0]: p for p in _click("submit").params if p.opts and p.opts[0].startswith("--")}
    for kind in (Job, Batch):
        for one in declared(kind):
            if f"--{one.word}" in shown and one.name not in (
                "env",
                "matrix",
                "python",
                "workdir",
                "least_local",
                "most_local",
            ):
                assert shown[f"--{one.word}"].help == one.text, one.name
    assert {"--gpus", "--class", "--deadline", "--checkpoint", "--batch-size", "--merge"} <= shown.keys()


def test_the_schema_and_the_declaration_have_the_same_fields_and_defaults() -> None:
    published = schema()
    for one in declared(Job):
        told = published["properties"][key_of(one)]
        assert told["description"].startswith(one.option.help)
        assert told.get("default") == (None if one.default in (None, MISSING) else one.default)
    assert published["required"] == ["command"]


def test_options_of_plait_submit_become_the_fields_that_they_are() -> None:
    asked = Asked(["a"], gpus=2, memory="4G", job_class="opportunistic", merge=True, batch_size=8, local_batch="1..4")
    assert asked.given == {"gpus": 2, "memory": 4_000_000_000, "class": "opportunistic", "merge": True}
    assert asked.batch == {"initial": 8, "least_local": 1, "most_local": 4}
    assert Asked(["a"]).given == {}


def test_an_agent_understands_the_words_by_which_backends_start_one(capsys: pytest.CaptureFixture[str]) -> None:
    told = {"home": "/h", "node": "n7", "gpus": 4, "rack": 0, "gpu-kind": None, "parks": True, "stop-grace": "2.5"}
    assert parse(AgentOptions, words(AgentOptions, told)) == AgentOptions(
        home="/h", node="n7", gpus=4, parks=True, stop_grace_s=2.5
    )
    assert (AgentOptions(cuda="2,0").devices, AgentOptions(cuda="2,0").slots) == ([2, 0], 2)
    for line, says in (
        (["--fake", "--cuda", "0"], "argument --cuda: not allowed with argument --fake"),
        (["--cuda", "0,x"], "argument --cuda: '0,x' is no list of GPU numbers such as 0,1"),
        (["--cuda", "1,1"], "argument --cuda: '1,1' names a GPU twice, or one below 0"),
        (["--gpus", "0"], "--gpus 0: a node has at least one"),
    ):
        with pytest.raises(SystemExit):
            agent_main(line)
        assert says in capsys.readouterr().err
