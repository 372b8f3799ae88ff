"""The packet simulator: packets as a naive one sees them; sums, progress, memory, determinism, rates, wrong input."""

from dataclasses import replace

import numpy as np
import pytest
from naive_packets import NaivePackets

from plait.core.cluster import Cluster
from plait.core.errors import InputError, SimulationError
from plait.network.packets.build import build
from plait.network.packets.regions import regions
from plait.network.packets.results import PacketResults, state_bytes
from plait.network.packets.run import flow, simulate
from plait.network.packets.scenario import MIB, PacketJob, Scenario, Straggler, one_switch, racks
from plait.network.protocol.header import BYPASS, DATA
from plait.network.protocol.options import preset
from plait.network.topology.read import networked
from sampling import sample

SYSTEMS = ("switchml", "atp", "a2tp", "esa", "inalloc")
CEILING = 100.0 * 248 / 306
#: Bits of a packet, and round trips without queues, seconds: over the server, and to a slot and back.
BITS, SERVER_RTT, SLOT_RTT = 1984, 7.28e-6, 3.23e-6


def jobs_of(protocol: str, count: int = 3, **more: object) -> list[PacketJob]:
    """Small jobs with two tensors, two iterations and computation between them, which start one after the other."""
    options = preset(protocol, **{"window": 16, "payload_bytes": 248, "rto_s": 60e-6, "first_rto_s": 90e-6, **more})
    return [
        PacketJob(
            options, 3 + j % 2, (20_000, 9_001), 2, compute_s=5e-6, start_s=1e-5 * j, priority=j % 3,
            exponents=options.window if protocol == "switchml" else 0,
        )
        for j in range(count)
    ]  # fmt: skip


def agree(scenario: Scenario) -> None:
    """Packet by packet: time, place and header."""
    mine = simulate(scenario).log.tolist()
    naive = NaivePackets(scenario).run()
    for k, (one, other) in enumerate(zip(mine, naive, strict=False)):
        assert one == other, f"packet {k}: {one}, naively {other}"
    assert len(mine) == len(naive) > 500


@pytest.mark.parametrize("protocol", SYSTEMS)
@pytest.mark.parametrize("loss", [0.0, 0.02])
def test_the_naive_simulator_sees_the_same_packets(protocol: str, loss: float) -> None:
    more: dict[str, object] = {"log": 10**6, "loss_up": loss, "loss_down": loss / 2, "seed": 7}
    slower = (Straggler(0, 1, share=0.3, from_s=2e-5, until_s=9e-5, compute=2.0),)
    agree(one_switch(jobs_of(protocol, window=12), 100, stragglers=slower, mark_packets=4, **more))
    agree(one_switch(jobs_of(protocol), 90, jitter_s=0.0, **more))
    if protocol == "switchml":
        agree(racks(jobs_of(protocol), 100, 2, levels=1, **more))
    else:
        agree(racks(jobs_of(protocol), 60, 2, levels=1 if loss else 2, oversubscription=2.0, **more))


@pytest.mark.parametrize("systems", [("switchml", "atp"), ("esa", "inalloc"), ("a2tp", "switchml", "inalloc")])
def test_the_naive_simulator_agrees_where_systems_meet_on_a_switch(systems: tuple[str, ...]) -> None:
    jobs = [jobs_of(systems[j % len(systems)])[j % 3] for j in range(4)]
    jobs = [replace(job, memory=24 if job.options.protocol == "inalloc" else None) for job in jobs]
    more: dict[str, object] = {"log": 10**6, "loss_up": 0.01, "loss_down": 0.01, "seed": 5}
    for scenario in (one_switch(jobs, 120, **more), racks(jobs, 120, 2, levels=1, oversubscription=2.0, **more)):
        agree(scenario)
        simulate(replace(scenario, elements=2, log=0))  # raises for a wrong sum


