"""What is said to programs and agents about the command line is true: commands, options, tools, `--json`."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
import typer
from mcp import Client as Host

from plait.cli import main
from plait.cli.app import app
from plait.cli.mcp.server import make_server
from plait.cli.mcp.service import Asking
from plait.cli.mcp.skill import FILE, skill_text
from plait.live.client.client import Client

PAGE = Path(__file__).resolve().parents[3] / "docs" / "how-to" / "use-from-programs.md"
#: Commands of a live cluster without `--json`: they start, stop or show, and answer nothing.
SILENT = {"up", "down", "top", "restore", "mcp", "ray up", "ray status", "ray down"}


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
    assert len(lines) >= 4
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
    for name in live.keys() - SILENT - {"token create"}:
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
