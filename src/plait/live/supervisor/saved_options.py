"""How a home's services were started last, so that `plait up`, or `plait up --standby`, alone starts the same again."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from plait.core.errors import InputError
from plait.live.backends.base import NodeBackend
from plait.live.backends.registry import open_backend
from plait.live.layout import FIRST, Layout
from plait.live.service.options import SERVICE_OPTIONS
from plait.live.supervisor.services import STOP_S
from plait.live.system import procs

#: Among the options, that `plait down` has ended the nodes; no name of an option looks like it.
_DOWN = "--down"


def options_file(layout: Layout, name: str = FIRST) -> Path:
    """The file of the options of a service; the first one's options are shared by all."""
    return layout.home / ("up.json" if name == FIRST else f"up-{name}.json")


def pairs(words: Sequence[str]) -> dict[str, str]:
    """Options for the backend, which knows what they mean; `InputError` for what is no NAME=VALUE.

    >>> pairs(["partition=gpu", "sbatch=--account=a"])
    {'partition': 'gpu', 'sbatch': '--account=a'}
    """
    found: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name or name in SERVICE_OPTIONS:
            raise InputError(f"--option {word!r} is no NAME=VALUE for a backend; write for example: -o partition=gpu")
        if name in found:
            raise InputError(f"--option {name} is given twice ({found[name]!r} and {value!r}); give it once")
        found[name] = value
    return found


def remember(layout: Layout, options: dict[str, Any], name: str = FIRST) -> None:
    """These are the options from now on; for the owner of the home alone, for a store may have a password."""
    procs.write_json(options_file(layout, name), options)


def was_up(layout: Layout) -> bool:
    """Whether nodes of a `plait up` may exist: one was completed or killed, and no `plait down` came since."""
    found = procs.read_json(options_file(layout))
    return found is not None and _DOWN not in found


def remember_down(layout: Layout, options: dict[str, Any]) -> None:
    """`plait down` has ended the nodes; the next `plait up` continues with these options."""
    remember(layout, {**options, _DOWN: True})


def remembered(layout: Layout, name: str = FIRST) -> dict[str, Any]:
    """The options of the last `plait up`, or what was given with the last `plait up --standby` of this name."""
    path = options_file(layout, name)
    with contextlib.suppress(OSError):  # a version before let everybody read it
        path.chmod(0o600)
    found = procs.read_json(path) or {}
    # The store knows the policy, also one set later.
    return {k: v for k, v in found.items() if k not in ("policy", "may-lose-work", _DOWN)}


def remembered_backend(layout: Layout, stop_grace_s: float = STOP_S) -> NodeBackend:
    """The backend by which this home's nodes were started last."""
    return open_backend(layout, for_backend(remembered(layout)), stop_grace_s)


def for_backend(options: Mapping[str, Any]) -> dict[str, Any]:
    """A backend's part of the options: none of the service's, which it may not know.

    >>> for_backend({"backend": "slurm", "port": 8642, "partition": "gpu"})
    {'backend': 'slurm', 'partition': 'gpu'}
    """
    return {name: value for name, value in options.items() if name == "backend" or name not in SERVICE_OPTIONS}
