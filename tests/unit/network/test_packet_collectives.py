"""All-reduces between workers, and background traffic, in the packet simulator."""

import re

import numpy as np
import pytest

from plait.core.errors import InputError
from plait.network.packets.build import _sizes, build, ps
from plait.network.packets.collectives import COLLECTIVES, program
from plait.network.packets.loop import run
from plait.network.packets.results import PacketResults
from plait.network.packets.run import simulate
from plait.network.packets.scenario import PacketJob, Straggler, one_switch, racks
from plait.network.packets.state import FAULT, FINE, TOO_LATE
from plait.network.protocol.options import Options, preset

LARGE = Options(payload_bytes=1024)
#: Payload of a link of 100 Gb/s with headers of 58 bytes.
PAYLOAD_GBPS = 100 * 1024 / 1082


def alone(collective: str, workers: int, **more: object) -> PacketResults:
    return simulate(one_switch([PacketJob(LARGE, workers, collective=collective)], 0, **more))


@pytest.mark.parametrize("name", COLLECTIVES)
@pytest.mark.parametrize(("workers", "packets"), [(2, 1), (4, 7), (8, 1000), (16, 100)])
def test_an_all_reduce_sends_each_packet_to_and_from_all_but_one_worker(name: str, workers: int, packets: int) -> None:
    made = program(name, workers, packets)
    received = [sum(parts) for parts in made.expected()]
    assert sum(received) == 2 * (workers - 1) * packets
    assert min(received) >= packets // 2
    if name != "tree":
        assert max(received) - min(received) <= 4 * workers  # parts that differ by a packet


@pytest.mark.parametrize(("name", "sent"), [("ring", 1.75), ("halving-doubling", 1.75), ("tree", 2.0)])
def test_a_large_all_reduce_takes_what_its_bytes_take_on_the_link(name: str, sent: float) -> None:
    """Of a worker: 2 (W - 1) / W gradients in a ring; in two trees one up and one down in each half."""
    found = alone(name, 8)
    assert 0.9 * PAYLOAD_GBPS / sent < found.goodput_bits_per_s / 1e9 < PAYLOAD_GBPS / sent
    assert found.jobs[0].packets == 2 * 7 * 2048
    assert (found.fallback_share, found.jobs[0].protocol) == (0, name)


@pytest.mark.parametrize("name", COLLECTIVES)
@pytest.mark.parametrize("workers", [2, 8, 16])
def test_tensors_and_iterations_follow_one_another_over_racks(name: str, workers: int) -> None:
    job = PacketJob(LARGE, workers, (1, 70_000, 1024), iterations=3, compute_s=1e-5, collective=name)
    found = simulate(racks([job, job], 0, 2, spines=2, oversubscription=2.0, jitter_s=2e-6))
    for one in found.jobs:
        assert one.packets == 3 * 2 * (workers - 1) * (1 + 69 + 1)
        assert (one.exchanges_s[:, 1] > one.exchanges_s[:, 0]).all()
        assert (one.exchanges_s[1:] > one.exchanges_s[:-1]).all()


@pytest.mark.parametrize("name", COLLECTIVES)
@pytest.mark.parametrize("tensors", [(512_000,), (200_000, 3000)])
def test_jobs_with_other_numbers_of_tensors_leave_an_all_reduce_as_it_is(name: str, tensors: tuple[int, ...]) -> None:
    job = PacketJob(LARGE, 4, tensors, iterations=4, collective=name)
    other = PacketJob(LARGE, 4, (1024, 1024, 1024), collective=name)
    single = simulate(one_switch([job], 0, jitter_s=0.0)).jobs[0]
    for jobs in ([job, other], [other, job]):
        scenario = one_switch(jobs, 0, jitter_s=0.0)
        beside = simulate(scenario).jobs[jobs.index(job)]
        assert beside.exchanges_s.tolist() == single.exchanges_s.tolist()
        net, now = build(scenario), 0
        while run(net, now) == TOO_LATE:
            assert net.peers.missing.min() >= 0
            assert net.peers.left.min() >= 0
            net.links.info[FAULT], now = FINE, now + ps(1e-6)


def test_a_ring_crosses_narrow_links_less_often_than_halving_and_doubling() -> None:
    def rate(name: str) -> float:
        job = PacketJob(LARGE, 16, collective=name)
        return simulate(racks([job], 0, 4, spines=1, oversubscription=4.0)).goodput_bits_per_s

    assert rate("ring") > 1.8 * rate("halving-doubling")


def test_jobs_that_aggregate_and_rings_meet_on_one_switch() -> None:
    jobs = [PacketJob(preset("atp"), 8), PacketJob(LARGE, 8, collective="ring")]
    found = simulate(one_switch(jobs, 4096))
    assert [job.protocol for job in found.jobs] == ["atp", "ring"]
    assert found.jobs[1].goodput_bits_per_s == pytest.approx(alone("ring", 8).goodput_bits_per_s, rel=0.01)


