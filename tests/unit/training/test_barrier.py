"""The barrier between processes: slots in lock step; the rest goes on when one ends, dies, stops or comes late."""

import signal
import threading

import pytest
from gate_process import Watch, until

from plait.core.resources import Resource
from plait.runtime.gates import BarrierGate, GateError, GateTimeout, GroupMember
from plait.runtime.group_files import ACTIVE, AWAY, GONE, SLOT, TARGET

STORAGE, CPU, GPU, NETWORK = "0", "1", "2", "3"


@pytest.mark.parametrize("turns", [(0, 1, 2), (0, 2), (3, 1, 2, 0)])
def test_no_two_jobs_are_on_a_resource_and_nobody_is_locked_up(group, play, tmp_path, turns):
    made = group("barrier", [GroupMember(1 + i, turn) for i, turn in enumerate(turns)])
    processes = [play(made, m.job) for m in made.members]
    for i, p in enumerate(processes):
        p.say(f"work {60 + 20 * i} {tmp_path}")  # the first to finish leaves the others to go on
    assert [p.hear() for p in processes] == ["met 0"] * len(processes)


def test_a_slot_ends_for_all_together(group, play):
    made = group("barrier", 2)
    watch = Watch(made)
    a, b = play(made, 1), play(made, 2)
    assert a.ask(f"enter {STORAGE}") == "in 0"
    assert b.ask(f"enter {CPU}") == "in 1", "turn 1 has the CPU while turn 0 has the storage"
    b.say(f"leave {CPU}")
    assert b.hear() == "out 1"
    b.say(f"enter {GPU}")
    until(lambda: watch.member(1, TARGET) != 0)
    assert b.quiet(), "the storage stage of the other is still on"
    a.say(f"leave {STORAGE}")
    assert a.hear() == "out 0"
    a.say(f"enter {CPU}")
    assert (a.hear(), b.hear()) == ("in 1", "in 2")


def test_slots_nobody_uses_are_nobodys_wait(group, play, tmp_path):
    made = group("barrier", 2)
    a, b = play(made, 1), play(made, 2)
    a.say(f"work 50 {tmp_path} {CPU}{GPU}")  # neither has a stage on the network
    b.say(f"work 50 {tmp_path} {STORAGE}{GPU}")
    assert (a.hear(), b.hear()) == ("met 0", "met 0")


def test_the_next_stage_waits_for_the_thread_that_leaves_the_network(group):
    gate = BarrierGate(group("barrier", 2), 0)
    entered, leave = threading.Event(), threading.Event()

    def exchange():
        gate.enter(Resource.NETWORK)
        entered.set()
        leave.wait()
        gate.leave(Resource.NETWORK)

    thread = threading.Thread(target=exchange)
    thread.start()
    entered.wait()
    threading.Timer(0.02, leave.set).start()
    gate.enter(Resource.GPU)
    assert leave.is_set(), "two stages of one job at a time"
    with pytest.raises(GateError):
        gate.enter(Resource.CPU)
    gate.leave(Resource.GPU)
    thread.join()
    gate.close()


def _both_in_step(made, play):
    """Two processes that have met: a inside storage, b waiting at the end of the slot."""
    watch = Watch(made)
    a, b = play(made, 1), play(made, 2)
    a.ask(f"enter {STORAGE}")
    b.ask(f"enter {CPU}")
    b.ask(f"leave {CPU}")
    b.say(f"enter {GPU}")
    until(lambda: watch.member(1, TARGET) != 0)
    assert b.quiet()
    return watch, a, b


def test_the_rest_goes_on_when_one_is_killed(group, play):
    watch, a, b = _both_in_step(group("barrier", 2), play)
    a.kill()
    assert b.hear() == "in 2"
    assert watch.member(0) == GONE


def test_a_killed_member_with_a_living_child_is_gone_too(group, play):
    made = group("barrier", 2)
    watch = Watch(made)
    a, b = play(made, 1), play(made, 2)
    a.ask("fork")
    a.ask(f"enter {STORAGE}")
    b.ask(f"enter {CPU}")
    b.ask(f"leave {CPU}")
    a.kill()
    assert b.ask(f"enter {GPU}") == "in 2"
    assert watch.member(0) == GONE


