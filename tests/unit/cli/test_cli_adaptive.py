"""`plait simulate` with jobs that adapt their batch: from a generated trace to figures, a log and its replay."""

from __future__ import annotations

import json

import pytest


@pytest.fixture
def adaptive(plait):
    """Six adaptive jobs, of two models."""
    assert plait("trace", "generate", "jobs.csv", "--preset", "pollux", "--jobs", 6, "--gpus", 8).code == 0
    return "jobs.csv"


def test_a_trace_without_durations_is_simulated_and_its_log_replays(plait, adaptive):
    answer = plait(
        "simulate", adaptive, "--world", "pollux", "-c", "2x4", "-p", "tiresias-l", "--log", "l.jsonl", "--json", "-",
        "--check", "--jobs", 4, "--report", "r.html",
    )  # fmt: skip
    assert answer.code == 0, answer.err
    (result,) = json.loads(answer.out)
    assert result["finished"] == 4
    assert result["gpu_useful"] is result["lost_gpu_h"] is None  # jobs run at sizes that they did not ask for
    with open("r.html") as report:
        assert "Offered load, by requested GPUs" in report.read()
    with open("l.jsonl") as log:
        rows = [json.loads(line) for line in log]
    reports = [row for row in rows if "GoodputReported" in json.dumps(row)]
    assert reports
    replayed = plait("replay", "l.jsonl", "--verify")
    assert replayed.code == 0, replayed.err
    assert "every decision is the same" in replayed.out + replayed.err


def test_elastic_jobs_ask_for_no_more_than_the_cluster_has(plait, adaptive):
    answer = plait("simulate", adaptive, "--world", "pollux", "-c", "1x2", "-p", "fifo", "--jobs", 3, "--json", "-")
    assert answer.code == 0, answer.err
    assert json.loads(answer.out)[0]["finished"] == 3


def test_rounds_delay_decisions_and_not_what_jobs_do(plait, adaptive):
    runs = {}
    for round_s in (0, 60):
        answer = plait(
            "simulate", adaptive, "--world", "pollux", "-c", "16x4", "-p", "fifo", "--round", round_s, "--json", "-",
            "--jobs-csv", f"{round_s}.csv",
        )  # fmt: skip
        assert answer.code == 0, answer.err
        runs[round_s] = json.loads(answer.out)[0]["avg_jct_s"]
    assert 0 <= runs[60] - runs[0] <= 60  # nobody waits for GPUs; each only for the next round


def test_models_of_an_adaptive_trace_are_its_own(plait):
    answer = plait("trace", "generate", "x.csv", "--preset", "pollux", "--assign-models", "uniform")
    assert answer.code == 2
    assert "draws models of its own" in answer.err


def test_worlds_lists_the_world_for_them(plait):
    assert "pollux" in plait("worlds").out
