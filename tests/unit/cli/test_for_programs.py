"""What is said to programs and agents about the command line is true: commands, options, tools, `--json`."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
import typer
from mcp import Client as Host
from typer.testing import CliRunner

from plait.cli import main
from plait.cli.app import ENTRIES, app
from plait.cli.elsewhere import BELOW, COMMANDS, OPTIONS
from plait.cli.lazy import takes_list
from plait.cli.mcp.server import Asking, make_server
from plait.cli.mcp.skill import FILE, skill_text
from plait.cli.submission import Asked
from plait.core.options import declared
from plait.live.client.client import Client

PAGE = Path(__file__).resolve().parents[3] / "docs" / "how-to" / "use-from-programs.md"
#: Commands of a live cluster without `--json`: they start, stop or show, and answer nothing.
SILENT = {"up", "down", "restore", "mcp", "ray up", "ray status", "ray down", "exec", "shell", "notebook"}


def commands(name: str, command: Any) -> dict[str, Any]:
    """The command and those below it, by name."""
    found = {name: command}
    for below, one in getattr(command, "commands", {}).items():
        found |= commands(f"{name} {below}".strip(), one)
    return found


@pytest.fixture(scope="module")
def known() -> dict[str, Any]:
    return commands("", typer.main.get_command(app))


def options(command: Any) -> set[str]:
    return {text for parameter in command.params for text in (*parameter.opts, *parameter.secondary_opts)}


@pytest.mark.parametrize("file", [FILE, PAGE], ids=["skill", "page"])
def test_every_command_that_is_shown_is_there(known: dict[str, Any], file: Path) -> None:
    blocks = re.findall(r"```bash\n(.*?)```", file.read_text(encoding="utf-8"), flags=re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines() if line.startswith("plait ")]
    assert len(lines) >= 3
    for line in lines:
        words = shlex.split(line, comments=True)[1:]
        words = words[: words.index(">")] if ">" in words else words
        words = words[: words.index("--")] if "--" in words else words
        name = " ".join(words[:2]) if " ".join(words[:2]) in known else words[0]
        assert name in known, line
        unknown = {word for word in words if re.match(r"--?[a-z]", word)} - options(known[name])
        assert not unknown, f"{line}: {name} has no {unknown}"


def test_every_command_of_a_live_cluster_prints_json(known: dict[str, Any]) -> None:
    live = {name: options(one) for name, one in known.items() if "--home" in options(one)}
    assert {name for name, given in live.items() if "--json" not in given} == SILENT
    page = PAGE.read_text(encoding="utf-8")
    for name in live.keys() - SILENT:
        words = name.split()
        assert re.search(rf"`{re.escape(name)}`|`{words[0]} [^|\n]*`{re.escape(words[-1])}`", page), name


@pytest.mark.parametrize("file", [FILE, PAGE], ids=["skill", "page"])
def test_every_tool_is_named_and_every_name_is_a_tool(file: Path) -> None:
    async def names() -> set[str]:
        def connect() -> Client:
            raise AssertionError

        async with Host(make_server(Asking(connect, lambda: False))) as host:
            return {tool.name for tool in (await host.list_tools()).tools}

    text = file.read_text(encoding="utf-8")
    tools = anyio.run(names)
    assert {tool for tool in tools if f"`{tool}`" not in text} == set()
    pattern = (
        r"`((?:list|show|explain|forecast|read|search|submit|clone|update|requeue|cancel|wait_for|job|what_if)_\w+)`"
    )
    assert set(re.findall(pattern, text)) <= tools


def test_without_the_library_the_command_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "mcp.server.mcpserver", None)
    with pytest.raises(SystemExit) as left:
        main(["mcp"])
    assert left.value.code == 2
    assert "plait mcp needs the library mcp; install it with: pip install 'plait[mcp]'" in capsys.readouterr().err
    with pytest.raises(SystemExit) as left:
        main(["mcp", "--skill"])
    assert not left.value.code
    assert capsys.readouterr().out == skill_text()


def test_the_skill_file_is_short_and_has_front_matter() -> None:
    lines = skill_text().splitlines()
    assert len(lines) <= 120
    assert lines[0] == "---"
    assert lines[1] == "name: plait"
    assert lines[2].startswith("description: ")
    assert 100 < len(lines[2]) < 500
    assert lines[3] == "---"


# Commands and options of other schedulers are answered with what does the same here.


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
        ("cordon n1", "No such command 'cordon'; in plait: plait nodes drain n1"),
        ("nodes remove n1", "No such command 'remove'; in plait: plait nodes drain n1; plait nodes forget n1"),
        ("nodes drian n1", "No such command 'drian'; there are: plait nodes drain"),
        ("project create x", "No such command 'create'; in plait: plait project set vision"),
        ("submit --reservation r -- true", "No such option: --reservation; in plait: plait nodes reserve -h"),
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
    "exlpain": "explain", "lgs": "logs", "hisotry": "history", "relase": "release", "requeu": "requeue",
    "udpate": "update", "whatif": "what-if", "evnts": "events", "simlate": "simulate", "comapre": "compare",
    "polcy": "policy", "projct": "project", "sim": "simulate",
}  # fmt: skip


@pytest.mark.parametrize("typed", [*MISTYPED, "xhodl", "conifg", "xyz", "wrlod"])
def test_mistyped_commands_suggest_what_was_meant_or_nothing(typed: str) -> None:
    meant = f"did you mean plait {MISTYPED[typed]}" if typed in MISTYPED else "plait -h lists all"
    assert refusal([typed]).startswith(f"No such command {typed!r}; {meant}")


def test_the_answers_name_commands_and_options_that_exist() -> None:
    words = {f"--{one.word}" for one in declared(Asked)}
    below = [text for group in BELOW.values() for text in group.values()]
    said = " ".join([*OPTIONS.values(), *COMMANDS.values(), *below])
    assert set(re.findall(r"--[a-z][a-z-]*", said)) <= words
    assert set(re.findall(r"plait ([a-z-]+)", said)) <= set(ENTRIES)
    assert set(OPTIONS) & words == set()
    assert set(COMMANDS) & set(ENTRIES) == set()


# An option that is given twice is a list or an error, in every command.


def commands_repeated_options(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command below `command` that has options, with its path."""
    yield path, command
    for name in getattr(command, "commands", {}):
        yield from commands_repeated_options(command.commands[name], (*path, name))


