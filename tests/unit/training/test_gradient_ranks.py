"""Squared norms of gradients on several ranks of DDP under plait: hooks in the hook that marks the network stage."""

from __future__ import annotations

from pathlib import Path

import pytest
from attempts import free_port, the_forker

pytest.importorskip("torch")


def play(script: str, world: int, folder: Path) -> None:
    """All ranks of a script, to the end."""
    forker, port = the_forker(), str(free_port())
    ranks = [forker.start(folder, 1, script, rank=rank, world=world, MASTER_PORT=port) for rank in range(world)]
    for attempt in ranks:
        code, output = attempt.end()
        assert code == 0, output
        assert "the end\n" in output


def test_estimates_are_those_of_the_gradients_that_went_in(tmp_path: Path) -> None:
    play("gradient_ranks.py", 3, tmp_path / "j-1")


def test_shards_of_fsdp2_give_the_estimate_of_the_whole(tmp_path: Path) -> None:
    play("sharded_ranks.py", 2, tmp_path / "j-1")
