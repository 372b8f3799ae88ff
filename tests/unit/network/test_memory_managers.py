"""Managers of switch memory: what each decides, and what holds for all of them after any history."""

import math
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.core.cluster import Cluster
from plait.core.errors import InputError
from plait.network.memory.catalog import MANAGERS, OF_PROTOCOL, make_manager
from plait.network.memory.inalloc import ACTIONS, Inalloc
from plait.network.memory.manager import Manager, first_fit, remainder
from plait.network.memory.partition import EqualPartition
from plait.network.memory.records import Answer, Memory, Region, Request, SwitchMemory
from plait.network.memory.shared import Esa, Shared
from plait.network.protocol.addressing import Index
from plait.network.protocol.options import PRESETS
from plait.network.protocol.priority import esa_priority
from plait.network.topology.read import networked
from sampling import examples

ONE = Memory((SwitchMemory("leaf0", 4096, 248),))
TWO = Memory((SwitchMemory("leaf0", 4096, 248), SwitchMemory("leaf1", 1000, 248), SwitchMemory("bare", 0, 248)))


def ask(job: int, *switches: str, **fields: Any) -> Request:
    return Request(job=job, switches=switches or ("leaf0",), **fields)


def admitted(manager: Manager, memory: Memory, *requests: Request, now_s: float = 0.0) -> tuple[Memory, list[Answer]]:
    answers = []
    for request in requests:
        memory, answer = manager.admit(memory, request, now_s)
        answers.append(answer)
    return memory, answers


def spans(memory: Memory, switch: str = "leaf0") -> list[tuple[int, int]]:
    return [(region.offset, region.size) for region in memory.regions(switch)]


# -- equal parts


def test_parts_shrink_as_jobs_come_at_the_boundaries_of_those_that_have_more() -> None:
    manager = EqualPartition()
    memory, (first,) = admitted(manager, ONE, ask(1, window=10_000))
    assert (first.granted, first.mode, first.window, spans(memory)) == (True, "dedicated", 2048, [(0, 4096)])
    memory, (second,) = admitted(manager, memory, ask(2, window=10_000))
    assert (second.granted, second.grants, second.waits_for) == (True, (), (1,))
    assert "boundary of job 1" in second.reason
    memory, later = manager.boundary(memory, 1)
    assert later.grants[0].region == Region(0, 2048, Index.DEDICATED, 2, exclusive=True)
    assert later.window == 1024
    memory, second = manager.boundary(memory, 2)
    assert spans(memory) == [(0, 2048), (2048, 2048)]
    assert (second.waits_for, second.window) == ((), 1024)
    memory = manager.settle(manager.release(memory, 1, 1.0))
    assert spans(memory) == [(0, 4096)]
    assert memory.lease(2).epoch == 2


def test_a_fixed_number_of_parts_refuses_one_job_more() -> None:
    manager = make_manager("equal:parts=4")
    memory, answers = admitted(manager, ONE, *(ask(job) for job in range(4)))
    assert spans(memory) == [(0, 1024), (1024, 1024), (2048, 1024), (3072, 1024)]
    assert [answer.window for answer in answers] == [409] * 4  # 100 Gb/s times 10 us
    refused = manager.preview(memory, ask(9), 0.0)
    assert (refused.granted, refused.mode, refused.window) == (False, "none", 0)
    assert refused.reason == ("leaf0 has 4096 aggregators for 4 jobs ahead of it; no part of at least 1024 is left")


def test_a_job_may_ask_for_a_size_of_its_own() -> None:
    manager = EqualPartition()
    memory, _ = admitted(manager, ONE, ask(1, memory=1001), ask(2), ask(3))
    memory = manager.settle(memory)
    assert spans(memory) == [(0, 1000), (1000, 1548), (2548, 1548)]
    assert "1 aggregator" in manager.preview(ONE, ask(1, memory=1), 0.0).reason


