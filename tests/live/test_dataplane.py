"""A real switch and a real server over loopback, with ranks in threads: sums are exact, nothing stays held."""

import secrets
import signal
import socket
import stat
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_rank import GaveUp, SmallRank

from plait.core.errors import InputError
from plait.network.protocol.hello import Hello, pack
from plait.network.protocol.options import preset
from plait.testing.dataplane import Dataplane
from sampling import sample

PAYLOAD, AGGREGATORS = 64, 256
MODES: dict[str, dict[str, Any]] = {
    "dedicated": {"protocol": "switchml"},
    "shared_hash": {"protocol": "atp"},
    "shared_cycle": {"protocol": "a2tp", "index": "shared_cycle"},
    "hybrid_region": {"protocol": "esa", "index": "hybrid_region"},
    "hybrid_modulo": {"protocol": "inalloc"},
}
DIRECTIONS = ("to_switch", "to_worker", "to_server", "from_server")
_jobs = count(1)


@pytest.fixture(scope="module")
def server() -> Iterator[Dataplane]:
    with Dataplane.start("server", payload=PAYLOAD, window=64, jobs=8, slots=AGGREGATORS) as one:
        yield one


@pytest.fixture(scope="module")
def tor(server: Dataplane) -> Iterator[Dataplane]:
    with Dataplane.start(
        "switch", name="tor0", payload=PAYLOAD, aggregators=AGGREGATORS, server=f"127.0.0.1:{server.address[1]}"
    ) as one:
        yield one


