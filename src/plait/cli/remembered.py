"""How a home's services were started last, so that `plait up`, or `plait up --standby`, alone starts the same again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from plait.cli.services import SERVICE_OPTIONS, STOP_S
from plait.core.errors import InputError
from plait.live.agent import procs
from plait.live.backends.base import Backend, open_backend
from plait.live.layout import Layout
from plait.live.service.facts import FIRST


def options_file(layout: Layout, name: str = FIRST) -> Path:
    """Where the options of a service are; those of the first are everybody's."""
    return layout.home / ("up.json" if name == FIRST else f"up-{name}.json")


def pairs(words: Sequence[str]) -> dict[str, str]:
    """Options for the backend, which knows what they mean; `InputError` for what is no NAME=VALUE.

    >>> pairs(["partition=gpu", "sbatch=--account=a"])
    {'partition': 'gpu', 'sbatch': '--account=a'}
    """
    found = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name or name in SERVICE_OPTIONS:
            raise InputError(f"--option {word!r} is no NAME=VALUE for a backend; write for example: -o partition=gpu")
        found[name] = value
    return found


def remember(layout: Layout, options: dict[str, Any], name: str = FIRST) -> None:
    """These are the options from now on; for the owner of the home alone, for a store may have a password."""
    procs.write_json(options_file(layout, name), options)


def was_up(layout: Layout) -> bool:
    """Whether a `plait up` has come to its end here, or was killed before."""
    return options_file(layout).exists()


def remembered(layout: Layout, name: str = FIRST) -> dict[str, Any]:
    """The options of the last `plait up`, or what was given with the last `plait up --standby` of this name."""
    found = procs.read_json(options_file(layout, name)) or {}
    return {k: v for k, v in found.items() if k != "policy"}  # the store knows the policy, also one set later


def remembered_backend(layout: Layout, stop_grace_s: float = STOP_S) -> Backend:
    """The backend by which this home's nodes were started last."""
    return open_backend(layout, remembered(layout), stop_grace_s)
