"""Real ranks under DDP, a real switch and a real server over loopback: exact sums, equal parameters, no deadlock."""

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from aggregation_plane import Plane, RankHost, Run, check_aggregated, check_alike, free_port

from plait.core.errors import InputError
from plait.runtime.network.grant import VARIABLE, write_grant
from plait.runtime.network.report import NetworkReport, read_report
from plait.training.collectives.network import OWN_HOOK
from sampling import THOROUGH

thorough = pytest.mark.skipif(not THOROUGH, reason="many processes; PLAIT_SLOW=1 runs them")


@pytest.fixture(scope="module")
def processes() -> Iterator[Plane]:
    made = Plane()
    yield made
    made.stop()


@pytest.fixture(scope="module")
def host() -> Iterator[RankHost]:
    made = RankHost()
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


def test_a_sample_of_jobs_at_once(plane, host, tmp_path) -> None:
    """Two jobs that share a switch which loses packets, by both ways to get the hook, beside jobs without it."""
    grants = [plane.grant(2, "shared_hash"), plane.grant(2, "dedicated", share=(1, 2)), plane.grant(2, "shared_hash")]
    plane.lose(0.01)
    files = [str(tmp_path / f"network{at}.json") for at in range(3)]
    for grant, file in zip(grants, files, strict=True):
        write_grant(file, grant)
    common = {"steps": 8}
    run = Run(
        host,
        tmp_path,
        [
            {"ranks": 2, "grant": files[0], "way": "auto", "tensors": 3, **common},
            {"ranks": 2, "grant": files[1], "way": "ina", "tensors": 3, **common},
            {"ranks": 2, "grant": files[2], "way": "own", **common},
            {"ranks": 2, "way": "ina", **common},
            {"ranks": 2, "way": "plain", **common},
        ],
    )
    auto, two_lines, own, without, plain = run.end()
    assert run.log().count("gradients go by all-reduce: not all ranks have the environment variable") == 1
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


@thorough
def test_a_switch_that_is_killed_and_comes_back_is_used_again(plane, host, tmp_path) -> None:
    grant = plane.grant(2, "hybrid_modulo")
    file = tmp_path / "network.json"
    write_grant(file, grant)
    plain = {"ranks": 2, "steps": 30, "way": "plain", "pause_at": [10]}
    run = Run(host, tmp_path, [{"ranks": 2, "steps": 30, "grant": str(file), "pause_at": [10]}, plain])
    run.until_paused(10)
    plane.tor.process.send_signal(signal.SIGKILL)
    plane.tor.process.wait()
    plane.tor.stop()
    run.go(10)
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
def test_a_server_that_is_killed_and_comes_back_is_used_again(plane, host, tmp_path) -> None:
    grant = plane.grant(2, "shared_hash")
    file = tmp_path / "network.json"
    write_grant(file, grant)
    plain = {"ranks": 2, "steps": 30, "way": "plain", "pause_at": [10, 20]}
    run = Run(host, tmp_path, [{"ranks": 2, "steps": 30, "grant": str(file), "pause_at": [10, 20]}, plain])
    assert run.until_paused(10) > 0
    port = plane.server.address[1]
    plane.server.process.send_signal(signal.SIGKILL)
    plane.server.process.wait()
    plane.server.stop()
    run.go(10)
    before = run.until_paused(20)  # ten steps whose buckets no server has seen
    plane.server = plane.serve(port)
    plane.tor.control.free(grant.job)
    again = replace(grant, version=2, epoch=1)
    plane.register(again)
    write_grant(file, again)
    run.go(20)
    found, reference = run.end()
    check_alike(found)
    assert found[0]["losses"][-1] == pytest.approx(reference[0]["losses"][-1], abs=1e-5)
    for rank in found:
        assert rank["report"]["aggregated"] > before
        assert rank["report"]["fallback_bytes"] > 0
    plane.free(again)
    assert plane.held() == 0


@thorough
def test_a_job_goes_to_another_switch_and_back(plane, host, tmp_path) -> None:
    grant = plane.grant(2, "shared_hash")
    file, home = tmp_path / "network.json", plane.tor
    write_grant(file, grant)
    steps = {"ranks": 2, "steps": 30, "pause_at": [10, 20]}
    run = Run(host, tmp_path, [{"grant": str(file), **steps}, {"way": "plain", **steps}])
    first = run.until_paused(10)
    assert first > 0
    plane.free(grant)
    plane.tor = other = plane.switch()
    try:
        away = replace(grant, version=2, epoch=1, switch=("127.0.0.1", other.address[1]), switch_name="tor1")
        plane.register(away)
        write_grant(file, away)
        run.go(10)
        second = run.until_paused(20)
        assert second > first
        assert other.control.statistics(grant.job)["jobs"][0]["packets_in"] > 0
        plane.free(away)
        assert plane.held() == 0
    finally:
        plane.tor = home
        other.stop()
    back = replace(grant, version=3, epoch=2)
    plane.register(back)
    write_grant(file, back)
    run.go(20)
    found, reference = run.end()
    check_alike(found)
    assert found[0]["losses"][-1] == pytest.approx(reference[0]["losses"][-1], abs=1e-5)
    for rank in found:
        assert rank["report"]["aggregated"] > second
    plane.free(back)
    assert plane.held() == 0


@thorough
def test_a_rank_that_is_killed_fails_the_others_soon(plane, host, tmp_path) -> None:
    grant = plane.grant(3, "shared_hash")
    write_grant(tmp_path / "network.json", grant)
    file = str(tmp_path / "network.json")
    [found] = Run(host, tmp_path, [{"ranks": 3, "steps": 200, "grant": file, "die": [1, 5], "seconds": 60}]).end(100)
    assert found[1] == {}
    for rank in (found[0], found[2]):
        assert "RuntimeError" in rank["error"]
        assert rank["seconds"] < 40
    assert plane.held() == 0
    plane.free(grant)


@thorough
def test_a_job_that_is_cancelled_while_packets_fly_leaves_nothing(plane, host, tmp_path) -> None:
    grant = plane.grant(2, "shared_hash")
    write_grant(tmp_path / "network.json", grant)
    plane.tor.control.fault("to_switch", job=grant.job, delay_s=0.002)
    run = Run(host, tmp_path, [{"ranks": 2, "steps": 40, "grant": str(tmp_path / "network.json"), "pause_at": [3]}])
    run.until_paused(3)
    run.go(3)
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
        assert report.aggregated > 0
        assert report.mode == "aggregation"
    # A hook of the script's own, which the script passes to `wrap_ddp`.
    for report in run_gang(tmp_path, "own", "--inner", **named):
        assert (report.aggregated, report.reason) == (0, OWN_HOOK)
    weights = {name: torch.load(tmp_path / f"{name}-0")[0] for name in ("plain", "aggregated")}
    for name, tensor in weights["plain"].items():
        assert torch.allclose(tensor, weights["aggregated"][name], atol=1e-5)
    plane.free(grant)
