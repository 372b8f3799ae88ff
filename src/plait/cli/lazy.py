"""Commands that are imported and built only when they are called, and options that are parsed only if given.

An option that is given twice is a list or an error, in every command: click alone would keep the last value silently.

Typer builds every command of an application before it looks at the first word, and loads pydantic to check values that
were not given: together half of the CPU time of a short command. `plait --help` needs only names and help lines.
"""

import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields
from functools import cached_property, partial
from importlib.metadata import entry_points
from pkgutil import resolve_name
from typing import Annotated, Any, NamedTuple, get_type_hints

import typer
from typer.core import TyperArgument, TyperCommand, TyperOption

from plait.core.options import Declared, declared


class Entry(NamedTuple):
    """A command: the heading it is listed under, `module:name`, and its help line.

    The name is that of a function, or of a `typer.Typer` with commands of its own; a module without a dot is one of
    `plait.cli.commands`. `settings` are passed to `typer.Typer.command`.
    """

    panel: str
    target: str
    line: str
    settings: Mapping[str, Any] = {}

    def short_help(self, most: int) -> str:
        """The help line in at most so many characters."""
        return TyperCommand(None, help=self.line).get_short_help_str(most)


class Commands(Mapping[str, Any]):
    """The click commands by name: of these entries, and of installed packages (entry points `plait.commands`).

    Each is imported and built when it is first looked up. A package registers an `Entry`.
    """

    def __init__(self, entries: Mapping[str, Entry]) -> None:
        self._own = entries
        self._built: dict[str, Any] = {}

    @cached_property
    def entries(self) -> Mapping[str, Entry]:
        """All commands; the first use opens a file of every installed package."""
        installed: dict[str, Entry] = {entry.name: entry.load() for entry in entry_points(group="plait.commands")}
        return {**self._own, **{name: entry for name, entry in installed.items() if name not in self._own}}

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __contains__(self, name: object) -> bool:
        """Whether there is such a command; builds nothing."""
        return name in self._own or name in self.entries

    def __getitem__(self, name: str) -> Any:
        if name not in self._built:
            entry = self._own[name] if name in self._own else self.entries[name]
            module, _, attribute = entry.target.partition(":")
            path = module if "." in module else f"plait.cli.commands.{module}"
            what = getattr(importlib.import_module(path), attribute)
            alone = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False)
            alone.callback()(_nothing)  # with it, it is a group also of one command
            if isinstance(what, typer.Typer):
                alone.add_typer(what, name=name, rich_help_panel=entry.panel, **entry.settings)
            else:
                alone.command(name, rich_help_panel=entry.panel, **entry.settings)(what)
            group: Any = typer.main.get_command(alone)
            command = group.commands[name]
            parse_only_what_is_given(command)
            self._built[name] = command
        return self._built[name]


def _nothing() -> None:
    """Have no options."""


def parse_only_what_is_given(command: Any) -> None:
    """Let the parameters of a command, and of commands below it, take defaults and plain texts as they are."""
    params = command.get_params  # the command's own, and its --help
    command.get_params = lambda ctx: as_they_are(params(ctx))
    for below in getattr(command, "commands", {}).values():
        parse_only_what_is_given(below)


def as_they_are(params: list[Any]) -> list[Any]:
    """The parameters, which convert no value any more that this would not change."""
    for param in params:
        if isinstance(param, (TyperArgument, TyperOption)) and "process_value" not in vars(param):
            param.process_value = partial(_process, param, param.process_value)  # type: ignore[method-assign]
            if isinstance(param, TyperOption):
                param.add_to_parser = partial(_add, param.add_to_parser)  # type: ignore[method-assign]
    return params


class _Collecting:
    """A parser to which options are added so that it keeps every value, not the last one only."""

    def __init__(self, parser: Any) -> None:
        self._parser = parser

    def add_option(self, *, action: str | None = None, **settings: Any) -> None:
        action = {None: "append", "store": "append", "store_const": "append_const"}.get(action, action)
        self._parser.add_option(action=action, **settings)


