"""Options declared once, as fields of a dataclass: type, help, unit, default. Parsers and help derive from them.

    @dataclass(frozen=True)
    class Options:
        round_s: float = option("Least seconds between decisions", default=1.0)

    parse(Options, ["--round", "2"])       # Options(round_s=2.0)
    words(Options, {"round": 2.0})         # ["--round", "2.0"]

A name that ends in `_s` is a number of seconds; its flag is without the ending.
"""

from __future__ import annotations

import argparse
import os
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import cache
from typing import Any, TypeVar

T = TypeVar("T")
_KEY = "option"
_hints = cache(typing.get_type_hints)  # `plait submit` looks up forty options of one class


@dataclass(frozen=True)
class Option:
    """Properties of an option besides its name, type and default.

    help       one sentence, without a full stop
    unset      the value that holds when the option is absent, in words; otherwise its default, if it can be printed
    flag       the long name, if it differs from the field's; `short` is a one-letter name
    least      and `most`: the range of a number that a person types
    metavar    the placeholder for its value in the help
    env        the environment variable that also sets it
    group      a label that the owner of the options may use to divide them
    """

    help: str
    unset: str = ""
    flag: str = ""
    short: str = ""
    least: float | None = None
    most: float | None = None
    metavar: str | None = None
    env: str | None = None
    group: str = ""


def option(meaning: str, *, default: Any = MISSING, **more: Any) -> Any:
    """A field of a dataclass that is an option; `meaning` is its help, `more` are other fields of `Option`."""
    return put(Option(meaning, **more), default)


def put(said: Option, default: Any = MISSING) -> Any:
    """A field of a dataclass that is this option."""
    return field(default=default, metadata={_KEY: said})


@dataclass(frozen=True)
class Declared:
    """An option with its name, type (bool of a flag, a list of a repeatable one) and default."""

    name: str
    type: Any
    default: Any
    option: Option

    @property
    def word(self) -> str:
        """The long name without dashes.

        >>> Declared("lead_lease_s", float, 3.0, Option("")).word
        'lead-lease'
        """
        return self.option.flag or self.name.removesuffix("_s").replace("_", "-")

    @property
    def unit(self) -> str:
        """`seconds` for a name that ends in `_s`, else nothing."""
        return "seconds" if self.name.endswith("_s") else ""

    @property
    def many(self) -> bool:
        """Whether it may be given several times."""
        return typing.get_origin(self.type) in (list, tuple)

    @property
    def text(self) -> str:
        """Its help, as sentences: its meaning, and what holds if it is absent."""
        unset = self.option.unset
        if not unset and not isinstance(self.default, bool) and self.default not in (None, MISSING, ()):
            unset = f"{self.default:g}" if isinstance(self.default, float) else str(self.default)
        said = [self.option.help, "may be repeated" if self.many else "", f"default: {unset}" if unset else ""]
        return "; ".join(filter(None, said)) + "."


def declared(kind: type[Any]) -> list[Declared]:
    """The options of a dataclass, in the order of its fields."""
    hints = _hints(kind)  # type: ignore[arg-type]
    return [
        Declared(f.name, _known(hints[f.name]), f.default, f.metadata[_KEY]) for f in fields(kind) if _KEY in f.metadata
    ]


def same(kind: type[Any], name: str, **changed: Any) -> Any:
    """A field that is an option of another dataclass, and None unless it is given: the other one has the default.

    `changed` are fields of `Option` that differ, as a flag.
    """
    found = next(one for one in declared(kind) if one.name == name)
    unset = found.text.removeprefix(found.option.help).partition("default: ")[2].removesuffix(".")
    return put(replace(found.option, **{"unset": unset, **changed}), False if found.type is bool else None)


def parser(kind: type[Any], **about: Any) -> argparse.ArgumentParser:
    """A parser of the options; `about` are arguments of `ArgumentParser`."""
    made = argparse.ArgumentParser(**about)
    for one in declared(kind):
        flags = [*([f"-{one.option.short}"] if one.option.short else []), f"--{one.word}"]
        how: dict[str, Any] = {"help": one.text.replace("%", "%%"), "dest": one.name}
        if one.type is bool:
            made.add_argument(*flags, action="store_true", **how)
            continue
        how["metavar"] = one.option.metavar or one.word.upper().replace("-", "_")
        if one.many:
            made.add_argument(*flags, action="append", default=[], **how)
            continue
        default = one.default
        if one.option.env and os.environ.get(one.option.env):
            default = os.environ[one.option.env]
        made.add_argument(*flags, type=one.type, default=default, required=default is MISSING, **how)
    return made


def parse(kind: type[T], argv: Sequence[str] | None, **about: Any) -> T:
    """The options of a command line; ends the process for unknown ones, as `argparse` does."""
    found = vars(parser(kind, **about).parse_args(argv))
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in found.items()})


def words(kind: type[Any], values: Mapping[str, Any]) -> list[str]:
    """The words of a command line for values by long name; others than options of `kind` are left out.

    None, False and empty values give no words.
    """
    out: list[str] = []
    for one in declared(kind):
        value = values.get(one.word)
        if value is True:
            out.append(f"--{one.word}")
        elif value is not None and value is not False:
            for each in value if isinstance(value, (list, tuple)) else (value,):
                out += [f"--{one.word}", str(each)]
    return out


def _known(hint: Any) -> Any:
    if typing.get_origin(hint) not in (typing.Union, types.UnionType):
        return hint
    return next(part for part in typing.get_args(hint) if part is not type(None))
