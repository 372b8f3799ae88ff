"""Asking the service for a tool: a client a call, and errors that the agent can read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
from mcp.server.mcpserver.exceptions import ToolError

from plait.core.errors import PlaitError
from plait.live.api import Answer
from plait.live.client.client import Client


@dataclass(frozen=True)
class Asking:
    """How tools reach the service. `connect` makes a client: one for each call, so that a service may move between two.

    `here`: whether its jobs run on this machine, so that their programs can be looked for before submission.
    """

    connect: Callable[[], Client]
    here: Callable[[], bool]

    @contextmanager
    def service(self) -> Iterator[Client]:
        """The service. Its errors, and errors of input, become errors of the tool: the sentence that users get."""
        with readable_errors(), self.connect() as client:
            yield client


@contextmanager
def readable_errors() -> Iterator[None]:
    """Errors raised on purpose become errors of the tool; all others are defects, of which agents get the name only."""
    try:
        yield
    except PlaitError as error:
        raise ToolError(str(error)) from error


def fields(answer: Answer) -> dict[str, Any]:
    """The fields of an answer of the service, as tools return them: the JSON of the HTTP API."""
    found: dict[str, Any] = msgspec.to_builtins(answer)
    return found
