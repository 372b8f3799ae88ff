"""The world of `RayBackend`: a head and two nodes of real Ray on this machine, with executors that host the agents."""

import contextlib
import signal
import sys
from pathlib import Path

from backend_worlds import GPUS
from served_world import Served

from plait.core.errors import PlaitError
from plait.live.backends.ray.backend import RayBackend
from plait.live.layout import Layout

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "live"))
from small_ray import SmallRay, why_not

__all__ = ["Ray", "why_not"]


class Ray(Served):
    """Nodes n0 and n1 of Ray; those that join are n2, n3, ... and one that is lost comes back under its name."""

    name = "ray"
    patience_s = 120.0
    backend: RayBackend

    def __init__(self, home: Path) -> None:
        self.ray = SmallRay(Layout.at(home), GPUS)
        try:
            self.ray.up(self.nodes)
            super().__init__(home)
        except BaseException:
            self.ray.down()
            raise

    def make_backend(self) -> RayBackend:
        return RayBackend(self.layout, {"address": self.ray.address}, 5.0)

    def join(self) -> str:
        """Somebody starts one more raylet, and the backend finds it."""
        (name,) = self.ray.up(self.nodes + 1)
        return name

    def leave(self, node: str) -> None:
        """As on a machine that is to be switched off: it is drained, and then it goes with all that it ran."""
        self.drain(node)
        self.until(lambda: not self.processes(node), f"the processes of {node} to end")
        self.lose(node)

    def lose(self, node: str) -> None:
        self.ray.kill_machine(node)  # first, or its executor would start another agent
        agent = self.agent(node)
        if agent is not None:
            agent.send(signal.SIGKILL)
        self.kill_processes(node)

    def mend(self) -> None:
        self.wake_all()
        for node in set(self.states()) - set(self.base):
            self._forget(node)
        self.ray.up(self.nodes)
        for node, state in self.states().items():
            if state == "drained":
                self.resume(node)

    def _forget(self, node: str) -> None:
        """One that joined goes without a trace, if it has not yet."""
        if self.agent(node) is not None:
            self.leave(node)

        def forgotten() -> bool:
            with contextlib.suppress(PlaitError):
                self.client.forget_node(node)
            return node not in self.states()

        self.until(forgotten, f"{node} to be forgotten")

    def close(self) -> None:
        try:
            super().close()
        finally:
            self.ray.down()
