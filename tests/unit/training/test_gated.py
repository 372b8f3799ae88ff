"""Real training at real gates: paced, finished, and bitwise what it would have been alone."""

import json
from pathlib import Path

import pytest
from attempts import Attempt, Forker, free_port, same_weights

from plait.core.resources import Resource
from plait.runtime.gates import GATES, Group, GroupMember, make_group
from plait.runtime.page import VERSION

pytest.importorskip("torch")
STORAGE, CPU, GPU, NETWORK = Resource


def tell(run_dir: Path, group: Group, job: int, rank: int = 0) -> None:
    """What the agent says to a rank before it starts."""
    run_dir.mkdir(parents=True)
    control = {"version": 1, "epoch": 1, "group": group.control(job, rank), "made_by": VERSION}
    (run_dir / "control.json").write_text(json.dumps(control))


def join(forker: Forker, folder: Path, group: Group, job: int, *args: str, world: int = 1) -> list[Attempt]:
    """All ranks of a job of the group."""
    port, started = str(free_port()), []
    for rank in range(world):
        run_dir = folder / f"j-{job}" / "attempts" / "1" / f"rank{rank}"
        tell(run_dir, group, job, rank)
        started.append(
            forker.start(folder / f"j-{job}", 1, *args, rank=rank, world=world, MASTER_PORT=port)  # type: ignore[arg-type]
        )
    return started


@pytest.mark.parametrize("gate", ["tokens", "barrier"])
@pytest.mark.parametrize("workers", ["0", "2"])
def test_two_jobs_at_a_gate_learn_what_they_learn_alone(
    gate: str, workers: str, forker: Forker, tmp_path: Path
) -> None:
    options = ("--workers", workers, "--epochs", "2", "--delay", "0.002")
    assert forker.start(tmp_path / "alone", 1, "tiny.py", str(tmp_path / "plain"), *options).end()[0] == 0
    group = make_group(tmp_path / "g", gate, [GroupMember(1, 0), GroupMember(2, 2)], version=1)
    both = [
        attempt
        for job in (1, 2)
        for attempt in join(forker, tmp_path, group, job, "tiny.py", str(tmp_path / f"w{job}"), *options)
    ]
    for attempt in both:
        output = attempt.ends()
        assert "Warning" not in output
        assert GATES[attempt.page.gate] == gate
        assert attempt.page.gate_timeouts == 0
        assert attempt.page.profile is None  # beside another, nothing is a profile
    assert sum(attempt.page.waited_s[GPU] for attempt in both) > 0
    for job in (1, 2):
        assert same_weights(tmp_path / "plain", tmp_path / f"w{job}")


@pytest.mark.parametrize("gate", ["tokens", "barrier"])
def test_two_jobs_of_two_ranks_at_a_gate(gate: str, forker: Forker, tmp_path: Path) -> None:
    group = make_group(tmp_path / "g", gate, [GroupMember(1, 0, 2), GroupMember(2, 1, 2)], version=1)
    ranks = [
        attempt
        for job in (1, 2)
        for attempt in join(forker, tmp_path, group, job, "two.py", str(tmp_path / f"w{job}"), world=2)
    ]
    for attempt in ranks:
        output = attempt.ends()
        assert "Warning" not in output
        assert attempt.page.gate_timeouts == 0
        assert attempt.page.busy_s[NETWORK] > 0
    for rank in "01":
        assert same_weights(tmp_path / f"w1{rank}", tmp_path / f"w2{rank}")
