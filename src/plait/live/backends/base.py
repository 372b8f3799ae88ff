"""A backend brings agents to nodes, keeps them there, and takes them away. Nothing else.

Agents talk to the service themselves, however they were started, so a backend never sees a job: placement, desired
state and truth stay with the service. All nodes see the home folder under the same path.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from plait.core.errors import InputError

if TYPE_CHECKING:
    from plait.live.client.client import Client

#: States of a node as its backend sees it.
UP, COMING, DEAD, LEAVING = "up", "coming", "dead", "leaving"
#: Most seconds that jobs get for a checkpoint when their agents are ended with them.
STOP_GRACE_S = 10.0


@dataclass(frozen=True)
class BackendNode:
    """A node as its backend sees it. `pid` of the agent if that is on this machine and known."""

    name: str
    gpus: int
    state: str
    detail: str = ""
    pid: int | None = None


class NodeBackend(Protocol):
    """Agents on the nodes of some engine. A backend derives its memory from the engine and the home folder."""

    name: str

    def start(self) -> list[str]:
        """Agents for all nodes that have none; the names of nodes whose agent was started now.

        Agents that run already, started by whomever, are kept. Raises `InputError` if the engine cannot be used.
        """

    def maintain(self, service: Client) -> list[str]:
        """Check about every second: start what is missing, report dead nodes to the service, grow or shrink.

        Returns what was done, a sentence or name each. Raises `PlaitError` for trouble that may pass.
        """

    def list_nodes(self) -> list[BackendNode]:
        """All nodes that it knows of."""

    def expected(self) -> int:
        """How many nodes join soon after `start`; callers wait for these."""

    def expected_gpus(self) -> int:
        """How many GPUs these nodes have; 0 if unknown before they join."""

    def most_gpus(self) -> int:
        """How many GPUs its nodes may have one day: jobs that need more are refused, others wait for nodes.

        `ANY_SIZE` if unknown; 0 if there are never more nodes than `start` brings.
        """

    def stop(self, jobs: bool) -> None:
        """Take the agents away; with `jobs` their jobs too (gracefully), otherwise jobs run on for the next agents."""


def whole(options: Mapping[str, Any], name: str) -> int | None:
    """An option that is a whole number, which may have come as text; None if it was not given."""
    value = options.get(name)
    try:
        return None if value is None else int(value)
    except ValueError:
        raise InputError(f"{name} is {value!r}, needs a whole number: -o {name}=4") from None


def seconds(options: Mapping[str, Any], name: str, default: float) -> float:
    """An option that is seconds of at least 0, which may have come as text."""
    value = options.get(name)
    with contextlib.suppress(TypeError, ValueError):
        if value is None or 0 <= float(value) < math.inf:
            return default if value is None else float(value)
    raise InputError(f"{name}={value} needs seconds, at least 0: -o {name}=60")


def gigabytes(options: Mapping[str, Any], name: str) -> float | None:
    """An option that is a size in GB above 0, which may have come as text; None if it was not given."""
    value = options.get(name)
    with contextlib.suppress(ValueError):
        if value is None or 0 < float(value) < 1e6:
            return None if value is None else float(value)
    raise InputError(f"{name} is {value!r}, needs a number of GB above 0: -o {name}=16")
