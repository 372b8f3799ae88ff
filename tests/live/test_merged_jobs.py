"""Jobs that share a process under a real agent: one pid, and each its own log, stop and end; none harms another's."""

import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from agent_world import World, group, until

from plait.live.agent.agent import Agent
from plait.live.agent.node import AgentOptions
from plait.live.agent.processes import launch
from plait.live.layout import Layout
from plait.live.protocol.wire import Run, Seen
from plait.live.system import procs

#: Steps until told to end; says where it runs. Torch is kept out: these are about processes.
SCRIPT = """
import os, sys, threading, time
from plait.training import Resource, attach
job = attach()
for step in job.steps(10**6):
    with job.stage(Resource.GPU):
        pass
    job.step_boundary()
    print(os.environ["PLAIT_JOB"], step, sys.argv[1:], os.getpid(), flush=True)
    if len(sys.argv) > 2 and step == 20:
        exec(sys.argv[2])
    if os.path.exists(sys.argv[1]):
        break
    time.sleep(0.005)
print("bye", os.environ["PLAIT_JOB"])
"""

#: What a lost context looks like to the host: whoever waits for the GPU gets an error from now on.
LOST_GPU = """
import types, plait.training.merged.jobs as jobs
def fails():
    raise RuntimeError("CUDA error: an illegal memory access was encountered")
cuda = types.SimpleNamespace(synchronize=fails, empty_cache=fails)
jobs.torch_cuda = lambda cuda=cuda: cuda
fails()
"""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    (tmp_path / "script.py").write_text(SCRIPT)
    # The torch of the tests' own environment is hidden, so that a host is there in a tenth of a second.
    for name in ("torch", "numpy"):
        (tmp_path / "hidden").mkdir(exist_ok=True)
        (tmp_path / "hidden" / f"{name}.py").write_text("raise ImportError('hidden')")
    world = World(tmp_path / "home").start()
    yield world
    world.close()


class Merged:
    """A group of jobs that may share a process, told to end by a file each."""

    def __init__(self, world: World, *jobs: int, **what: str) -> None:
        self.world, self.jobs = world, jobs
        self.folder = world.layout.home.parent
        path = os.pathsep.join([str(self.folder / "hidden"), str(Path(__file__).parents[2] / "src")])
        self.runs = [
            world.run(
                job, sys.executable, "script.py", str(self.folder / f"end-{job}"), *filter(None, [what.get(f"j{job}")]),
                group=group("g1", *jobs, gate="tokens"), workdir=str(self.folder), env={"PYTHONPATH": path}, merge="k",
            )
            for job in jobs
        ]  # fmt: skip
        world.service.want(*self.runs)

    def end(self, job: int) -> None:
        (self.folder / f"end-{job}").touch()

    def running(self) -> list[Seen]:
        for job in self.jobs:
            self.world.said(job, f"j-{job} 5 ")
        seen = [self.world.service.wait(job, "running") for job in self.jobs]
        until(lambda: all(s is not None and s.pid for s in map(self.world.service.seen, self.jobs)), "pids")
        return [self.world.service.seen(job) or seen[0] for job in self.jobs]

    def ended(self, job: int) -> tuple[int | None, str]:
        seen = self.world.service.wait(job, "ended")
        return seen.exit_code, seen.merged

    def stop(self, job: int, **more: Any) -> None:
        run: Run = self.runs[self.jobs.index(job)]
        self.world.service.want(replace(run, stop=True, **more))


def test_two_jobs_share_one_process_and_end_one_by_one(world: World) -> None:
    both = Merged(world, 1, 2)
    one, two = both.running()
    assert one.pid == two.pid
    assert world.runner(1) == world.runner(2)
    both.end(1)
    assert both.ended(1) == (0, "")
    said = world.log(1)
    assert said.endswith("bye j-1\n")
    assert "j-2" not in said
    assert str(one.pid) in said
    now = world.service.wait(2, "running")
    assert (now.pid, now.gate) == (two.pid, "tokens")
    both.end(2)
    assert both.ended(2) == (0, "")
    assert world.log(2).endswith("bye j-2\n")


def test_those_that_may_not_be_merged_run_alone(world: World) -> None:
    """Another key, none, another group, or later than the first."""
    both = Merged(world, 1, 2)
    pids = {s.pid for s in both.running()}
    later = replace(both.runs[0], job=3, group=group("g1", 1, 2, 3), argv=[*both.runs[0].argv[:2], "/no"])
    other = replace(later, job=4, merge="other", gpus=[1], group=group("g2", 4, 5))
    plain = replace(later, job=5, merge="", gpus=[1], group=group("g2", 4, 5))
    world.service.want(later, other, plain)
    for job in (3, 4, 5):
        world.said(job, f"j-{job} 1 ")
        pids.add(until(lambda job=job: (s := world.service.seen(job)) and s.pid, f"pid of {job}"))
    assert len(pids) == 4


def test_one_is_stopped_at_a_boundary_and_the_other_goes_on(world: World) -> None:
    both = Merged(world, 1, 2)
    both.running()
    both.stop(1)
    assert both.ended(1) == (75, "")
    before = len(world.log(2))
    until(lambda: len(world.log(2)) > before + 200, "job 2 to go on")
    both.stop(2)
    assert both.ended(2) == (75, "")


def test_an_exception_fails_one_alone(world: World) -> None:
    both = Merged(world, 1, 2, j2="raise ValueError('no good')")
    assert both.ended(2) == (1, "")
    seen = world.service.seen(2)
    assert "ValueError: no good" in (seen.reason or "")
    assert world.service.wait(1, "running").pid > 0
    both.end(1)
    assert both.ended(1) == (0, "")