class Job:
    """A job that is registered, its ranks, and the integer reference."""

    def __init__(self, tor: Dataplane, server: Dataplane, mode: str, ranks: int = 2, **changed: Any):
        self.tor, self.server, self.number, self.token = tor, server, next(_jobs), secrets.token_hex(8)
        given = {"payload_bytes": PAYLOAD, "window": 32, "rto_s": 0.01, "first_rto_s": 0.02, "max_timeouts": 500}
        given["backoff_every"] = 100_000  # on a busy machine timers expire often
        self.given = {**given, **MODES[mode], **changed}
        self.options, self.mode = preset(**self.given), mode
        self.dedicated = mode == "dedicated"
        if not self.dedicated:
            server.control.register(self.number, mode, ranks, self.given, self.token)
        tor.control.register(self.number, mode, ranks, self.given, self.token)
        token = bytes.fromhex(self.token)
        self.ranks = [SmallRank(tor.address, self.number, r, ranks, self.options, token) for r in range(ranks)]
        self.rng = np.random.default_rng(self.number)

    def region(self, offset: int, size: int, epoch: int) -> None:
        self.tor.control.region(self.number, offset, size, epoch, self.mode)
        if not self.dedicated:
            self.server.control.region(self.number, offset, size, epoch)
        for rank in self.ranks:
            rank.region(offset, size, epoch)

    def sum(self, packets: int) -> None:
        """Sum a tensor; the result of each rank is the reference exactly."""
        shape = (len(self.ranks), packets, PAYLOAD // 4)
        tensors = self.rng.integers(-(2**24), 2**24, shape).astype(np.int32)
        with ThreadPoolExecutor(len(self.ranks)) as pool:
            found = list(pool.map(SmallRank.total, self.ranks, tensors))
        expected = tensors.sum(axis=0, dtype=np.int64)
        for one in found:
            assert (one == expected).all()

    def hello(self) -> None:
        for rank in self.ranks:
            rank.hello()

    def close(self) -> None:
        for rank in self.ranks:
            rank.close()

    def end(self) -> None:
        self.close()
        self.tor.control.free(self.number)
        if not self.dedicated:
            self.server.control.free(self.number)


def held(tor: Dataplane, job: int | None = None) -> int:
    found = tor.control.statistics(job)
    return found["held"] if job is None else found["jobs"][0]["held"]


def drained(tor: Dataplane) -> bool:
    """Whether nothing is held soon: sweeps free what nobody completed."""
    until = time.monotonic() + 5
    while held(tor) and time.monotonic() < until:
        time.sleep(0.02)
    return held(tor) == 0


@pytest.mark.parametrize("ranks", [2, *sample([], [4, 8])])
@pytest.mark.parametrize("mode", MODES)
def test_sums_are_exact_with_loss_in_each_direction(mode: str, ranks: int, tor: Dataplane, server: Dataplane) -> None:
    job = Job(tor, server, mode, ranks)
    job.region(0, AGGREGATORS // 2, 0)
    job.hello()
    job.sum(300)
    for direction in DIRECTIONS:
        tor.control.fault(direction, job=job.number, loss=0.05, duplicate=0.05, reorder=0.05, seed=3)
    job.sum(400)
    found = tor.control.statistics(job.number)
    lost = {one["direction"]: one["lost"] for one in found["faults"] if one["job"] == job.number}
    assert lost["to_switch"] > 0
    assert lost["to_worker"] > 0
    assert job.dedicated or lost["from_server"] > 0
    for direction in DIRECTIONS:
        tor.control.fault(direction, job=job.number)
    if job.dedicated:
        assert tor.control.drain(job.number)["held"] == 0
    assert drained(tor)
    assert found["jobs"][0]["aggregated"] > 0
    job.end()


@pytest.mark.parametrize("loss", sample([0.01], [0.0, 0.001, 0.01, 0.05]))
def test_four_jobs_share_a_switch(loss: float, tor: Dataplane, server: Dataplane) -> None:
    jobs = [Job(tor, server, mode) for mode in ("dedicated", "shared_hash", "hybrid_region", "hybrid_modulo")]
    # Two of them share what the others have not.
    for job, (offset, size) in zip(jobs, ((0, 64), (128, 128), (128, 128), (64, 64)), strict=True):
        job.region(offset, size, 0)
        job.hello()
    for direction in DIRECTIONS:
        tor.control.fault(direction, loss=loss, duplicate=loss, seed=7)
    with ThreadPoolExecutor(len(jobs)) as pool:
        list(pool.map(Job.sum, jobs, [300] * 4))
    for direction in DIRECTIONS:
        tor.control.fault(direction)
    counted = {one["name"]: one for one in tor.control.statistics()["jobs"]}
    assert all(one["aggregated"] > 0 and one["outside"] == 0 for one in counted.values())
    jobs[0].end()
    assert drained(tor)
    for job in jobs[1:]:
        job.end()


def test_a_switch_that_was_killed_serves_the_job_again_in_the_next_epoch(tmp_path: Path) -> None:
    def start(listen: str) -> Dataplane:
        return Dataplane.start("switch", tmp_path, payload=PAYLOAD, aggregators=64, listen=listen)

    first = start("127.0.0.1:0")
    job = Job(first, first, "dedicated", max_timeouts=40)
    job.region(0, 64, 0)
    job.hello()
    with ThreadPoolExecutor(2) as pool:
        flying = [pool.submit(rank.total, np.ones((50_000, PAYLOAD // 4), np.int32)) for rank in job.ranks]
        time.sleep(0.05)
        first.process.kill()
        for one in flying:
            with pytest.raises(GaveUp):
                one.result(20)
    with start(f"127.0.0.1:{first.address[1]}") as second:
        rank = job.ranks[0]
        with pytest.raises(GaveUp):  # the switch knows nothing of the job
            rank.hello(0.2)
        job.tor = second
        # The socket file that the first one left was replaced, and its client speaks to the second one.
        first.control.register(job.number, "again", 2, job.given, job.token)
        job.region(0, 64, 1)
        job.hello()
        # All ranks start from the same number, which is beyond what any has used.
        job.sum(100)
        job.end()
        assert held(second) == 0
    first.stop()


def test_a_region_changes_by_epoch_and_the_former_one_drains(tor: Dataplane, server: Dataplane) -> None:
    for mode in ("dedicated", "hybrid_modulo", "shared_cycle"):
        job = Job(tor, server, mode)
        job.hello()
        for epoch, (offset, size) in enumerate([(0, 64), (100, 80), (32, 64), (200, 56)]):
            job.region(offset, size, epoch)
            tor.control.fault("to_switch", job=job.number, delay_s=0.002, reorder=0.02, loss=0.01, seed=epoch)
            job.sum(150)
            regions = tor.control.statistics(job.number)["jobs"][0]["regions"]
            assert regions[str(epoch)] == [offset, size]
            assert len(regions) <= 2
            if epoch:
                tor.control.drain(job.number, epoch - 1)
                assert held(tor, job.number) <= size
        job.end()
        assert drained(tor)


def test_a_job_may_be_freed_while_its_packets_fly(tor: Dataplane, server: Dataplane) -> None:
    for mode in ("dedicated", "shared_hash"):
        job = Job(tor, server, mode, max_timeouts=40)
        job.region(0, 128, 0)
        job.hello()
        job.sum(20)
        tor.control.fault("to_switch", job=job.number, delay_s=0.001)
        with ThreadPoolExecutor(2) as pool:
            flying = [pool.submit(rank.total, np.ones((20_000, PAYLOAD // 4), np.int32)) for rank in job.ranks]
            time.sleep(0.1)
            before = tor.control.statistics()["foreign"]
            tor.control.free(job.number)
            for one in flying:
                with pytest.raises(GaveUp, match=f"job {job.number}"):
                    one.result(20)
        assert drained(tor)
        assert tor.control.statistics()["foreign"] > before
        with pytest.raises(InputError, match=f"job {job.number} is not registered here"):
            tor.control.statistics(job.number)
        job.close()
        if not job.dedicated:
            server.control.free(job.number)


def test_what_is_not_of_the_job_is_counted_and_dropped(tor: Dataplane, server: Dataplane) -> None:
    mine, other = Job(tor, server, "dedicated"), Job(tor, server, "dedicated")
    mine.region(0, 64, 0)
    other.region(64, 64, 0)
    with pytest.raises(
        InputError, match=rf"aggregators 60 to 69 are in use by job {mine.number} \(dedicated, epoch 0\)"
    ):
        tor.control.region(other.number, 60, 10, 1)
    before = tor.control.statistics()
    stranger = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    wire = 24 + PAYLOAD
    stranger.sendto(bytes(wire), tor.address)  # foreign
    stranger.sendto(b"", tor.address)  # malformed, as the next two
    stranger.sendto(bytes(7), tor.address)
    stranger.sendto(bytes(wire + 4), tor.address)
    stranger.sendto(pack(Hello(mine.number, 1, bytes(8))), tor.address)  # refused, as the next two
    stranger.sendto(pack(Hello(60_000, 1, bytes(8))), tor.address)
    stranger.sendto(pack(Hello(mine.number, 4, bytes.fromhex(mine.token))), tor.address)  # there is no third worker
    stranger.close()
    mine.hello()
    other.hello()
    # A rank that sends for another job, or for another rank of its own, is not heard.
    mine.ranks[0].workers.state[0]["job"] = other.number
    other.ranks[0].workers.state[0]["bit"] = 2
    for rank in (mine.ranks[0], other.ranks[0]):
        with pytest.raises(GaveUp):
            rank.total(np.ones((5, PAYLOAD // 4), np.int32), timeout_s=0.1)
    after = tor.control.statistics()
    gained = {name: after[name] - before[name] for name in ("foreign", "malformed", "refused", "held")}
    assert gained.pop("malformed") >= 3 + 10
    assert gained == {"foreign": 1, "refused": 3, "held": 0}
    mine.ranks[0].workers.state[0]["job"], other.ranks[0].workers.state[0]["bit"] = mine.number, 1
    mine.end()
    other.end()


def test_processes_end_on_signals_and_leave_nothing(tmp_path: Path) -> None:
    for kind, number in (("switch", signal.SIGTERM), ("server", None)):
        one = Dataplane.start(kind, tmp_path, payload=PAYLOAD)
        assert stat.S_IMODE(one.path.stat().st_mode) == 0o600
        assert one.control.status()["jobs"] == []
        if kind == "server":
            with pytest.raises(RuntimeError, match=r"server.sock: another process listens there; choose another path"):
                Dataplane.start(kind, tmp_path, payload=PAYLOAD)
        if number is None:
            one.control.stop()
        else:
            one.process.send_signal(number)
        assert one.process.wait(10) == 0
        assert not one.path.exists()
        one.stop()
