"""Values of TOML tables and `option=value` texts as dataclasses of declared options. Start at `read_options`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING
from typing import Any, TypeVar

from plait.core.errors import InputError, suggest
from plait.core.options import Declared, declared

T = TypeVar("T")
_KINDS = {int: "a whole number", float: "a number", str: "text", list: "a list of two names"}


def read_options(kind: type[T], values: Mapping[str, Any], where: str) -> T:
    """A dataclass of options from values of TOML, or from texts.

    Raises `InputError` that names the place, the field, what was given and what it needs.
    """
    known = {one.name: one for one in declared(kind)}
    refuse_unknown(values, known, where)
    for name, one in known.items():
        if one.default is MISSING and name not in values:
            raise InputError(f"{where}: {name} is missing; it is: {one.option.help}")
    return kind(**{name: _value(known[name], value, where) for name, value in values.items()})


def split_options(text: str, what: str, example: str) -> tuple[str, dict[str, Any], str]:
    """The name of a text `NAME[:option=value,...]`, its options as texts, and the place that errors name.

    `what` it describes, and an `example` for errors; raises `InputError` for anything else.
    """
    name, _, rest = text.partition(":")
    where = f"{what} {text[:200]!r}"
    values: dict[str, Any] = {}
    for part in rest.split(",") if rest else ():
        key, equals, value = (word.strip() for word in part.partition("="))
        if not equals:
            raise InputError(f"{where}: {part!r} is not option=value; e.g. {example}")
        if key in values:
            raise InputError(f"{where}: {key} is given twice")
        values[key] = value
    return name, values, where


def tables(given: Any, where: str) -> list[Mapping[str, Any]]:
    """An array of tables; raises `InputError` for anything else."""
    if not isinstance(given, list) or not all(isinstance(row, Mapping) for row in given):
        raise InputError(f"{where} is {given!r:.80}, needs tables: one [[{where.rpartition(': ')[2]}]] for each")
    return given


def refuse_unknown(given: Iterable[str], known: Iterable[str], where: str) -> None:
    """Raise `InputError` for the first key that is not known, with the nearest one that is."""
    names = list(known)
    for key in given:
        if key not in names:
            raise InputError(f"{where}: {key!r} is no field; {suggest(key, names)}")


def placed(make: Callable[[], T], where: str) -> T:
    """What `make` returns; its errors also name the place."""
    try:
        return make()
    except InputError as error:
        raise InputError(f"{where}: {error}") from error


def _value(one: Declared, given: Any, where: str) -> Any:
    if one.many:
        if isinstance(given, list) and len(given) == 2 and all(isinstance(end, str) and end for end in given):
            return given
        raise _wrong(one, given, where)
    value: Any = given
    if isinstance(given, str) and one.type in (int, float):
        try:
            value = one.type(given)
        except ValueError:
            raise _wrong(one, given, where) from None
    if one.type is float and type(value) is int:
        value = float(value)
    if type(value) is not one.type or value == "":
        raise _wrong(one, given, where)
    least, most = one.option.least, one.option.most
    if least is not None and most is not None and not (math.isfinite(value) and least <= value <= most):
        raise _wrong(one, given, where)
    return value


def _wrong(one: Declared, given: Any, where: str) -> InputError:
    kind = _KINDS[list if one.many else one.type]
    least, most = one.option.least, one.option.most
    span = "" if least is None or most is None else f" from {least:,.15g} to {most:,.15g}"
    return InputError(f"{where}: {one.name} is {given!r:.80}, needs {kind}{span} ({one.option.help})")