@pytest.mark.parametrize("protocol", ["atp", "a2tp", "esa", "inalloc"])
def test_the_naive_simulator_agrees_where_servers_are_next_to_workers(protocol: str) -> None:
    """Both classes of packets share links: what is ready leaves at once, whatever else waits on its host or switch."""
    jobs = jobs_of(protocol, window=12)
    first = one_switch(jobs, 90).placement
    shared = [
        replace(job, nodes=nodes, server=first[j - 1][0][0])
        for j, (job, (nodes, _)) in enumerate(zip(jobs, first, strict=True))
    ]
    for more in ({"seed": 3}, {"jitter_s": 0.0, "loss_up": 0.02, "loss_down": 0.01}):
        agree(replace(one_switch(jobs, 90, log=10**6, **more), jobs=tuple(shared)))
    cluster = networked(
        Cluster.parse("12x1@4"), "leaf-spine:aggregators=60,levels=2,spines=1,aggregating=all,oversubscription=2"
    )
    spread = [
        replace(job, nodes=tuple((j + 3 * k) % 12 for k in range(job.workers)), server=(j + 1) % 12)
        for j, job in enumerate(jobs)
    ]
    agree(Scenario(tuple(spread), cluster, log=10**6, seed=5))


def test_a_result_that_is_not_ready_does_not_hold_its_link() -> None:
    """A worker sends while the result of a slow server on its node is not ready."""
    options = preset("atp", window=8)
    late = PacketJob(options, 2, (248,), start_s=10e-6, nodes=(2, 3), server=4)
    took = []
    for where in (3, 5):
        job = PacketJob(options, 2, (248,), nodes=(0, 1), server=where)
        took.append(simulate(one_switch([job, late], 64, server_s=20e-6)).jobs[1].exchanges_s[0, 1])
    assert took[0] == pytest.approx(took[1], abs=0.3e-6)  # of jitter and a packet on the link


def test_jobs_with_dedicated_slots_end_where_others_only_pass() -> None:
    # The spine answers job 0; packets of jobs 1 and 2 pass there, and job 3 with slots of its own ends at a leaf.
    names = ("switchml", "atp", "esa", "switchml")
    jobs = [replace(jobs_of(name)[0], workers=w) for name, w in zip(names, (4, 4, 4, 2), strict=True)]
    found = simulate(racks(jobs, 200, 2, spines=1, elements=2))
    assert [job.protocol for job in found.jobs] == list(names)
    assert [job.aggregated_share for job in (found.jobs[0], found.jobs[3])] == [1.0, 1.0]


def test_the_naive_simulator_agrees_on_cycles_and_their_changes() -> None:
    for slot_change in ("on", "off"):
        agree(one_switch(jobs_of("atp", index="shared_cycle", slot_change=slot_change), 20, log=10**6, loss_up=0.01))


@pytest.mark.parametrize("protocol", SYSTEMS)
def test_every_sum_is_exact_on_every_network(protocol: str) -> None:
    for seed in range(sample(2, 100)):
        jobs = jobs_of(protocol)
        if protocol == "inalloc":
            jobs = [replace(job, memory=32) for job in jobs]
        more: dict[str, object] = {"loss_up": 0.03, "loss_down": 0.03, "seed": seed, "elements": 2, "mark_packets": 3}
        for levels in (1, 2):
            made = [
                one_switch(jobs, 100, **more),
                racks(jobs, 100, 2, levels=levels, spines=2, oversubscription=3.0, **more),
            ]
            for scenario in made:
                found = simulate(scenario)  # raises for a wrong sum, and for an aggregator that is left over
                assert found.lost > 0
                assert [job.exchanges_s.shape for job in found.jobs] == [(2, 2)] * 3