def test_parts_of_a_job_on_several_switches_have_one_window() -> None:
    memory, (answer,) = admitted(EqualPartition(), TWO, ask(1, "leaf0", "leaf1", window=5000))
    assert [(grant.switch, grant.region.size, grant.window) for grant in answer.grants] == [
        ("leaf0", 4096, 500), ("leaf1", 1000, 500),
    ]  # fmt: skip
    assert not EqualPartition().preview(memory, ask(2, "bare"), 0.0).granted


# -- shared


def test_shared_memory_is_for_all_and_never_promised() -> None:
    memory, answers = admitted(Shared(), TWO, ask(1, "leaf0", "bare"), ask(2, "leaf0"))
    assert [answer.mode for answer in answers] == ["shared_hash"] * 2
    assert spans(memory) == [(0, 4096), (0, 4096)]
    assert "bare has none" in answers[0].reason
    none = Shared().preview(memory, ask(3, "bare", need="require"), 0.0)
    assert (none.granted, none.mode) == (False, "none")
    assert "no aggregators" in none.reason


def test_a_cycle_has_no_more_slots_than_there_are_aggregators() -> None:
    manager = make_manager("shared:index=cycle")
    answer = manager.preview(TWO, ask(1, "leaf1", window=5000), 0.0)
    assert (answer.mode, answer.window) == ("shared_cycle", 1000)


def test_priorities_follow_the_description_of_esa() -> None:
    facts = {"communication_s": 0.2, "computation_s": 0.1, "remaining_s": 100.0, "layer_rank": 2}
    assert Esa().preview(ONE, ask(1, **facts), 0.0).priority == esa_priority(2, 0.2, 0.1, 100.0)
    assert Esa().preview(ONE, ask(1, attained_s=50.0), 0.0).priority == esa_priority(1, 1.0, 1.0, 50.0)
    changes = {"communication_s": 0.4, "computation_s": 0.05, "remaining_s": 50.0, "layer_rank": 1}
    base = Esa().preview(ONE, ask(1, **facts), 0.0).priority
    for name, value in changes.items():
        assert Esa().preview(ONE, ask(1, **{**facts, name: value}), 0.0).priority > base


# -- deadlines

#: 100 iterations in 30 s, of which 0.1 s each compute: 0.2 s for 248 MB are 9.92 Gb/s, that is 50 packets in 10 us, and
#: 55 with the margin.
URGENT = {"gradient_bytes": 248e6, "computation_s": 0.1, "iterations_left": 100.0, "deadline_s": 30.0}


def test_a_deadline_gives_bandwidth_window_and_region() -> None:
    memory, (answer,) = admitted(Inalloc(spare="others"), ONE, ask(1, **URGENT))
    assert answer.grants[0].region == Region(0, 110, Index.HYBRID_MODULO, 1, exclusive=True)
    assert (answer.window, answer.mode, answer.action) == (55, "hybrid_modulo", "")
    assert spans(memory) == [(0, 110)]
    hashed = make_manager("inalloc:index=hash,spare=others").preview(ONE, ask(1, **URGENT), 0.0)
    assert (hashed.grants[0].region.size, hashed.window, hashed.mode) == (19 * 55, 55, "hybrid_region")
    assert Inalloc(margin=1.0, spare="others").preview(ONE, ask(1, **URGENT), 0.0).window == 50


def test_the_rest_is_shared_and_the_most_urgent_comes_first() -> None:
    manager = Inalloc(spare="others")
    memory, _ = admitted(manager, ONE, ask(1), ask(2, **URGENT), ask(3, **{**URGENT, "deadline_s": 60.0}))
    memory = manager.settle(memory)
    tight, loose = memory.lease(2), memory.lease(3)
    assert tight.target.exclusive
    assert loose.target.exclusive
    assert tight.target.sizes[0] > loose.target.sizes[0]
    left = 4096 - tight.target.sizes[0] - loose.target.sizes[0]
    assert manager.answer(memory, 1).grants[0].region.size == left
    assert manager.answer(memory, 1).mode == "hybrid_region"