@pytest.mark.parametrize(
    ("what", "ends"),
    [
        ("os._exit(3)", {1: (75, "bystander"), 2: (3, "culprit")}),
        ("import ctypes; ctypes.string_at(0)", {1: (75, "bystander"), 2: (-11, "culprit")}),
        (
            "import subprocess; subprocess.run(['kill', '-9', str(os.getpid())])",
            {1: (75, "unknown"), 2: (75, "unknown")},
        ),
        (LOST_GPU, {1: (75, "unknown"), 2: (75, "unknown")}),
    ],
)
def test_the_death_of_the_process_ends_all(world: World, what: str, ends: dict[int, tuple[int, str]]) -> None:
    both = Merged(world, 1, 2, j2=what)
    assert {job: both.ended(job) for job in (1, 2)} == ends, world.log(2)[-2000:]
    reason = (world.service.seen(1) or Seen(1, 1, 0, "")).reason or ""
    assert reason.startswith("the process that it shared")
    assert ("(j-2 did it)" in reason) == (ends[2][1] == "culprit")
    assert ("lost its GPU: CUDA error: an illegal memory access" in reason) == (what == LOST_GPU)


def test_one_that_cannot_be_merged_is_sent_back(world: World) -> None:
    both = Merged(world, 1, 2, j2="os.chdir('/')")
    assert both.ended(2) == (75, "refused")
    assert "working directory" in ((world.service.seen(2) or Seen(2, 1, 0, "")).reason or "")
    assert world.service.wait(1, "running").pid > 0


def test_one_that_does_not_stop_takes_the_others_with_it_at_last(world: World) -> None:
    """Python code is interrupted; what hangs in C can only be killed, and then it is known who it was."""
    both = Merged(world, 1, 2, 3, j2="while True: pass", j3="import time; time.sleep(1000)")
    world.said(1, "j-1 60 ")
    both.stop(2, grace_s=0.3)
    assert both.ended(2) == (-15, "")
    assert world.service.wait(1, "running").pid > 0
    both.stop(3, grace_s=0.3)
    assert both.ended(3) == (-9, "culprit")
    assert both.ended(1) == (75, "bystander")


def test_an_agent_that_starts_again_takes_them_back(world: World) -> None:
    both = Merged(world, 1, 2)
    pid = both.running()[0].pid
    world.end_agent(signal.SIGKILL)
    both.end(1)  # while nobody looks
    until(lambda: (world.folder(1) / "exit.json").exists(), "the end of job 1")
    world.start()
    assert both.ended(1) == (0, "")
    assert world.service.wait(2, "running").pid == pid
    world.end_agent(signal.SIGKILL)
    os.kill(world.runner(2), signal.SIGKILL)
    world.start()
    assert both.ended(2) == (75, "unknown")


def test_a_claim_that_comes_after_the_agent_took_them_back_is_still_read(world: World) -> None:
    both = Merged(world, 1, 2)
    both.running()
    world.end_agent(signal.SIGKILL)
    claims = [world.folder(job) / "runner.json" for job in (1, 2)]
    for claim in claims:
        claim.rename(claim.with_name("later.json"))
    world.start()
    until(lambda: all((s := world.service.seen(job)) and s.pid == 0 for job in (1, 2)), "both without a claim")
    for claim in claims:
        claim.with_name("later.json").rename(claim)
    both.running()
    both.end(1)
    assert both.ended(1) == (0, "")
    assert world.service.wait(2, "running").pid > 0


def test_one_that_was_to_share_and_starts_alone_after_all_is_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A runner that the disk kept from claiming is tried again, perhaps without the others."""
    home = tmp_path / "other"
    layout = Layout.at(home)
    monkeypatch.setattr(procs, "prctl", lambda *_: None)
    monkeypatch.setattr(launch, "spawn", lambda *_: os.getpid())
    monkeypatch.setattr(launch, "spawn_host", lambda *_: os.getpid())
    agent = Agent(layout, AgentOptions(node="n0"))
    shared = {"rank": 0, "world": 1, "gpus": [0], "group": group("g1", 1, 2), "merge": "k"}
    one, two = (agent._new(Run(job=job, epoch=1, argv=["python", "x.py"], **shared)) for job in (1, 2))
    agent._spawn([one, two])
    assert two.shares
    assert two.mark == launch.mark_of(layout, *one.key)
    two.wait("the disk is full")
    agent._spawn([two])
    assert not two.shares
    assert two.mark == launch.mark_of(layout, *two.key)
    agent.gates.clear([])
    agent.journal.close()


def test_what_cannot_be_started(world: World) -> None:
    both = Merged(world, 1, 2)
    both.running()
    gone = [
        replace(run, job=run.job + 10, gpus=[1], argv=["no-python3", *run.argv[1:]], group=group("g2", 11, 12))
        for run in both.runs
    ]
    world.service.want(*gone)
    assert both.ended(11)[0] == both.ended(12)[0] == 126  # not a Python command: the service would not have asked
    lost = [
        replace(run, job=run.job + 20, gpus=[1], argv=[run.argv[0], "gone.py"], group=group("g3", 21, 22))
        for run in both.runs
    ]
    world.service.want(*lost)
    assert both.ended(21) == both.ended(22) == (2, "")
    assert "can't open file 'gone.py'" in world.log(21)
