"""Starts, stops and drains of a cluster are cut off by kills at random moments, beside two busy loops.

`PLAIT_SLOW=1` takes 20 rounds, not 4. CHAOS_SEED is the plan, which is printed.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_shell import PLAIT, Shell

from plait.live.system import modules
from plait.live.system.procs import Process
from plait.testing.cluster import workers

pytestmark = pytest.mark.engines

ROUNDS = 20 if os.environ.get("PLAIT_SLOW") == "1" else 4
SEED = int(os.environ.get("CHAOS_SEED", "1"))
UP = ("--nodes", 2, "--gpus-per-node", 2, "--fake", "--round", 0.2, "--lost", 15)
MODULES = (modules.SERVICE, modules.AGENT, modules.KEEPER)
#: A job that writes down when it begins, whether another of its name runs, and when it is done.
JOB = """
import fcntl, os, sys, time
folder, name, seconds = sys.argv[1:]
def note(word):
    with open(f"{folder}/{name}.log", "a") as log:
        log.write(word + "\\n")
lock = open(f"{folder}/{name}.lock", "a")
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    note("twice")
    sys.exit(9)
note("begins")
time.sleep(float(seconds))
note("done")
"""


@pytest.fixture
def busy() -> Iterator[None]:
    """Two loops that never end."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    yield
    for loop in loops:
        loop.kill()
        loop.wait()


class Rounds:
    """Kills in a cluster of which jobs are asked meanwhile."""

    def __init__(self, plait: Shell, out: Path) -> None:
        self.plait, self.out, self.draw = plait, out, random.Random(SEED)
        self.jobs: dict[str, str] = {}
        (out / "job.py").write_text(JOB)

    def submit(self) -> None:
        name = f"job{len(self.jobs)}"
        seconds = round(self.draw.uniform(1.0, 8.0), 1)
        words = sys.executable, self.out / "job.py", self.out, name, seconds
        self.jobs[name] = self.plait.submit("--name", name, "--retries", 1000, "--", *words)

    def begin(self, *words: object) -> subprocess.Popen[bytes]:
        env = {k: v for k, v in os.environ.items() if k not in ("PLAIT_URL", "PLAIT_TOKEN")}
        return subprocess.Popen(
            [*PLAIT, *map(str, words)], env={**env, "PLAIT_HOME": str(self.plait.home)}, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def living(self) -> list[Process]:
        """All processes of the cluster and of its jobs."""
        home = self.plait.layout.home
        found = [process for module in MODULES for process in modules.of_home(home, module)]
        return found + [one for pair in workers(self.plait.layout) for one in pair if one is not None]

    def kill_some(self, share: float) -> None:
        for process in self.living():
            if self.draw.random() < share:
                process.send(signal.SIGKILL)

    def cut_off(self, *words: str) -> None:
        """Kill a command at some moment, and much of what runs then."""
        command = self.begin(*words)
        time.sleep(self.draw.uniform(0.3, 8.0))
        command.kill()
        command.wait()
        self.kill_some(0.6)

    def round(self) -> None:
        kind = self.draw.choice(["killed up", "killed down", "two ups", "down during up", "kills", "stopped service"])
        print(f"killed starts: seed {SEED}: {kind}", flush=True)
        if kind == "killed up":
            self.begin("down").wait()
            self.cut_off("up")
        elif kind == "killed down":
            self.cut_off("down")
        elif kind == "two ups":
            self.begin("down").wait()
            both = [self.begin("up") for _ in range(2)]
            assert 0 in [one.wait() for one in both]
        elif kind == "down during up":
            self.begin("down").wait()
            first = self.begin("up")
            time.sleep(self.draw.uniform(0.0, 8.0))
            self.begin("down").wait()
            first.wait()
        elif kind == "kills":
            self.kill_some(0.5)
        else:
            for process in modules.of_home(self.plait.layout.home, modules.SERVICE):
                process.send(signal.SIGSTOP)
                time.sleep(20.0)
                process.send(signal.SIGCONT)
        self.begin("up").wait()  # an error where a keeper is at it already

    def check(self) -> None:
        for name, job in self.jobs.items():
            self.plait.until(job, "finished")
            noted = (self.out / f"{name}.log").read_text().split()
            assert "twice" not in noted, name
            assert noted[-1] == "done", name  # one that was killed after it, before its end was known, ran again


@pytest.mark.usefixtures("busy")
def test_no_job_is_lost_doubled_or_left_behind(plait: Shell, tmp_path: Path) -> None:
    rounds = Rounds(plait, tmp_path)
    plait("up", *UP)
    for _ in range(ROUNDS):
        rounds.submit()
        rounds.submit()
        rounds.round()
        plait.comes(lambda: _answers(plait))
    rounds.check()


def _answers(plait: Shell) -> bool:
    with contextlib.suppress(AssertionError):
        plait("ls")
        return True
    return False


def test_a_job_begins_again_in_a_home_that_was_moved(plait: Shell, tmp_path: Path) -> None:
    plait("up", *UP)
    job = plait.submit("--retries", 1000, "--", "sleep", 600)
    plait.until(job, "running")
    home = plait.layout.home
    moved = Shell(tmp_path / "moved")
    plait.home.rename(moved.home)
    plait.comes(lambda: not any(modules.of_home(home, module) for module in MODULES))
    assert not plait.home.exists()
    moved("up")
    moved.until(job, "running")
    moved("down", "--stop-jobs", "--may-lose-work")
