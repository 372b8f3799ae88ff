"""Recurring work: its shares against those that it follows, and how jobs carry what they run."""

from collections import Counter

import numpy as np
import pytest

from plait.core.errors import InputError
from plait.traces.canonical import read_canonical, write_canonical
from plait.traces.load import load_jobs
from plait.traces.synthetic import generate


@pytest.fixture(scope="module")
def table():
    return generate("recurring", 2000, 64, 1.0, seed=3)


def test_the_trace_is_a_function_of_its_seed_with_the_load_asked_for(table):
    assert table.equals(generate("recurring", 2000, 64, 1.0, seed=3))
    assert not table.equals(generate("recurring", 2000, 64, 1.0, seed=4))
    assert table.load(64) == pytest.approx(1.0, rel=1e-4)
    assert np.array_equal(generate("recurring", 2000, 64, None, seed=3)["duration_s"], table["duration_s"])


@pytest.mark.parametrize("seed", [0, 1])
def test_scripts_repeat_and_end_early_by_the_shares_of_production_fleets(seed):
    table = generate("recurring", 2000, 64, 1.0, seed)
    script = list(zip(table["user"].tolist(), table["script"].tolist(), strict=True))
    same = list(zip(script, table["arguments"].tolist(), strict=True))
    counts, same_counts = Counter(script), Counter(same)
    shares = {
        "of scripts that run five times or more": (np.mean([counts[one] >= 5 for one in script]), 0.79, 1.0),
        "of these with equal arguments": (np.mean([same_counts[one] >= 5 for one in same]), 0.43, 0.75),
        "first runs": (len(counts) / len(table), 0.079, 0.124),
        "failed": ((table["state"] == "failed").mean(), 0.133, 0.207),
        "stopped early": ((table["state"] == "cancelled").mean(), 0.108, 0.166),
    }
    for name, (share, low, high) in shares.items():
        assert low < share < high, name
    done = table["state"] == "completed"
    logs: dict[object, list[float]] = {}
    for one, log_s in zip(np.flatnonzero(done).tolist(), np.log(table["duration_s"][done]).tolist(), strict=True):
        logs.setdefault(same[one], []).append(log_s)
    within = np.concatenate([np.array(some) - np.mean(some) for some in logs.values() if len(some) >= 5])
    assert 0.2 < within.std() < 0.35
    assert np.log(table["duration_s"]).std() > 5 * within.std(), "what a job runs says most of its duration"


def test_failures_of_users_come_within_minutes(table):
    assert np.median(table["duration_s"][table["state"] == "failed"]) < 300


def test_jobs_carry_script_and_arguments_through_a_file(table, tmp_path):
    write_canonical(table, tmp_path / "jobs.csv")
    jobs = load_jobs(read_canonical(tmp_path / "jobs.csv")).jobs
    script, arguments = table["script"][7], table["arguments"][7]
    assert jobs[7].like == (f"{script} {arguments}", script)
    assert load_jobs(generate("gavel", 3, 8)).jobs[0].like == ()


def test_options_that_the_preset_draws_itself_are_refused():
    with pytest.raises(InputError, match="recurring draws models"):
        generate("recurring", 10, 8, models="uniform")
    with pytest.raises(InputError, match="leave out arrivals, max_duration"):
        generate("recurring", 10, 8, max_duration_s=60.0)
