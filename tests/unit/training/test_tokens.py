"""Tokens between processes: one at a time, in order, by quantum, and nothing is lost when somebody dies or stops."""

import os
import signal
import threading

import pytest
from gate_process import Watch, until
from hypothesis import given
from hypothesis import strategies as st

from plait.core.resources import Resource
from plait.runtime.gate_choice import paces, token_paces
from plait.runtime.gates import GateError, GateTimeout, GroupMember, TokenGate, make_group, open_gate, remove_group

GPU, CPU = "2", "1"


def held_and_awaited(group, play):
    """A group whose job 1 has the token of the GPU, for which job 2 waits: files, their state, and both jobs."""
    made = group("tokens")
    watch = Watch(made)
    a, b = play(made, 1), play(made, 2)
    a.ask(f"enter {GPU}")
    b.say(f"enter {GPU}")
    until(lambda: watch.waiting(2) == 1)
    return made, watch, a, b


def test_never_two_at_once(group, play, tmp_path):
    processes = [play(group("tokens"), job) for job in (1, 2, 3)]
    for p in processes:
        p.say(f"work 100 {tmp_path}")
    assert [p.hear() for p in processes] == ["met 0"] * 3


def test_first_come_first_served(group, play):
    made = group("tokens")
    watch = Watch(made)
    a, b, c = (play(made, job) for job in (1, 2, 3))
    assert a.ask(f"enter {GPU}") == "in 2"
    c.say(f"enter {GPU}")
    until(lambda: watch.waiting(2) == 1)
    b.say(f"enter {GPU}")
    until(lambda: watch.waiting(2) == 2)
    assert b.quiet()
    assert c.quiet()
    a.say(f"leave {GPU}")
    assert c.hear() == "in 2"
    assert b.quiet()
    c.say(f"leave {GPU}")
    assert b.hear() == "in 2"


def test_other_resources_are_not_in_the_way(group, play):
    made = group("tokens")
    a, b = play(made, 1), play(made, 2)
    assert a.ask(f"enter {GPU}") == "in 2"
    assert b.ask(f"enter {CPU}") == "in 1"


def test_the_kernel_frees_what_a_killed_holder_had(group, play):
    _, _, a, b = held_and_awaited(group, play)
    a.kill()
    assert b.hear() == "in 2"


def test_a_child_that_outlives_a_killed_holder_does_not_keep_the_token(group, play):
    made = group("tokens")
    a, b = play(made, 1), play(made, 2)
    a.ask(f"enter {GPU}")
    assert a.ask("fork") == "forked"
    b.say(f"enter {GPU}")
    a.kill()
    assert b.hear() == "in 2"


def test_a_killed_waiter_is_taken_out_of_the_line(group, play):
    made, watch, a, b = held_and_awaited(group, play)
    c = play(made, 3)
    c.say(f"enter {GPU}")
    until(lambda: watch.waiting(2) == 2)
    b.kill()
    a.say(f"leave {GPU}")
    assert c.hear() == "in 2"
    assert watch.waiting(2) == 0


def test_a_stopped_waiter_is_overtaken_and_comes_later(group, play):
    made, watch, a, b = held_and_awaited(group, play)
    c = play(made, 3)
    b.signal(signal.SIGSTOP)
    c.say(f"enter {GPU}")
    until(lambda: watch.waiting(2) == 2)
    a.say(f"leave {GPU}")
    assert c.hear() == "in 2"
    b.signal(signal.SIGCONT)
    c.say(f"leave {GPU}")
    assert b.hear() == "in 2"


def test_a_stopped_holder_makes_waits_run_out_with_its_name(group, play):
    made = group("tokens")
    a, b = play(made, 1), play(made, 2)
    a.ask(f"enter {GPU}")
    a.signal(signal.SIGSTOP)
    said = b.ask(f"enter {GPU} 0.05")
    assert said.startswith(f"timeout {a.process.pid} ")
    assert "GPU in group g; held by job 1" in said
    a.signal(signal.SIGCONT)
    a.say(f"leave {GPU}")
    assert b.ask(f"enter {GPU}") == "in 2"


