"""Each rule of the engine once, with agents made by hand."""

import math
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from live_cases import Cluster, Node, key

from plait.cli.commands.explain import explanation_lines
from plait.core.cluster import Link, Network, Switch
from plait.core.errors import Conflict, InputError
from plait.core.jobs import InaRequest, Phase
from plait.live.api.explain import StageTime
from plait.live.layout import make_private
from plait.live.protocol.wire import ENDED, RUNNING, STARTING, NodeInfo, Observed, Profile, Seen
from plait.live.scheduler.records.event_words import brief
from plait.live.service.what_if import MOST_OF_ONE, Busy, WhatIfService

Make = Callable[..., Cluster]


def test_a_job_runs_and_finishes(cluster: Make) -> None:
    c = cluster()
    assert c.submit({"gpus": 2}) == [0]
    c.pass_s()
    assert c.state(0) == "running"
    runs = [run for node in c.nodes for run in node.sync().attempts]
    assert [(r.rank, r.world, r.local_rank, r.local_world, r.gpus) for r in runs] == [
        (0, 2, 0, 2, [0]),
        (1, 2, 1, 2, [1]),
    ]
    assert runs[0].master_port == runs[1].master_port > 0
    c.nodes[0].end(0, rank=0, then_s=1.1)
    assert c.state(0) == "running"  # its other process still does something
    c.nodes[0].end(0, then_s=1.1)
    assert c.state(0) == "finished"
    assert c.nodes[0].seen == {}


def test_several_processes_on_one_gpu(cluster: Make) -> None:
    c = cluster((2,), policy="muri-l")
    profile = {"cpu": 0.1, "gpu": 0.1}
    c.submit({"gpus": 2, "processes_per_gpu": 2, "profile": profile}, {"gpus": 2, "profile": profile}, then_s=2.2)
    runs = c.nodes[0].sync().attempts
    assert [(r.job, r.rank, r.world, r.local_rank, r.gpus) for r in runs] == [
        (0, 0, 4, 0, [0]), (0, 1, 4, 1, [0]), (0, 2, 4, 2, [1]), (0, 3, 4, 3, [1]),
        (1, 0, 2, 0, [0]), (1, 1, 2, 1, [1]),
    ]  # fmt: skip
    assert len({r.group.id for r in runs}) == 1
    assert [(m.job, m.world) for m in runs[0].group.members] == [(0, 4), (1, 2)]
    for rank in range(4):
        c.nodes[0].end(0, rank=rank)
    c.pass_s()
    assert c.state(0) == "finished"


def test_one_gpu_may_have_several_processes(cluster: Make) -> None:
    c = cluster((1,), jobs=[{"processes_per_gpu": 2}])
    runs = c.nodes[0].sync().attempts
    assert [(r.rank, r.world, r.gpus) for r in runs] == [(0, 2, [0]), (1, 2, [0])]
    assert runs[0].master_port == runs[1].master_port > 0


def test_epoch_is_on_disk_before_the_attempt_is_assigned(cluster: Make) -> None:
    c = cluster(jobs=[{}])
    assert c.engine.layout.epoch_file(0).read_text() == "1\n"
    c.nodes[0].end(0, 1, then_s=2.2)
    assert c.engine.layout.epoch_file(0).read_text() == "2\n"


