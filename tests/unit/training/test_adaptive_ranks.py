"""The gradient noise of one training is the same on 1, 2 and 4 ranks, and from one number to another."""

from __future__ import annotations

import json
import math
import signal
from pathlib import Path
from typing import Any

import pytest
from attempts import PREEMPTED, ROOT, Attempt, free_port, the_forker

from plait.runtime.gates import GATES, GroupMember, make_group
from plait.runtime.page import VERSION

pytest.importorskip("torch")
EPOCHS = 3


def start(folder: Path, epoch: int, world: int, gate: str = "", every: int = 1) -> list[Attempt]:
    """All ranks, at a gate if there is one; gradient noise is measured in every so many-th step."""
    forker, port = the_forker(), str(free_port())
    if gate:
        group = make_group(folder.parent / "g", gate, [GroupMember(1, 0, world)], version=1)
        for rank in range(world):
            run_dir = folder / "attempts" / str(epoch) / f"rank{rank}"
            run_dir.mkdir(parents=True)
            control = {"version": 1, "epoch": epoch, "group": group.control(1, rank), "made_by": VERSION}
            (run_dir / "control.json").write_text(json.dumps(control))
    return [
        forker.start(folder, epoch, "adaptive_ranks.py", str(every), rank=rank, world=world, MASTER_PORT=port)
        for rank in range(world)
    ]


def end(ranks: list[Attempt]) -> dict[str, Any]:
    """What they found, all alike."""
    said = []
    for attempt in ranks:
        code, output = attempt.end()
        assert code == 0, output
        said.append(json.loads(next(line for line in output.splitlines() if line.startswith("{"))))
        assert attempt.page.steps == said[-1]["steps"]
    assert all(one["found"] == said[0]["found"] for one in said)
    return said[0]


def near_the_truth(one: dict[str, Any], number: float = 540) -> None:
    """Within four standard errors, by the variances that theory gives `number` equally weighted estimates.

    The averages forget: they weigh 600 estimates like 540 equal ones.
    """
    n, true, (sqr, var) = one["samples"], one["truth"], one["found"]
    in_sqr = true["linear"] + 2 * true["square"] * n / (64 * (n - 1))
    in_var = 2 * true["square"] / (64 * (n - 1))
    assert abs(sqr - true["sqr"]) < 4 * math.sqrt(in_sqr / number)
    assert abs(var - true["var"]) < 4 * math.sqrt(in_var / number)


@pytest.mark.parametrize(("world", "full", "gate"), [(1, 200, ""), (2, 200, "barrier"), (4, 199, "")])
def test_phi_is_the_same_on_any_number_of_ranks(world: int, full: int, gate: str, tmp_path: Path) -> None:
    """Of 1,602 samples 8 make a step; what is left is in one or two uneven steps, which give no estimate.

    At a barrier buckets are kept back until all of them are computed.
    """
    ranks = start(tmp_path / "j-1", 1, world, gate)
    one = end(ranks)
    assert all(GATES[attempt.page.gate] == (gate or "none") for attempt in ranks)
    assert (one["steps"], one["updates"]) == (EPOCHS * 201, EPOCHS * full)
    near_the_truth(one)


@pytest.mark.parametrize(("world", "full"), [(1, 200), (2, 200)])
def test_ranks_measure_the_same_steps_when_most_are_left_out(world: int, full: int, tmp_path: Path) -> None:
    """The first 24 full steps, and then every fourth; each estimate stands for those since the previous one."""
    one = end(start(tmp_path / "j-1", 1, world, every=4))
    assert one["steps"] == EPOCHS * 201
    assert one["updates"] == 24 + EPOCHS * full // 4 - 24 // 4
    near_the_truth(one, 130)


def test_estimates_go_on_where_another_number_of_ranks_has_left(tmp_path: Path) -> None:
    before = start(tmp_path / "j-1", 1, 2)
    before[0].until(250)
    for attempt in before:
        attempt.send(signal.SIGTERM)
    for attempt in before:
        assert attempt.end()[0] == PREEMPTED
    assert 250 <= before[0].page.steps < 600
    one = end(start(tmp_path / "j-1", 2, 1))
    assert (one["steps"], one["updates"]) == (EPOCHS * 201, EPOCHS * 200)
    near_the_truth(one)


def test_the_example_runs(tmp_path: Path) -> None:
    example = ROOT / "examples" / "training" / "adaptive.py"
    attempt = the_forker().start(tmp_path / "j-1", 1, example, "--epochs", "0.3")
    code, output = attempt.end()
    assert code == 0, output
    assert "% right (goal 95.0%)" in output
    assert attempt.page.progress >= 0.3 * 256
