"""All policies on equal terms: the grid, what a row compares, the command; and Lucid's published description."""

import json
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from plait.control.controller import Controller
from plait.control.messages import JobSubmitted, ReplanDue
from plait.core.cluster import Cluster
from plait.core.errors import InputError
from plait.core.jobs import JobBatch, JobSpec
from plait.core.plan import Gate
from plait.core.resources import StageProfile
from plait.policies.catalog import knowledge, make_policy
from plait.sim.run import simulate
from plait.sim.world import make_world
from plait_papers import everything
from plait_papers.command import EverythingRequest, app
from plait_papers.everything import (
    GENERATED,
    KEPT,
    OTHERS,
    OURS,
    PAST,
    RECORDED,
    Case,
    Done,
    EverythingOutcome,
    Row,
    compared,
    policies_of,
    reproduce_everything,
    rows,
    run_case,
    table_of,
    waits,
)

DATA = Path(__file__).parents[4] / "shared" / "data"


def test_every_trace_is_compared_at_every_kind_of_knowledge() -> None:
    grid = list(rows(quick=False, recorded=True))
    assert len(grid) == len(set(grid)) == len({(row.knows, str(row)) for row in grid})
    assert {(row.knows, row.trace) for row in grid} == set(product(OURS, (*RECORDED, *GENERATED)))
    assert {row.load for row in grid if row.trace == "philly"} == {0.7, 1.0, 1.3}
    assert {row.failures for row in grid} == {False, True}
    assert {row.trace for row in rows(quick=True, recorded=False)} == set(GENERATED)


def test_policies_of_a_row_exist_and_know_the_same() -> None:
    for knows in OURS:
        for text in policies_of(knows):
            make_policy(text)
            assert knowledge(text) == knows


def test_qssf_starts_jobs_by_predicted_gpu_time_and_the_first_in_line_blocks_the_others() -> None:
    def job(i: int, submit_s: float, script: str, gpus: int = 1) -> JobSpec:
        took_s = {"long.py": 5000.0, "short.py": 10.0}[script]
        return JobSpec(
            id=f"j{i}", submit_s=submit_s, gpus=gpus, iterations=took_s, iteration_s=1.0, user="ada", like=(script,) * 2
        )

    jobs = [job(0, 0.0, "short.py"), job(1, 0.0, "long.py"), job(2, 20.0, "short.py", 2), job(3, 30.0, "short.py")]
    jobs.append(job(4, 50.0, "long.py"))
    run = simulate(JobBatch.of(jobs), Cluster.parse("1x2"), make_policy("qssf"), make_world("ideal"))
    start_s = run.controller.job_store.columns["first_start_s"][:5].tolist()
    assert start_s[:2] == [0.0, 0.0]
    assert start_s[3] == 30.0, "it needs half of the GPU time of j2"
    assert min(start_s[2], start_s[4]) == 5000.0, "j4 would fit, but j2 is ahead of it"


def test_a_row_compares_with_the_best_mean_of_the_others_on_the_same_seeds() -> None:
    row = Row("predicted", "recurring")
    hours = dict.fromkeys(OTHERS["predicted"], (9.0, 9.0))
    hours |= {"srsf:knows=predicted": (4.0, 2.0), "srtf:knows=predicted": (1.0, 7.0), OURS["predicted"]: (4.0, 1.0)}
    base = dict.fromkeys(KEPT, 1.0)
    base |= {"max_queue_s": 7200.0, "16 or more": 3600.0, PAST: 0.25}
    done = {
        Case(row, policy, seed, 10, ""): Done({**base, "avg_jct_s": 3600 * h, "p99_jct_s": h}, 10, 1)
        for policy, both in hours.items() for seed, h in enumerate(both)
    }  # fmt: skip
    ours = [case for case in done if case.policy == OURS["predicted"]]
    done = {**{case: done[case] for case in reversed(ours)}, **done}  # the run of the last seed has ended first
    other = Case(replace(row, failures=True), "srsf:knows=predicted", 0, 10, "")
    found, figures = compared(row, {**done, other: Done({**base, "avg_jct_s": 0.1}, 10, 1)})
    assert (found.best, found.best_h, found.ours_h) == ("srsf:knows=predicted", 3.0, 2.5)
    assert (found.ratio, found.low, found.high) == pytest.approx((2.5 / 3, 0.5, 1.0))
    assert (found.p99, found.longest_wait_h, found.seeds) == (pytest.approx(2.5 / 3), 2.0, 2)
    assert {one.policy: one.ratio for one in figures}["srsf:knows=predicted"] == pytest.approx(3 / 2.5)
    narrow = [replace(one, row="narrow jobs", figures={**one.figures, "1 GPU": 7200.0}) for one in figures]
    for one in narrow:
        del one.figures["16 or more"]
    best, *_ = waits(EverythingOutcome.of([], {}, rows=[found], policies=[*figures, *narrow]))
    assert best == ("predicted", OURS["predicted"], "2.00", "-", "-", "1.00", "25.0%")


