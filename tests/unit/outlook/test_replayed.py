"""The live log read back: decisions, pace, predicted against measured, and advice from it."""

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from plait.cli.app import app
from plait.cli.commands.advise import kind_of_log, past_of_file, past_of_rows
from plait.control import messages
from plait.control.messages import JobFinished, JobSubmitted, NodeJoined, NodeLost, ProgressReported, ReplanDue, to_json
from plait.core.cluster import Node
from plait.core.errors import InputError
from plait.core.goodput import BatchLimits
from plait.core.jobs import JobBatch, JobSpec
from plait.core.resources import StageProfile
from plait.live.scheduler.fold import apply
from plait.live.scheduler.records.notes import PolicySet, Requested, entry_to_json
from plait.live.scheduler.state import State
from plait.outlook.advice import AdviceRequest, advise
from plait.outlook.fidelity import fidelity
from plait.outlook.log_replay import read_rows, replay
from plait.outlook.page import best, changed, compare_files, pair_page, worst
from plait.outlook.sharing import SharingWatch

COMMAND = {"command": ["true"]}


class Log:
    """Writes a log as the service does: every entry is applied and kept with its commands, as JSON."""

    def __init__(self, policy="fifo", gpus=1):
        self.state, self.rows = State(), []
        self(PolicySet(0.0, policy, may_lose_work=False))
        self(messages.NodeJoined(0.0, Node("n0", gpus)))

    def __call__(self, entry):
        commands = [messages.to_json(c) for c in apply(self.state, entry)]
        self.rows.append(
            json.loads(json.dumps({"seq": len(self.rows) + 1, "event": entry_to_json(entry), "commands": commands}))
        )

    def submit(self, at_s, *specs):
        first = self.state.numbers
        self(Requested(at_s, first, "ada", [COMMAND] * len(specs)))
        self(messages.JobSubmitted(at_s, first, JobBatch.of(specs)))
        self(messages.ReplanDue(at_s))

    def progress(self, at_s, jobs, done, run_s, pace):
        figures = (np.array(v, dtype=float) for v in (done, run_s, run_s, pace))
        self(messages.ProgressReported(at_s, np.array(jobs), *figures))

    def finish(self, at_s, job):
        self(messages.JobFinished(at_s, np.array([job]), np.array([at_s])))
        self(messages.ReplanDue(at_s))


def spec(name, submit_s=0.0, **stages):
    return JobSpec(id=name, submit_s=submit_s, iterations=100, profile=StageProfile.of(**stages))


@pytest.fixture
def log():
    """Two jobs one after the other on one GPU: 2 s of start, 100 iterations of 0.1 s each."""
    log = Log()
    log.submit(0.0, spec("j-0", gpu=0.1), spec("j-1", gpu=0.1))
    log.progress(7.0, [0], [50.0], [7.0], [0.1])
    log.progress(12.0, [0], [100.0], [12.0], [0.1])
    log.finish(12.0, 0)
    log.progress(24.0, [1], [100.0], [12.0], [0.1])
    log.finish(24.0, 1)
    return log


def test_every_decision_is_derived_again(log):
    answer = replay(read_rows(log.rows))
    assert answer.difference is None
    assert answer.entries == len(log.rows)
    result = answer.result(trace="live")
    assert result.summary["finished"] == 2
    assert result.summary["avg_jct_s"] == 18.0
    assert result.summary["policy"] == "fifo"
    assert result.jobs["run_s"].tolist() == [12.0, 12.0]


def test_a_log_that_was_changed_is_found_out(log):
    row = next(r for r in log.rows if any(c["type"] == "Launch" for c in r["commands"]))
    row["commands"][0]["groups"][0]["jobs"] = [1]
    answer = replay(read_rows(log.rows))
    assert answer.difference.seq == row["seq"]
    assert "the log has" in str(answer.difference)


def test_a_log_with_a_gap_is_refused(log):
    del log.rows[2]
    with pytest.raises(InputError, match="has entry 4 where 3 was expected"):
        replay(read_rows(log.rows))


def test_an_entry_of_another_version_is_refused(log):
    log.rows[3]["event"]["type"] = "Unheard"
    with pytest.raises(InputError, match="not a message of this version"):
        list(read_rows(log.rows))


def test_what_was_measured_predicts_what_happened(log):
    rows = list(read_rows(log.rows))
    found = fidelity(rows)
    assert [job.id for job in found.jobs] == ["j-0", "j-1"]
    assert [job.predicted_s for job in found.jobs] == pytest.approx([12.0, 24.0], abs=0.01)
    assert [job.measured_s for job in found.jobs] == [12.0, 24.0]
    assert found.worst < 0.01
    assert found.left_out == 0


def test_fairness_of_an_adaptive_job_takes_what_it_said_of_itself():
    log = Log(gpus=4)
    limits = BatchLimits(initial=10, most=40, least_local=1, most_local=10)
    size = {"gpus": 1, "min_gpus": 1, "max_gpus": 4, "iterations": 1000}
    log.submit(0.0, JobSpec(id="j-0", batch=limits, iteration_s=0.1, **size))
    # a pass of 0.1 s, as much again to synchronise, and nothing but noise: 4 GPUs make 20 iterations a second
    said = [0.1, 1e-8, 0.3, 1e-8, 0.1, 1e-8, 1.0, 1e-9, 1.0, 1.0, 2.0]
    log(messages.GoodputReported(30.0, np.array([0]), np.array([said])))
    log.finish(100.0, 0)
    assert replay(read_rows(log.rows)).result().jobs["finish_time_fairness"][0] == pytest.approx(100 / 50, rel=1e-3)


def test_nothing_finished_nothing_to_compare():
    log = Log()
    rows = list(read_rows(log.rows))
    with pytest.raises(InputError, match="no job has finished yet"):
        fidelity(rows)


def test_groups_are_compared_with_the_model():
    log = Log("muri-l:max_jobs=2")
    log.submit(0.0, spec("j-0", cpu=0.1, gpu=0.1), spec("j-1", cpu=0.1, gpu=0.1))
    assert [len(g.members) for g in log.state.groups.by_gpus.values()] == [2]
    for at_s in (10.0, 20.0, 30.0, 40.0):
        log.progress(at_s, [0, 1], [at_s * 4] * 2, [at_s] * 2, [0.25, 0.22])
    log.finish(40.0, 0)
    log.finish(40.0, 1)
    rows, watch = list(read_rows(log.rows)), SharingWatch()
    (found,) = watch.sharings(replay(rows, observe=watch).state)
    assert [m.id for m in found.members] == ["j-0", "j-1"]
    assert found.measured_s == 0.25
    assert found.predicted_s == pytest.approx(0.2, rel=0.02)  # tokens: both wait for each other
    assert found.speed == pytest.approx(0.2 / 0.25 + 0.2 / 0.22)
    assert (found.from_s, found.to_s) == (0.0, 40.0)


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