def test_a_disk_that_is_full_holds_an_attempt_back(cluster: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    c = cluster()
    full = True

    def fence(job: int, epoch: int, first: int) -> None:
        if full:
            raise OSError("no space left on device")

    monkeypatch.setattr(c.engine.fencing, "write", fence)
    c.submit({}, then_s=3)
    assert c.nodes[0].jobs() == set()
    full = False
    c.pass_s(2)
    assert c.nodes[0].jobs() == {0}


def test_a_disk_that_is_full_before_an_epoch_is_chosen_is_tried_again_soon(
    cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    c = cluster()

    def full(number: int, epoch: int) -> int:
        raise OSError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(c.engine.fencing, "next_epoch", full)
        c.submit({}, then_s=3)
        assert "AttemptBegan" not in c.types()
        c.now += 0.1
        assert c.engine.tick(c.now) <= c.now + 1.0  # it asks to be woken although nothing else is going to happen
    c.now += 1.0
    c.engine.tick(c.now)
    assert "AttemptBegan" in c.types()


def test_ports_are_given_once_and_freed(cluster: Make) -> None:
    c = cluster((4,), ports=2, jobs=[{"gpus": 2}, {"gpus": 2}])
    ports = {run.job: run.master_port for run in c.nodes[0].sync().attempts}
    assert len(set(ports.values())) == 2
    c.nodes[0].end(0)
    c.submit({"gpus": 2}, then_s=2.2)
    again = {run.job: run.master_port for run in c.nodes[0].sync().attempts}
    assert again[2] == ports[0]


def test_gpus_of_the_cluster_become_gpus_of_nodes(cluster: Make) -> None:
    c = cluster((1, 2, 1), policy="fifo-backfill:placement=counting", jobs=[{"gpus": 4}])
    found = [(n.info.id, run.rank, run.gpus, run.local_rank) for n in c.nodes for run in n.sync().attempts]
    assert found == [("n0", 0, [0], 0), ("n1", 1, [0], 0), ("n1", 2, [1], 1), ("n2", 3, [0], 0)]


def test_failure_of_one_process_stops_the_gang_and_is_retried(cluster: Make) -> None:
    c = cluster(jobs=[{"gpus": 2, "retries": 1}])
    c.nodes[0].obeys = False
    c.nodes[0].end(0, 1, rank=1, reason="CUDA error", then_s=1.1)
    assert c.state(0) == "stopping"
    assert [run.stop for run in c.nodes[0].sync().attempts] == [True]  # rank 0 is told, rank 1 has ended
    assert c.types().count("AttemptBegan") == 1  # nothing new while rank 0 runs
    c.nodes[0].obeys = True
    c.pass_s(2.2)
    assert c.state(0) == "running"
    c.nodes[0].end(0, -9, rank=0, then_s=2.2)
    stored = c.stored(0)
    assert (stored.row.state, stored.row.failures, stored.row.epoch) == ("failed", 2, 2)
    assert "rank 0 was killed by SIGKILL" in stored.row.reason


def test_preempted_jobs_go_on_later_without_using_a_retry(cluster: Make) -> None:
    c = cluster((1,), policy="smallest-first:quantum_s=1", jobs=[{}])
    c.nodes[0].report(0, steps=10.0, held_s=1.0)
    c.engine.set_policy("las:quantum_s=1", c.now)  # least attained service: the newcomer goes first
    c.submit({}, then_s=2.2)
    assert (c.state(0), c.state(1)) == ("running", "waiting")  # a restart would cost more than it has run
    c.pass_s(7.0)
    assert (c.state(0), c.state(1)) == ("waiting", "running")
    stored = c.stored(0)
    assert (stored.row.preemptions, stored.row.failures, stored.attempts[0].state) == (1, 0, "preempted")
    c.nodes[0].end(1, then_s=2.2)
    assert c.state(0) == "running"
    assert [run.epoch for run in c.nodes[0].sync().attempts] == [2]


@pytest.mark.parametrize("code", [75, -15, -9, 143, None])
def test_ends_after_a_requested_stop_are_no_failures(cluster: Make, code: int | None) -> None:
    c = cluster(jobs=[{}])
    c.nodes[0].obeys = False
    c.engine.drain("n0", c.now)
    c.pass_s(0.6)
    c.nodes[0].end(0, code, then_s=0.6)
    stored = c.stored(0)
    assert (stored.row.state, stored.row.failures) == ("waiting", 0)


@pytest.mark.parametrize("first", [0, 1], ids=["the killed one is heard first", "its peer is heard first"])
def test_a_gang_stopped_while_it_starts_uses_no_retry(cluster: Make, first: int) -> None:
    c = cluster(jobs=[{"gpus": 2, "retries": 0}])
    c.nodes[0].obeys = False
    c.engine.drain("n0", c.now)
    c.pass_s(0.6)
    for rank in (first, 1 - first):
        c.nodes[0].end(0, (-15, 1)[rank], rank=rank, reason="connection closed by peer" if rank else None, then_s=0.6)
    stored = c.stored(0)
    assert (stored.row.state, stored.row.failures, stored.attempts[0].state) == ("waiting", 0, "preempted")


def test_a_gang_that_fails_by_itself_when_it_is_stopped_has_failed(cluster: Make) -> None:
    c = cluster(jobs=[{"gpus": 2, "retries": 0}])
    c.nodes[0].obeys = False
    c.engine.drain("n0", c.now)
    c.pass_s(0.6)
    c.nodes[0].end(0, 75, rank=0)
    c.nodes[0].end(0, 1, rank=1, reason="AssertionError", then_s=0.6)
    stored = c.stored(0)
    assert (stored.row.state, stored.row.reason) == ("failed", "AssertionError (rank 1, exit code 1)")


LOST_PEER = "exit code 1; last lines of the log: Traceback | RuntimeError: Connection closed by peer [::1]:2950"
CLOSED = "RuntimeError: Connection closed by peer [::1]:2950 (rank {}, exit code 1)"


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["the failure is heard first", "the end is heard first"])
def test_a_rank_that_left_with_0_before_its_peers_fail_is_named(cluster: Make, order: tuple[int, int]) -> None:
    c = cluster(jobs=[{"gpus": 2, "retries": 0}])
    c.nodes[0].obeys = False
    for rank in order:
        values = (1, LOST_PEER, 0.2) if rank == 0 else (0, None, 0.9)
        code, reason, ago_s = values
        later_s = 0.3 * (rank == order[1])
        c.nodes[0].end(0, code, rank=rank, reason=reason, ended_s_ago=ago_s + later_s)
        c.now += later_s
        c.nodes[0].sync()
    c.pass_s(0.6)
    stored = c.stored(0)
    first = brief(stored.row.reason)
    assert (stored.row.state, first) == (
        "failed",
        f"rank 1 ended with exit code 0 before the others: {CLOSED.format(0)}",
    )


def test_a_rank_that_ends_with_0_after_the_failure_of_a_peer_is_not_named(cluster: Make) -> None:
    c = cluster(jobs=[{"gpus": 2, "retries": 0}])
    c.nodes[0].obeys = False
    c.nodes[0].end(0, 1, rank=0, reason="exit code 1; last lines of the log: ValueError: bad", ended_s_ago=5.0)
    c.nodes[0].end(0, 0, rank=1, ended_s_ago=1.0, then_s=0.6)
    stored = c.stored(0)
    assert brief(stored.row.reason) == "ValueError: bad (rank 0, exit code 1)"


def test_the_process_of_a_gang_that_failed_first_is_the_cause(cluster: Make) -> None:
    c = cluster(jobs=[{"gpus": 2, "retries": 0}])
    c.nodes[0].obeys = False
    c.nodes[0].end(0, 1, rank=0, reason=LOST_PEER, ended_s_ago=0.1)
    c.nodes[0].end(
        0, -9, rank=1, reason="killed by SIGKILL (by hand, or out of memory); it printed nothing", ended_s_ago=0.4
    )
    c.pass_s(0.6)
    stored = c.stored(0)
    assert stored.row.reason == "rank 1 was killed by SIGKILL (by hand, or out of memory); it printed nothing"
    c.restart()
    assert c.store.job(0).row.reason == stored.row.reason


def test_a_gang_whose_peer_was_lost_with_its_node_uses_no_retry(cluster: Make) -> None:
    c = cluster((1, 1), policy="fifo-backfill:placement=counting", jobs=[{"gpus": 2, "retries": 0}])
    c.nodes[1].end(0, 1, reason="connection reset by peer")
    c.pass_s(17, silent=["n0"])
    stored = c.stored(0)
    assert (stored.row.state, stored.row.failures, stored.attempts[0].state) == ("waiting", 0, "lost")


def test_a_job_that_finishes_while_it_is_stopped_has_finished(cluster: Make) -> None:
    c = cluster(jobs=[{}])
    c.nodes[0].obeys = False
    c.engine.drain("n0", c.now)
    c.pass_s(0.6)
    assert c.state(0) == "stopping"
    c.nodes[0].end(0, 0, then_s=0.6)
    assert c.state(0) == "finished"


def test_asking_for_a_new_start_uses_no_retry_but_not_for_ever(cluster: Make) -> None:
    c = cluster(requeues=3)
    c.submit({"retries": 0})
    for epoch in range(1, 5):
        c.pass_s(2.2)
        assert [run.epoch for run in c.nodes[0].sync().attempts] == [epoch]
        c.nodes[0].end(0, 75)
    c.pass_s(2.2)
    assert c.state(0) == "failed"


def test_progress_between_new_starts_makes_the_count_begin_again(cluster: Make) -> None:
    c = cluster(requeues=1)
    c.submit({"retries": 0})
    for steps in range(1, 6):
        c.pass_s(2.2)
        assert c.state(0) == "running"
        c.nodes[0].end(0, 75, steps=float(steps))


def test_starts_that_fail_are_tried_again_then_count(cluster: Make) -> None:
    c = cluster(launch_tries=2)
    c.nodes[0].obeys = False
    c.submit({"retries": 0})
    for _ in range(3):
        c.pass_s(1.1)
        for run in c.nodes[0].sync().attempts:
            k = (run.job, run.epoch, run.rank)
            c.nodes[0].seen[k] = Seen(*k, ENDED, pid=0, exit_code=127, reason="no such program")
    c.pass_s(1.1)
    stored = c.stored(0)
    assert (stored.row.state, stored.row.epoch) == ("failed", 2)
    assert stored.row.reason == "no such program"
    assert "LaunchFailed" in c.types()


def test_cancelled_jobs_are_stopped_and_stay_cancelled(cluster: Make) -> None:
    c = cluster(jobs=[{}, {"gpus": 2}])
    c.nodes[0].obeys = False
    c.engine.cancel(0, c.now)
    c.engine.cancel(1, c.now)
    assert (c.state(0), c.state(1)) == ("stopping", "cancelled")
    c.nodes[0].obeys = True
    c.pass_s()
    assert c.state(0) == "cancelled"
    with pytest.raises(Conflict, match="j-0 has already ended"):
        c.engine.cancel(0, c.now)
    with pytest.raises(LookupError, match="no job j-7"):
        c.engine.cancel(7, c.now)


def test_a_silent_node_is_suspect_then_lost_and_its_job_goes_elsewhere(cluster: Make) -> None:
    c = cluster((1, 1), jobs=[{}])
    home = "n0" if c.nodes[0].jobs() else "n1"
    other = c.nodes[1] if home == "n0" else c.nodes[0]
    c.pass_s(4, silent=[home])
    assert c.engine.state.nodes[home].state == "suspect"
    assert c.state(0) == "unreachable"
    c.submit({}, {})  # one finds the other node; the second has only the silent one
    c.pass_s(2.2, silent=[home])
    assert other.jobs() == {1}
    c.pass_s(12, silent=[home])
    assert c.engine.state.nodes[home].state == "lost"
    assert c.state(0) == "waiting" or c.state(0) == "unreachable"
    other.end(1)
    c.pass_s(2.2, silent=[home])
    assert other.jobs() == {0}
    assert c.engine.layout.epoch_file(0).read_text() == "2\n"
    gone = next(n for n in c.nodes if n.info.id == home)
    c.pass_s(2.2)  # it comes back, and its old process is told to go
    assert not any(k[:2] == (0, 1) and s.state != ENDED for k, s in gone.seen.items())
    assert c.state(0) == "running"


def test_a_node_that_comes_back_before_its_job_was_replaced_hands_it_over(cluster: Make) -> None:
    c = cluster((1,), jobs=[{}])
    c.pass_s(17, silent=["n0"])
    assert c.state(0) == "unreachable"
    c.nodes[0].end(0, 0)  # it finished while nobody listened
    c.pass_s(1.1)
    assert c.state(0) == "finished"
    assert c.types().count("AttemptBegan") == 1


def test_an_attempt_gets_time_for_its_first_step_before_it_makes_room(cluster: Make) -> None:
    c = cluster(nodes=(1,), policy="las:quantum_s=1", first_step_s=20.0, jobs=[{}])
    c.nodes[0].report(0, held_s=1.0)
    c.submit({})
    c.pass_s(10)  # the new job has had less, but the old one has not got anything out of its start yet
    assert 0 in c.nodes[0].jobs()
    c.nodes[0].report(0, held_s=11.0, steps=1.0, step_s=0.1, then_s=2.2)
    assert c.nodes[0].jobs() == {1}
    stored = c.stored(0)
    assert stored.attempts[0].state == "preempted"
    c.nodes[0].report(1, held_s=15.0, then_s=10)
    assert 1 in c.nodes[0].jobs()
    c.nodes[0].report(1, held_s=21.0)  # that must be enough
    c.pass_s(3)
    assert c.nodes[0].jobs() == {0}


def test_an_attempt_that_waits_for_its_gpus_survives_its_agent(cluster: Make) -> None:
    c = cluster(nodes=(1,))
    c.nodes[0].obeys = False
    c.submit({}, then_s=1.1)
    c.nodes[0].seen[0, 1, 0] = Seen(0, 1, 0, STARTING)
    c.pass_s()
    c.nodes[0].seen.clear()  # it had no process yet, so the next agent's journal knows nothing of it
    c.nodes[0].agent = "n0-b"
    c.nodes[0].obeys = True
    c.pass_s()
    assert (c.state(0), c.engine.state.jobs[0].epoch) == ("running", 1)
    assert "LaunchFailed" not in c.types()


def test_nobody_is_lost_because_the_service_itself_stood_still(cluster: Make) -> None:
    c = cluster(nodes=(1, 1), jobs=[{}])
    c.now += 60.0  # stopped, or the lid was closed: whatever agents said meanwhile is still to be read
    c.engine.tick(c.now)
    assert {node.state for node in c.engine.state.nodes.values()} <= {"ready", "suspect"}
    c.pass_s()
    assert {node.state for node in c.engine.state.nodes.values()} == {"ready"}
    assert c.engine.state.jobs[0].epoch == 1
    c.pass_s(20, silent=["n0", "n1"])  # this time nobody says anything while it listens
    assert {node.state for node in c.engine.state.nodes.values()} == {"lost"}


def test_a_gang_that_lost_one_node_is_stopped_on_the_other_before_it_starts_again(cluster: Make) -> None:
    c = cluster((1, 1, 1), policy="fifo-backfill:placement=counting", jobs=[{"gpus": 2}])
    c.nodes[1].obeys = False
    c.pass_s(17, silent=["n0"])
    assert c.types().count("AttemptBegan") == 1  # rank 1 still runs
    assert [run.stop for run in c.nodes[1].sync().attempts] == [True]
    c.nodes[1].obeys = True
    c.pass_s(2.2, silent=["n0"])
    assert [sorted(n.jobs()) for n in c.nodes[1:]] == [[0], [0]]
    assert {run.epoch for n in c.nodes[1:] for run in n.sync().attempts} == {2}


def test_a_new_agent_without_a_journal_has_lost_what_it_does_not_list(cluster: Make) -> None:
    c = cluster(jobs=[{}])
    c.nodes[0].agent, c.nodes[0].seen = "another", {}
    c.pass_s(2.2)
    stored = c.stored(0)
    assert (stored.row.state, stored.row.epoch, stored.row.failures) == ("running", 2, 0)


def test_drain_and_resume(cluster: Make) -> None:
    c = cluster((1, 1), jobs=[{}])
    home = next(n for n in c.nodes if n.jobs())
    c.engine.drain(home.info.id, c.now)
    c.pass_s(2.2)
    assert not home.jobs()
    assert c.state(0) == "running"
    c.submit({}, then_s=2.2)
    assert c.state(1) == "waiting"
    assert c.engine.state.nodes[home.info.id].state == "drained"
    c.pass_s(20, silent=[home.info.id])
    assert c.engine.state.nodes[home.info.id].state == "lost"
    c.pass_s(2.2)
    assert (c.engine.state.nodes[home.info.id].state, c.state(1)) == ("drained", "waiting")
    c.engine.resume(home.info.id, c.now)
    c.pass_s(2.2)
    assert c.state(1) == "running"
    with pytest.raises(LookupError, match="no node 'n9'; there are: n0, n1"):
        c.engine.drain("n9", c.now)


def test_jobs_wait_for_nodes_then_those_that_can_never_fit_are_refused(cluster: Make) -> None:
    c = cluster(())
    assert c.submit({"gpus": 3}, {}) == [0, 1]
    c.pass_s(20)
    assert c.state(0) == "waiting"
    assert "no node has joined" in c.engine.explain(0, c.now).summary
    c.engine.observe(Observed(NodeInfo("n0", 2), "a"), c.now)
    c.pass_s(1.1)
    assert (c.state(0), c.state(1)) == ("waiting", "waiting")  # numbers stay in order
    c.pass_s(0.1)
    c.engine.observe(Observed(NodeInfo("n1", 2), "b"), c.now)
    c.pass_s(1.1)
    assert (c.state(0), c.state(1)) == ("starting", "starting")
    c.submit({"gpus": 5}, then_s=11)
    stored = c.stored(2)
    assert stored.row.state == "failed"
    assert "needs 5 GPUs" in stored.row.reason


def test_a_job_cancelled_before_it_was_admitted(cluster: Make) -> None:
    c = cluster(())
    c.submit({}, {})
    c.engine.cancel(0, c.now)
    assert c.state(0) == "cancelled"
    c.engine.observe(Observed(NodeInfo("n0", 1), "a"), c.now)
    c.pass_s()
    assert (c.state(0), c.state(1)) == ("cancelled", "starting")


def test_a_node_may_not_change_its_size_nor_have_a_name_that_is_a_path(cluster: Make) -> None:
    c = cluster((2,), jobs=[{}])
    running = [Seen(0, 1, 0, RUNNING, pid=100)]
    with pytest.raises(Conflict, match="came back with 3 GPUs, had 2, and still runs j-0"):
        c.engine.observe(Observed(NodeInfo("n0", 3), "z", attempts=running), c.now)
    with pytest.raises(Conflict, match="came back with 3 GPUs, had 2"):
        c.engine.observe(Observed(NodeInfo("n0", 3), c.nodes[0].agent), c.now)  # it is the one that has 2
    with pytest.raises(InputError, match="cannot be called"):
        c.engine.observe(Observed(NodeInfo("../etc", 1), "z"), c.now)


def test_service_counts_over_all_attempts(cluster: Make) -> None:
    c = cluster((2,), jobs=[{"gpus": 2, "retries": 3}])
    c.nodes[0].report(0, steps=5.0, held_s=10.0, step_s=2.0, then_s=0.6)
    c.nodes[0].end(0, 1, rank=0, then_s=2.2)
    c.nodes[0].report(0, steps=7.0, held_s=4.0, then_s=0.6)
    c.nodes[0].end(0, 0, then_s=1.1)
    stored = c.stored(0)
    assert (stored.row.attained_gpu_s, stored.row.run_s, stored.row.iterations_done) == (28.0, 14.0, 7.0)


def test_profiles_are_learnt_and_given_to_later_jobs_of_the_kind(cluster: Make) -> None:
    c = cluster(jobs=[{"model": "vgg"}])
    c.nodes[0].report(0, profile=Profile([0.1, 0.2, 0.3, 0.0], 0.5, 20), skew=0.8, then_s=0.6)
    assert c.types().count("JobProfiled") == 1
    c.nodes[0].report(0, profile=Profile([0.1, 0.2, 0.31, 0.0], 0.51, 40))  # the same, nearly
    c.pass_s(0.6)
    assert c.types().count("JobProfiled") == 1
    c.nodes[0].report(0, profile=Profile([math.nan, 0.2, 0.31, 0.0], 0.51, 40), then_s=0.6)
    assert c.types().count("JobProfiled") == 1
    c.submit({"model": "vgg"}, {"model": "gpt"}, {"model": "vgg", "gpus": 2}, {"model": "vgg", "skew": 0.1})
    columns = c.controller.job_store.columns
    assert columns["stage_s"][1].tolist() == [0.1, 0.2, 0.3, 0.0]
    assert columns["skew"][1] == 0.8
    assert columns["skew"][4] == 0.1
    assert columns["stage_s"][3].tolist() == [0.1, 0.2, 0.3, 0.0], "provisional: of its model at another size"


def test_jobs_like_one_that_was_measured_get_a_provisional_profile(cluster: Make) -> None:
    c = cluster((1,))
    sweep = [["python", "train.py", "--lr", lr] for lr in ("1", "2", "3")]
    c.submit({"command": sweep[0], "workdir": "/a"}, {"command": sweep[1], "workdir": "/a"}, {"command": ["other"]})
    c.pass_s()
    c.nodes[0].report(0, profile=Profile([0.1, 0.2, 0.3, 0.0], 0.5, 20), then_s=0.6)
    c.submit({"command": sweep[2], "workdir": "/a"}, {"command": sweep[2], "workdir": "/b"})
    known = [not math.isnan(t) for t in c.controller.job_store.columns["iteration_s"][:5].tolist()]
    assert known == [True, True, False, True, False], "also the one that waited when it was measured"
    sources = {n: c.engine.jobs([n], c.now)[n].profile_source for n in range(5)}
    assert sources == {0: "measured", 1: (like := "provisional, from jobs like it"), 2: None, 3: like, 4: None}
    c.nodes[0].end(0, then_s=2.2)
    c.nodes[0].report(1, profile=Profile([0.1, 0.2, 0.3, 0.0], 0.5, 20), then_s=0.6)
    assert c.engine.jobs([1], c.now)[1].profile_source == "measured", "its own, though it is the same"
    c.restart()
    assert c.engine.jobs([1], c.now)[1].profile_source == "measured"


@pytest.mark.parametrize("saves", ["", "yes"])
def test_progress_without_a_checkpoint_is_not_shown_as_kept(cluster: Make, saves: str) -> None:
    class Plain(Node):
        def observed(self) -> Observed:
            told = super().observed()
            return replace(told, attempts=[replace(one, saves=saves) for one in told.attempts])

    c = cluster((1,))
    c.nodes = [Plain(c, "n0", 1)]
    (job,) = c.submit({"iterations": 100}, then_s=1.1)
    c.nodes[0].report(job, steps=40.0, step_s=0.1, held_s=4.0, then_s=1.1)
    c.nodes[0].end(job, 1)
    c.nodes[0].obeys = False
    c.engine.drain("n0", c.now, may_lose_work=True)
    c.pass_s(3.0)
    stored = c.stored(job)
    assert (stored.row.state, stored.row.iterations_done) == ("waiting", 40.0 if saves else 0.0)


def grouped(cluster: Make, gate: str, **seen: Any) -> Cluster:
    """Job 0 measured alone; job 1 of its model joins it with its profile, and makes 70 iterations behind a gate."""
    c = cluster((1,), policy="muri-l", jobs=[{"model": "vgg"}])
    c.nodes[0].report(0, profile=Profile([0.0, 0.3, 0.3, 0.1], 0.7, 20), then_s=0.6)
    c.submit({"model": "vgg"}, then_s=2.2)
    assert c.nodes[0].jobs() == {0, 1}, "grouped at once"
    assert c.engine.jobs([1], c.now)[1].profile_source == "provisional, from jobs like it"
    for steps in (1.0, 30.0, 71.0):
        c.nodes[0].report(1, gate=gate, steps=steps, step_s=0.9, **seen, then_s=1.1)
    return c


def test_a_job_that_is_never_alone_measures_its_stages_behind_the_gate(cluster: Make) -> None:
    c = grouped(cluster, "tokens", stage_s=[0.05, 0.1, 0.15, 0.0])
    columns = c.controller.job_store.columns
    assert columns["stage_s"][1].tolist() == [0.05, 0.1, 0.15, 0.1], "transfers are not seen in company"
    assert columns["iteration_s"][1] == pytest.approx(0.7 * 0.4 / 0.7)
    assert columns["stage_s"][0].tolist() == [0.0, 0.3, 0.3, 0.1]
    assert c.engine.jobs([1], c.now)[1].profile_source == "measured beside others"
    c.restart()
    assert c.engine.jobs([1], c.now)[1].profile_source == "measured beside others"
    c.pass_s(0.6)
    c.nodes[0].end(0, then_s=2.2)
    c.nodes[0].report(1, profile=Profile([0.05, 0.1, 0.15, 0.1], 0.4, 20), gate="none", then_s=0.6)
    assert c.engine.jobs([1], c.now)[1].profile_source == "measured"


@pytest.mark.parametrize(
    ("gate", "stage_s"), [("none", [0.05, 0.1, 0.15, 0.0]), ("tokens", [0.0] * 4), ("tokens", None)]
)
def test_without_a_gate_or_marks_a_provisional_profile_stays(
    cluster: Make, gate: str, stage_s: list[float] | None
) -> None:
    c = grouped(cluster, gate, stage_s=stage_s)
    assert c.controller.job_store.columns["stage_s"][1].tolist() == [0.0, 0.3, 0.3, 0.1]
    assert c.engine.jobs([1], c.now)[1].profile_source == "provisional, from jobs like it"


@pytest.mark.parametrize("step_s", [0.5, 30.0])
def test_a_profile_in_the_making_is_finished_first_unless_that_takes_too_long(cluster: Make, step_s: float) -> None:
    c = cluster((1,), policy="2d-las:quantum_s=1", jobs=[{"command": ["a"]}])
    seen = {"saves": "yes", "step_s": step_s, "held_s": 10.0}
    c.nodes[0].report(0, steps=3.0, **seen, then_s=1.1)
    c.submit({"command": ["b"]})
    for i in range(5):
        c.nodes[0].report(0, steps=4.0 + i, **seen, then_s=2.0)
    stopped = [run.stop for run in c.nodes[0].sync().attempts if run.job == 0]
    if step_s > 1:
        assert stopped != [False], "25 iterations of 30 s are more than anybody waits for"
        return
    assert stopped == [False]
    c.nodes[0].report(0, profile=Profile([0.1, 0.2, 0.2, 0.0], 0.5, 20), **seen)
    for _ in range(3):
        c.pass_s(2.0)
    assert [run.stop for run in c.nodes[0].sync().attempts if run.job == 0] != [False]


@pytest.mark.parametrize(("step_s", "waited_s"), [(0.5, 30.0), (4.0, 120.0)], ids=["60 iterations", "two minutes"])
def test_a_profile_that_never_comes_is_not_waited_for_long(cluster: Make, step_s: float, waited_s: float) -> None:
    c = cluster((1,), policy="2d-las:quantum_s=1", jobs=[{"command": ["a"]}, {"command": ["b"]}])
    begin = c.now
    while c.now < begin + 200:
        c.nodes[0].report(0, steps=3.0, saves="yes", step_s=step_s, held_s=10.0, then_s=2.0)
        if [run.stop for run in c.nodes[0].sync().attempts if run.job == 0] != [False]:
            break
    assert waited_s - 2 <= c.now - begin <= waited_s + 10


def test_a_process_that_keeps_changing_its_profile_is_not_believed_each_time(cluster: Make) -> None:
    c = cluster(jobs=[{"model": "vgg"}])
    for i in range(20):
        c.nodes[0].report(0, profile=Profile([0.1, 0.2, 0.3 + i % 2, 0.0], 1.0 + i % 2, 20), skew=0.5 + i % 2 / 4)
        c.pass_s(0.6)
    assert c.types().count("JobProfiled") <= 2
    assert c.types().count("ProfileRecorded") <= 4


def test_an_early_decision_is_not_for_long_rounds(cluster: Make) -> None:
    c = cluster((1, 1), round_s=60.0, jobs=[{}])
    before = c.types().count("ReplanDue")
    c.submit({}, then_s=5.0)
    assert c.types().count("ReplanDue") == before


def test_jobs_that_take_turns_get_a_group_with_a_gate(cluster: Make) -> None:
    c = cluster((1,), policy="muri-l")
    stages = [{"storage": 0.2, "cpu": 0.1, "gpu": 0.1, "network": 0.1}, {"gpu": 0.2, "cpu": 0.1, "storage": 0.1}]
    c.submit(*({"profile": p} for p in stages), then_s=2.2)
    runs = c.nodes[0].sync().attempts
    assert [r.job for r in runs] == [0, 1]
    first, second = (r.group for r in runs)
    assert first == second
    assert first.gate in ("barrier", "tokens")
    assert sorted(m.job for m in first.members) == [0, 1]
    assert len({m.turn for m in first.members}) == 2
    c.nodes[0].end(0, then_s=0.6)
    left = c.nodes[0].sync().attempts[0].group
    assert (left.id, left.gate, [m.job for m in left.members]) == (first.id, "none", [1])
    assert left.version > first.version


def test_quota_holds_jobs_back_and_says_so(cluster: Make) -> None:
    c = cluster((4,))
    c.engine.set_project("small", gpu_quota=2, weight=2.0, now_s=c.now)
    with pytest.raises(InputError, match="quota of project small is 2"):
        c.submit({"gpus": 3, "project": "small"})
    c.submit({"project": "small"}, {"project": "small"}, {"project": "small"}, {}, then_s=2.2)
    assert [c.state(n) for n in range(4)] == ["running", "running", "waiting", "running"]
    assert "quota of project small" in c.engine.explain(2, c.now).summary
    c.nodes[0].end(0, then_s=2.2)
    assert c.state(2) == "running"
    c.engine.drop_project("small", c.now)
    c.submit({"project": "small"}, then_s=2.2)
    assert c.state(4) == "running"


def test_reservations_are_explained(cluster: Make) -> None:
    c = cluster(policy="live_cases_policies:Secret")
    c.submit({})
    c.submit({"gpus": 2}, then_s=2.2)
    assert c.state(0) == "running"
    assert c.engine.explain(1, c.now).summary == "waits (1 GPU reserved for it: n0:1)"
    assert c.engine.status(c.now).gpus.reserved_idle == 1
    c.restart(then_s=2.2)
    assert c.engine.explain(1, c.now).summary == "waits (1 GPU reserved for it: n0:1)"


def test_a_policy_that_fails_stops_nothing(cluster: Make) -> None:
    c = cluster(policy="fifo", jobs=[{}])
    c.engine.set_policy("live_cases_policies:Broken", c.now)
    c.submit({}, then_s=2.2)
    assert "ZeroDivisionError" in c.engine.status(c.now).policy_error
    assert c.state(0) == "running"
    with pytest.raises(InputError, match="did you mean 'fifo'"):
        c.engine.set_policy("fifoo", c.now)
    c.engine.set_policy("fifo", c.now)
    c.pass_s(6)
    assert c.engine.status(c.now).policy_error is None
    assert c.state(1) == "running"


def test_a_live_cluster_grants_no_memory_of_switches_and_says_who_asked_for_it(cluster: Make) -> None:
    c = cluster(policy="fifo")
    with pytest.raises(
        InputError, match="policy live_cases_policies:Granting grants memory of switches, and this cluster has no"
    ):
        c.engine.set_policy("live_cases_policies:Granting", c.now)
    c.engine.set_policy("live_cases_policies:SecretGrants", c.now)
    c.submit({}, then_s=2.2)
    assert "grants memory of switch 's' to job 'j-0'" in c.engine.status(c.now).policy_error
    assert c.state(0) == "waiting"


def test_explain_speaks_of_aggregation_only_where_switches_could_do_it(cluster: Make) -> None:
    c = cluster(policy="fifo", jobs=[{}])
    assert c.engine.explain(0, c.now).network is None
    node = c.controller.cluster.nodes[0].id
    net = Network((Switch("s", aggregators=8),), (Link(node, "s", 1e11),))
    c.controller.cluster = c.controller.cluster.with_network(net)
    assert c.engine.explain(0, c.now).network == "not aggregated: policy fifo grants it no memory of switches"


def test_a_policy_that_fails_is_no_answer_and_no_error_to_whoever_asks(cluster: Make) -> None:
    c = cluster((1,), policy="fifo", jobs=[{}, {}], then_s=1.2)
    what_if = WhatIfService(c.store)
    _, question = what_if.explain(c.engine, 1, c.now)
    question.copy.controller.policy = cast("Any", None)  # a TypeError or AttributeError of its own
    answer = what_if.ask(question)
    assert answer.result() == []
    what_if.close()


def test_forecasts_follow_jobs_that_run_for_hours_without_a_decision(cluster: Make) -> None:
    c = cluster((1,), policy="fifo", jobs=[{"iterations": 10_000}, {}], then_s=2.2)
    what_if, ends_s = WhatIfService(c.store), []
    for steps in (100.0, 5000.0):
        c.nodes[0].report(0, steps=steps, step_s=1.0, then_s=12.1)
        copy = what_if.queue(c.engine, c.now)
        found = None if copy is None else what_if.forecast(copy, 0)
        ends_s.append((copy.decision, found.end.middle_s))
    what_if.close()
    (first, early_s), (second, late_s) = ends_s
    assert first == second  # nothing was decided in between
    assert late_s < 0.6 * early_s


def test_a_live_group_that_breaks_its_promise_is_split_and_explain_names_the_reports(cluster: Make) -> None:
    c = cluster((1,), policy="plait:guests=0")
    profiles = [{"cpu": 0.9, "gpu": 0.1}, {"cpu": 0.1, "gpu": 0.9}] * 2
    jobs = [{"iterations": 5000, "profile": profile, "model": f"m{i % 2}"} for i, profile in enumerate(profiles)]
    c.submit(*jobs, then_s=2.2)
    before = c.engine.explain(0, c.now)
    assert before.shares_with == ["j-1"]
    assert before.sharing_costs == [
        "a group of 2 is expected to take 1.31 times its schedule",
        "next to j-1 1.00 times that (0.80 to 1.25), from no report that differs from that",
    ]
    for number in (0, 1):
        c.nodes[0].report(number, step_s=3.0, steps=40.0, gate="barrier")
    c.pass_s(10.0)
    assert len(c.controller.job_store.pair_reports.pairs) == 1
    assert not c.engine.explain(0, c.now).shares_with, "split within three rounds"


def test_one_user_cannot_shut_others_out_of_forecasts(cluster: Make) -> None:
    what_if, go = WhatIfService(cluster((1,)).store), threading.Event()
    waiting = [what_if.later(go.wait, "ann") for _ in range(MOST_OF_ONE)]
    with pytest.raises(Busy, match="ann waits for 8 forecasts already"):
        what_if.later(go.wait, "ann")
    other = what_if.later(lambda: "soon", "ben")
    go.set()
    assert other.result(30) == "soon"
    assert all(one.result(30) for one in waiting)
    assert what_if.later(lambda: "again", "ann").result(30) == "again"
    what_if.close()


def test_explain_names_the_jobs_that_a_prediction_rests_on(cluster: Make) -> None:
    c = cluster((1,), policy="plait")
    c.submit({"command": ["python", "train.py"]}, {"command": ["python", "train.py"]}, then_s=2.2)
    assert "an assumption, because no job has ended yet" in c.engine.explain(1, c.now).predicted
    c.nodes[0].report(0, steps=10.0, step_s=0.5, total_steps=100.0, then_s=2.0)
    lines = explanation_lines(c.engine.explain(0, c.now))
    assert [line[:39] for line in lines if "left" in line] == ["  about 45.0 s left by its own progress"]
    for number in (0, 1):
        c.nodes[0].report(number, held_s=600.0, then_s=10.0)
        c.nodes[0].end(number, then_s=2.2)
    c.submit({"command": ["python", "train.py"]}, {"command": ["python", "other.py"]}, {"iterations": 100}, then_s=2.2)
    c.engine.set_project("small", gpu_quota=2, weight=1.0, now_s=c.now)
    again, other = (c.engine.explain(number, c.now).predicted for number in (2, 3))
    assert "from 2 jobs that ended with the same user, script, arguments and size" in again
    assert "from 2 jobs that ended with the same user and size" in other
    c.engine.set_policy("fifo", c.now)
    assert c.engine.explain(3, c.now).predicted is None


def test_policies_know_the_total_that_a_script_reports(cluster: Make) -> None:
    c = cluster((2,), policy="plait")
    c.submit({"command": ["python", "train.py"]}, {"command": ["python", "train.py"], "iterations": 7}, then_s=2.2)
    store = c.controller.job_store
    pace: dict[str, Any] = {"step_s": 0.5, "held_s": c.now, "stage_s": [0.1, 0.1, 0.2, 0.1]}
    for steps, total, known, wait_s in (
        (10.0, 100.0, 100.0, 2.0),  # at once
        (14.0, 300.0, 100.0, 4.0),  # another one so soon is not taken
        (38.0, 300.0, 300.0, 12.0),
        (301.0, 300.0, math.nan, 12.0),  # wrong: the job is predicted again
    ):
        c.nodes[0].report(0, steps=steps, total_steps=total, **pace, then_s=wait_s)
        c.engine.update(0, {"priority": steps}, c.now, by="ann")  # which leaves it known
        assert store.columns["iterations"][:2].tolist() == pytest.approx([known, 7.0], nan_ok=True)
    assert [entry.type for entry in c.store.entries()].count("JobUpdated") == 3 + 4
    c.nodes[0].report(0, steps=310.0, total_steps=900.0, **pace, then_s=2.0)
    c.nodes[0].end(0, then_s=2.0)  # before the total that it reported
    assert store.columns["iterations_done"][0] == 310.0


def test_explain_names_blockers_and_what_would_start_it(cluster: Make) -> None:
    c = cluster((2,), policy="fifo-backfill", jobs=[{"iterations": 100}])
    c.nodes[0].report(0, steps=50.0, step_s=0.5)
    c.submit({"gpus": 2}, then_s=2.2)
    what_if = WhatIfService(c.store)
    why, question = what_if.explain(c.engine, 1, c.now)
    assert question is not None
    assert (why.state, why.position, why.waiting) == ("waiting", 1, 1)
    assert why.decision.seq > 0
    assert why.blockers[0].id == "j-0"
    assert why.blockers[0].left_s == 25.0
    before = len(c.types())
    answer = what_if.ask(question)
    assert [w.text for w in answer.result()] == [
        "with 1 GPU it would start now",
        "if j-0 ended, it would start now",
    ]
    assert len(c.types()) == before  # asking changes nothing
    assert what_if.ask(question) is answer  # and is done once a decision
    again = what_if.explain(c.engine, 1, c.now)[1]
    assert again.copy is question.copy
    what_if.close()
    c.nodes[0].report(0, stage_s=[0.0, 0.1, 0.4, 0.0], profile=Profile([0.0, 0.1, 0.2, 0.0], 0.25, 30), then_s=0.6)
    how = c.engine.explain(0, c.now)
    assert how.stages["gpu"] == StageTime(0.4, 0.2)
    assert how.slowdown == 2.0
    with pytest.raises(LookupError):
        c.engine.explain(9, c.now)


def test_messages_of_an_agent_that_was_replaced_do_not_count_as_life(cluster: Make) -> None:
    c = cluster((1,))
    old = c.nodes[0].observed()
    c.nodes[0].agent = "newer"
    c.pass_s(0.6)
    for _ in range(40):
        c.now += 0.5
        c.engine.observe(old, c.now)
    assert c.engine.state.nodes["n0"].state == "lost"


def test_words_that_came_late_change_nothing(cluster: Make) -> None:
    c = cluster((1,), jobs=[{}])
    c.nodes[0].report(0, steps=9.0, held_s=3.0, then_s=0.6)
    k = (0, 1, 0)
    late = replace(c.nodes[0].seen[k], state=STARTING, steps=1.0, held_s=0.5)
    c.engine.observe(replace(c.nodes[0].observed(), attempts=[late]), c.now)
    attempt = c.engine.state.jobs[0].attempt
    assert (attempt.steps, attempt.held_s, c.state(0)) == (9.0, 3.0, "running")
    c.nodes[0].end(0, then_s=0.6)
    c.engine.observe(replace(c.nodes[0].observed(), attempts=[late]), c.now)
    assert c.state(0) == "finished"


def test_time_does_not_go_back(cluster: Make) -> None:
    c = cluster(jobs=[{}], then_s=5)
    c.now -= 4
    c.pass_s(1)
    assert c.engine.clock(c.now) >= 5
    assert c.engine.state.phase(c.engine.state.jobs[0]) is Phase.RUNNING


def test_submissions_are_all_or_none(cluster: Make) -> None:
    c = cluster()
    with pytest.raises(InputError):
        c.submit({}, {"class": "royal"})
    with pytest.raises(InputError, match="command is empty"):
        c.engine.submit([{"command": []}], owner="ann", now_s=c.now)
    assert c.store.jobs() == []


def test_a_live_job_may_prefer_aggregation_in_the_network_but_not_require_it(cluster: Make) -> None:
    c = cluster((4,))
    (number,) = c.submit({"ina": {"mode": "auto", "memory": 64}})
    assert c.controller.job_store.spec(number).ina == InaRequest("auto", memory=64)
    with pytest.raises(InputError, match=r"ina is require, and this cluster has no network \(plait up --network\)"):
        c.submit({"ina": {"mode": "require"}})
    with pytest.raises(InputError, match=r"ina\.memory is -1"):
        c.submit({"ina": {"memory": -1}})


def test_an_elastic_job_has_two_bounds_and_they_are_checked(cluster: Make) -> None:
    c = cluster((4,))
    (number,) = c.submit({"gpus": 2, "min_gpus": 1, "max_gpus": 4})
    spec = c.controller.job_store.spec(number)
    assert (spec.min_gpus, spec.gpus, spec.max_gpus) == (1, 2, 4)
    with pytest.raises(InputError, match=r"min_gpus, max_gpus is \(3, 2\), needs min <= gpus <= max"):
        c.submit({"gpus": 2, "min_gpus": 3})
    with pytest.raises(InputError, match="this one has 4"):
        c.submit({"gpus": 1, "max_gpus": 4, "merge": True})


def test_a_job_that_waits_for_the_compiler_says_so(cluster: Make) -> None:
    c = cluster((2,))
    c.engine.ready = False
    (number,) = c.submit({})
    assert "is being compiled" in c.engine.jobs([number], c.now)[number].reason


def test_a_private_folder_is_private_with_what_it_is_in(tmp_path: Path) -> None:
    made = make_private(tmp_path / "home" / "ray")
    assert [oct(folder.stat().st_mode & 0o777) for folder in (made, made.parent)] == ["0o700", "0o700"]


def test_a_submission_is_known_by_its_key_after_a_restart_from_the_log_and_from_a_snapshot(
    cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    from plait.live.scheduler import state

    for weight in (1e9, 0.0):  # no snapshot but at the start, one at each commit
        c = cluster(snapshot_weight=weight)
        first = c.engine.submit([{"command": ["true"]}] * 2, owner="ann", now_s=c.now, key="k")
        for _ in range(2):
            c.restart()
            assert c.engine.submit([{"command": ["true"]}] * 2, owner="ann", now_s=c.now, key="k") == first
        assert c.engine.state.numbers == 2
        with pytest.raises(Conflict):
            c.engine.submit([{"command": ["false"]}] * 2, owner="ann", now_s=c.now, key="k")
    monkeypatch.setattr(state, "MOST", 3)
    for i in range(9):
        c.engine.submit([{"command": ["true"]}], owner="ann", now_s=c.now, key=f"k{i}")
    assert [row[1] for row in c.engine.state.submissions.rows()] == ["k6", "k7", "k8"]


@pytest.mark.parametrize("policy", ["fifo-backfill", "muri-l"])
def test_a_job_is_not_kept_waiting_for_a_silent_node_on_which_nothing_runs(cluster: Make, policy: str) -> None:
    c = cluster((1, 1), policy=policy, lost_s=300.0, lease_s=240.0)
    c.pass_s(2.0)
    c.pass_s(5.0, silent=["n0"])
    jobs = c.submit({}, {})
    c.pass_s(3.0, silent=["n0"])
    (first,) = c.nodes[1].jobs()
    c.nodes[1].end(first)
    c.pass_s(10.0, silent=["n0"])
    assert c.nodes[1].jobs() == set(jobs) - {first}
    assert c.engine.state.nodes["n1"].state == "ready"


def test_a_silent_node_is_waited_for_where_something_may_still_run(cluster: Make) -> None:
    c = cluster((1, 1), lost_s=300.0, lease_s=240.0, jobs=[{}, {}], then_s=2.0)
    c.pass_s(290.0, silent=["n0"])
    assert c.engine.state.nodes["n0"].state == "suspect"


def test_a_job_whose_checkpoints_fail_is_not_stopped_until_one_is_written(cluster: Make) -> None:
    c = cluster((1,), policy="2d-las:quantum_s=1", jobs=[{"command": ["a"]}, {"command": ["b"]}])
    (first,) = c.nodes[0].jobs()
    for said, goes_on in (("failed", True), ("yes", False)):
        for i in range(10):
            c.nodes[0].report(first, steps=3.0 + i, saves=said, held_s=30.0 + i, then_s=2.0)
        assert (first in c.nodes[0].jobs()) is goes_on
        assert (epoch_of(c, 1 - first) == 0) is goes_on


def epoch_of(c: Cluster, job: int) -> int:
    stored = c.stored(job)
    return int(stored.row.epoch)


def test_when_a_rank_hangs_the_others_say_where_they_were_and_the_reason_names_the_one_that_is_waited_for(
    cluster: Make,
) -> None:
    c = cluster((1, 1))
    c.nodes[1].obeys = False
    c.submit({"gpus": 2, "retries": 0}, then_s=2.2)
    c.nodes[1].seen = {k: Seen(*k, RUNNING, pid=9) for k in [key(run) for run in c.nodes[1].sync().attempts]}
    c.nodes[0].end(0, -9, reason="hung: 34 s in its network stage, where 30 s are allowed", then_s=1.1)
    (run,) = c.nodes[1].sync().attempts
    assert (run.stop, run.hung) == (True, True)
    place = "ended, as another process of the job hung; it was 41 s in its cpu stage; its stacks are in the log"
    c.nodes[1].end(0, -9, reason=place, then_s=2.2)
    assert c.state(0) == "failed"
    assert c.store.job(0).row.reason.startswith("rank 1: 41 s in its cpu stage; hung: 34 s in its network stage")


@pytest.mark.parametrize("weight", [1e9, 0.0], ids=["log", "snapshot"])
def test_past_use_orders_jobs_and_is_shown(cluster: Make, monkeypatch: pytest.MonkeyPatch, weight: float) -> None:
    monkeypatch.setattr("plait.live.scheduler.state.RECENT", 0)  # snapshots keep no job that has ended whole
    c = cluster((1,), "fifo-backfill:fair=7d", snapshot_weight=weight)
    c.engine.set_project("vision", gpu_quota=None, weight=1.0, now_s=c.now)
    c.submit({}, owner="ann", then_s=600.0)
    c.nodes[0].report(0, held_s=600.0, steps=6.0, step_s=100.0, then_s=2.2)
    c.submit({}, owner="ann")
    c.submit({}, owner="ben")
    c.submit({"project": "vision"}, owner="ann")
    c.nodes[0].end(0, then_s=2.2)
    assert [c.state(job) for job in range(4)] == ["finished", "waiting", "waiting", "running"]
    shown = c.engine.past_use(), c.engine.explain(1, c.now).fair
    c.restart()
    assert (c.engine.past_use(), c.engine.explain(1, c.now).fair) == shown
    c.pass_s(2.2)
    fair = c.engine.explain(1, c.now).fair
    assert (fair.project, fair.half_life_s, fair.user_times) == ("default", 604_800.0, 2.0)
    assert fair.project_times > 1.9
    use = c.engine.past_use()
    assert use["default"] == pytest.approx(600.0, rel=0.02)
    c.nodes[0].end(3, then_s=2.2)
    assert [c.state(job) for job in (1, 2)] == ["waiting", "running"]
    c.engine.set_policy("fifo-backfill", c.now)
    assert (c.engine.past_use(), c.engine.explain(1, c.now).fair) == (None, None)
