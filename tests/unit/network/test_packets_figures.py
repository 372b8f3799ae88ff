"""Figures of the packet simulator: what arithmetic says of rates, and the order of systems and memories."""

from __future__ import annotations

import pytest

from plait.network.packets.results import PacketResults
from plait.network.packets.run import simulate
from plait.network.packets.scenario import PacketJob, one_switch
from plait.network.protocol.options import preset

CEILING = 100.0 * 248 / 306
#: Bits of a packet, and round trips without queues, seconds: over the server, and to a slot and back.
BITS, SERVER_RTT, SLOT_RTT = 1984, 7.28e-6, 3.23e-6


def run(
    protocol: str, aggregators: int, jobs: int = 4, workers: int = 4, size: int = 1 << 18, window: int = 100
) -> PacketResults:
    """Equal jobs that start together; each has a priority of its own."""
    options = preset(protocol, window=window, payload_bytes=248)
    made = [PacketJob(options, workers, (size,), priority=1 + j) for j in range(jobs)]
    return simulate(one_switch(made, aggregators, seed=1))


def gbps(found: PacketResults) -> float:
    return found.goodput_bits_per_s / 1e9


@pytest.mark.parametrize("size", [8, 32, 128, 490])
def test_dedicated_goodput_is_that_of_its_slots(size: int) -> None:
    law = min(CEILING, size // 2 * BITS / SLOT_RTT / 1e9)
    assert gbps(run("switchml", size, 1, 4, 1 << 22, 245)) == pytest.approx(law, rel=0.02)


@pytest.mark.parametrize("window", [32, 128, 300])
def test_goodput_over_the_server_is_that_of_the_window(window: int) -> None:
    law = min(CEILING, window * BITS / SERVER_RTT / 1e9)
    assert gbps(run("inalloc", 1024, 1, 4, 1 << 22, window)) == pytest.approx(law, rel=0.03)


def test_without_aggregators_the_link_of_the_server_is_shared() -> None:
    for workers in (2, 5):
        assert gbps(run("atp", 0, 1, workers, 1 << 21, 245)) == pytest.approx(CEILING / workers, rel=0.1)


def test_fallback_falls_with_memory_and_rises_with_jobs() -> None:
    by_memory = [run("atp", aggregators).fallback_share for aggregators in (32, 128, 512, 4096)]
    assert by_memory == sorted(by_memory, reverse=True)
    by_jobs = [run("atp", 512, jobs).fallback_share for jobs in (1, 2, 4, 8)]
    assert by_jobs == sorted(by_jobs)


def test_priorities_help_on_the_mean_and_do_not_hurt_the_highest() -> None:
    for aggregators in (128, 512):
        atp, esa = run("atp", aggregators), run("esa", aggregators)
        assert gbps(esa) > gbps(atp)
        assert esa.jobs[-1].finish_s <= atp.jobs[-1].finish_s
        assert sum(job.evicted for job in esa.jobs) > 0 == sum(job.evicted for job in atp.jobs)


def test_an_aggregator_is_held_until_its_result_has_passed() -> None:
    # Two hops to the server and back, its own time, two passes of the switch, and the jitter of eight workers.
    found = run("inalloc", 1024, 1, 8, 1 << 19, 16).jobs[0]
    assert found.holding_s == pytest.approx(5.2e-6, rel=0.02)
    assert found.resend_share == found.fallback_share == 0.0
