"""What is left of jobs, drawn from those that ended."""

from __future__ import annotations

import numpy as np
import pytest

from plait.live.scheduler.explain.durations import ENOUGH, POOLS, History, Unknown, draw, residual, script_of


def unknown(user: str = "ann", name: str = "net", gpus: int = 1, **values: float) -> Unknown:
    given = {"ran_s": 0.0, "left_s": np.nan, "stated_s": np.nan, "limit_s": np.nan, **values}
    return Unknown([user], [name], np.array([gpus]), *(np.array([one]) for one in given.values()))


def history(*rows: tuple[str, str, int, float]) -> History:
    found = History()
    for row in rows:
        found.add(*row)
    return found


def test_the_longer_it_has_run_the_more_is_left() -> None:
    rng, known = np.random.default_rng(1), np.sort(np.random.default_rng(2).pareto(1.0, 2000) + 1)
    medians = [float(np.median(residual(known, np.full(500, ran), rng.random((20, 500))))) for ran in (0.5, 4, 20)]
    assert medians == sorted(medians)
    assert medians[2] == pytest.approx(20.0, rel=0.25)  # of a Pareto law with exponent 1 as much again is left


def test_the_draws_cover_the_distribution_that_they_are_from() -> None:
    durations = np.random.default_rng(3).lognormal(5, 1, 300)
    known = history(*(("ann", "net", 1, float(s)) for s in durations))
    left, words = draw(unknown(), known, 400)
    assert words == ["300 ended jobs of the same user, name and size"]
    assert np.quantile(left, [0.1, 0.5, 0.9]) == pytest.approx(np.quantile(durations, [0.1, 0.5, 0.9]), rel=0.15)


@pytest.mark.parametrize(
    ("job", "words"),
    [
        (("ann", "net", 1), "5 ended jobs of the same user, name and size"),
        (("ann", "net", 8), "5 ended jobs of the same user and name"),
        (("ann", "other", 1), "5 ended jobs of the same user and size"),
        (("ann", "other", 8), "5 ended jobs of the same user"),
        (("ben", "net", 1), "10 ended jobs of the same size"),
        (("ben", "", 8), "10 jobs that ended"),
    ],
)
def test_the_closest_pool_with_enough_jobs_counts(job: tuple[str, str, int], words: str) -> None:
    known = history(*([("ann", "net", 1, 10.0)] * ENOUGH), *([("eve", "old", 1, 90.0)] * ENOUGH))
    assert draw(unknown(*job), known, 8)[1] == [words]


def test_progress_goes_first_then_what_was_stated_then_nothing() -> None:
    left, words = draw(unknown(left_s=100.0), History(), 50)
    assert words == ["its own progress"]
    assert np.median(left) == pytest.approx(100.0, rel=0.1)
    left, words = draw(unknown(stated_s=1000.0), History(), 200)
    assert words[0].startswith("what it stated, give or take")
    assert np.median(left) == pytest.approx(1000.0, rel=0.15)
    assert draw(unknown(), History(), 4)[1][0].startswith("a wide guess")


def test_statements_are_as_wrong_as_they_were_before() -> None:
    known = History()
    for i in range(40):
        known.add("ann", f"job {i}", 1, 2000.0 + i, 1000.0)
    left, words = draw(unknown(stated_s=50.0), known, 100)
    assert words == ["what it stated, as far off as the user's last 40 statements were"]
    assert np.median(left) == pytest.approx(100.0, rel=0.1)


@pytest.mark.parametrize(
    ("command", "gpus", "words", "middle_s"),
    [
        ("python net.py --lr 1", 2, "3 ended jobs of the same user, command and size", 20.0),
        ("python net.py --lr 9", 2, "4 ended jobs of the same user, script and size", 20.0),
        ("python net.py --lr 9", 4, "4 ended jobs of the same user and script", 20.0),
        ("python other.py", 2, "7 ended jobs of the same user, name and size", 900.0),
    ],
)
def test_three_runs_of_a_script_say_more_than_many_other_jobs(
    command: str, gpus: int, words: str, middle_s: float
) -> None:
    known = History()
    for i, run in enumerate(["python net.py --lr 1"] * 3 + ["python net.py --lr 2"]):
        known.add("ann", "net", 2, 19.0 + i, command=run)
    for other in ("python a.py", "python b.py", "python -c pass"):
        known.add("ann", "net", 2, 900.0, command=other)
        known.add("ben", "net", 2, 900.0, command="python net.py --lr 1")
    nothing = np.full(1, np.nan)
    job = Unknown(["ann"], ["net"], np.array([gpus]), np.zeros(1), nothing, nothing, nothing, [command])
    left, said = draw(job, known, 400)
    assert said == [words]
    low, middle, high = np.quantile(left, [0.1, 0.5, 0.9])
    if middle_s < 100:
        assert middle == pytest.approx(middle_s, rel=0.25)
        assert low > middle_s / 6
        assert high < middle_s * 5


def test_a_run_without_a_known_duration_says_nothing_of_its_script() -> None:
    known = History()
    for _ in range(3):
        known.add("ann", "", 1, 0.0, command="python net.py")
    assert known.closest("ann", "", 1, "python net.py")[0] == len(POOLS) - 1


@pytest.mark.parametrize(
    ("command", "script"),
    [
        ("/venv/bin/python3.11 -u train.py 3", "train.py"),
        ("accelerate launch --config a.yaml fit.py", "fit.py"),
        ("python -m torch.distributed.run --nproc 2 t.py --x", "t.py"),
        ("bash -c 'sleep 3'", "bash -c 'sleep 3'"),
        ("./a.out 1 2", "./a.out"),
        ("julia fit.jl 3", "fit.jl"),
        ("nohup nice -n 5 python fit.py", "fit.py"),
        ("", ""),
    ],
)
def test_the_script_of_a_command(command: str, script: str) -> None:
    assert script_of(command) == script


def test_same_seed_same_draws() -> None:
    known = history(*(("ann", "net", 1, float(s)) for s in range(1, 30)))
    np.testing.assert_array_equal(draw(unknown(), known, 10, 3)[0], draw(unknown(), known, 10, 3)[0])
