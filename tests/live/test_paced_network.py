"""Jobs over paced links: sums are exact, and fallback is what the packet simulator says of the same jobs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from paced_network import Channel, LinkFigures, PacedDataplane, Point, median, simulations

RATE, DELAY_S = 200.0, 0.02


@pytest.fixture(scope="module")
def live() -> Iterator[PacedDataplane]:
    with PacedDataplane(RATE, DELAY_S) as one:
        yield one


def test_channel_is_a_fifo() -> None:
    channel = Channel(packet_ns=10, delay_ns=5)
    assert [channel.arrival_ns(now) for now in (0, 0, 4, 100)] == [15, 25, 35, 115]


def test_a_region_smaller_than_the_window_falls_back_as_simulated(live: PacedDataplane) -> None:
    point = Point("hybrid_region", jobs=2, packets=150, aggregators=12, rto_s=2.0)
    found = live.measure(point)  # raises if a sum is wrong
    expected = median(simulations(point, LinkFigures(RATE, DELAY_S, 0.002), range(3)))
    assert expected.fallback_share > 0.3
    assert found.fallback_share == pytest.approx(expected.fallback_share, abs=0.2)


def test_dedicated_slots_need_no_server(live: PacedDataplane) -> None:
    found = live.measure(Point("dedicated", packets=60, aggregators=32, loss=0.02, rto_s=0.3), seed=3)
    assert found.fallback_share == 0
    assert found.resend_share > 0
