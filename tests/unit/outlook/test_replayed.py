"""The live log read back: decisions derived again, the group's pace, predicted against measured."""

import json

import numpy as np
import pytest

from plait.control import messages
from plait.core.cluster import Node
from plait.core.errors import InputError
from plait.core.goodput import BatchLimits
from plait.core.jobs import JobBatch, JobSpec
from plait.core.resources import StageProfile
from plait.live.scheduler.fold import apply
from plait.live.scheduler.records.notes import PolicySet, Requested, entry_to_json
from plait.live.scheduler.state import State
from plait.outlook.fidelity import fidelity
from plait.outlook.log_replay import read_rows, replay
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
    assert answer.difference is not None
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
    assert found.predicted_s == pytest.approx(0.2 * (1 + 0.1 / 3))  # tokens: the bound, and waiting in line
    assert found.speed == pytest.approx(0.2 / 0.25 + 0.2 / 0.22)
    assert (found.from_s, found.to_s) == (0.0, 40.0)
