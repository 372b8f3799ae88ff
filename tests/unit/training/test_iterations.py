"""What counts as an iteration where it is not one pass and one step, and what the agent's words do at its end."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from attempts import PREEMPTED, Forker, same_weights, steps_saved

from plait.training.profiler import MOST, WARM_UP
from plait.training.stages import GLANCE_S

pytest.importorskip("torch")


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


# Short steps are only counted, and everything else is done once in 50 ms: on a clock that only the steps move.


def figures(output: str) -> tuple[int, float, float]:
    """How often everything was done, the seconds on the GPU and the length of a step that the page shows."""
    words = output.splitlines()[-1].split()
    assert words[0] == "published", output
    return int(words[1]), float(words[3]), float(words[5])


def test_steps_of_one_millisecond_are_counted_exactly_and_measured_in_samples(forker: Forker, tmp_path: Path) -> None:
    code, output = forker.start(tmp_path / "j-1", 1, "short_steps.py", "1", "0", "2000").end()
    assert code == 0, output
    published, gpu_s, step_s = figures(output)
    assert WARM_UP + 20 < published < WARM_UP + MOST + 2000 / 10
    assert gpu_s == pytest.approx(2.0, abs=GLANCE_S + 0.005)  # as if each had been measured, but for the newest
    assert step_s == pytest.approx(0.001)


def test_steps_of_more_than_the_budget_are_all_measured(forker: Forker, tmp_path: Path) -> None:
    code, output = forker.start(tmp_path / "j-1", 1, "short_steps.py", "51", "0", "150").end()
    assert code == 0, output
    assert figures(output) == (150, pytest.approx(150 * 0.051), pytest.approx(0.051))


@pytest.mark.parametrize("stop", [3, 333])
def test_a_stop_is_obeyed_in_the_step_in_which_it_comes(stop: int, forker: Forker, tmp_path: Path) -> None:
    code, output = forker.start(tmp_path / "j-1", 1, "short_steps.py", "1", str(stop), "2000").end()
    assert code == PREEMPTED, output
    assert steps_saved(tmp_path / "j-1") == [stop]


def test_two_loaders_that_are_drawn_together_count_a_step_once(forker: Forker, tmp_path: Path) -> None:
    code, output = forker.start(tmp_path / "j-1", 1, "short_steps.py", "1", "0", "2000", "zip").end()
    assert code == 0, output
    assert figures(output)[1] == pytest.approx(2.0, abs=GLANCE_S + 0.005)


def test_a_short_step_calls_few_functions(forker: Forker, tmp_path: Path) -> None:
    """Each costs a step that computes about a microsecond. Measured steps, and beginnings of passes, are included."""
    code, output = forker.start(tmp_path / "j-1", 1, "short_steps.py", "1", "0", "2000", "calls").end()
    assert code == 0, output
    assert float(output.split("calls ")[1].split()[0]) < 15
