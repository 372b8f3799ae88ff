"""The memory law on a GPU by hand: who may reserve how much, and what happens when memory is short."""

import pytest

from plait.sharing.directive import Action, Reached, Sharer
from plait.sharing.memory_law import CONTEXT_BYTES, HOLD_S, MARGIN_BYTES, Rung, budget, headroom, next_rung
from sharing_cases import CAPACITY, GB, HOST, Bench

DELTA = CAPACITY // 20


def guest(persistent: float = 1.0, **values: object) -> Sharer:
    return Sharer(False, persistent_bytes=int(persistent * GB), **values)  # type: ignore[arg-type]


def least(persistent: float = 1.0) -> int:
    return int(persistent * GB) + headroom(int(persistent * GB))


def shared(*names: str, **values: object) -> Bench:
    """A guaranteed job of 8 GB that is known, beside opportunistic jobs of 1 GB."""
    bench = Bench({HOST: Sharer(True), **{name: guest(**values) for name in names}})
    bench.settle(8 * GB)
    return bench


def grow(bench: Bench, name: str, speeds: list[float]) -> None:
    """Steps of an opportunistic job whose speed is `speeds[i]` with i grants or trials; ends when nothing moves."""
    idle = 0
    while idle < 20:
        extra = (bench.reached[name].limit_bytes - least()) // DELTA
        before = bench.limit(name)
        work = speeds[min(extra, len(speeds) - 1)]
        bench.decide({HOST: {"device_reserved_bytes": 8 * GB}, name: {"work": work, "stage_s": {"gpu": 1.0}}})
        idle = idle + 1 if bench.limit(name) == before else 0


def over_committed(bench: Bench) -> bool:
    held = sum(job.held_bytes for job in bench.state.memory.jobs.values())
    return held > budget(CAPACITY, len(bench.jobs)) and len(bench.jobs) > 1


def test_alone_a_guaranteed_job_has_no_limit() -> None:
    bench = Bench({HOST: Sharer(True)})
    directive = bench.decide({HOST: {"device_reserved_bytes": 8 * GB}})[HOST]
    assert directive.memory_limit_bytes is None
    assert (directive.share, directive.action) == (1.0, Action.RUN)


def test_alone_an_opportunistic_job_leaves_margin_and_two_contexts() -> None:
    bench = Bench({"a": guest()})
    assert bench.decide()["a"].memory_limit_bytes == CAPACITY - MARGIN_BYTES - 2 * CONTEXT_BYTES


def test_a_job_that_arrives_waits_for_the_limit_of_the_first() -> None:
    bench = Bench({HOST: Sharer(True)})
    bench.settle(8 * GB)
    bench.jobs["a"] = guest()
    assert bench.decide(obey=False)["a"].action is Action.PAUSE
    assert bench.limit("a") == 0
    assert bench.limit(HOST) == 8 * GB + headroom(8 * GB)
    assert bench.decide(obey=False)["a"].action is Action.PAUSE, "the guaranteed job has not confirmed its limit"
    bench.obey(HOST)
    assert bench.decide()["a"].action is Action.RUN
    assert bench.limit("a") == least()


def test_a_guaranteed_job_that_arrives_gets_what_comes_free() -> None:
    bench = Bench({"a": guest()})
    bench.decide()
    whole = bench.limit("a")
    bench.jobs = {"a": guest(), HOST: Sharer(True)}
    bench.decide(obey=False)
    assert (bench.limit("a"), bench.limit(HOST)) == (least(), 0)
    assert bench.directives["a"].share == 1.0, "it may finish its step, or it could not shrink"
    bench.obey("a")
    bench.decide()
    assert bench.limit(HOST) == whole - least()


def test_growth_stops_where_memory_brings_nothing() -> None:
    bench = shared("a")
    assert bench.limit("a") == least()
    grow(bench, "a", [1.0, 1.5, 1.8, 1.8])
    assert bench.limit("a") == least() + 2 * DELTA
    tried_at_s = bench.state.memory.jobs["a"].tried_at_s
    assert tried_at_s is not None
    assert bench.now_s - tried_at_s < 60.0


