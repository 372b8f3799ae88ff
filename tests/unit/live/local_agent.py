"""An agent in the process of the tests."""

import os
import shutil
from pathlib import Path
from typing import Any

from plait.live.agent.agent import Agent
from plait.live.agent.node import AgentOptions
from plait.live.layout import Layout, make_private
from plait.live.protocol.wire import Ask, Assignment, Observed, Run
from plait.live.system import procs


class LocalAgent:
    """An agent in this process that talks to nobody; `settings` beside its eight slots."""

    def __init__(self, home: Path, **settings: Any) -> None:
        self.layout = Layout.at(home)
        make_private(self.layout.node("n0"))
        (self.layout.node("n0") / "enrol").write_text("x")
        self.agent = Agent(self.layout, AgentOptions(node="n0", gpus=8, **settings))
        self.agent.log = lambda *_, **__: None  # type: ignore[method-assign]
        children, strays = procs.children(os.getpid()), self.agent._strays
        ours = {pid for child in children for pid in (child, *procs.descendants(child))}
        self.agent._strays = lambda: strays() - ours  # type: ignore[method-assign]  # whom other tests need
        self.version = 0

    def want(self, *runs: Run, asks: list[Ask] | None = None) -> Observed:
        self.version += 1
        told = self.agent.observe(0.0)
        assert self.agent.obey(Assignment(1, self.version, 60.0, list(runs), ask=asks or []), told, procs.boot_s())
        self.agent._advance()
        return self.agent.observe(0.0)

    def died(self, run: Run) -> None:
        """It had a runner, which has ended: as an agent finds it that was away."""
        with self.agent.lock:
            attempt = self.agent._new(run)
            with self.agent._quarantined(attempt):
                attempt.began(procs.Process(2**21, 5, procs.boot_id()))
                attempt.seen()
                attempt.watch()
                self.agent._tell_group(attempt)
                self.agent._collect(attempt)

    def close(self) -> None:
        self.agent.coordinator.close()
        self.agent.selector.close()
        self.agent.journal.close()
        for fd in (self.agent._lock_fd, self.agent._wake_read, self.agent._wake_write):
            os.close(fd)
        shutil.rmtree(self.layout.gates.parent, ignore_errors=True)
