"""Guests that do not pace themselves, as real processes: their runner freezes them for all but their share."""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from agent_world import World, group, until

import plait
from plait.live.agent.lease import NodeLease
from plait.live.agent.processes import launch
from plait.live.agent.processes.throttle import PACED_S
from plait.live.agent.sharing import hold_back
from plait.live.layout import Layout
from plait.live.protocol.wire import GroupInfo, Run
from plait.live.system import cgroups, procs
from plait.runtime.page import Page, Throttled

pytestmark = pytest.mark.engines

SPIN = "while True: pass"
#: Two loops below a shell, one in a session of its own, and a daemon that keeps neither its parent nor its environment.
FAMILY = """
import os, subprocess, sys, time
spin = [sys.executable, "-S", "-c", "while True: pass"]
subprocess.Popen(["sh", "-c", "while :; do :; done & while :; do :; done"])
subprocess.Popen(spin, start_new_session=True)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execve(spin[0], spin, {})
    os._exit(0)
os.wait()
print("ready", flush=True)
time.sleep(1000)
"""
SAVES = """
import signal, sys
def save(*_):
    print("saved", flush=True)
    sys.exit(75)
signal.signal(signal.SIGTERM, save)
print("ready", flush=True)
while True: pass
"""
DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True)\nwhile True: pass"
#: Loads plait, looks at its share for a while, and then no more.
ATTACHES = """
import os, sys, time
sys.path.insert(0, {source!r})
from plait.runtime.page import Page
page = Page.open(os.environ["PLAIT_RUN_DIR"] + "/page.bin")
print("ready", flush=True)
while not os.path.exists({file!r}):
    page.paced_monotonic = time.monotonic()
    time.sleep(0.01)
while True: pass
"""


class Guest:
    def __init__(self, home: Path, argv: list[str], *, group: bool) -> None:
        self.layout = Layout.at(home)
        info = GroupInfo("g1", guest=True)
        run = Run(job=1, epoch=1, rank=0, world=1, argv=argv, gpus=[0], group=info, grace_s=2.0)
        self.folder = launch.prepare(run, self.layout)
        hold_back(self.folder / "page.bin")
        self.page = Page.open(self.folder / "page.bin", mapped=False)
        env = launch.environment(run, self.layout, None, 1)
        if not group:
            env[procs.MARK] += "/none"  # a name for which there can be no control group
        self.mark = env[procs.MARK]
        self.runner = launch.spawn(run, self.layout, env, NodeLease.of(self.layout.lease("n0"), 1e6))
        until(lambda: self.page.throttle or (self.folder / "exit.json").exists(), "the throttle")
        self.throttled = Throttled.CGROUP if cgroups.members(self.mark) else Throttled.SIGNALS

    def give(self, share: float, for_s: float = 1000.0) -> None:
        self.page.share, self.page.share_until = share, time.monotonic() + for_s

    def pids(self) -> set[int]:
        mine = {*procs.descendants(self.runner), *cgroups.members(self.mark)}
        return {pid for pid in mine if b"plait.live.agent" not in Path(f"/proc/{pid}/cmdline").read_bytes()}

    def cpu_s(self) -> float:
        ticks = [fields for pid in self.pids() if (fields := procs.stat_fields(pid)) is not None]
        return sum(int(fields[11]) + int(fields[12]) for fields in ticks) / os.sysconf("SC_CLK_TCK")

    def frozen(self) -> bool:
        """Whether its first process stands still now, as the kernel shows it."""
        if self.throttled == Throttled.SIGNALS:
            child = (procs.read_json(self.folder / "runner.json") or {}).get("child")
            rows = dict(row.split(":\t", 1) for row in Path(f"/proc/{child}/status").read_text().splitlines())
            pending = int(rows["ShdPnd"], 16) >> signal.SIGSTOP - 1 & 1  # it stops when it gets a CPU
            return rows["State"].startswith("T") or bool(pending)
        folder = cgroups._folder(self.mark)  # this process is in the same group as the runner
        return Path(folder, "cgroup.freeze").read_text().strip() == "1"

    def ran(self, seconds: float) -> float:
        """The part of the next seconds in which it was not frozen, by samples."""
        end, samples = time.monotonic() + seconds, []
        while time.monotonic() < end:
            samples.append(not self.frozen())
            time.sleep(0.0037)
        return sum(samples) / len(samples)

    def signal(self, number: int) -> None:
        os.kill(self.runner, number)

    def said(self, text: str) -> None:
        until(lambda: (self.folder / "out.log").exists() and text in (self.folder / "out.log").read_text(), text)

    def wait(self) -> Any:
        os.waitpid(self.runner, 0)
        self.runner = 0
        return procs.read_json(self.folder / "exit.json")

    def close(self) -> None:
        if self.runner:
            with contextlib.suppress(OSError):
                self.signal(signal.SIGCONT)
                self.signal(signal.SIGUSR1)
                os.waitpid(self.runner, 0)
        self.page.close()
        until(lambda: not procs.marked(self.mark), "the end of its processes")