def _one_between_stages(made, play):
    """Two processes that have met: a between two stages, b waiting for a's next."""
    watch, a, b = _both_in_step(made, play)
    assert a.ask(f"leave {STORAGE}") == "out 0"
    assert b.hear() == "in 2"
    assert b.ask(f"leave {GPU}") == "out 2"
    b.say(f"enter {NETWORK}")
    until(lambda: watch.member(1, TARGET) != 0)
    return watch, a, b


@pytest.mark.parametrize("verb", ["drop", "close"])
def test_the_rest_goes_on_when_one_leaves(group, play, verb):
    watch, a, b = _one_between_stages(group("barrier", 2), play)
    assert b.quiet()
    a.say(verb)
    assert b.hear() == "in 3"
    assert watch.member(0) == AWAY


def test_the_rest_goes_on_when_one_stays_in_a_stage_for_too_long(group, play):
    watch, a, b = _both_in_step(group("barrier", 2, lease_s=0.05), play)
    a.signal(signal.SIGSTOP)
    assert b.hear() == "in 2"
    assert watch.member(0) == AWAY
    b.ask(f"leave {GPU}")
    a.signal(signal.SIGCONT)
    assert a.ask(f"leave {STORAGE}") == "out 0"
    assert b.ask("drop") == "dropped"
    assert a.ask(f"enter {CPU}") == "in 1", "back again at its next stage"
    assert watch.member(0) == ACTIVE


def test_the_rest_goes_on_when_one_does_something_else_between_stages(group, play):
    watch, a, b = _one_between_stages(group("barrier", 2, rest_s=0.05), play)
    assert b.hear() == "in 3"  # a is in an evaluation, say
    assert watch.member(0) == AWAY
    assert b.ask("drop") == "dropped"
    assert a.ask(f"enter {CPU}") == "in 1"
    assert watch.member(0) == ACTIVE


def test_a_member_that_was_late_starts_at_the_next_iteration(group, play, tmp_path):
    made = group("barrier", 3)
    watch = Watch(made)
    a, b = play(made, 1), play(made, 2)
    for p in (a, b):
        p.say(f"work 5 {tmp_path}")
    assert (a.hear(), b.hear()) == ("met 0", "met 0")
    a.ask(f"enter {STORAGE}")
    before = watch.member(0, SLOT)
    c = play(made, 3)
    c.say(f"enter {STORAGE}")
    until(lambda: watch.member(2) == ACTIVE)
    started = watch.member(2, SLOT)
    assert started >= before
    assert (started + 2) % 4 == 0, "the slot in which turn 2 has the storage"
    a.ask(f"leave {STORAGE}")
    a.ask("drop")
    assert c.hear() == "in 0"


def test_a_wait_runs_out_with_the_name_of_who_is_awaited(group, play):
    made = group("barrier", 2)
    a, b = play(made, 1), play(made, 2)
    a.ask(f"enter {STORAGE}")
    b.ask(f"enter {CPU}")
    b.ask(f"leave {CPU}")
    said = b.ask(f"enter {GPU} 0.05")
    assert said.startswith(f"timeout {a.process.pid} ")
    assert "job 1" in said
    assert "still on STORAGE" in said
    a.ask(f"leave {STORAGE}")
    a.ask("drop")
    assert b.ask(f"enter {GPU}") == "in 2"


def test_a_newer_plan_lets_everybody_through(group, play):
    _, a, b = _both_in_step(group("barrier", 2), play)
    newer = group("tokens", 2, version=2)
    assert b.hear() == "in 2"
    assert a.ask(f"leave {STORAGE}") == "out 0"
    assert a.ask("kind") == "none"
    a.end()
    assert play(newer, 1).ask("kind") == "tokens"


def test_a_barrier_alone_never_waits_and_never_nests(group):
    gate = BarrierGate(group("barrier", 2), 0)
    for r in (*Resource, *Resource):
        gate.enter(r, 0.0)
        gate.leave(r)
    assert gate.stats.stages == [2, 2, 2, 2]
    gate.enter(Resource.GPU)
    with pytest.raises(GateError, match="NETWORK inside one on GPU"):
        gate.enter(Resource.NETWORK)
    gate.close()
    assert gate.kind == "none"


def test_a_timeout_of_nothing_is_a_look(group):
    made = group("barrier", 2)
    a, b = BarrierGate(made, 0), BarrierGate(made, 1)
    a.enter(Resource.STORAGE)
    b.enter(Resource.CPU)
    b.leave(Resource.CPU)
    with pytest.raises(GateTimeout):
        b.enter(Resource.GPU, 0.0)
    assert b.stats.timeouts == 1