def _add(add: Callable[[Any, Any], None], parser: Any, ctx: Any) -> None:
    add(_Collecting(parser), ctx)


def takes_list(param: Any) -> bool:
    """Whether values of an option are separated by commas, as its metavar shows: `POLICY,...`."""
    return str(param.metavar or "").endswith(",...")


def _single(param: Any, ctx: Any, values: Sequence[Any]) -> Any:
    """The value of an option by all that were given on the command line; `BadParameter` if it takes one only."""
    if len(values) == 1:
        return values[0]
    if takes_list(param):
        return ",".join(str(value) for value in values)
    which = "" if param.is_flag else f" ({' and '.join(repr(str(value)[:80]) for value in values[:3])})"
    raise typer.BadParameter(f"given {len(values)} times{which}; give it once", ctx=ctx, param=param)


def _collected(param: Any, value: Any) -> bool:
    return isinstance(param, TyperOption) and isinstance(value, list) and not (param.multiple or param.count)


def _process(param: Any, checked: Callable[[Any, Any], Any], ctx: Any, value: Any) -> Any:
    """Convert a value by typer, unless that cannot change it: the check would load pydantic."""
    source = ctx.get_parameter_source(param.name)
    if source is not None and source.name == "COMMANDLINE" and _collected(param, value):
        value = _single(param, ctx, value)
    if source is not None and source.name == "DEFAULT" and not param.required:
        found = () if value is None and (param.multiple or param.nargs == -1) else value
        return found if param.callback is None else param.callback(ctx, param, found)
    # Versions of typer that have no descriptor load nothing either.
    descriptor = getattr(param, "type_descriptor", None)
    if descriptor is None or descriptor.parameter_info.parser is not None or param.callback is not None:
        return checked(ctx, value)
    if descriptor.annotation is str and isinstance(value, str):
        return value
    if descriptor.annotation == list[str] and isinstance(value, (list, tuple)) and value:
        return list(value)
    return checked(ctx, value)


# A command whose options are the fields of a dataclass: each is declared once, with its help, unit and default.

_CONTEXT = "context"


def command(
    request: type[Any], run: Callable[..., object] | str, *, context: bool = False
) -> Callable[[Callable[..., object]], Callable[..., None]]:
    """Turn the name and docstring of a function, or of `request`, into a command: it calls `run(request(**options))`.

    Annotations of the fields are `Annotated[type, typer.Option(...)]`, as for parameters of a command, or the fields
    are options of `plait.core.options`. With `context`, `run` also gets the context of the command. `run` may be
    `module:function`, imported when it is called: help needs no simulator.
    """
    hints = get_type_hints(request, include_extras=True)
    hints |= {one.name: Annotated[hints[one.name], _parameter(one)] for one in declared(request)}
    parameters = [
        inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, annotation=hints[field.name],
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
        )
        for field in fields(request)
    ]  # fmt: skip
    if context:
        parameters.insert(0, inspect.Parameter(_CONTEXT, parameters[0].kind, annotation=typer.Context))

    def decorate(named: Callable[..., object]) -> Callable[..., None]:
        def call(**given: Any) -> None:
            more = [given.pop(_CONTEXT)] if context else []
            (resolve_name(run) if isinstance(run, str) else run)(request(**given), *more)

        call.__name__, call.__doc__, call.__module__ = named.__name__, named.__doc__, named.__module__
        call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return call

    return decorate


def _parameter(one: Declared) -> Any:
    option = one.option
    flags = [*([f"-{option.short}"] if option.short else []), f"--{one.word}"]
    return typer.Option(
        *reversed(flags),
        help=one.text,
        min=option.least,
        max=option.most,
        metavar=option.metavar,
        envvar=option.env,
        show_default=False,  # the help has it, also of values that mean something else
    )
