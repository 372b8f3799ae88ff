"""A job that adapts in all ways at once: other numbers of ranks, batches by its own times and noise; all is kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from attempts import PREEMPTED, free_port, the_forker

from plait.core.goodput import THETA, Estimate
from plait.runtime.page import Page

pytest.importorskip("torch")


def test_one_then_four_then_two_ranks_train_on_and_report_what_they_learned(tmp_path: Path) -> None:
    forker, job, outputs = the_forker(), tmp_path / "j-1", ""
    for epoch, (world, steps) in enumerate([(1, 12), (4, 8), (2, 0)], start=1):
        extra = {"MASTER_PORT": str(free_port()), "world": world}
        gang = [
            forker.start(job, epoch, "adaptive_whole.py", str(tmp_path / "seen"), str(steps), rank=r, **extra)
            for r in range(world)
        ]
        for attempt in gang:
            code, output = attempt.end()
            assert code == (PREEMPTED if steps else 0), output
            outputs += output
    lines = [line.split() for file in tmp_path.glob("seen-*") for line in file.read_text().splitlines()]
    for turn in ("0", "1"):
        assert sorted(int(i) for line in lines if line[0] == turn for i in line[1:]) == list(range(600))
    said = [line.split() for line in outputs.splitlines() if line.startswith("pass")]
    assert [line[1] for line in said] == ["600", "600"]
    assert float(said[1][2]) < float(said[0][2])
    told = json.loads(next(line for line in outputs.splitlines() if line.startswith("told"))[5:])
    assert told["gpus"] == [1, 2, 4]
    assert told["known"]
    with Page.open(gang[0].folder / "page.bin", mapped=False) as page:
        numbers = page.goodput
        assert numbers is not None
        assert all(number > 0 for number in numbers[:THETA])
        assert numbers[Estimate.PROFILED_GPUS] == 4
        assert numbers[Estimate.VAR] > 0
        assert page.progress == page.total_progress == told["progress"]
        assert page.batch_size == told["batch"] >= 16