def test_under_plait_nobody_waits_past_the_bound_where_lengths_are_known() -> None:
    past = [
        run_case(Case(Row("exact", "recurring", 1.0), text, 0, 150, "")).figures[PAST]
        for text in ("plait", "fifo-backfill")
    ]
    assert past[0] == 0.0 < past[1]


def test_the_command_makes_runs_once_and_writes_its_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(everything, "rows", lambda quick, recorded: [Row("predicted", "recurring")])
    options = ["everything", "--quick", "--jobs", "150", "--knows", "predicted", "--work", str(tmp_path / "runs")]
    options += ["--json", str(tmp_path / "all.json"), "--report", str(tmp_path / "all.html")]
    first = CliRunner().invoke(app, options)
    assert first.exit_code == 0, first.output
    found = json.loads((tmp_path / "all.json").read_text())
    assert [one["row"] for one in found["rows"]] == ["recurring, 1"]
    assert {one["policy"] for one in found["policies"]} == set(policies_of("predicted"))
    page = (tmp_path / "all.html").read_text()
    assert "Waiting by size" in page
    assert "recurring, 1" in page
    assert "plait:knows=predicted" in page
    kept = sorted((file.name, file.stat().st_mtime_ns) for file in (tmp_path / "runs").iterdir())
    again = CliRunner().invoke(app, options)
    assert again.exit_code == 0, again.output
    assert sorted((file.name, file.stat().st_mtime_ns) for file in (tmp_path / "runs").iterdir()) == kept


def test_wrong_input_is_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"has no muri/trace1\.csv"):
        reproduce_everything(EverythingRequest(data=tmp_path, work=tmp_path))
    with pytest.raises(InputError, match="--knows is 'all'; it takes exact, predicted, nothing"):
        reproduce_everything(EverythingRequest(knows="all", work=tmp_path))


@pytest.mark.skipif(not DATA.is_dir(), reason=f"{DATA} is not here: recorded traces")
def test_seeds_take_different_jobs_of_a_recorded_trace() -> None:
    row = Row("exact", "trace3", 1.0)
    tables = [table_of(Case(row, "srsf", seed, 200, str(DATA))) for seed in range(everything.WINDOWS)]
    assert [len(table) for table in tables] == [200] * 4
    assert len({tuple(np.asarray(table["job_id"])) for table in tables}) == 4


def job(i: int, busy: float, gpus: int = 1, user: str = "u", submit_s: float = 0.0) -> JobSpec:
    profile = StageProfile.of(gpu=busy, cpu=1 - busy)
    return JobSpec(id=f"j{i}", submit_s=submit_s, gpus=gpus, min_gpus=gpus, max_gpus=gpus, iterations=1000.0,
                   iteration_s=1.0, profile=profile, user=user)  # fmt: skip


@pytest.mark.parametrize(
    ("busy", "packed"),
    [((0.1, 0.9), True), ((0.3, 0.4), True), ((0.3, 0.9), False), ((0.9, 0.9), False), ((0.1, 0.1), True)],
)
def test_waiting_jobs_join_running_ones_up_to_a_score_of_two(busy, packed):
    controller = Controller(make_policy("lucid"), Cluster.parse("1x1"))
    for number, part in enumerate(busy):
        controller.handle(JobSubmitted(float(number), number, JobBatch.of([job(number, part)])))
        controller.handle(ReplanDue(float(number)))
    groups = [sorted(m.job for m in g.members) for g in controller.plan.groups]
    assert groups == ([[0, 1]] if packed else [[0]])
    assert controller.plan.groups.gate is None or controller.plan.groups.gate.tolist() == [int(Gate.NONE)]


def test_jobs_are_packed_only_where_some_would_wait_and_with_as_many_gpus():
    controller = Controller(make_policy("lucid"), Cluster.parse("1x4"))
    jobs = [job(0, 0.1, 2), job(1, 0.1), job(2, 0.1), job(3, 0.1), job(4, 0.1, 4)]
    for number in (0, 1, 2):
        controller.handle(JobSubmitted(float(number), number, JobBatch.of([jobs[number]])))
        controller.handle(ReplanDue(float(number)))
    assert controller.running.single, "all fit alone"
    for number in (3, 4):
        controller.handle(JobSubmitted(float(number), number, JobBatch.of([jobs[number]])))
        controller.handle(ReplanDue(float(number)))
    assert sorted(sorted(m.job for m in g.members) for g in controller.running) == [[0], [1, 3], [2]]


def test_no_job_is_stopped_and_its_knowledge_is_stated():
    rng = np.random.default_rng(0)
    jobs = [job(i, float(rng.random()), int(rng.choice([1, 2, 4])), f"u{i % 3}", 100.0 * i) for i in range(60)]
    done = simulate(JobBatch.of(jobs), Cluster.parse("1x4"), make_policy("lucid"), world=make_world("ideal"))
    assert int(done.controller.job_store.columns["preemptions"][:60].sum()) == 0
    assert knowledge("lucid") == "predicted"