@pytest.fixture(params=[True, False], ids=["control-group", "signals"])
def start(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    guests = []

    def started(*argv: str) -> Guest:
        guests.append(Guest(tmp_path / "home", list(argv), group=request.param))
        return guests[-1]

    yield started
    for guest in guests:
        guest.close()


@pytest.mark.parametrize("argv", [(sys.executable, "-S", "-c", SPIN), ("sh", "-c", "while :; do :; done")])
def test_a_program_without_plait_runs_for_its_share(start: Any, argv: tuple[str, ...]) -> None:
    guest = start(*argv)
    assert guest.page.throttle == guest.throttled
    until(guest.frozen, "a guest without a share to stand still")
    for share in (0.3, 0.7):
        guest.give(share)
        time.sleep(1.0)
        assert guest.ran(6.0) == pytest.approx(share, abs=0.1)
        until(lambda s=share: abs(guest.page.throttle_duty - s) < 0.1, "the measured duty")
    guest.give(0.0)
    until(guest.frozen, "the end of its share")
    before_s = guest.cpu_s()
    time.sleep(1.0)
    assert guest.cpu_s() <= before_s + 0.02
    guest.give(0.5, for_s=1.0)  # its agent dies after that
    until(lambda: guest.cpu_s() > before_s + 0.05, "its next share")
    time.sleep(1.0)
    before_s = guest.cpu_s()
    time.sleep(1.0)
    assert guest.cpu_s() <= before_s + 0.02
    guest.page.share_until = 0.0  # it would like to be a host
    time.sleep(0.5)
    assert guest.frozen()
    (guest.folder / "control.json").write_text('{"sharing": null}')  # its agent makes it one
    until(lambda: not guest.page.throttle, "a host that is free")
    assert guest.ran(1.0) == 1.0


def test_children_sessions_and_daemons_stand_still_too(start: Any) -> None:
    guest = start(sys.executable, "-S", "-c", FAMILY)
    guest.give(1.0)
    guest.said("ready")
    until(lambda: len(guest.pids()) >= 5 and guest.cpu_s() > 0.5, "its processes")
    guest.give(0.0)
    until(guest.frozen, "the end of its share")
    time.sleep(1.0)
    before_s = guest.cpu_s()
    time.sleep(1.0)
    assert guest.cpu_s() <= before_s + 0.05
    guest.give(0.5)
    until(lambda: guest.cpu_s() > before_s + 0.2, "its next share")
    guest.give(0.0)
    until(guest.frozen, "the end of its share")
    guest.signal(signal.SIGTERM)
    assert guest.wait()["exit_code"] == -signal.SIGTERM


def test_a_frozen_guest_saves_when_it_is_asked_to_stop(start: Any) -> None:
    guest = start(sys.executable, "-S", "-c", SAVES)
    guest.give(1.0)
    guest.said("ready")
    guest.give(0.0)
    until(guest.frozen, "the end of its share")
    guest.signal(signal.SIGTERM)
    assert guest.wait()["exit_code"] == 75
    guest.said("saved")


def test_a_guest_that_ignores_the_request_stays_frozen_until_it_is_killed(start: Any) -> None:
    guest = start(sys.executable, "-S", "-c", DEAF)
    guest.give(1.0)
    guest.said("ready")
    guest.give(0.0)
    until(guest.frozen, "the end of its share")
    before_s = guest.cpu_s()
    guest.signal(signal.SIGTERM)
    time.sleep(1.0)
    assert guest.frozen()
    assert guest.cpu_s() <= before_s + 0.02
    end = guest.wait()
    assert end["exit_code"] == -signal.SIGKILL
    assert end["reason"] == "did not end within 2 s after SIGTERM, so it was killed"


def test_a_killed_runner_leaves_no_frozen_process(start: Any) -> None:
    guest = start(sys.executable, "-S", "-c", FAMILY)
    guest.give(1.0)
    guest.said("ready")
    pids = guest.pids()
    guest.give(0.0)
    until(guest.frozen, "the end of its share")
    guest.signal(signal.SIGKILL)
    os.waitpid(guest.runner, 0)
    guest.runner = 0
    known = {pid for pid in pids if guest.mark in procs.environment(pid).get(procs.MARK, "")}
    until(lambda: not any(procs.start_time(pid) for pid in known), "the end of its processes")
    for pid in pids:  # without a control group nobody finds the daemon
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)