@pytest.mark.parametrize("share", [0.2, 0.5])
def test_background_traffic_takes_its_share_of_a_ring(share: float) -> None:
    quiet = alone("ring", 8).goodput_bits_per_s
    busy = [alone("ring", 8, background=share, seed=seed).goodput_bits_per_s for seed in range(3)]
    assert len(set(busy)) == 3
    for one in busy:
        # A window of the ring is ahead of the other traffic, which is behind it at the end.
        assert 0.75 * (1 - share) * quiet < one < 1.06 * (1 - share) * quiet


def test_flows_of_other_traffic_have_the_published_sizes_and_come_in_bursts() -> None:
    """The mean of DCTCP's web search is 1.6 to 1.7 MB. Its flows take links in turn, which jobs feel differently."""
    assert 1.6e6 < 1024 * _sizes("websearch").mean() < 1.7e6
    each = {}
    for flows in ("even", "websearch"):
        each[flows] = [
            alone("ring", 8, background=0.3, background_flows=flows, seed=seed).goodput_bits_per_s for seed in range(4)
        ]
    assert np.std(each["websearch"]) > 5 * np.std(each["even"])
    for seed in range(4):  # of data mining, with 7.5 MB, some are under way from the beginning
        mined = alone("ring", 8, background=0.3, background_flows="datamining", seed=seed).goodput_bits_per_s
        assert mined < 0.8 * alone("ring", 8).goodput_bits_per_s
    with pytest.raises(InputError, match="background_flows is 'web'; it takes even or websearch or datamining"):
        alone("ring", 8, background=0.3, background_flows="web")


def test_little_traffic_of_a_slow_link_comes_after_long_gaps() -> None:
    """Gaps of 86 seconds on average: with a random number of 20 bits, too much for 63 bits."""
    job = PacketJob(preset("switchml"), 2, (100_000,))
    quiet = simulate(one_switch([job], 4096, gbps=0.1)).goodput_bits_per_s
    assert simulate(one_switch([job], 4096, gbps=0.1, background=1e-6, seed=4)).goodput_bits_per_s > 0.98 * quiet


def test_background_traffic_above_its_room_is_dropped_and_the_job_ends() -> None:
    job = PacketJob(LARGE, 4, (8 << 20,), collective="ring")
    slow = Straggler(0, 1, share=0.2, until_s=1e-3)
    for more in ({"background": 0.95}, {"background": 0.5, "stragglers": (slow,)}):
        found = simulate(racks([job], 4096, 2, spines=2, **more))
        assert found.dropped > 0
        assert found.goodput_bits_per_s > 0


def test_background_traffic_that_takes_all_of_a_link_is_refused_with_the_share_that_works() -> None:
    def busy(share: float, **more: object) -> PacketResults:
        job = PacketJob(preset("switchml"), 4, (100_000,))
        return simulate(racks([job], 4096, 2, spines=2, oversubscription=4.0, background=share, **more))

    message = r"background is 0\.3: it takes .* of link spine0->leaf0 with seed 0; give less than 0\.25,"
    with pytest.raises(InputError, match=message) as raised:
        busy(0.3)
    limit = re.search(r"give less than ([0-9.]+),", str(raised.value))
    assert busy(0.99 * float(limit[1])).goodput_bits_per_s > 0
    with pytest.raises(InputError, match="give less than"):
        busy(float(limit[1]))
    with pytest.raises(InputError, match=r"of the 10 Gb/s of link (n1->|leaf0->n1)"):
        busy(0.11, stragglers=(Straggler(0, 1, share=0.1),))


def test_background_traffic_is_lost_and_marked_and_ends_with_the_jobs() -> None:
    found = simulate(one_switch([PacketJob(preset("atp"), 4)], 4096, background=0.9, mark_packets=5, loss_down=0.01))
    assert found.lost > 0
    assert found.marked > 0


@pytest.mark.parametrize(
    ("collective", "workers", "more", "message"),
    [
        ("ring", 1, {}, "2 or more"),
        ("halving-doubling", 6, {}, "takes 2, 4, 8"),
        ("rings", 4, {}, "it takes ring, tree, halving-doubling"),
        ("tree", 4, {"loss_up": 0.1}, "sends no packet again, and loss_up"),
        ("ring", 4, {"queue_packets": 9}, "overflow pause"),
        ("ring", 4, {"background": 1.0}, "background is 1"),
        ("ring", 4, {"background_flows": "websearch"}, "give a background"),
    ],
)
def test_all_reduces_that_cannot_be(collective: str, workers: int, more: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        alone(collective, workers, **more)
