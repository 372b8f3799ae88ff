"""Advice from what a service logged."""

import json

import numpy as np
import pytest

from plait.cli.commands.advise import kind_of_log, past_of_file, past_of_rows
from plait.control.messages import JobFinished, JobSubmitted, NodeJoined, NodeLost, ProgressReported, ReplanDue, to_json
from plait.core.cluster import Node
from plait.core.errors import InputError
from plait.core.jobs import JobBatch, JobSpec
from plait.live.scheduler.fold import apply
from plait.live.scheduler.records.entries import entry_to_json
from plait.live.scheduler.records.notes import PolicySet, Requested
from plait.live.scheduler.state import State
from plait.outlook.advice import AdviceRequest, advise


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
