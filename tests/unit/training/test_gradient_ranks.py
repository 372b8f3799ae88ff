"""Squared norms of gradients on several ranks of DDP under plait: hooks in the hook that marks the network stage."""

from __future__ import annotations

from pathlib import Path

import pytest
from attempts import free_port, the_forker

pytest.importorskip("torch")


@pytest.mark.parametrize("world", [2, 3])
def test_estimates_are_those_of_the_gradients_that_went_in(world: int, tmp_path: Path) -> None:
    forker, port = the_forker(), str(free_port())
    ranks = [
        forker.start(tmp_path / "j-1", 1, "gradient_ranks.py", rank=rank, world=world, MASTER_PORT=port)
        for rank in range(world)
    ]
    for attempt in ranks:
        code, output = attempt.end()
        assert code == 0, output
        assert output == "the end\n"