def test_memory_goes_to_the_job_that_makes_most_of_a_byte() -> None:
    bench = Bench({HOST: Sharer(True), "a": guest(), "b": guest()})
    bench.settle(20 * GB)  # leaves room for four trials
    gains = {"a": 0.05, "b": 0.30}
    for _ in range(600):
        steps: dict[str, dict[str, object]] = {HOST: {"device_reserved_bytes": 20 * GB}}
        for name, gain in gains.items():
            extra = (bench.reached[name].limit_bytes - least()) // DELTA
            steps[name] = {"work": (1 + gain) ** extra, "stage_s": {"gpu": 1.0}}
        bench.decide(steps)
        assert not over_committed(bench)
    extra = {name: (bench.limit(name) - least()) // DELTA for name in gains}
    assert extra["a"] == 0
    assert extra["b"] >= 3


def test_a_burst_is_answered_in_one_decision_and_in_two_phases() -> None:
    bench = shared("a", "b")
    grow(bench, "a", [1.1**i for i in range(6)])
    grow(bench, "b", [1.4**i for i in range(6)])
    before = {name: bench.limit(name) for name in bench.jobs}
    spare = budget(CAPACITY, 3) - sum(before.values())
    spill = 4 * GB
    bench.decide({HOST: {"device_reserved_bytes": before[HOST], "host_spill_bytes": spill}}, obey=False)
    wanted = before[HOST] + spill + headroom(before[HOST] + spill)
    lost = {name: before[name] - bench.limit(name) for name in ("a", "b")}
    assert sum(lost.values()) >= wanted - before[HOST] - spare, "one decision takes all that is missing"
    assert sum(lost.values()) < wanted - before[HOST] - spare + DELTA
    assert lost["a"] > 0, "it loses least"
    assert lost["b"] == 0
    assert bench.limit(HOST) == before[HOST] + spare, "only what nobody held"
    assert bench.state.memory.bursts == 1
    assert bench.directives["a"].share == 1.0, "the next boundary must not wait for a share"
    bench.obey(HOST)
    bench.decide(obey=False)
    assert bench.limit(HOST) == before[HOST] + spare, "nobody has confirmed"
    bench.obey("a")
    bench.decide()
    assert bench.limit(HOST) == wanted


def test_after_a_burst_the_limit_stays_for_fifty_steps_and_thirty_seconds() -> None:
    for after_s, steps in ((0.2, HOLD_S / 0.2), (2.0, 50)):
        bench = shared("a")
        bench.decide({HOST: {"device_reserved_bytes": 8 * GB, "host_spill_bytes": 8 * GB}})
        bench.decide()
        high, counted = bench.limit(HOST), 0
        assert high >= 16 * GB
        while bench.limit(HOST) == high:
            bench.decide({HOST: {"device_reserved_bytes": 8 * GB}}, after_s=after_s)
            counted += 1
        assert counted == pytest.approx(steps, abs=3)
        assert bench.limit(HOST) == 8 * GB + headroom(8 * GB)


def test_more_reserved_than_footprint_and_headroom_is_a_burst() -> None:
    bench = Bench({HOST: Sharer(True), "a": guest()})
    for _ in range(10):
        bench.decide({HOST: {"device_reserved_bytes": 8 * GB}})
    bench.decide({HOST: {"device_reserved_bytes": 9 * GB}})
    assert bench.state.memory.bursts == 1
    bench.decide({HOST: {"device_reserved_bytes": 9 * GB + headroom(9 * GB)}})
    assert bench.state.memory.bursts == 1


def test_a_partial_shrink_is_retried_and_counted() -> None:
    bench = shared("a")
    grow(bench, "a", [1.5**i for i in range(30)])
    held = bench.stuck["a"] = bench.limit("a") - DELTA
    bench.decide({HOST: {"device_reserved_bytes": 8 * GB, "host_spill_bytes": 10 * GB}})
    asked = bench.limit("a")
    assert asked < held
    for i in range(3):
        bench.decide({"a": {}})
        assert bench.limit("a") == asked, "asked again at each boundary"
        assert bench.state.memory.partial_shrinks == i + 1
        assert bench.limit(HOST) <= budget(CAPACITY, 2) - held, "what it still holds is not given away"
        assert not over_committed(bench)
    bench.stuck.clear()
    bench.obey()
    bench.decide()
    assert bench.limit(HOST) == 18 * GB + headroom(18 * GB)


def test_below_the_least_limit_jobs_pause_then_leave_the_last_first() -> None:
    bench = shared("a", "b", persistent=4.0)
    room = budget(CAPACITY, 3)
    for want, actions in (
        (room - 2 * least(4), (Action.RUN, Action.RUN)),
        (room - least(4) - 4 * GB, (Action.RUN, Action.PAUSE)),
        (room - least(4), (Action.RUN, Action.CHECKPOINT)),
        (room - 4 * GB, (Action.PAUSE, Action.CHECKPOINT)),
    ):
        reserved = want - max(int(want * 0.05 / 1.05) + 8, 256 << 20)
        bench.decide({HOST: {"device_reserved_bytes": 8 * GB, "host_spill_bytes": reserved - 8 * GB}})
        assert tuple(bench.directives[name].action for name in ("a", "b")) == actions, want
    del bench.jobs["b"]
    bench.settle(8 * GB, 60.0)
    assert bench.directives["a"].action is Action.RUN


def test_paused_jobs_keep_what_they_cannot_lose() -> None:
    bench = shared("a", persistent=4.0)
    bench.decide({HOST: {"device_reserved_bytes": 8 * GB, "host_spill_bytes": 17 * GB}})
    assert bench.directives["a"].action is Action.PAUSE
    assert bench.limit("a") == 4 * GB
    assert bench.directives["a"].share == 1.0, "until it is at its boundary"
    bench.decide()
    assert bench.directives["a"].share == 0.0


def test_jobs_start_one_after_the_other_as_memory_allows() -> None:
    bench = Bench({"a": guest(20.0), "b": guest(20.0)})
    bench.decide()
    assert [bench.directives[name].action for name in ("a", "b")] == [Action.RUN, Action.PAUSE]
    assert bench.limit("b") == 0
    del bench.jobs["a"], bench.reached["a"]
    assert bench.decide()["b"].action is Action.RUN


def test_the_ladder_has_five_rungs() -> None:
    rungs: list[Rung | None] = [None]
    while rungs[-1] is not Rung.FAIL:
        last = rungs[-1]
        rungs.append(next_rung(last, neighbours=last is Rung.SPILL, can_split=rungs.count(Rung.SMALLER_BATCH) < 2))
    assert [rung.name for rung in rungs[1:] if rung] == [
        "RELEASE_CACHE", "SPILL", "PAUSE_NEIGHBOURS", "SMALLER_BATCH", "SMALLER_BATCH", "FAIL",
    ]  # fmt: skip


def test_out_of_memory_of_the_guaranteed_job_pauses_neighbours_and_fails_it_alone() -> None:
    bench = Bench({HOST: Sharer(True, most_micro_batches=4), "a": guest(), "b": guest()})
    bench.settle(8 * GB)
    refused = {HOST: 40 * GB}
    bench.decide(refused=refused, obey=False)
    assert [bench.directives[name].action for name in bench.jobs] == [Action.RUN, Action.PAUSE, Action.PAUSE]
    bench.decide(refused=refused, obey=False)
    assert bench.directives[HOST].micro_batches == 1, "the neighbours have not paused yet"
    bench.obey()
    for _ in range(4):
        bench.decide(refused=refused)
        assert bench.directives[HOST].micro_batches == 1
    assert bench.directives["a"].action is Action.CHECKPOINT, "no neighbour may be why it fails"
    bench.jobs, bench.reached = {HOST: bench.jobs[HOST]}, {HOST: bench.reached[HOST]}
    bench.decide(refused=refused)
    for split in (2, 4):
        bench.decide(refused=refused)
        assert bench.directives[HOST].micro_batches == split
    for _ in range(2):
        bench.decide(refused=refused)
    assert bench.directives[HOST].action is Action.STOP


def test_out_of_memory_that_is_served_ends_the_pause() -> None:
    bench = shared("a", "b")
    bench.decide(refused={HOST: 4 * GB})
    assert bench.directives["a"].action is Action.PAUSE
    bench.decide({HOST: {"device_reserved_bytes": 12 * GB}})
    bench.decide()
    assert {directive.action for directive in bench.directives.values()} == {Action.RUN}
    assert bench.limit(HOST) >= 12 * GB


def test_out_of_memory_of_an_opportunistic_job_takes_from_its_like_only() -> None:
    bench = shared("a", "b")
    host = bench.limit(HOST)
    for _ in range(3):
        bench.decide(refused={"b": 6 * GB}, obey=False)
        assert [bench.directives[name].action for name in ("a", "b")] == [Action.PAUSE, Action.RUN]
    assert bench.directives["b"].micro_batches == 1, "the first has not paused yet"
    bench.obey()
    bench.decide(refused={"b": 6 * GB})
    assert bench.limit(HOST) == host
    assert bench.limit("b") == budget(CAPACITY, 3) - host - GB
    bench.decide({"b": {"device_reserved_bytes": 7 * GB}})
    bench.decide()
    assert [bench.directives[name].action for name in ("a", "b")] == [Action.RUN, Action.RUN]
    assert bench.limit("b") == 7 * GB + headroom(7 * GB), "it has learned what it needs"


def test_an_opportunistic_job_that_needs_more_than_is_left_saves_and_leaves() -> None:
    bench = shared("a")
    for _ in range(5):
        bench.decide(refused={"a": 40 * GB})
    assert bench.directives["a"].action is Action.CHECKPOINT
    assert bench.directives[HOST].action is Action.RUN
    alone = Bench({"a": guest()})
    alone.decide()
    for _ in range(5):
        alone.decide(refused={"a": 40 * GB})
    assert alone.directives["a"].action is Action.STOP, "no GPU of this kind is enough"


def test_a_coordinator_without_memory_of_its_own_starts_from_what_jobs_hold() -> None:
    bench = Bench({HOST: Sharer(True), "a": guest()})
    bench.reached = {HOST: Reached(7, 20 * GB), "a": Reached(3, 10 * GB)}
    bench.decide(obey=False)
    assert bench.directives[HOST].limit_number >= 7
    assert bench.limit("a") == least()
    assert bench.limit(HOST) == budget(CAPACITY, 2) - 10 * GB
    assert bench.directives["a"].limit_number == 4


# -- jobs of which nobody knows what they keep from step to step -------------------------------------------------------

NEW = Sharer(False, persistent_bytes=None)


def test_a_job_never_seen_starts_with_all_that_others_do_not_need() -> None:
    bench = shared("a")
    grow(bench, "a", [1.5**i for i in range(30)])
    assert bench.limit("a") > least() + 4 * DELTA
    bench.jobs["new"] = NEW
    for _ in range(3):
        bench.decide()
    left = budget(CAPACITY, 3) - bench.limit(HOST) - least()
    assert (bench.limit("a"), bench.limit("new")) == (least(), left), "grown memory is given back for it"
    assert bench.directives["new"].action is Action.RUN
    assert not over_committed(bench)
    bench.decide({"new": {"device_reserved_bytes": 6 * GB, "device_persistent_bytes": 5 * GB}})
    assert bench.limit("new") == least(5), "from its first step on it grows like others"
    before = bench.limit("a")
    grow(bench, "a", [1.5**i for i in range(30)])
    assert bench.limit("a") > before


def test_jobs_never_seen_start_one_after_the_other() -> None:
    bench = shared("a")
    bench.jobs |= {"b": NEW, "c": NEW}
    for _ in range(5):
        bench.decide()
        assert [bench.directives[name].action for name in ("a", "c")] == [Action.RUN, Action.PAUSE]
        assert bench.limit("c") == 0
    bench.reached["c"] = Reached(0, CAPACITY)  # it has seen no limit yet, which says nothing of what it keeps
    assert bench.decide(obey=False)["c"].action is Action.PAUSE
    bench.obey()
    assert bench.directives["b"].action is Action.RUN
    for persistent in (5 * GB, 0):  # a step that keeps nothing says so, too
        for _ in range(3):
            bench.decide({"b": {"device_persistent_bytes": persistent}})
        assert bench.directives["c"].action is Action.RUN
        assert bench.limit("c") > 8 * GB
        assert not over_committed(bench)
        bench = Bench({"b": NEW, "c": NEW})
        bench.decide()
        assert [bench.directives[name].action for name in ("b", "c")] == [Action.RUN, Action.PAUSE]


def test_beside_a_job_that_is_not_known_either_it_waits_then_gets_half() -> None:
    bench = Bench({HOST: Sharer(True), "new": NEW})
    for _ in range(3):
        bench.decide()
    assert bench.directives["new"].action is Action.PAUSE, "the guaranteed job may need everything for its first step"
    for _ in range(3):
        bench.decide({HOST: {"device_reserved_bytes": 8 * GB}})
    assert bench.directives["new"].action is Action.RUN
    left = budget(CAPACITY, 2) - 8 * GB - headroom(8 * GB)
    assert bench.limit("new") == pytest.approx(left / 2, abs=DELTA)
    assert bench.limit(HOST) + bench.limit("new") == pytest.approx(budget(CAPACITY, 2), abs=1)
    bench.decide({HOST: {"device_reserved_bytes": 8 * GB, "host_spill_bytes": 12 * GB}})
    bench.decide()
    assert bench.limit(HOST) >= 20 * GB, "a burst takes it back"


def test_a_job_never_seen_does_not_start_in_less_than_a_twentieth_of_the_device() -> None:
    for left, action in ((DELTA + GB, Action.RUN), (DELTA - GB // 4, Action.PAUSE)):
        bench = shared("a")
        demand = int((budget(CAPACITY, 3) - least() - left) / 1.05)
        bench.settle(demand)
        bench.jobs["new"] = NEW
        for _ in range(3):
            bench.decide()
        assert bench.directives["new"].action is action, left
        bench.reload()
        assert bench.decide()["new"].action is action


def test_what_a_job_cannot_free_before_its_first_step_persists() -> None:
    for live, action in ((6, Action.RUN), (12, Action.CHECKPOINT)):
        bench = Bench({"new": NEW})
        bench.decide()
        bench.stuck["new"] = live * GB
        bench.jobs = {"new": NEW, HOST: Sharer(True)}
        for _ in range(3):
            bench.decide()
        assert budget(CAPACITY, 2) - least(live) <= bench.limit(HOST) <= budget(CAPACITY, 2) - live * GB
        bench.decide({HOST: {"device_reserved_bytes": 8 * GB, "host_spill_bytes": 12 * GB}})
        assert bench.decide()["new"].action is action
        assert not over_committed(bench)


def test_beside_a_guaranteed_job_that_keeps_no_limit_nobody_runs() -> None:
    bench = Bench({HOST: Sharer(True), "a": guest(), "b": NEW})
    bench.stuck[HOST] = CAPACITY
    for _ in range(4):
        bench.decide()
        assert bench.directives["a"].action is not Action.CHECKPOINT, "before its first step no job keeps a limit"
    bench.stuck.clear()
    bench.obey()  # at the end of its first step; it reports from the second on
    bench.settle(8 * GB)
    assert bench.directives["a"].action is Action.RUN
    bench.stuck[HOST] = CAPACITY
    bench.decide({HOST: {"device_reserved_bytes": 8 * GB, "host_spill_bytes": 2 * GB}})
    for _ in range(3):
        bench.decide({HOST: {"device_reserved_bytes": 10 * GB}})
        assert (bench.directives["a"].action, bench.directives["b"].action) == (Action.CHECKPOINT, Action.PAUSE)
    number = bench.directives[HOST].limit_number
    for _ in range(10):
        bench.decide({HOST: {"device_reserved_bytes": 10 * GB}}, obey=False)
    assert bench.directives[HOST].limit_number == number
    bench.stuck.clear()
    bench.obey()
    bench.jobs["c"] = guest()
    bench.settle(10 * GB)
    assert bench.directives["c"].action is Action.RUN, "it keeps one again"


def test_a_guaranteed_job_that_was_told_no_limit_yet_drives_nobody_away() -> None:
    bench = Bench({"a": guest()})
    bench.decide()
    bench.jobs = {"a": guest(), HOST: Sharer(True)}
    bench.decide(obey=False)
    bench.reached[HOST] = Reached(0, CAPACITY)
    bench.decide({HOST: {"device_reserved_bytes": 8 * GB}}, obey=False)
    assert bench.decide({HOST: {"device_reserved_bytes": 8 * GB}}, obey=False)["a"].action is Action.RUN


def test_a_guaranteed_job_keeps_no_limit_before_its_first_report_so_it_holds_all() -> None:
    bench = Bench({HOST: Sharer(True)})
    bench.decide(obey=False)
    bench.jobs["a"] = guest()
    for _ in range(3):
        bench.decide(obey=False)
    assert (bench.limit("a"), bench.directives["a"].action) == (0, Action.PAUSE)
    bench.obey(HOST)
    bench.decide(obey=False)
    assert bench.limit("a") == least()


def test_beside_a_host_that_states_a_budget_guests_have_the_rest_until_it_needs_more() -> None:
    bench = Bench({HOST: Sharer(True), "a": guest()})
    stated = 12 * GB

    def step(name: str, reached: int, reserved: int) -> Action:
        if HOST in bench.directives:
            bench.reached[HOST] = Reached(bench.directives[HOST].limit_number, reached)
        bench.decide({HOST: {"device_reserved_bytes": reserved}}, obey=False)
        bench.obey(name)
        return bench.directives[name].action

    assert [step("a", CAPACITY, 8 * GB) for _ in range(60)][-1] is Action.CHECKPOINT
    del bench.jobs["a"]
    bench.jobs["b"] = guest()
    assert [step("b", stated, 8 * GB) for _ in range(3)][-1] is Action.RUN
    assert least() <= bench.limit("b") <= budget(CAPACITY, 2) - stated
    assert [step("b", CAPACITY, 13 * GB) for _ in range(3)][-1] is Action.CHECKPOINT
