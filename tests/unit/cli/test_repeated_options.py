"""An option that is given twice is a list or an error, in every command."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import typer

from plait.cli.app import app
from plait.cli.lazy import takes_list


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command below `command` that has options, with its path."""
    yield path, command
    for name in getattr(command, "commands", {}):
        yield from commands(command.commands[name], (*path, name))


ALL = list(commands(typer.main.get_command(app)))


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
