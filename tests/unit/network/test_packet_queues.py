"""Queues of switches that are full, links that are paused, packets that recirculate, and reminders of servers."""

from dataclasses import replace

import pytest

from plait.core.errors import InputError
from plait.network.packets.results import PacketResults
from plait.network.packets.run import simulate
from plait.network.packets.scenario import MIB, PacketJob, one_switch, racks
from plait.network.protocol.options import preset

#: Without aggregators all packets of eight workers meet in the queue of their server.
INCAST = PacketJob(preset("atp", window=100), 8, (300_000,))


def incast(**more: object) -> PacketResults:
    return simulate(one_switch([INCAST], 0, elements=1, **more))  # raises for a wrong sum


def test_an_incast_collapses_where_full_queues_drop_and_does_not_where_they_pause_links() -> None:
    endless, drops, pauses = incast(), incast(queue_packets=200), incast(queue_packets=200, overflow="pause")
    assert (endless.dropped, endless.paused_s) == (0, 0.0)
    assert drops.dropped > 1000
    assert drops.jobs[0].goodput_bits_per_s < 0.1 * endless.jobs[0].goodput_bits_per_s
    assert (pauses.dropped, pauses.jobs[0].timeouts) == (0, 0)
    assert pauses.paused_s > 0
    assert pauses.jobs[0].goodput_bits_per_s == pytest.approx(endless.jobs[0].goodput_bits_per_s, rel=0.03)
    assert incast(queue_packets=10_000).jobs[0].finish_s == endless.jobs[0].finish_s


def test_congestion_control_keeps_queues_from_overflowing() -> None:
    options = preset("atp", window=100, cc="aimd", initial_window=10)
    marked = simulate(one_switch([replace(INCAST, options=options)], 0, queue_packets=200, mark_packets=20))
    assert marked.dropped < 100
    assert marked.jobs[0].goodput_bits_per_s > 5 * incast(queue_packets=200).jobs[0].goodput_bits_per_s


def test_a_paused_link_holds_up_packets_that_go_elsewhere() -> None:
    # Job 0 fills the queue of its server; job 1 shares the links between racks with it, and nothing else.
    jobs = [PacketJob(preset("atp", window=100), 8, (300_000,)), PacketJob(preset("atp", window=30), 2, (150_000,))]
    more: dict[str, object] = {"spines": 1, "levels": 1, "oversubscription": 1.0}
    endless, pauses = (
        simulate(racks(jobs, 0, 2, queue_packets=queue, overflow="pause", elements=1, **more)) for queue in (0, 20)
    )
    assert pauses.paused_s > 0
    assert pauses.dropped == 0
    assert pauses.jobs[1].goodput_bits_per_s < 0.9 * endless.jobs[1].goodput_bits_per_s


@pytest.mark.parametrize(("payload", "passes"), [(256, 1), (512, 2), (1024, 4)])
def test_packets_of_several_passes_share_one_port(payload: int, passes: int) -> None:
    job = PacketJob(preset("switchml", window=128, payload_bytes=payload), 8, (MIB,))
    free, held = (simulate(one_switch([job], 4096, pipeline=pipeline)).jobs[0] for pipeline in ("none", "tofino"))
    if passes == 1:
        assert held.finish_s == free.finish_s
    else:
        port = 100e9 * payload / (payload + 58) / (8 * (passes - 1))
        assert held.goodput_bits_per_s == pytest.approx(min(port, free.goodput_bits_per_s), rel=0.03)


def test_a_pipeline_has_bitmaps_of_32_workers() -> None:
    one_switch([PacketJob(workers=32)], 100, pipeline="tofino")
    with pytest.raises(InputError, match="33 workers; switches of pipeline tofino have bitmaps of 32"):
        one_switch([PacketJob(workers=33)], 100, pipeline="tofino")
    for name in ("overflow", "pipeline"):
        with pytest.raises(InputError, match=f"{name} is 'both'"):
            one_switch([PacketJob()], 100, **{name: "both"})


def test_a_pipeline_has_registers_for_so_many_aggregators() -> None:
    jobs = [PacketJob(preset("atp"), workers=4)]
    one_switch(jobs, 20_000, pipeline="tofino")
    with pytest.raises(
        InputError, match="20,001 aggregators of 248 bytes; registers of pipeline tofino have room for 20,000"
    ):
        one_switch(jobs, 20_001, pipeline="tofino")


def test_a_reminder_brings_what_a_preempted_sum_left_in_the_switch() -> None:
    # Without losses only evictions leave parts behind, and timers are long.
    more: dict[str, object] = {"window": 40, "rto_s": 2e-3, "first_rto_s": 2e-3, "max_age_s": 1.0}
    finish = []
    for reminder_s in (0.0, 50e-6):
        options = preset("esa", gap_threshold=100, reminder_s=reminder_s, **more)
        jobs = [PacketJob(options, 6, (200_000,), priority=1 + j) for j in range(3)]
        found = simulate(one_switch(jobs, 30, elements=1))
        finish.append([job.finish_s for job in found.jobs])
        assert sum(job.timeouts for job in found.jobs) == (0 if reminder_s else pytest.approx(36, abs=36))
    assert max(finish[1]) < 1e-3 < max(finish[0])


def test_requests_of_a_server_reach_switches_below_its_own() -> None:
    options = preset("esa", window=40, rto_s=2e-3, first_rto_s=2e-3, max_age_s=1.0, gap_threshold=100, reminder_s=2e-5)
    jobs = [PacketJob(options, 6, (100_000,), priority=1 + j) for j in range(3)]
    for levels in (1, 2):
        found = simulate(racks(jobs, 30, 2, levels=levels, spines=2, elements=1, loss_up=1e-3))
        assert [job.exchanges_s.shape for job in found.jobs] == [(1, 2)] * 3
