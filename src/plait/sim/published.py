"""Worlds of installed packages that run published simulators: their interface, one run as a value, and their registry.

A package registers a world by the entry point group `plait.worlds`: name -> a class of the interface `PublishedWorld`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Protocol

from plait.control.metrics import RunResult
from plait.core.errors import InputError, suggest


@dataclass(frozen=True)
class PublishedRun:
    """One run of a published world; `round_s` 0 and `overheads` None are as published.

    `data` is the folder with the measurements, for worlds that have any.
    """

    world: str
    trace: Path
    policy: str
    jobs: int | None = None
    round_s: float = 0.0
    overheads: str | None = None
    data: Path | None = None


class PublishedWorld(Protocol):
    """Interface of a published world for the command line.

    `takes` names the options of `plait simulate` that apply here, in addition to options for output; `cluster` and
    `trace_format` may be given as they are (None: none).
    """

    summary: str
    policies: Mapping[str, str]
    options: Mapping[str, str]
    cluster: str
    trace_format: str | None
    takes: tuple[str, ...]
    overheads: tuple[str, ...]

    def check(self, policy: str) -> None:
        """Raise `InputError` if the policy or its options are not of this world."""

    def jobs(self, run: PublishedRun) -> int:
        """How many jobs the run has; raises `InputError` for a trace that is not of this world."""

    def run(self, run: PublishedRun, ended: Callable[[int], None] | None = None, **labels: Any) -> RunResult:
        """Run it; `ended(n)` is called whenever `n` more jobs have ended; `labels` go into the summary."""


@cache
def _installed() -> Mapping[str, EntryPoint]:
    """Worlds by name, read once, because that opens a file of every installed package; none is imported."""
    return {entry.name: entry for entry in entry_points(group="plait.worlds")}


def published_names() -> tuple[str, ...]:
    return tuple(_installed())


def published_world(name: str) -> PublishedWorld:
    """The world of this name, one of `published_names`."""
    world: PublishedWorld = _installed()[name].load()()
    return world


def split_options(text: str, world: str, policies: Iterable[str], example: str) -> tuple[str, dict[str, str]]:
    """The name and the options, unread, of `NAME` or `NAME:option=value,...`.

    Raises `InputError` for a policy that the world does not have, an option without a value or given twice; `example`
    is shown to users who forget the value.

    >>> split_options("optimus:interval=120", "pollux-artifact", ["optimus"], "optimus:nodes=8")
    ('optimus', {'interval': '120'})
    """
    known = list(policies)
    name, _, rest = text.strip().partition(":")
    if name not in known:
        hint = suggest(name, known)
        has = "" if hint.startswith("known") else f"; it has {', '.join(known)}"
        raise InputError(f"world {world} has no policy {name!r}; {hint}{has}")
    given: dict[str, str] = {}
    for part in filter(None, (p.strip() for p in rest.split(","))):
        option, equals, value = part.partition("=")
        if not equals:
            raise InputError(f"{text.strip()}: {part!r} is not option=value; write e.g. {example}")
        if option in given:
            raise InputError(f"{text.strip()}: option {option!r} is given twice; give it once")
        given[option] = value
    return name, given
