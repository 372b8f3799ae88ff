"""Real ranks under DDP, a real switch and a real server over loopback: exact sums, equal parameters, no deadlock."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from plait.core.errors import InputError
from plait.runtime.network.grant import VARIABLE, NetworkGrant, write_grant
from plait.runtime.network.report import NetworkReport, read_report
from plait.testing.dataplane import Dataplane
from plait.training.collectives.network import OWN_HOOK
from sampling import THOROUGH

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
thorough = pytest.mark.skipif(not THOROUGH, reason="many processes; PLAIT_SLOW=1 runs them")


class Plane:
    """A switch with its server."""

    def __init__(self) -> None:
        self.server = Dataplane.start("server", payload=PAYLOAD, window=64, jobs=1024, slots=AGGREGATORS)
        self.tor = self.switch()
        self.granted: list[NetworkGrant] = []

    def switch(self, **more: Any) -> Dataplane:
        server = f"127.0.0.1:{self.server.address[1]}"
        return Dataplane.start("switch", name="tor0", payload=PAYLOAD, aggregators=AGGREGATORS, server=server, **more)

    def grant(self, ranks: int, index: str, *, share: tuple[int, int] = (0, 1)) -> NetworkGrant:
        """Register a job, with the part `share` (which, of how many) of the memory in modes that divide it."""
        options = {"protocol": MODES[index], "index": index, "payload_bytes": PAYLOAD, "window": 32}
        options |= {"quantise": "exponent", "rto_s": 0.03, "first_rto_s": 0.1}
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


@pytest.fixture(scope="module")
def processes() -> Iterator[Plane]:
    made = Plane()
    yield made
    made.stop()


@pytest.fixture
def plane(processes: Plane) -> Iterator[Plane]:
    """The processes, without faults and jobs after each test."""
    yield processes
    processes.lose(0.0)
    for grant in list(processes.granted):
        with contextlib.suppress(InputError):
            processes.free(grant)


def free_port() -> int:
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        return int(made.getsockname()[1])


class Run:
    """Some jobs in processes of their own."""

    def __init__(self, folder: Path, jobs: list[dict[str, Any]]) -> None:
        self.jobs = []
        for at, job in enumerate(jobs):
            here = folder / f"job{at}-{next(_numbers)}"
            here.mkdir()
            self.jobs.append({"folder": str(here), "port": free_port(), **job})
        file = folder / f"jobs{next(_numbers)}.json"
        file.write_text(json.dumps({"jobs": self.jobs}))
        self.said = open(file.with_suffix(".log"), "w+")  # noqa: SIM115
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen([sys.executable, str(SCRIPT), str(file)], stderr=self.said, env=environment)

    def until_paused(self) -> None:
        end_s = time.monotonic() + 90
        wanted = [Path(job["folder"]) / f"paused{rank}" for job in self.jobs for rank in range(job["ranks"])]
        while not all(one.exists() for one in wanted):
            assert time.monotonic() < end_s
            assert self.process.poll() is None, self.log()
            time.sleep(0.02)

    def go(self) -> None:
        for job in self.jobs:
            (Path(job["folder"]) / "go").touch()

    def log(self) -> str:
        self.said.seek(0)
        return self.said.read()

    def end(self, timeout_s: float = 240.0) -> list[list[dict[str, Any]]]:
        """What each rank of each job said; {} for one that was killed."""
        try:
            self.process.wait(timeout_s)
        finally:
            self.process.kill()
        found = []
        for job in self.jobs:
            files = [Path(job["folder"]) / f"rank{rank}.json" for rank in range(job["ranks"])]
            found.append([json.loads(one.read_text()) if one.exists() else {} for one in files])
        self.said.close()
        return found


def check_alike(ranks: list[dict[str, Any]]) -> None:
    assert [one.get("error") for one in ranks] == [None] * len(ranks)
    assert len({one["parameters"] for one in ranks}) == 1
    assert [one.get("wrong", 0) for one in ranks] == [0] * len(ranks)


def check_aggregated(ranks: list[dict[str, Any]]) -> None:
    """Most of the buckets of each rank went through the switch: few fail where processes stand still for long."""
    for rank in ranks:
        report = rank["report"]
        assert report["aggregated"] > 0.5 * (report["aggregated"] + sum(report["fallback"].values())), report


def test_a_sample_of_jobs_at_once(plane, tmp_path) -> None:
    """Two jobs that share a switch which loses packets, by both ways to get the hook, beside jobs without it."""
    grants = [plane.grant(2, "shared_hash"), plane.grant(2, "dedicated", share=(1, 2)), plane.grant(2, "shared_hash")]
    plane.lose(0.01)
    files = [str(tmp_path / f"network{at}.json") for at in range(3)]
    for grant, file in zip(grants, files, strict=True):
        write_grant(file, grant)
    common = {"steps": 8}
    run = Run(
        tmp_path,
        [
            {"ranks": 2, "grant": files[0], "way": "auto", "tensors": 3, **common},
            {"ranks": 2, "grant": files[1], "way": "ina", "tensors": 3, **common},
            {"ranks": 2, "grant": files[2], "way": "own", **common},
            {"ranks": 2, "way": "ina", **common},
            {"ranks": 2, "way": "plain", **common},
        ],
    )
    run.process.wait(200)
    assert run.log().count("gradients go by all-reduce: not all ranks have the environment variable") == 1
    auto, two_lines, own, without, plain = run.end()
    for job in (auto, two_lines, own, without, plain):
        check_alike(job)
        assert job[0]["losses"][-1] == pytest.approx(plain[0]["losses"][-1], abs=1e-5)
    check_aggregated(auto)
    check_aggregated(two_lines)
    assert without[0]["report"]["reason"].startswith("not all ranks have")
    assert without[0]["parameters"] == plain[0]["parameters"]
    assert plane.tor.control.statistics(grants[2].job)["jobs"][0]["packets_in"] == 0
    plane.lose(0.0)
    plane.free(grants[1])
    assert plane.held() == 0
    for grant in (grants[0], grants[2]):
        plane.free(grant)


CASES = [
    (ranks, jobs, index, loss)
    for ranks, jobs in ((2, 1), (2, 4), (4, 1), (4, 3), (8, 1), (8, 2))
    for index in MODES
    for loss in (0.0, 0.001, 0.01, 0.05)
]


@thorough
@pytest.mark.parametrize(("ranks", "jobs", "index", "loss"), CASES)
def test_training_is_that_of_gloo_with_exact_sums(plane, tmp_path, ranks, jobs, index, loss) -> None:
    steps = 50 if ranks < 8 else 10
    grants = [plane.grant(ranks, index, share=(at, jobs)) for at in range(jobs)]
    plane.lose(loss)
    configured: list[dict[str, Any]] = [{"ranks": ranks, "steps": steps, "way": "plain"}]
    for at, grant in enumerate(grants):
        file = str(tmp_path / f"network{at}.json")
        write_grant(file, grant)
        configured.append({"ranks": ranks, "steps": steps, "tensors": 4, "grant": file, "way": ("auto", "ina")[at % 2]})
    plain, *found = Run(tmp_path, configured).end()
    plane.lose(0.0)
    for job in found:
        check_alike(job)
        assert job[0]["losses"][-1] == pytest.approx(plain[0]["losses"][-1], abs=1e-5)
        check_aggregated(job)
    for grant in grants:
        if index == "dedicated":
            plane.free(grant)
    assert plane.held() == 0
    for grant in grants:
        if index != "dedicated":
            plane.free(grant)


@thorough
def test_a_switch_that_is_killed_and_comes_back_is_used_again(plane, tmp_path) -> None:
    grant = plane.grant(2, "hybrid_modulo")
    file = tmp_path / "network.json"
    write_grant(file, grant)
    plain = {"ranks": 2, "steps": 30, "way": "plain", "pause_at": 10}
    run = Run(tmp_path, [{"ranks": 2, "steps": 30, "grant": str(file), "pause_at": 10}, plain])
    run.until_paused()
    plane.tor.process.send_signal(signal.SIGKILL)
    plane.tor.process.wait()
    plane.tor.stop()
    run.go()
    time.sleep(1.0)  # some buckets fail
    plane.tor = plane.switch()
    again = replace(grant, version=2, epoch=1, switch=("127.0.0.1", plane.tor.address[1]))
    plane.register(again)
    write_grant(file, again)
    found, reference = run.end()
    check_alike(found)
    assert found[0]["losses"][-1] == pytest.approx(reference[0]["losses"][-1], abs=1e-5)
    for rank in found:
        assert rank["report"]["aggregated"] > 0
        assert rank["report"]["fallback_bytes"] > 0
    plane.free(again)
    assert plane.held() == 0


@thorough
def test_a_rank_that_is_killed_fails_the_others_soon(plane, tmp_path) -> None:
    grant = plane.grant(3, "shared_hash")
    write_grant(tmp_path / "network.json", grant)
    file = str(tmp_path / "network.json")
    [found] = Run(tmp_path, [{"ranks": 3, "steps": 200, "grant": file, "die": [1, 5], "seconds": 60}]).end(100)
    assert found[1] == {}
    for rank in (found[0], found[2]):
        assert "RuntimeError" in rank["error"]
        assert rank["seconds"] < 40
    assert plane.held() == 0
    plane.free(grant)


@thorough
def test_a_job_that_is_cancelled_while_packets_fly_leaves_nothing(plane, tmp_path) -> None:
    grant = plane.grant(2, "shared_hash")
    write_grant(tmp_path / "network.json", grant)
    plane.tor.control.fault("to_switch", job=grant.job, delay_s=0.002)
    run = Run(tmp_path, [{"ranks": 2, "steps": 40, "grant": str(tmp_path / "network.json"), "pause_at": 3}])
    run.until_paused()
    run.go()
    time.sleep(0.3)
    plane.free(grant)
    write_grant(tmp_path / "network.json", replace(grant, version=2, granted=False, reason="the job was cancelled"))
    [found] = run.end()
    check_alike(found)
    assert found[0]["report"]["mode"] == "gloo"
    assert plane.held() == 0
    plane.tor.control.fault("to_switch")


def run_gang(folder: Path, name: str, *options: str, **environment: str) -> list[NetworkReport | None]:
    """The reports of two ranks of a script under plait, with `attach`, `wrap_ddp` and a network stage."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "training"))
    import attempts

    port, processes, folders = str(free_port()), [], []
    for rank in range(2):
        env = attempts.environment(folder / name, 1, rank, 2, **environment) | {"MASTER_PORT": port}
        folders.append(env["PLAIT_RUN_DIR"])
        command = [sys.executable, str(attempts.SCRIPTS / "gang.py"), str(folder / f"{name}-"), *options]
        processes.append(subprocess.Popen(command, env=env))
    assert [one.wait(120) for one in processes] == [0, 0]
    return [read_report(one) for one in folders]


@thorough
def test_under_plait_the_network_stage_goes_around_aggregation(plane, tmp_path) -> None:
    import torch

    grant = plane.grant(2, "shared_hash")
    write_grant(tmp_path / "network.json", grant)
    named = {VARIABLE: str(tmp_path / "network.json")}
    assert run_gang(tmp_path, "plain") == [None, None]
    for report in run_gang(tmp_path, "aggregated", **named):
        assert report is not None
        assert report.aggregated > 0
        assert report.mode == "aggregation"
    # A hook of the script's own, which the script passes to `wrap_ddp`.
    for report in run_gang(tmp_path, "own", "--inner", **named):
        assert report is not None
        assert (report.aggregated, report.reason) == (0, OWN_HOOK)
    weights = {name: torch.load(tmp_path / f"{name}-0")[0] for name in ("plain", "aggregated")}
    for name, tensor in weights["plain"].items():
        assert torch.allclose(tensor, weights["aggregated"][name], atol=1e-5)
    plane.free(grant)