def test_what_no_deadline_needs_goes_to_all_up_to_what_a_link_can_use() -> None:
    """A window of 409 packets fills the link; 55 and 23 of them are what the deadlines need."""
    asks = ask(1, **URGENT), ask(2, **{**URGENT, "deadline_s": 60.0})
    full = asks[0].full_window(248)
    assert full == 409
    manager = Inalloc()
    found = manager.settle(admitted(manager, ONE, *asks)[0])
    assert [lease.target.window for lease in found.leases] == [full, full]
    assert manager.review_due_s(found, 0.0) == math.inf
    # 400 aggregators: 110 and 44 are needed, 246 to spare for two, and for three where one has no deadline.
    small = Memory((SwitchMemory("leaf0", 400, 248),))
    for more, expected in ((), [110 + 122, 44 + 122]), ((ask(3),), [110 + 82, 44 + 82, 82]):
        found = manager.settle(admitted(manager, small, *asks, *more)[0])
        assert [lease.regions[0].size for lease in found.leases] == expected
        assert [lease.target.window for lease in found.leases][:2] == [size // 2 for size in expected[:2]]
        assert manager.review_due_s(found, 5.0) == 65.0
    assert "122 more are spare" in manager.settle(admitted(manager, small, *asks)[0]).lease(1).target.reason


def test_a_region_grows_by_what_the_fuller_of_its_switches_has_to_spare() -> None:
    two = Memory((SwitchMemory("leaf0", 4096, 248), SwitchMemory("leaf1", 300, 248)))
    manager = Inalloc()
    found = manager.settle(admitted(manager, two, ask(1, "leaf0", "leaf1", **URGENT), ask(2, **URGENT))[0])
    assert [lease.target.sizes for lease in found.leases] == [(300, 300), (818,)]
    asked = manager.settle(admitted(manager, ONE, ask(1, memory=1000), ask(2, **URGENT))[0])
    assert [lease.target.sizes for lease in asked.leases] == [(1000,), (818,)]


def test_a_more_urgent_job_takes_the_place_of_another() -> None:
    small = Memory((SwitchMemory("leaf0", 200, 248),))
    manager = Inalloc()
    memory, (first,) = admitted(manager, small, ask(1, **{**URGENT, "deadline_s": 31.0}))
    assert first.grants[0].region.exclusive
    memory, (second,) = admitted(manager, memory, ask(2, **URGENT))
    assert (second.granted, second.waits_for) == (True, (1,))
    memory = manager.settle(memory)
    assert manager.answer(memory, 2).mode == "hybrid_modulo"
    demoted = manager.answer(memory, 1)
    assert (demoted.mode, demoted.action) == ("hybrid_region", "demote")
    assert "leaf0 has 90 free" in demoted.reason


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"computation_s": 0.4}, "computes for 0.4 s"),
        ({"deadline_s": 11.0}, "Gb/s of gradients; its link carries 81"),
        ({"deadline_s": 13.0}, "leaf0 has 300 free"),
    ],
)
def test_a_deadline_that_cannot_be_met_is_handled_as_the_option_says(fields: dict[str, float], why: str) -> None:
    small = Memory((SwitchMemory("leaf0", 300, 248),))
    request = ask(1, **{**URGENT, **fields})
    for action in ACTIONS:
        answer = Inalloc(on_infeasible=action).preview(small, request, 0.0)
        assert answer.action == action
        assert why in answer.reason
        assert answer.granted == (action != "terminate")
        mode = {"demote": "hybrid_region", "notify": "hybrid_modulo", "terminate": "none"}[action]
        assert answer.mode == mode
    notified = Inalloc(on_infeasible="notify").preview(small, request, 0.0)
    assert notified.grants[0].region.size == 300


def test_time_passes_and_a_review_tells_whose_deadline_is_lost() -> None:
    manager = Inalloc()
    memory, _ = admitted(manager, ONE, ask(1, **URGENT), ask(2))
    memory, changed = manager.renew(memory, 1, 10.0, ask(1, **{**URGENT, "iterations_left": 66.0}))
    assert [answer.action for answer in changed] == [""] * len(changed)
    memory, changed = manager.review(memory, 29.0)
    assert [(answer.job, answer.action) for answer in changed] == [(1, "demote"), (2, "")]
    memory = manager.settle(memory)
    assert spans(memory) == [(0, 4096), (0, 4096)]


