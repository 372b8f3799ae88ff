"""A switch and a server as processes, and ranks under DDP that a process with torch forks: what tests of both share."""

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from itertools import count
from pathlib import Path
from typing import Any

import torch

from plait.runtime.network.grant import NetworkGrant
from plait.testing.dataplane import Dataplane

PAYLOAD, AGGREGATORS = 256, 512
MODES = {
    "dedicated": "switchml",
    "shared_hash": "esa",
    "shared_cycle": "atp",
    "hybrid_region": "inalloc",
    "hybrid_modulo": "inalloc",
}
SCRIPT = Path(__file__).parent / "scripts" / "ddp_ranks.py"
_numbers = count(1)


class Plane:
    """A switch with its server."""

    def __init__(self) -> None:
        self.server = self.serve()
        self.tor = self.switch()
        self.granted: list[NetworkGrant] = []

    def serve(self, port: int = 0) -> Dataplane:
        options = {"payload": PAYLOAD, "window": 64, "jobs": 1024, "slots": AGGREGATORS}
        return Dataplane.start("server", listen=f"127.0.0.1:{port}", **options)

    def switch(self, **more: Any) -> Dataplane:
        server = f"127.0.0.1:{self.server.address[1]}"
        return Dataplane.start("switch", name="tor0", payload=PAYLOAD, aggregators=AGGREGATORS, server=server, **more)

    def grant(self, ranks: int, index: str, *, share: tuple[int, int] = (0, 1)) -> NetworkGrant:
        """Register a job, with the part `share` (which, of how many) of the memory in modes that divide it."""
        options = {"protocol": MODES[index], "index": index, "payload_bytes": PAYLOAD, "window": 32}
        options |= {"quantise": "exponent", "rto_s": 0.03, "first_rto_s": 0.1}
        options |= {"max_timeouts": 60}  # of 30 ms each: with more ranks than cores, one waits long for its turn
        divided = index in ("dedicated", "hybrid_modulo")
        size = AGGREGATORS // share[1] if divided else AGGREGATORS // 4
        grant = NetworkGrant(
            version=1, granted=True, job=next(_numbers), token=secrets.token_hex(8), n_workers=ranks,
            switch=("127.0.0.1", self.tor.address[1]), switch_name="tor0", options=options,
            offset=share[0] * size if divided else 0, size=size, slots=AGGREGATORS, priority=share[0],
        )  # fmt: skip
        self.register(grant)
        return grant

    def both(self, grant: NetworkGrant) -> list[Dataplane]:
        return [self.tor] if grant.options["protocol"] == "switchml" else [self.server, self.tor]

    def register(self, grant: NetworkGrant) -> None:
        self.granted.append(grant)
        for one in self.both(grant):
            one.control.register(grant.job, "job", grant.n_workers, grant.options, grant.token)
            one.control.region(grant.job, grant.offset, grant.size, grant.epoch)

    def lose(self, share: float) -> None:
        for direction in ("to_switch", "to_worker", "to_server", "from_server"):
            self.tor.control.fault(direction, loss=share, seed=7)

    def free(self, grant: NetworkGrant) -> None:
        for one in self.both(grant):
            one.control.free(grant.job)

    def held(self) -> int:
        """What is still held by jobs that share aggregators once sweeps had their time."""
        until = time.monotonic() + 5
        while (found := self.tor.control.statistics()["held"]) and time.monotonic() < until:
            time.sleep(0.05)
        return found

    def stop(self) -> None:
        self.tor.stop()
        self.server.stop()


def free_port() -> int:
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        return int(made.getsockname()[1])


class RankHost:
    """A process that has imported torch and forks the ranks of one run after the other."""

    def __init__(self) -> None:
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, str(SCRIPT)], stdin=subprocess.PIPE, text=True, env=environment
        )

    def start(self, file: Path) -> None:
        self.process.stdin.write(f"{file}\n")
        self.process.stdin.flush()

    def stop(self) -> None:
        self.process.kill()
        self.process.communicate()


class Run:
    def __init__(self, host: RankHost, folder: Path, jobs: list[dict[str, Any]]) -> None:
        self.host, self.jobs = host, []
        for at, job in enumerate(jobs):
            here = folder / f"job{at}-{next(_numbers)}"
            here.mkdir()
            self.jobs.append({"folder": str(here), **job})
        self.file = folder / f"jobs{next(_numbers)}.json"
        self.file.write_text(json.dumps({"jobs": self.jobs}))
        host.start(self.file)

    def until_paused(self, step: int) -> int:
        """Wait for all ranks of all jobs at a step; returns how many buckets the first rank has aggregated."""
        end_s = time.monotonic() + 90
        wanted = [Path(job["folder"]) / f"paused{step}-{rank}" for job in self.jobs for rank in range(job["ranks"])]
        while not all(one.exists() for one in wanted):
            assert time.monotonic() < end_s
            assert not self.ended, self.log()
            time.sleep(0.02)
        return int(wanted[0].read_text())

    def go(self, step: int) -> None:
        for job in self.jobs:
            (Path(job["folder"]) / f"go{step}").touch()

    @property
    def ended(self) -> bool:
        return self.file.with_suffix(".ended").exists()

    def log(self) -> str:
        file = self.file.with_suffix(".log")
        return file.read_text() if file.exists() else ""

    def end(self, timeout_s: float = 240.0) -> list[list[dict[str, Any]]]:
        """What each rank of each job said; {} for one that was killed."""
        end_s = time.monotonic() + timeout_s
        while not self.ended and time.monotonic() < end_s:
            assert self.host.process.poll() is None
            time.sleep(0.02)
        if not self.ended:
            os.kill(int(self.file.with_suffix(".pid").read_text()), signal.SIGKILL)  # and with it all ranks
            raise AssertionError(f"the ranks have not ended after {timeout_s:g} s; {self.log()}")
        found = []
        for job in self.jobs:
            files = [Path(job["folder"]) / f"rank{rank}.json" for rank in range(job["ranks"])]
            found.append([json.loads(one.read_text()) if one.exists() else {} for one in files])
        return found


def check_alike(ranks: list[dict[str, Any]]) -> None:
    assert [one.get("error") for one in ranks] == [None] * len(ranks)
    assert len({one["parameters"] for one in ranks}) == 1
    assert [one.get("wrong", 0) for one in ranks] == [0] * len(ranks)
    assert all(one["checked"] > 0 for one in ranks if "checked" in one)


def check_aggregated(ranks: list[dict[str, Any]]) -> None:
    """Most of the buckets of each rank went through the switch: few fail where processes stand still for long."""
    for rank in ranks:
        report = rank["report"]
        assert report["aggregated"] > 0.5 * (report["aggregated"] + sum(report["fallback"].values())), report


def alone(folder: Path, seed: int, steps: int) -> dict[str, Any]:
    """The training of `scripts/aggregated_job.py` by gloo, undisturbed: its weights."""
    base = {k: v for k, v in os.environ.items() if not k.startswith("PLAIT_")}
    base |= {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(SCRIPT.with_name("aggregated_job.py")), str(folder), str(seed), str(steps), "0"]
    ranks = [subprocess.Popen(command, env={**base, "RANK": str(rank)}) for rank in (0, 1)]
    assert [rank.wait(120) for rank in ranks] == [0, 0]
    found: dict[str, Any] = torch.load(folder / f"alone-{seed}-r0.pt")
    return found
