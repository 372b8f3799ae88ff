"""A cluster whose home, descriptors and event loop are attacked, as a user and an operator see it."""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import threading
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from cluster_shell import PLAIT, Shell

from plait.live.supervisor import daemon
from plait.live.supervisor.services import service_process, unnamed_processes
from plait.live.system.procs import Process

pytestmark = pytest.mark.engines

UP = ("--nodes", 1, "--gpus-per-node", 2, "--fake", "--policy", "fifo", "--round", 0.2, "--lost", 15)
#: Cut bodies and connections: more than those that restarted a running job three times and leaked all descriptors.
CUTS, BURSTS, BURST = 4000, 4, 300


def service(plait: Shell) -> Process:
    found = service_process(plait.layout)
    assert found is not None
    return found


def addresses(plait: Shell) -> list[tuple[str, int]]:
    record = json.loads(plait.layout.service_file.read_text())
    return [("127.0.0.1", urlsplit(record[name]).port or 0) for name in ("url", "agents")]


def test_cut_bodies_of_strangers_cost_no_node_its_lease(plait: Shell) -> None:
    plait("up", *UP)
    job = plait.submit("--", "sleep", 600)
    plait.until(job, "running")
    users, agents = addresses(plait)

    def cut(address: tuple[str, int], path: str) -> None:
        for _ in range(CUTS // 16):
            with contextlib.suppress(OSError), socket.create_connection(address, 30) as one:
                one.sendall(f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\nabc".encode())

    threads = [threading.Thread(target=cut, args=(users, "/web/login")) for _ in range(8)]
    threads += [threading.Thread(target=cut, args=(agents, "/agent/v1/sync")) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = json.loads(plait("show", job, "--json"))
    assert (found["state"], found["starts"]) == ("running", 1)
    assert "Traceback" not in (plait.layout.home / "service.log").read_text()


@pytest.mark.parametrize("descriptors", [128, 256, 1024])
def test_bursts_of_connections_do_not_wedge_the_service(plait: Shell, descriptors: int) -> None:
    words = [*PLAIT, "up", *map(str, UP), "--home", str(plait.home)]
    limited = ["bash", "-c", f'ulimit -n {descriptors}; exec "$@"', "up", *words]
    subprocess.run(limited, timeout=120, check=True, capture_output=True)
    held = Path(f"/proc/{service(plait).pid}/fd")
    for address in addresses(plait):
        for _ in range(BURSTS):
            with contextlib.ExitStack() as burst:
                for _ in range(BURST):
                    burst.enter_context(socket.create_connection(address, 60))
    plait("status")
    plait.comes(lambda: len(os.listdir(held)) < 64)


def test_a_store_that_is_removed_is_saved_and_never_followed_by_an_empty_one(plait: Shell) -> None:
    plait("up", *UP[:-2])  # a node is not lost while no service runs
    job = plait.submit("--", "sleep", 600)
    plait.until(job, "running")
    for path in plait.layout.home.glob("plait.db*"):
        path.unlink()
    plait.comes(lambda: (plait.layout.home / "plait-rescued-1.db").exists())
    plait.comes(lambda: "there was one" in (plait.layout.home / "keeper.log").read_text())
    assert not plait.layout.database.exists()
    plait("restore", plait.layout.home / "plait-rescued-1.db")
    plait.until(job, "running")
    assert json.loads(plait("show", job, "--json"))["starts"] == 1


def test_a_home_that_is_emptied_has_no_second_service_and_nothing_after_down(plait: Shell) -> None:
    plait("up", *UP)
    first = service(plait)
    for path in plait.layout.home.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    plait.comes(lambda: not first.alive)
    plait.comes(lambda: daemon.running(plait.layout, "keeper") is None)
    assert unnamed_processes(plait.layout) == []
    plait("down", "--stop-jobs", "--may-lose-work")
    plait("up", *UP)


def test_a_service_whose_lock_is_removed_is_replaced_by_one(plait: Shell) -> None:
    plait("up", *UP)
    first = service(plait)
    (plait.layout.home / "service.lock").unlink()
    plait.comes(lambda: (now := service_process(plait.layout)) is not None and now != first)
    assert not first.alive
    assert len(unnamed_processes(plait.layout)) == 1