def _short_one_waits_for_long_one(made, play):
    watch = Watch(made)
    a, b = play(made, 1), play(made, 2)
    a.ask(f"enter {GPU}")
    assert a.ask("yield") == "yields 0", "nobody waits"
    b.say(f"enter {GPU}")
    until(lambda: watch.waiting(2) == 1)
    watch.expect(1e-9)
    return watch, a, b


def test_a_used_up_quantum_goes_to_a_shorter_stage(group, play):
    watch, a, b = _short_one_waits_for_long_one(group("tokens", quantum_s=1e-6), play)
    a.say("yield")
    assert b.hear() == "in 2"
    until(lambda: watch.waiting(2) == 1)
    assert a.quiet()
    b.say(f"leave {GPU}")
    assert a.hear() == "yields 1"


def test_a_quantum_that_lasts_is_kept(group, play):
    _, a, b = _short_one_waits_for_long_one(group("tokens", quantum_s=1e6), play)
    assert a.ask("yield") == "yields 0"
    assert b.quiet()


@pytest.mark.parametrize("need_s", [1e6, -1.0])
def test_nobody_gives_way_to_a_stage_that_is_longer_or_not_known(group, play, need_s):
    watch, a, b = _short_one_waits_for_long_one(group("tokens", quantum_s=1e-6), play)
    watch.expect(need_s)
    assert a.ask("yield") == "yields 0"
    assert b.quiet()


def test_stages_say_how_long_they_usually_take(group):
    made = group("tokens", 2)
    a, b = TokenGate(made, 0), TokenGate(made, 1)
    b.enter(Resource.GPU)
    b.leave(Resource.GPU)
    a.enter(Resource.GPU)
    with pytest.raises(GateTimeout):
        b.enter(Resource.GPU, 0.001)
    thread, watch = b._thread(), Watch(made)
    usual = thread.usual_s[Resource.GPU]
    assert usual > 0
    assert watch.page.words[watch.page.at.need + thread.row] == int(usual * 1e9)


def test_as_many_as_there_are_slots(group, play):
    made = group("tokens", capacities=(1, 2, 1, 1))
    watch = Watch(made)
    a, b, c = (play(made, job) for job in (1, 2, 3))
    assert a.ask(f"enter {CPU}") == "in 1"
    assert b.ask(f"enter {CPU}") == "in 1"
    c.say(f"enter {CPU}")
    until(lambda: watch.waiting(1) == 1)
    assert c.quiet()
    b.say(f"leave {CPU}")
    assert c.hear() == "in 1"


def test_threads_of_a_job_queue_each_for_itself(group):
    gate = TokenGate(group("tokens", 1), 0)
    watch, order = Watch(gate._page.group), []

    def worker(name):
        gate.enter(Resource.CPU)
        order.append(name)
        gate.leave(Resource.CPU)

    gate.enter(Resource.CPU)
    threads = []
    for name in "abc":
        threads.append(threading.Thread(target=worker, args=(name,)))
        threads[-1].start()
        until(lambda: watch.waiting(1) == len(threads))
    assert order == []
    gate.leave(Resource.CPU)
    for t in threads:
        t.join()
    assert order == ["a", "b", "c"]
    assert gate.stats.stages == [0, 4, 0, 0]


def test_a_forked_worker_does_not_have_what_its_parent_has(group):
    gate = TokenGate(group("tokens", 1), 0)
    gate.enter(Resource.CPU)
    pid = os.fork()
    if pid == 0:
        try:
            gate.enter(Resource.CPU, 0.01)
        except GateTimeout as error:
            os._exit(7 if error.holder_pid == os.getppid() else 8)
        os._exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    gate.leave(Resource.CPU)


def test_stages_nest_only_upwards(group):
    gate = TokenGate(group("tokens", 1), 0)
    gate.enter(Resource.GPU)
    gate.enter(Resource.NETWORK)
    gate.leave(Resource.NETWORK)
    with pytest.raises(GateError, match="CPU inside one on GPU"):
        gate.enter(Resource.CPU)
    gate.leave(Resource.GPU)
    gate.enter(Resource.CPU)
    gate.leave(Resource.CPU)


