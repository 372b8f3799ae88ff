"""Disturbances in the demo of classes: a burst of memory, a killed agent, a killed guest."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plait.cli.experiments.antman_demo.jobs import BURST_GB, HOST_GB, Jobs, Sample, ends, read, wait_for
from plait.core.errors import PlaitError
from plait.live.client.client import Client
from plait.live.layout import Layout
from plait.live.supervisor.options import remembered_backend
from plait.live.system import procs
from plait.runtime.page import Page

WORLD = "live"
#: Seconds of the burst at least, of the guest's pause before another agent is started, for anything to happen at most.
BURST_S, PAUSED_S, PATIENCE_S = 5.0, 1.0, 40.0


@dataclass(frozen=True)
class Memory:
    """Both jobs at a time: GB on the GPU and on the host of the guaranteed one; GB and limit of the other one."""

    when: str
    host: Sample
    guest: Sample
    limit_gb: float | None
    action: str

    def row(self) -> list[str]:
        """As a line of the table."""
        limit = "-" if self.limit_gb is None else f"{self.limit_gb:.1f} GB"
        guest = [limit, f"{self.guest.gpu_gb:.1f} GB", self.action]
        return [self.when, f"{self.host.gpu_gb:.1f} GB", f"{self.host.host_gb:.1f} GB", *guest]


@dataclass(frozen=True)
class Burst:
    """A burst of the guaranteed job: before, in its first step, later; steps partly on the host."""

    looks: tuple[Memory, ...]
    steps_on_host: int


@dataclass(frozen=True)
class Killed:
    """Jobs after the kill of the agent, then of the guest. Steps of the guest: had made, continued at."""

    paused_s: float
    host_step_s: float
    steps_made: float
    steps_kept: float


class Trouble:
    """The cluster while both jobs run in it."""

    def __init__(self, service: Client, layout: Layout, jobs: Jobs, host: str, guest: str) -> None:
        """`host`, `guest`: their ids."""
        self._service, self._layout, self._jobs, self._host, self._guest = service, layout, jobs, host, guest

    def burst(self) -> Burst:
        """Let steps of the guaranteed job need more memory until the GPU serves them, then no longer."""
        before = self._look("before")
        begin_s = time.monotonic()
        self._jobs.burst.touch()
        self._wait(lambda: self._spilled(begin_s), "the burst")
        first = self._spilled(begin_s)[0]
        at_first = Memory("in its first step", first, self._last(guest=True), before.limit_gb, before.action)
        self._wait(lambda: (last := self._last(guest=False)).gpu_gb >= BURST_GB and not last.host_gb, "memory for it")
        time.sleep(max(BURST_S - (time.monotonic() - begin_s), 0.0))
        later = self._look(f"{time.monotonic() - begin_s:.0f} s later")
        self._jobs.burst.unlink()
        self._wait(lambda: self._last(guest=False).gpu_gb <= HOST_GB, "the end of the burst")
        return Burst((before, at_first, later), len(self._spilled(begin_s)))

    def kill_agent(self) -> tuple[float, float]:
        """Kill the agent, start another one once the guest has paused, wait until that lets the guest run.

        For how long the guest could not run, and the mean guaranteed step meanwhile; seconds.
        """
        backend = remembered_backend(self._layout)
        begin_s, agent = time.monotonic(), backend.list_nodes()[0].pid
        assert agent is not None, "the node is up"
        os.kill(agent, signal.SIGKILL)
        time.sleep(0.1)  # it renews nothing any more
        paused_s = self._lease()
        self._wait(lambda: time.monotonic() > paused_s, "the end of the guest's lease")
        time.sleep(PAUSED_S)
        backend.start()
        self._wait(lambda: self._lease() > time.monotonic(), "another agent")
        end_s = time.monotonic()
        first, last = ends(read(self._jobs.record(WORLD, guest=False)), begin_s, end_s)
        return end_s - paused_s, (last.at_s - first.at_s) / max(last.steps - first.steps, 1)

    def kill_guest(self) -> tuple[float, float]:
        """Kill the process of the guest and wait until it trains again: steps it had made, and where it continued."""
        runner: Any = procs.read_json(self._attempt() / "runner.json")
        os.kill(int(runner["child"]), signal.SIGKILL)
        made = self._last(guest=True)
        self._wait(lambda: self._last(guest=True).at_s > made.at_s + 1.0, "the guest again")
        again = next(one for one in read(self._jobs.record(WORLD, guest=True)) if one.at_s > made.at_s)
        return made.steps, again.steps

    def _attempt(self) -> Path:
        """The folder of the process of the guest."""
        job = self._service.job(self._guest)
        return self._layout.rank(int(job["number"]), int(job["epoch"]), 0)

    # -- looks ---------------------------------------------------------------------------------------------------

    def _look(self, when: str) -> Memory:
        said = self._service.job(self._guest).get("sharing") or {}
        return Memory(when, self._last(guest=False), self._last(guest=True), _gb(said), said.get("action") or "run")

    def _last(self, *, guest: bool) -> Sample:
        return read(self._jobs.record(WORLD, guest=guest))[-1]

    def _spilled(self, from_s: float) -> list[Sample]:
        """Guaranteed steps since then that had memory on the host."""
        return [one for one in read(self._jobs.record(WORLD, guest=False)) if one.at_s > from_s and one.host_gb]

    def _lease(self) -> float:
        """Until when the guest may run, by the clock of this machine."""
        with Page.open(self._attempt() / "page.bin", mapped=False) as page:
            return page.share_until

    def _wait(self, true: Callable[[], object], what: str) -> None:
        def over() -> bool:
            return bool(true()) or any(
                job["state"] in ("failed", "cancelled") for job in map(self._service.job, (self._host, self._guest))
            )

        if not wait_for(over, PATIENCE_S) or not true():
            raise PlaitError(f"waited {PATIENCE_S:g} s for {what}; this machine is too busy or slow")


def _gb(said: dict[str, Any]) -> float | None:
    limit = said.get("limit_bytes")
    return None if limit is None else limit / 1e9
