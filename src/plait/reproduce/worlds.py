"""The published worlds by name: each has policies of its own, and runs them on its own trace files."""

from __future__ import annotations

from collections.abc import Mapping

from plait.reproduce.published import PublishedWorld

#: Name -> what is true there. Read without importing the world.
SUMMARIES: Mapping[str, str] = {
    "muri-artifact": "Muri's released simulator, to all printed digits: 64 GPUs, its placement, overheads and policies",
    "pollux-artifact": "Pollux's released simulator: 16 nodes of 4 GPUs, 60 s rounds, measured step times and noise",
}


def published_world(name: str) -> PublishedWorld | None:
    """The world of this name; None if there is none."""
    if name == "muri-artifact":
        from plait.reproduce.muri.world import MuriArtifact

        return MuriArtifact()
    if name == "pollux-artifact":
        from plait.reproduce.pollux.world import PolluxArtifact

        return PolluxArtifact()
    return None