def test_a_newer_plan_lets_everybody_of_the_old_one_through(group, play):
    made, _, a, b = held_and_awaited(group, play)
    newer = group("tokens", 2, version=2)
    assert b.hear() == "in 2"
    assert b.ask("kind") == "none"
    assert a.ask(f"leave {GPU}") == "out 2"
    assert play(newer, 1).ask("kind") == "tokens"
    stale = open_gate({"group": made.control(1)})
    assert stale.kind == "none"
    assert "version 1 is gone" in stale.reason


def test_files_that_vanish_leave_jobs_running(group, play):
    made, _, a, b = held_and_awaited(group, play)
    remove_group(made.folder)
    assert b.hear() == "in 2"
    assert a.ask(f"leave {GPU}") == "out 2"
    assert a.ask(f"enter {CPU}") == "in 1"
    assert not made.folder.exists()


def test_only_one_process_is_a_member(group, play):
    made = group("tokens")
    a = play(made, 1)
    twin = play(made, 1)
    assert twin.ask("kind") == "none"
    a.kill()
    assert play(made, 1).ask("kind") == "tokens"


def test_close_gives_everything_back(group):
    made = make_group(group("tokens").folder, "tokens", [GroupMember(1, 0), GroupMember(2, 1)], version=2)
    a, b = TokenGate(made, 0), TokenGate(made, 1)
    a.enter(Resource.GPU)
    a.close()
    a.close()
    b.enter(Resource.GPU, 1.0)
    assert (a.kind, b.kind) == ("none", "tokens")


# Paces at tokens held for whole stages, beside what was measured on paced devices (spec, section 4).

M4 = [(2, 1, 1, 1), (1, 2, 1, 1), (1, 1, 2, 1), (1, 1, 1, 2)]
G4 = [(0.5, 0.5, 2, 0.5)] * 4


@pytest.mark.parametrize(
    ("stages", "alone", "measured"),
    [
        (M4, 3.0, 2.94 / 0.54),
        ([(2, 0.5, 1, 0.5), (0.5, 1, 2, 0.5)], 2.5, 1.69 / 0.53),
        (G4, 2.5, 4.16 / 0.52),
    ],
    ids=["M4", "M2", "G4"],
)
def test_published_mixes_with_prefetch_are_predicted(
    stages: list[tuple[float, ...]], alone: float, measured: float
) -> None:
    predicted = paces("tokens", stages, [alone] * len(stages), [0] * len(stages))
    assert predicted == pytest.approx([measured] * len(stages), rel=0.08)


def test_a_short_stage_waits_behind_a_long_one_in_each_iteration() -> None:
    assert token_paces([(0, 0, 8, 0), (0, 3, 1, 0)], (8, 4)) == pytest.approx((9, 9), rel=0.01)


def test_gradients_make_a_job_ask_for_the_gpu_twice() -> None:
    busy, exchanging = (0, 0, 30, 0), (0, 0, 4, 20)
    long_s, twice_s = token_paces([busy, exchanging], (30, 24))
    assert twice_s > 60  # behind two stages of the other
    assert long_s == pytest.approx(32, rel=0.05)


def test_a_loader_works_ahead_of_its_training_only_if_it_did_alone() -> None:
    row = [(4, 0, 5, 0)]
    assert token_paces(row, (5,)) == pytest.approx((5,), rel=0.01)
    assert token_paces(row, (9,)) == pytest.approx((9,), rel=0.01)


times = st.floats(0.1, 10.0)


@given(st.lists(st.tuples(times, times, times, times), min_size=1, max_size=5))
def test_never_faster_than_alone_or_than_a_resource_allows(rows: list[tuple[float, ...]]) -> None:
    alone = [max(row[0] + row[1], row[2] + row[3]) for row in rows]
    iterations = token_paces(rows, alone)
    for r in range(4):  # part of its time that the resource is busy
        assert sum(row[r] / s for row, s in zip(rows, iterations, strict=True)) <= 1 + 1e-9
    assert all(s >= a for s, a in zip(iterations, alone, strict=True))


def test_very_different_jobs_take_no_longer_to_predict() -> None:
    short, long_s = token_paces([(0, 0, 1e-6, 0), (0, 0, 1.0, 0)], (1e-6, 1.0))
    assert long_s >= 1.0
    assert short >= 0.5
    assert token_paces([(0, 0, 0.01, 0), (0, 0, 3.0, 0)], (0.01, 3.0), 0.001)[1] > 10.0