def test_without_the_facts_of_a_deadline_a_job_shares() -> None:
    answer = Inalloc().preview(ONE, ask(1, deadline_s=100.0), 0.0)
    assert (answer.mode, answer.action) == ("hybrid_region", "")
    assert "iterations_left and computation_s and gradient_bytes, which are unknown" in answer.reason


def test_regions_are_compacted_at_boundaries_only() -> None:
    manager = Inalloc()
    memory, _ = admitted(manager, ONE, *(ask(job, memory=1000) for job in (1, 2, 3)))
    memory = manager.release(memory, 2, 0.0)
    assert spans(memory) == [(0, 1000), (2000, 1000)]
    memory, answer = manager.boundary(memory, 3)
    assert spans(memory) == [(0, 1000), (1000, 1000)]
    assert answer.grants[0].region.epoch == 2


# -- all


def test_names_options_and_mistakes() -> None:
    assert set(OF_PROTOCOL) == set(PRESETS)
    assert set(OF_PROTOCOL.values()) == set(MANAGERS)
    for text, message in [
        ("inaloc", "did you mean 'inalloc'"),
        ("inalloc:margin=0.5", "from 1 to 10"),
        ("inalloc:on_infeasible=kill", "demote, notify, terminate"),
        ("shared:index=modulo", "hash or cycle"),
        ("equal:part=3", "did you mean 'parts'"),
        ("equal:parts", "not option=value"),
    ]:
        with pytest.raises(InputError, match=message):
            make_manager(text)
    with pytest.raises(InputError, match="job 1: need is 'maybe'"):
        ask(1, need="maybe")
    with pytest.raises(InputError, match="unknown"):
        Shared().preview(ONE, ask(1, "leaf7"), 0.0)
    memory, _ = admitted(Shared(), ONE, ask(1))
    with pytest.raises(InputError, match="job 1 has a lease"):
        Shared().admit(memory, ask(1), 0.0)
    with pytest.raises(InputError, match="job 2 has no lease"):
        Shared().release(memory, 2, 0.0)
    with pytest.raises(InputError, match="release it before"):
        Shared().renew(memory, 1, 0.0, ask(1, "leaf1"))


def test_a_job_that_wants_none_gets_none() -> None:
    for name in MANAGERS:
        memory, answer = make_manager(name).admit(ONE, ask(1, need="off"), 0.0)
        assert (memory, answer.granted, answer.mode) == (ONE, False, "none")


def test_leases_end_unless_they_are_renewed() -> None:
    manager = Shared()
    memory, _ = admitted(manager, ONE, ask(1, ttl_s=10.0), ask(2, ttl_s=10.0), ask(3))
    memory, _ = manager.renew(memory, 2, 8.0)
    memory, late = manager.expire(memory, 10.0)
    assert late == (1,)
    assert manager.expire(memory, 18.0)[1] == (2,)
    assert manager.expire(memory, 1e9)[0].find(3) is not None


def test_the_memory_is_that_of_the_network() -> None:
    network = networked(Cluster.parse("8x4@4"), "leaf-spine:aggregators=5000,reserved=200").network
    assert network is not None
    assert [(one.id, one.usable) for one in Memory.of(network).switches] == [
        ("leaf0", 4800), ("leaf1", 4800), ("spine0", 0), ("spine1", 0),
    ]  # fmt: skip


def test_first_fit_and_remainder() -> None:
    taken = [Region(2, 3, Index.DEDICATED, 1, True), Region(8, 1, Index.DEDICATED, 1, True)]
    assert [first_fit(taken, 12, size) for size in (2, 3, 4)] == [0, 5, None]
    assert remainder(taken, 12, 12) == (9, 3)
    assert remainder(taken, 12, 2) == (10, 2)
    assert remainder([], 12, 12) == (0, 12)


