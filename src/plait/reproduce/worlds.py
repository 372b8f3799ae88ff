"""The published worlds by name: each has policies of its own, and runs them on its own trace files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from plait.control.metrics import RunResult

#: Name -> what is true there. Read without importing the world.
SUMMARIES: Mapping[str, str] = {
    "muri-artifact": "Muri's released simulator, to all printed digits: 64 GPUs, its placement, overheads and policies",
    "pollux-artifact": "Pollux's released simulator: 16 nodes of 4 GPUs, 60 s rounds, measured step times and noise",
}


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
    """What the command line needs of a published world.

    `takes` names the options of `plait simulate` that mean something here, beside those for output; `cluster` and
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
        """Run it; `ended(n)` is told whenever `n` more jobs have ended, `labels` go into the summary."""


def published_world(name: str) -> PublishedWorld | None:
    """The world of this name; None if there is none."""
    if name == "muri-artifact":
        from plait.reproduce.muri.world import MuriArtifact

        return MuriArtifact()
    if name == "pollux-artifact":
        from plait.reproduce.pollux.world import PolluxArtifact

        return PolluxArtifact()
    return None
