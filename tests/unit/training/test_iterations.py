"""What counts as an iteration where it is not one pass and one step, and what the agent's words do at its end."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

pytest.importorskip("torch")
from attempts import PREEMPTED, Forker, same_weights, the_forker


@pytest.fixture(scope="module")
def forker() -> Forker:
    return the_forker()


@pytest.mark.parametrize(
    ("kind", "steps"),
    [("gan", 24), ("lbfgs", 24), ("scaler", 20), ("accumulated", 8), ("compiled", 24), ("channels_last", 24)],
)
def test_iterations_are_counted_once_and_resumed_exactly(kind: str, steps: int, forker: Forker, tmp_path: Path) -> None:
    undisturbed = forker.start(tmp_path / "j-1", 1, "iterations.py", str(tmp_path / "plain"), kind)
    for epoch, at in ((1, steps // 4), (2, steps // 2)):
        attempt = forker.start(tmp_path / "j-2", epoch, "iterations.py", str(tmp_path / "w"), kind, "0.02")
        attempt.until(at)
        attempt.send(signal.SIGTERM)
        code, output = attempt.end()
        assert code == PREEMPTED, output
    last = forker.start(tmp_path / "j-2", 3, "iterations.py", str(tmp_path / "w"), kind)
    code, output = last.end()
    assert code == 0, output
    assert last.page.steps == steps
    code, output = undisturbed.end()
    assert (code, undisturbed.page.steps) == (0, steps), output
    assert same_weights(tmp_path / "plain", tmp_path / "w")


def test_a_limit_of_memory_means_nothing_without_a_gpu(forker: Forker, tmp_path: Path) -> None:
    attempt = forker.start(tmp_path / "j-1", 1, "iterations.py", str(tmp_path / "w"), "lbfgs", "0.01")
    attempt.page.memory_limit_bytes = 1.0
    assert attempt.end()[0] == 0


def test_transfers_are_told_from_launches_and_the_profiler_makes_way(forker: Forker, tmp_path: Path) -> None:
    code, output = forker.start(tmp_path / "j-1", 1, "moving.py").end()
    assert code == 0, output
    assert "as it should be" in output


def test_asked_by_sigquit_a_job_says_where_it_is(forker: Forker, tmp_path: Path) -> None:
    attempt = forker.start(tmp_path / "j-1", 1, "iterations.py", str(tmp_path / "w"), "lbfgs", "0.02")
    attempt.until(3)
    attempt.send(signal.SIGQUIT)
    code, output = attempt.end()
    assert code == 0
    assert "most recent call first" in output
    assert " in lbfgs" in output