ALL = list(commands_repeated_options(typer.main.get_command(app)))


@pytest.mark.parametrize(("path", "command"), ALL, ids=[" ".join(path) or "plait" for path, _ in ALL])
def test_an_option_given_twice_is_a_list_or_an_error(path: tuple[str, ...], command: Any) -> None:
    context = command.context_class(command, info_name="plait")
    for param in command.get_params(context):
        if param.param_type_name != "option" or param.name == "help":
            continue
        words = [param.opts[0]] if param.is_flag else [param.opts[0], "3"]
        options, _, order = command.make_parser(context).parse_args(args=[*words, *words])
        given = command.context_class(command, info_name="plait")
        assert param in order
        if param.multiple or takes_list(param):
            found, _ = param.handle_parse_result(given, options, [])
            assert found == "3,3" if takes_list(param) else len(found) == 2
        elif not param.count:
            with pytest.raises(Exception, match="given 2 times"):
                param.handle_parse_result(given, options, [])


def test_policies_and_loads_may_be_given_one_by_one(plait: Any, small: Any, tmp_path: Any) -> None:
    apart = plait("simulate", small, "-c", "2x4", "-p", "fifo", "-p", "srtf")
    assert apart.code == 0
    assert "fifo" in apart.out
    assert "srtf" in apart.out
    grid = plait("sweep", tmp_path / "grid", "--trace", small, "-c", "2x4", "-p", "fifo", "--load", "0.7", "--load",
                 "1.0", "--seed", "0", "--processes", "1")  # fmt: skip
    assert grid.code == 0, grid.err
    assert "at load 0.7," in grid.out
    assert "at load 1," in grid.out


def test_options_of_every_command_are_looked_at() -> None:
    seen = {param.name for _, command in ALL for param in command.get_params(command.context_class(command))}
    assert {"home", "policy", "load", "gpus", "nodes", "expires", "limit", "version"} <= seen


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["simulate", "t.csv", "--seed", "1", "--seed", "2"], "'--seed': given 2 times ('1' and '2'); give it once"),
        (["ls", "--limit=5", "--limit", "5"], "'--limit': given 2 times ('5' and '5'); give it once"),
        (["ls", "--json", "--json"], "'--json': given 2 times; give it once"),
        (["web", "--open", "--no-open"], "given 2 times; give it once"),
        (["submit", "--env", "A=1", "--env", "A=2", "--", "python", "x.py"], "--env A is given twice; give it once"),
        (["up", "-o", "a=1", "-o", "a=2"], "--option a is given twice ('1' and '2'); give it once"),
        (["network", "simulate", "-o", "index=a", "-o", "index=b"], "--option index is given twice (a and b)"),
        (["submit", "-g", "1", "--gpus", "2", "--", "python", "-g", "3"], "given 2 times ('1' and '2')"),
    ],
)
def test_the_error_names_the_option_and_both_values(plait: Any, words: list[str], said: str) -> None:
    answer = plait(*words)
    assert answer.code == 2
    assert said in answer.err