def test_a_guest_that_paces_itself_is_not_frozen_until_it_no_longer_does(start: Any, tmp_path: Path) -> None:
    source, file = str(Path(plait.__file__).parents[1]), str(tmp_path / "trained")
    guest = start(sys.executable, "-S", "-c", ATTACHES.format(source=source, file=file))
    until(guest.frozen, "a guest without a share to stand still")
    guest.give(0.5)
    guest.said("ready")
    until(lambda: not guest.page.throttle, "the end of throttling")
    guest.give(0.0)
    assert guest.ran(PACED_S + 1.0) == 1.0
    Path(file).touch()
    until(guest.frozen, "the throttle of what it does without plait")


# ---- with an agent ----

HOST = """
import os, sys, time
sys.path.insert(0, {source!r})
from plait.runtime.page import Page
from plait.sharing.directive import StepStats
page = Page.open(os.environ["PLAIT_RUN_DIR"] + "/page.bin")
number = 0
while not page.stop:
    page.add_step(StepStats(number, 0.1))
    page.steps, page.step_s = float(number + 1), 0.1
    number += 1
    time.sleep(0.1)
"""


def test_beside_a_host_the_share_is_kept_and_without_the_agent_nothing_runs(tmp_path: Path) -> None:
    world = World(tmp_path / "home")
    try:
        world.start()
        host = world.python(0, HOST.format(source=str(Path(plait.__file__).parents[1])))
        guest = world.python(1, SPIN)
        world.service.want(host, replace(guest, group=replace(group("g1", 1), guest=True)))
        path = world.folder(1) / "page.bin"
        until(path.exists, "its page")
        with Page.open(path, mapped=False) as page:
            until(lambda: page.share > 0.1, "a share beside the host", 60.0)
            began, frozen_s, shares = time.monotonic(), page.frozen_s, []
            while time.monotonic() < began + 10.0:
                shares.append(page.share)
                time.sleep(0.01)
            ran = 1.0 - (page.frozen_s - frozen_s) / (time.monotonic() - began)
            assert ran == pytest.approx(sum(shares) / len(shares), abs=0.1)

            def said() -> Any:
                seen = world.service.seen(1)
                return seen.sharing if seen is not None and seen.sharing is not None and seen.sharing.duty else None

            sharing = until(said, "the throttle in the report")
            assert sharing.throttled in ("cgroup", "signals")
            pid = until(lambda: (s := world.service.seen(1)) is not None and s.pid, "its pid")

            world.end_agent(signal.SIGKILL)
            until(lambda: page.share_until < time.monotonic(), "the end of its lease")
            time.sleep(1.0)
            before = procs.stat_fields(pid)
            time.sleep(1.0)
            after = procs.stat_fields(pid)
            assert int(after[11]) <= int(before[11]) + 2
            world.start()
            until(lambda: int((procs.stat_fields(pid) or [b"0"] * 12)[11]) > int(after[11]) + 5, "it again")
            assert world.runner(1) == int(procs.stat_fields(pid)[1])  # type: ignore[index]
    finally:
        world.close()