MANAGER_TEXTS = (
    "equal", "equal:parts=3", "shared", "shared:index=cycle", "esa", "inalloc", "inalloc:on_infeasible=notify",
    "inalloc:index=hash", "inalloc:on_infeasible=terminate",
)  # fmt: skip


@st.composite
def requests(draw: st.DrawFn, job: int) -> Request:
    names = draw(st.sampled_from([("a",), ("b",), ("a", "b"), ("b", "c"), ("a", "b", "c"), ("none",)]))
    facts: dict[str, Any] = {
        "memory": draw(st.sampled_from([0, 0, 2, 7, 30])),
        "ttl_s": draw(st.sampled_from([5, math.inf])),
    }
    if draw(st.booleans()):
        facts |= URGENT | {"deadline_s": draw(st.sampled_from([9.0, 11.0, 14.0, 30.0, 90.0])), "rtt_s": 2e-6}
    return Request(job=job, switches=names, window=draw(st.sampled_from([0, 1, 9])), **facts)


def check(memory: Memory) -> None:
    """Regions lie inside; an exclusive one overlaps no other; what is decided for one job each fits together."""
    for switch in memory.switches:
        regions = memory.regions(switch.id)
        assert all(one.offset >= 0 and one.size > 0 and one.end <= switch.usable for one in regions)
        assert not any(a.overlaps(b) for a, b in combinations(regions, 2) if a.exclusive or b.exclusive)
        assert sum(one.size for one in regions if one.exclusive) <= switch.usable
        targets = [
            lease.target.sizes[lease.request.switches.index(switch.id)]
            for lease in memory.leases
            if lease.target.exclusive and switch.id in lease.request.switches
        ]
        assert sum(targets) <= switch.usable


@pytest.mark.parametrize("text", MANAGER_TEXTS)
@settings(max_examples=examples(60), deadline=None)
@given(data=st.data())
def test_after_any_history_regions_are_sound_and_everything_is_given_back(text: str, data: st.DataObject) -> None:
    manager = make_manager(text)
    sizes = data.draw(st.lists(st.integers(0, 120), min_size=3, max_size=3))
    empty = Memory((*(SwitchMemory(*one, 248) for one in zip("abc", sizes, strict=True)), SwitchMemory("none", 0, 248)))
    memory, now_s = empty, 0.0
    for job in range(data.draw(st.integers(1, 12))):
        now_s += data.draw(st.sampled_from([0.0, 1.0, 3.0]))
        here = [lease.request.job for lease in memory.leases]
        step = data.draw(st.sampled_from(["admit", "admit", "boundary", "renew", "release", "expire", "settle"]))
        before = memory
        if step == "admit" or not here:
            request = data.draw(requests(job))
            expected = manager.preview(memory, request, now_s)
            assert memory == before
            memory, answer = manager.admit(memory, request, now_s)
            assert answer == expected
            assert answer.granted == (memory.find(job) is not None)
            assert answer.granted or memory == before
        elif step == "settle":
            memory = manager.settle(memory)
        elif step == "expire":
            memory, late = manager.expire(memory, now_s)
            assert late == tuple(lease.request.job for lease in before.leases if lease.until_s <= now_s)
        else:
            one = data.draw(st.sampled_from(here))
            if step == "boundary":
                memory, _ = manager.boundary(memory, one)
            elif step == "renew":
                memory, _ = manager.renew(memory, one, now_s)
            else:
                memory = manager.release(memory, one, now_s)
        check(memory)
    memory = manager.settle(memory)
    check(memory)
    for lease in memory.leases:
        answer = manager.answer(memory, lease.request.job)
        assert answer.waits_for == ()
        if answer.granted and lease.target.exclusive:
            assert [grant.region.size for grant in answer.grants] == list(lease.target.sizes)
            assert 1 <= answer.window <= max(1, min(lease.target.sizes) // 2)
        elif answer.granted:
            assert [grant.switch for grant in answer.grants] == [
                name for name, size in zip(lease.request.switches, lease.target.sizes, strict=True) if size
            ]
    for lease in memory.leases:
        memory = manager.release(memory, lease.request.job, now_s)
    assert memory == empty
