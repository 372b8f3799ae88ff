"""Advice from what a service logged."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from plait.cli.app import app
from plait.cli.commands.advise import kind_of_log, past_of_file, past_of_rows
from plait.control.messages import JobFinished, JobSubmitted, NodeJoined, NodeLost, ProgressReported, ReplanDue, to_json
from plait.core.cluster import Node
from plait.core.errors import InputError
from plait.core.jobs import JobBatch, JobSpec
from plait.live.scheduler.fold import apply
from plait.live.scheduler.records.notes import PolicySet, Requested, entry_to_json
from plait.live.scheduler.state import State
from plait.outlook.advice import AdviceRequest, advise
from plait.outlook.page import best, changed, compare_files, pair_page, worst


def logged(*nodes, jobs=4, run_s=50.0):
    """What a service writes that runs scripts of `run_s` seconds, which tell no iterations, one after the other."""
    state, rows = State(), []

    def log(entry):
        commands = [to_json(command) for command in apply(state, entry)]
        rows.append(json.loads(json.dumps({"seq": len(rows) + 1, "event": entry_to_json(entry), "commands": commands})))

    log(PolicySet(0.0, "fifo", may_lose_work=False))
    for node in nodes:
        log(NodeJoined(0.0, Node(node, 1)))
    if nodes:
        log(Requested(0.0, 0, "ada", [{"command": ["true"]}] * jobs))
        log(JobSubmitted(0.0, 0, JobBatch.of([JobSpec(id=f"j-{i}") for i in range(jobs)])))
        log(ReplanDue(0.0))
        for i in range(jobs):
            end_s = np.array([(i + 1) * run_s])
            log(ProgressReported(end_s[0], np.array([i]), np.zeros(1), *[np.array([run_s])] * 2, np.array([np.nan])))
            log(JobFinished(end_s[0], np.array([i]), end_s))
            log(ReplanDue(end_s[0]))
    return rows, log


def test_the_log_of_a_service_is_a_history(tmp_path):
    rows, _ = logged("n0")
    path = tmp_path / "events.json"
    path.write_text(json.dumps(rows))
    assert kind_of_log(path) == "live"
    past = past_of_file(path, None, "auto", 0, ())
    assert (past.policy, past.cluster.gpus, len(past.jobs)) == ("fifo", 1, 4)
    assert past.jct_s.tolist() == [50, 100, 150, 200]
    found = advise(past, AdviceRequest(policies=("fifo-backfill",), nodes=("+1",)))
    assert abs(found.fit.error) < 0.01
    assert found.of_kind("size")[0].change == pytest.approx(75 / 125 - 1, abs=0.01)
    with pytest.raises(InputError, match="leave out --cluster"):
        past_of_file(path, "2x8", "auto", 0, ())


def test_nodes_that_were_lost_do_not_count_and_are_said():
    rows, log = logged("n0", "n1", jobs=1)
    log(NodeLost(60.0, "n1"))
    past = past_of_rows(rows, "log", (), None)
    assert past.cluster.gpus == 1
    assert "nodes that were lost: 1 times" in past.gaps


def test_a_service_without_nodes_or_ends_has_no_history(tmp_path):
    with pytest.raises(InputError, match="the log: no node ever joined"):
        past_of_rows(logged()[0], "the log", (), None)
    with pytest.raises(InputError, match="no job of this history has finished"):
        past_of_rows(logged("n0", jobs=0)[0], "the log", (), None)
    path = tmp_path / "events.json"
    path.write_text('[{"seq": 1, "event": {}}, {"seq": 2}]')
    with pytest.raises(InputError, match=r"events.json: entry 2 has no seq and event"):
        past_of_file(path, None, "auto", 0, ())


# Two runs of the same jobs: who gained and who lost.

HEADER = "number,id,user,project,jct_s,state\n"


def table(path: Path, *rows: tuple[str, str, str, float | str, str]) -> Path:
    path.write_text(HEADER + "".join(f"{i},{','.join(map(str, row))}\n" for i, row in enumerate(rows)))
    return path


@pytest.fixture
def runs(tmp_path: Path) -> tuple[Path, Path]:
    a = table(
        tmp_path / "a.csv", ("j0", "ann", "vision", 100, "finished"), ("j1", "ben", "vision", 200, "finished"),
        ("j2", "ben", "speech", 300, "finished"), ("j3", "ann", "speech", 50, "finished"),
        ("j4", "ann", "speech", "", "failed"),
    )  # fmt: skip
    b = table(
        tmp_path / "b.csv", ("j3", "ann", "speech", 50, "finished"), ("j1", "ben", "vision", 500, "finished"),
        ("j2", "ben", "speech", 240, "finished"), ("j0", "ann", "vision", 40, "finished"),
        ("j9", "eve", "", 1, "finished"),
    )  # fmt: skip
    return a, b


def test_jobs_are_matched_by_id_and_the_largest_loss_comes_first(runs: tuple[Path, Path]) -> None:
    pair = compare_files(*runs)
    assert [job.name for job in pair.jobs] == ["j1", "j3", "j0", "j2"]
    assert (pair.gained, pair.lost, pair.left_out) == (2, 1, (1, 1))
    assert [job.name for job in worst(pair)] == ["j1"]
    assert [job.name for job in best(pair)] == ["j2", "j0"]
    assert [(user.name, user.jobs, user.before_s, user.after_s) for user in pair.users] == [
        ("ben", 2, 250.0, 370.0), ("ann", 2, 75.0, 45.0),
    ]  # fmt: skip
    assert pair.figures["mean"].ratio == pytest.approx(830 / 650 - 1)
    assert pair.sentence == (
        "b against a, 4 jobs: mean completion time +27.7%; 2 sooner, 1 later, 1 alike; "
        "left out, not finished in both: 1 and 1."
    )
    assert changed(pair.users[:1]) == []
    assert "j1" in pair_page(pair)


def test_a_run_beside_itself_changes_nobody(runs: tuple[Path, Path]) -> None:
    pair = compare_files(runs[0], runs[0])
    assert (pair.gained, pair.lost, worst(pair), best(pair), changed(pair.users)) == (0, 0, [], [], [])
    assert pair.names == (str(runs[0]), str(runs[0]))


@pytest.mark.parametrize(
    ("content", "error"),
    [
        ("id,jct_s\n", r"b\.csv:1: column state is missing"),
        (f"{HEADER}0,j0,ann,x,soon,finished\n", r"b\.csv:2: column jct_s must be seconds of at least 0, got 'soon'"),
        (f"{HEADER}0,j0,ann,x,1,finished\n1,j0,ann,x,1,finished\n", r"b\.csv:3: job j0 occurs twice"),
        (f"{HEADER}0,j7,ann,x,1,finished\n", "no finished job in common"),
    ],
)
def test_what_is_wrong_with_a_file_is_named(runs: tuple[Path, Path], content: str, error: str) -> None:
    runs[1].write_text(content)
    with pytest.raises(InputError, match=error):
        compare_files(*runs)


def test_the_command_prints_writes_and_leaves_nothing_after_an_error(runs: tuple[Path, Path], tmp_path: Path) -> None:
    page = tmp_path / "gains.html"
    done = CliRunner().invoke(app, ["compare", *map(str, runs), "--report", str(page), "--json", "-"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["by_job"][0]["name"] == "j1"
    assert "b against a" in page.read_text()
    page.unlink()
    runs[1].write_text("")
    assert CliRunner().invoke(app, ["compare", *map(str, runs), "--report", str(page)]).exit_code != 0
    assert not page.exists()
