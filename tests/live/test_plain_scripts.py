"""Ordinary scripts on a real cluster under the default policy: none is stopped, so none begins twice."""

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

from plait.live.client.client import FINAL
from plait.live.scheduler.engine import DEFAULT_POLICY
from plait.live.system import modules
from plait.live.system.procs import Process
from plait.testing.cluster import Cluster, workers

pytestmark = pytest.mark.engines

#: Both note each beginning; the second goes on from its checkpoint.
PLAIN = """
import sys, time
open(sys.argv[1], "a").write("begins\\n")
for i in range(60):
    time.sleep(0.05)
"""
ATTACHED = """
import sys, time
from plait.training import attach
open(sys.argv[1], "a").write("begins\\n")
state = {"done": 0}
job = attach(state=state)
for step in job.steps(80):
    time.sleep(0.05)
    state["done"] += 1
open(sys.argv[1], "a").write(f"done {state['done']}\\n")
"""


def test_plain_scripts_beside_attached_ones_run_once_each_and_all_end(tmp_path: Path) -> None:
    for name, text in (("plain.py", PLAIN), ("attached.py", ATTACHED)):
        (tmp_path / name).write_text(text)
    scripts = ["plain.py", "plain.py", "attached.py", "plain.py"]
    with Cluster(tmp_path / "home", nodes=1, slots=1, options={"round": 0.2}) as cluster, cluster.client() as service:
        jobs = [
            {"command": [sys.executable, str(tmp_path / script), str(tmp_path / f"{i}.txt")], "workdir": str(tmp_path)}
            for i, script in enumerate(scripts)
        ]
        names = [one.id for one in service.submit(jobs)]
        until = time.monotonic() + 90
        while any((found := service.job(name)).state not in FINAL for name in names):
            assert time.monotonic() < until, found
            time.sleep(0.2)
        ended = [service.job(name) for name in names]
        assert [one.state for one in ended] == ["finished"] * 4
        assert service.policy().policy == DEFAULT_POLICY
        plain = [i for i, script in enumerate(scripts) if script == "plain.py"]
        assert [ended[i].epoch for i in plain] == [1, 1, 1]
        assert [ended[i].preemptions for i in plain] == [0, 0, 0]
        assert [(tmp_path / f"{i}.txt").read_text() for i in plain] == ["begins\n"] * 3
        assert (tmp_path / "2.txt").read_text().endswith("done 80\n")  # whatever it was stopped for in between
        assert "preempted" not in service.status().lost.work_gpu_s
        events = [step["event"]["type"] for step in service.all_events()]
        assert "StopCostReported" in events


# -- starts, stops and drains of a cluster are cut off by kills at random moments, beside two busy loops ---
#
# `PLAIT_SLOW=1` takes 20 rounds, not 4. CHAOS_SEED is the plan, which is printed.


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
