"""A command whose options are the fields of a dataclass: each is declared once, with its help, unit and default."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields
from pkgutil import resolve_name
from typing import Annotated, Any, get_type_hints

import typer

from plait.core.options import Declared, declared

_CONTEXT = "context"


def command(
    request: type[Any], run: Callable[..., object] | str, *, context: bool = False
) -> Callable[[Callable[[], None]], Callable[..., None]]:
    """Turn a function that has only a name and a docstring into a command: it calls `run(request(**options))`.

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

    def decorate(named: Callable[[], None]) -> Callable[..., None]:
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
        *reversed(flags), help=one.text, min=option.least, max=option.most, metavar=option.metavar, envvar=option.env
    )