def test_the_same_seed_gives_the_same_packets_and_another_one_others() -> None:
    scenario = one_switch(jobs_of("esa"), 20, loss_up=0.01, log=10**6)
    first, again = simulate(scenario), simulate(scenario)
    assert (first.log == again.log).all()
    assert first.jobs[0].finish_s == again.jobs[0].finish_s
    other = simulate(replace(scenario, seed=1))
    assert other.log.shape != first.log.shape or (other.log != first.log).any()


def test_esa_with_equal_priorities_is_atp() -> None:
    atp = simulate(one_switch([replace(job, priority=1) for job in jobs_of("atp")], 20, log=10**6))
    esa = simulate(one_switch([replace(job, priority=1) for job in jobs_of("esa")], 20, log=10**6))
    assert (atp.log == esa.log).all()


def test_leaves_add_up_at_one_level_and_the_server_gets_one_packet_at_two() -> None:
    job = PacketJob(preset("inalloc", window=32), 8, (62_000,))  # no two of its packets share an aggregator
    one = simulate(racks([job], 4096, 4, levels=1)).jobs[0]
    two = simulate(racks([job], 4096, 4, levels=2)).jobs[0]
    assert (one.server_packets, two.server_packets) == (2.0, 1.0)
    assert one.aggregated_share == two.aggregated_share == 1.0
    flat = simulate(one_switch([job], 0)).jobs[0]
    assert (flat.server_packets, flat.fallback_share) == (8.0, 1.0)


def test_what_is_held_over_time_adds_up() -> None:
    found = simulate(one_switch(jobs_of("atp"), 500))
    late = simulate(one_switch(jobs_of("switchml", rto_s=0.05, first_rto_s=2.56), 500))
    assert late.makespan_s / late.bin_s > 100  # timers after the last packet widen no bins
    for run in (found, late):
        for held, job in zip(run.held, run.jobs, strict=True):
            assert held.sum() * run.bin_s == pytest.approx(job.occupancy * (job.finish_s - job.start_s), rel=1e-9)
    sent = [sum(job.packets) * job.iterations * 248 * 8 for job in jobs_of("atp")]
    assert (found.gbps.sum(axis=1) * found.bin_s * 1e9) == pytest.approx(sent)
    assert 0 < found.occupancy < 1


def test_state_of_64_workers_within_64_mib() -> None:
    jobs = [PacketJob(preset("atp", window=256), 8, (2 * MIB,)) for _ in range(8)]
    assert state_bytes(build(one_switch(jobs, 65_536))) < 64 * MIB


def test_regions_are_disjoint_where_they_are_exclusive() -> None:
    switchml, inalloc, atp = (PacketJob(preset(name, window=8)) for name in ("switchml", "inalloc", "atp"))
    assert regions([switchml, switchml, replace(switchml, memory=20)], 47) == [(0, 13), (13, 13), (26, 20)]
    assert regions([switchml, atp, switchml], 27) == [(0, 9), (18, 9), (9, 9)]
    assert regions([switchml, atp, switchml], 200) == [(0, 16), (32, 168), (16, 16)]
    assert regions([replace(inalloc, memory=16), atp, inalloc], 100) == [(0, 16), (16, 84), (16, 84)]
    for jobs, aggregators in (([switchml], 0), ([switchml] * 3, 5), ([replace(inalloc, memory=9)], 8)):
        with pytest.raises(InputError, match=r"aggregators|slots"):
            regions(jobs, aggregators)


