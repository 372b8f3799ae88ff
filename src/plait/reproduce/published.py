"""The interface of a published world, and one run of it as a value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from plait.control.metrics import RunResult


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
