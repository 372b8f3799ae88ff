"""Deadlines in packet simulations: what the manager of memory grants, and what it is worth."""

import math
from dataclasses import replace

import numpy as np
import pytest

from plait.core.errors import InputError
from plait.network.memory.inalloc import Inalloc
from plait.network.packets.deadlines import base_rtt_s, granted
from plait.network.packets.run import simulate
from plait.network.packets.scenario import PacketJob, Scenario, one_switch, racks
from plait.network.protocol.header import DATA
from plait.network.protocol.options import preset

SIZE = 1 << 18
#: Seconds of a tensor at the rate of the link.
LINE_S = 8 * SIZE * 306 / 248 / 100e9


def scenario(slack: list[float], aggregators: int, protocol: str = "inalloc", seed: int = 0) -> Scenario:
    """Jobs whose deadlines are `slack` times what the line needs."""
    options = preset(protocol, window=300)
    jobs = [PacketJob(options, 4, (SIZE,), deadline_s=math.nan if s < 0 else s * LINE_S) for s in slack]
    jobs = [replace(job, deadline_s=None) if math.isnan(job.deadline_s or 0) else job for job in jobs]
    return one_switch(jobs, aggregators, seed=seed)


def test_deadlines_get_regions_and_windows_and_others_share_the_rest() -> None:
    made = granted(scenario([2.0, -1.0, 4.0, 1.01], 500))
    windows = [job.options.window for job in made.jobs]
    # Half and a quarter of the packets that are under way at the rate of the line, and a tenth more; two slots each.
    full = 81.046e9 * base_rtt_s(made, 0) / (8 * 248)
    assert windows[0] == math.ceil(1.1 * full / 2)
    assert windows[2] == math.ceil(1.1 * full / 4)
    # The most urgent job would need 598.
    assert [job.memory for job in made.jobs] == [2 * windows[0], None, 2 * windows[2], None]
    assert [job.options.index for job in made.jobs] == ["hybrid_modulo", "hybrid_region"] * 2
    assert simulate(made).jobs[2].met_deadline


def test_rtt_counts_every_hop() -> None:
    assert base_rtt_s(one_switch([PacketJob()], 1), 0) == pytest.approx(7.28e-6, rel=0.01)
    far = racks([PacketJob(workers=4)], 1, 2)
    assert base_rtt_s(far, 0) == pytest.approx(2 * (4 + 3) * 1e-6 + 1e-6 + 8 * 24.48e-9 + 0.2e-6, rel=0.01)


def test_deadlines_are_missed_less_than_half_as_often_as_with_first_come_first_served() -> None:
    missed = {"atp": 0, "inalloc": 0}
    for seed in range(4):
        slack = np.random.default_rng(seed).uniform(1.5, 6.0, 8).tolist()
        for protocol in missed:
            made = scenario(slack, 2048, protocol, seed)
            found = simulate(granted(made, Inalloc(margin=1.2)) if protocol == "inalloc" else made)
            missed[protocol] += sum(job.met_deadline is False for job in found.jobs)
    assert missed["atp"] >= 8
    assert missed["inalloc"] <= 0.5 * missed["atp"]


def test_regions_of_deadlines_are_never_oversubscribed() -> None:
    for aggregators in (50, 300, 1000):
        made = granted(scenario([1.2, 1.5, 2.0, 3.0, 5.0], aggregators))
        assert sum(job.memory or 0 for job in made.jobs) <= aggregators


def iterating(aggregators: int, **more: object) -> Scenario:
    """Two jobs with deadlines, of which the second starts when the first has to end, and one that shares."""
    size, options = 1 << 19, preset("inalloc", window=300)
    line_s = 8 * size * 306 / 248 / 100e9
    first = PacketJob(options, 4, (size // 2, size - size // 2), 4, line_s / 4, deadline_s=10 * line_s)
    shares = PacketJob(options, 4, (size // 16,), 60, line_s / 16)
    second = replace(first, start_s=10 * line_s, deadline_s=22 * line_s)
    return one_switch([first, shares, second], aggregators, elements=1, **more)


def test_reviews_give_the_memory_of_a_job_that_has_ended_to_the_next_one() -> None:
    made, manager = iterating(500), Inalloc(spare="others", margin=1.2, period_s=20e-6)
    once, reviewed = simulate(granted(made, manager)), simulate(made, manager)
    assert sum(job.met_deadline is False for job in once.jobs) == 1
    assert [job.met_deadline for job in reviewed.jobs] == [True, None, True]
    assert reviewed.jobs[0].fallback_share < 0.01  # while its region moves
    assert reviewed.jobs[2].fallback_share < 0.5 * once.jobs[2].fallback_share  # shares until others make room
    assert simulate(made, manager).jobs[1].finish_s == reviewed.jobs[1].finish_s


def test_all_workers_of_a_job_move_with_the_same_tensor_and_sums_stay_exact() -> None:
    made = replace(iterating(400, loss_up=1e-3, loss_down=1e-3, seed=2), log=10**6)
    found = simulate(made, Inalloc(spare="others", period_s=20e-6))  # raises for a wrong sum
    places: dict[tuple[int, int], set[int]] = {}
    for _, node, kind, j, seq, _, index, _, _ in found.log.tolist():
        if kind == DATA and node >= len(made.graph.nodes):
            places.setdefault((j, seq), set()).add(index)
    assert all(len(one) == 1 for one in places.values())
    assert {index < 400 for one in places.values() for index in one} == {True}


def test_a_job_has_its_region_in_its_first_iteration() -> None:
    """Reviews at the start of jobs come before their first packets."""
    options = preset("inalloc", window=256, payload_bytes=248)
    jobs = [PacketJob(options, 4, (SIZE,), deadline_s=deadline_s) for deadline_s in (3 * LINE_S, None, None)]
    made, manager = one_switch(jobs, 400), Inalloc(spare="others", period_s=1.0)
    once, reviewed = simulate(granted(made, manager)).jobs, simulate(made, manager).jobs
    for found in (once, reviewed):
        assert found[0].met_deadline
        assert found[0].fallback_share == 0.0
        assert found[1].fallback_share > 0.1


def test_reviews_are_of_inalloc_alone() -> None:
    with pytest.raises(InputError, match="job 0: protocol atp; reviews take scenarios whose jobs all are of inalloc"):
        simulate(scenario([2.0], 100, "atp"), Inalloc())