def test_regions_may_overlap_where_packets_fall_back() -> None:
    """Packets that meet another job's fall back, so half a region in common costs less than one for both."""
    switchml, inalloc = (PacketJob(preset(name, window=8)) for name in ("switchml", "inalloc"))
    half = replace(inalloc, memory=16, first=20)
    assert regions([replace(inalloc, memory=12), half, replace(half, first=28)], 60) == [(0, 12), (20, 16), (28, 16)]
    for jobs, words in (
        ([half], "region of 16 aggregators from 20 on; the switch has 30"),
        ([switchml, replace(half, first=8)], "slots have 16"),
    ):
        with pytest.raises(InputError, match=words):
            regions(jobs, 30)
    shared = []
    for first in (24, 12, 0):
        jobs = [replace(job, memory=24, first=at) for job, at in zip(jobs_of("inalloc", 2), (0, first), strict=True)]
        agree(one_switch(jobs, 60, log=10**6, loss_up=0.01, seed=3))
        shared.append(max(job.fallback_share for job in simulate(one_switch(jobs, 60, elements=2)).jobs))
    assert shared[0] == 0 < shared[1] < shared[2]


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: PacketJob(workers=0), "0 workers"),
        (lambda: PacketJob(workers=65), "1 to 64"),
        (lambda: PacketJob(tensors=()), "tensors"),
        (lambda: PacketJob(iterations=0), "0 iterations"),
        (lambda: PacketJob(compute_s=-1.0), "compute_s"),
        (lambda: PacketJob(priority=256), "priority 256"),
        (lambda: PacketJob(memory=-1), "memory"),
        (lambda: PacketJob(preset("atp"), memory=9, first=0), "first aggregator 0; it takes 0 or more, a memory"),
        (lambda: PacketJob(start_s=2.0, deadline_s=1.0), "deadline"),
        (lambda: PacketJob(nodes=(0, 1)), "2 nodes for 8 workers"),
        (lambda: PacketJob(exponents=10**6), "exponents"),
        (lambda: PacketJob(iterations=10**6), r"2\^31"),
    ],
)
def test_jobs_that_cannot_be(made: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        one_switch([made()], 100)  # type: ignore[operator]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"loss_up": 1.0}, "loss_up"),
        ({"jitter_s": -1.0}, "jitter_s"),
        ({"log": -1}, "log"),
        ({"stragglers": (Straggler(1),)}, "worker 0 of job 1"),
        ({"stragglers": (Straggler(0, share=0.0),)}, "share"),
        ({"stragglers": (Straggler(0, from_s=1.0, until_s=1.0),)}, "no time"),
        ({"stragglers": (Straggler(0, compute=0.5),)}, "compute"),
    ],
)
def test_scenarios_that_cannot_be(more: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        one_switch([PacketJob()], 100, **more)


def test_jobs_that_do_not_fit_their_network() -> None:
    cluster = networked(Cluster.parse("4x1@2"), "leaf-spine:aggregators=100")
    with pytest.raises(InputError, match="no node"):
        Scenario((PacketJob(workers=4),), cluster)
    nowhere = "job 0: no switch answers workers on nodes n0, n1, n2, n3: spine0, where"
    for match, job in (
        (r"tree leaf\+server needs a server", PacketJob(preset("switchml", tree="leaf+server"), workers=2)),
        (nowhere, PacketJob(preset("switchml"), workers=4)),
        ("payload_bytes", PacketJob(preset("atp", payload_bytes=256), workers=3, nodes=(0, 1, 2), server=3)),
        ("one worker on a node", PacketJob(workers=2, nodes=(0, 0))),
    ):
        with pytest.raises(InputError, match=match):
            simulate(Scenario((job,), cluster))


@pytest.mark.parametrize("levels", [1, 2])
def test_a_worker_beside_its_server_shares_its_link(levels: int) -> None:
    """Its packets go to the leaf and back; sums are exact, and results come to server and worker over one link."""
    cluster = networked(Cluster.parse("6x1@3"), f"leaf-spine:aggregators=60,levels={levels},aggregating=all")
    options = preset("atp", window=32, payload_bytes=248)
    jobs = [PacketJob(options, 4, (200_000,), nodes=(0, 1, 3, 4), server=server) for server in (0, 2)]
    beside, apart = (simulate(Scenario((job,), cluster, elements=2)).jobs[0] for job in jobs)
    assert beside.packets >= 4 * 807
    assert beside.goodput_bits_per_s < 1.01 * apart.goodput_bits_per_s
    cluster = networked(cluster, "leaf-spine")  # leaves add up nothing
    assert simulate(Scenario((jobs[0],), cluster, elements=2)).jobs[0].server_packets == pytest.approx(4, rel=0.01)


def test_what_overflows_or_never_ends_is_an_error() -> None:
    with pytest.raises(SimulationError, match="job 0 did not finish"):
        simulate(one_switch([PacketJob()], 100, until_s=1e-5))
    slow = preset("atp", window=64, rto_s=1e-6, first_rto_s=1e-6)
    with pytest.raises(SimulationError, match="under way"):
        simulate(one_switch([PacketJob(slow, 8)], 0, until_s=0.1, stragglers=(Straggler(0, share=1e-4),)))


def test_jobs_that_do_not_end_flow_at_the_rate_of_long_exchanges() -> None:
    """Of slots and of shared memory; the sums that a switch completes are those of the same exchanges."""
    for protocol, aggregators in (("switchml", 512), ("atp", 400)):
        options = preset(protocol, window=64, payload_bytes=248)
        long = simulate(one_switch([PacketJob(options, 4, (4 * MIB,))] * 2, aggregators))
        found = flow(one_switch([PacketJob(options, 4, (1 << 38,))] * 2, aggregators), 0.2e-3, 1.2e-3)
        for job, rate, share in zip(long.jobs, found.bits_per_s, found.aggregated, strict=True):
            assert rate == pytest.approx(job.goodput_bits_per_s, rel=0.04)
            assert share == pytest.approx(job.aggregated_share, abs=0.03)
    with pytest.raises(SimulationError, match=r"all jobs ended before 0\.00025 s"):
        flow(one_switch(jobs_of("switchml"), 100), 0.0, 1e-3)


def test_a_straggler_slows_its_job_alone() -> None:
    jobs = [PacketJob(preset("atp", window=64), 4, (100_000,)) for _ in range(2)]
    plain = simulate(one_switch(jobs, 8192)).jobs
    slow = simulate(one_switch(jobs, 8192, stragglers=(Straggler(0, 2, share=0.05),))).jobs
    assert slow[0].goodput_bits_per_s < 0.3 * plain[0].goodput_bits_per_s
    assert slow[1].goodput_bits_per_s == pytest.approx(plain[1].goodput_bits_per_s, rel=0.05)


def straggling(protocol: str, mib: int = 4, **more: object) -> PacketResults:
    """Two jobs whose windows do not fit into the switch together; one worker of job 1 has a fifth of its link."""
    job = PacketJob(preset(protocol, window=200, index="shared_cycle", **more), 4, (mib * MIB,))
    return simulate(one_switch([job, job], 256, stragglers=(Straggler(1, share=0.2),)))


def test_a_straggling_job_leaves_its_memory_to_others_and_takes_it_back() -> None:
    found = straggling("a2tp", 16, initial_window=200)
    slow = found.jobs[1]
    assert slow.goodput_bits_per_s > 13e9  # 16.2 of its slowest link
    assert (slow.timeouts, slow.aged) == (0, 0)
    end, last = (int(job.finish_s / found.bin_s) for job in found.jobs)
    during, after = found.held[1][end // 2 : end].mean(), found.held[1][last - (last - end) // 4 : last].mean()
    assert during < 0.1 * 256
    assert after > 0.85 * 200


def test_packets_without_aggregators_may_pass_as_well_as_flush() -> None:
    flush, passing = (straggling("a2tp", bypass=bypass).jobs for bypass in ("flush", "pass"))
    assert min(job.bypass_share for job in (flush[1], passing[1])) > 0.1
    for one, other in zip(flush, passing, strict=True):
        assert one.goodput_bits_per_s == pytest.approx(other.goodput_bits_per_s, rel=0.03)


@pytest.mark.parametrize("bypass", ["flush", "pass"])
def test_workers_of_a_job_agree_which_packets_use_no_aggregator(bypass: str) -> None:
    job = PacketJob(preset("a2tp", window=40, index="shared_cycle", bypass=bypass), 4, (400_000, 300_000))
    slow = (Straggler(1, 2, share=0.2), Straggler(0, 1, share=0.5, from_s=1e-4, until_s=3e-4))
    made = one_switch([job, job, job], 48, loss_up=2e-3, loss_down=2e-3, stragglers=slow, seed=3, log=10**6)
    found = simulate(made)
    ways: dict[tuple[int, int], set[int]] = {}
    for _, node, kind, j, seq, _, _, flags, _ in found.log.tolist():
        if kind == DATA and node >= len(made.graph.nodes):
            ways.setdefault((j, seq), set()).add(flags & BYPASS)
    assert all(len(one) == 1 for one in ways.values())
    assert sum(BYPASS in one for one in ways.values()) > 1000


def test_marks_count_packets_on_slow_links_too() -> None:
    job = PacketJob(preset("atp", window=80), 2, (100_000,), nodes=(0, 1), server=2)
    slow = one_switch([job], 8192, mark_packets=85, jitter_s=0.0, stragglers=(Straggler(0, share=0.05),))
    assert simulate(slow).marked == 0  # a window of 80 packets cannot make a queue of 85, however slow the link


def test_plain_python_gives_the_same_packets() -> None:
    from plait.core.jit import plain
    from plait.network.packets.loop import run
    from plait.network.packets.state import LOGGED

    scenario = one_switch(jobs_of("atp", 1, window=4), 20, log=10**6)
    net = build(scenario)
    assert plain(run)(net, 10**12) == 0
    rows = net.log[: int(net.links.info[LOGGED])]
    rows[:, 4] -= net.ends.tensors[0, 0, 0]
    assert np.array_equal(rows, simulate(scenario).log)


def equal(
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
    assert gbps(equal("switchml", size, 1, 4, 1 << 22, 245)) == pytest.approx(law, rel=0.02)


@pytest.mark.parametrize("window", [32, 128, 300])
def test_goodput_over_the_server_is_that_of_the_window(window: int) -> None:
    law = min(CEILING, window * BITS / SERVER_RTT / 1e9)
    assert gbps(equal("inalloc", 1024, 1, 4, 1 << 22, window)) == pytest.approx(law, rel=0.03)


def test_without_aggregators_the_link_of_the_server_is_shared() -> None:
    for workers in (2, 5):
        assert gbps(equal("atp", 0, 1, workers, 1 << 21, 245)) == pytest.approx(CEILING / workers, rel=0.1)


def test_fallback_falls_with_memory_and_rises_with_jobs() -> None:
    by_memory = [equal("atp", aggregators).fallback_share for aggregators in (32, 128, 512, 4096)]
    assert by_memory == sorted(by_memory, reverse=True)
    by_jobs = [equal("atp", 512, jobs).fallback_share for jobs in (1, 2, 4, 8)]
    assert by_jobs == sorted(by_jobs)


def test_priorities_help_on_the_mean_and_do_not_hurt_the_highest() -> None:
    for aggregators in (128, 512):
        atp, esa = equal("atp", aggregators), equal("esa", aggregators)
        assert gbps(esa) > gbps(atp)
        assert esa.jobs[-1].finish_s <= atp.jobs[-1].finish_s
        assert sum(job.evicted for job in esa.jobs) > 0 == sum(job.evicted for job in atp.jobs)


def test_an_aggregator_is_held_until_its_result_has_passed() -> None:
    # Two hops to the server and back, its own time, two passes of the switch, and the jitter of eight workers.
    found = equal("inalloc", 1024, 1, 8, 1 << 19, 16).jobs[0]
    assert found.holding_s == pytest.approx(5.2e-6, rel=0.02)
    assert found.resend_share == found.fallback_share == 0.0
