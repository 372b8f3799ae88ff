"""What is said to programs and agents about the command line is true: commands, options, tools, `--json`."""

import argparse
import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

import anyio
import click
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
from plait.core.options import declared, option, parse, parser, same, words
from plait.live.agent.__main__ import main as agent_main
from plait.live.agent.node import AgentOptions
from plait.live.backends.slurm.backend import OWN, SlurmOptions
from plait.live.client.client import Client
from plait.live.protocol.job import Batch, Job, key_of
from plait.live.protocol.job_file import schema
from plait.live.scheduler.options import Options as EngineOptions
from plait.live.service.options import BY_HAND, SERVICE_OPTIONS, ServiceOptions, read_options
from plait.live.supervisor.options import COMMAND, UpOptions

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
    apart = plait.done("simulate", small, "-c", "2x4", "-p", "fifo", "-p", "srtf")
    assert "fifo" in apart.out
    assert "srtf" in apart.out
    grid = plait.done("sweep", tmp_path / "grid", "--trace", small, "-c", "2x4", "-p", "fifo", "--load", "0.7",
                      "--load", "1.0", "--seed", "0", "--processes", "1")  # fmt: skip
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
    assert said in plait.refused(*words)


# -- options are declared once: parsers, `plait up`, the words that start a service and tables in the docs agree ---


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
