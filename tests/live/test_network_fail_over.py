"""Trainings aggregate over a switch, with their ranks on two agents, while services, agents and the switch change.

The leader is killed and a follower takes over, with the same grants; the agent of the switch is killed, and the memory
is granted again in another epoch. Nothing is lost, and the weights are those of gloo.
"""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from aggregation_plane import alone
from paced_network import Channel, LinkFigures, PacedDataplane, Point, median, simulations
from test_fail_over import Pair, check_log, until

from plait.live.client.client import Client
from plait.runtime.network.grant import NetworkGrant, read_grant
from plait.runtime.network.report import NetworkReport, read_report
from plait.testing import leaks
from plait.testing.cluster import switch_processes
from sampling import THOROUGH

pytestmark = pytest.mark.engines

SCRIPT = Path(__file__).parent / "scripts" / "aggregated_job.py"
STEPS, ROUNDING = 400, 1e-4
NETWORK = {
    "policy": "fifo:ina=esa", "network": "single-switch:aggregators=512,payload=1024,link_gbps=1", "expect-gpus": 4,
}  # fmt: skip


class Training:
    def __init__(self, pair: Pair, out: Path) -> None:
        self.pair, self.out = pair, out
        out.mkdir()
        with Client.at(str(pair.layout.home)) as client:
            client.submit([
                {"command": [sys.executable, str(SCRIPT), str(out), str(seed), str(STEPS), "0.05"], "gpus": 2,
                 "gradient_bytes": 5.6e5, "ina": {"mode": "auto"}}
                for seed in range(2)
            ])  # fmt: skip

    def folder(self, job: int, rank: int) -> Path:
        return self.pair.layout.rank(job, 1, rank)

    def grants(self) -> list[NetworkGrant]:
        return [read_grant(self.folder(job, rank) / "network.json") for job in range(2) for rank in range(2)]

    def reports(self) -> list[NetworkReport | None]:
        return [read_report(self.folder(job, rank)) for job in range(2) for rank in range(2)]

    def aggregate(self, version: int = 0) -> None:
        before = [0 if one is None else one.aggregated for one in self.reports()]

        def more() -> bool:
            self.pair.backend.maintain()
            return all(
                one is not None and one.aggregated > was and one.grant_version >= version and one.mode == "aggregation"
                for one, was in zip(self.reports(), before, strict=True)
            )

        until(more, f"all ranks aggregate by grant {version}: {self.reports()}")

    def check(self) -> None:
        """Both have ended, with the weights of gloo on all ranks."""

        def finished() -> bool:
            self.pair.backend.maintain()
            with Client.at(str(self.pair.layout.home)) as client:
                rows = client.jobs(limit=10)
            assert {one.state for one in rows} <= {"running", "finished"}, rows
            return all(one.state == "finished" for one in rows)

        until(finished, "both jobs have finished")
        for seed in range(2):
            ranks = [torch.load(path) for path in sorted(self.out.glob(f"j-{seed}-{seed}-r*.pt"))]
            assert len(ranks) == 2
            assert torch.equal(ranks[0]["weights"], ranks[1]["weights"])
            right = alone(self.out, seed, STEPS)
            assert float((ranks[0]["weights"] - right["weights"]).abs().max()) < ROUNDING
            assert abs(ranks[0]["loss"] - right["loss"]) < 1e-5


@pytest.mark.skipif(not THOROUGH, reason="four processes train for a minute; PLAIT_SLOW=1 runs it")
def test_trainings_over_two_agents_survive_a_take_over_and_the_end_of_an_agent(
    tmp_path: Path, postgres: Callable[[], str]
) -> None:
    url = postgres()
    with Pair(tmp_path / "home", url, nodes=4, slots=1, options=NETWORK) as pair:
        with Client.at(str(pair.layout.home)) as client:
            until(lambda: all(one.state == "up" for one in client.network().switches), "the switch is up")
        training = Training(pair, tmp_path / "out")
        until(lambda: all(training.folder(j, r).exists() for j in range(2) for r in range(2)), "all ranks start")
        training.aggregate()
        with Client.at(str(pair.layout.home)) as client:
            jobs = client.network().jobs
            serving = client.network().switches[0].node
        assert [one.granted for one in jobs] == [True, True]
        first, planes = training.grants(), switch_processes(pair.layout)

        pair.kill_leader()
        training.aggregate()
        now = training.grants()
        assert [(g.epoch, g.token, g.switch) for g in now] == [(g.epoch, g.token, g.switch) for g in first]
        assert switch_processes(pair.layout) == planes

        agent = next(one for one in pair.backend.list_nodes() if one.name == serving)
        os.kill(agent.pid, signal.SIGKILL)
        until(lambda: not any(one.alive for _, one in planes), "the switch ends with its agent")

        def again() -> bool:
            pair.backend.maintain()
            return all(new.granted and new.epoch > old.epoch for new, old in zip(training.grants(), now, strict=True))

        until(again, "memory is granted again")
        training.aggregate(min(one.version for one in training.grants()))
        training.check()
        with Client.at(str(pair.layout.home)) as client:
            until(lambda: not any(s.held for s in client.network().switches), "nothing is held")
    check_log(url, 2)
    assert leaks(pair.layout) == []


# -- jobs over paced links: sums are exact, and fallback is what the packet simulator says of the same jobs ---


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
