"""The world of `SlurmBackend`: a whole Slurm of this machine, with allocations that hold the agents."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from backend_worlds import GPUS
from served_world import Served

from plait.live.backends.slurm.backend import SlurmBackend, job_of
from plait.live.backends.slurm.commands import SlurmCli

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "live"))
from slurm.slurm_cluster import SlurmCluster, why_not

__all__ = ["Slurm", "why_not"]


class Slurm(Served):
    """Four slurmd, of which two hold allocations: others take their places, under other names."""

    name = "slurm"
    patience_s = 120.0
    cannot: ClassVar[dict[str, str]] = {
        "drained_node_works_again": "a drained allocation is given back to Slurm as soon as nothing runs there",
    }
    backend: SlurmBackend

    def __init__(self, home: Path) -> None:
        self.slurm = SlurmCluster(nodes=4, gpus=GPUS)
        self.slurm.__enter__()
        try:
            super().__init__(home)
        except BaseException:
            self.slurm.close()
            raise

    def make_backend(self) -> SlurmBackend:
        options = {
            "partition": "test", "look": 0.5, "notice": 5, "idle": 3600, "gpus-per-node": GPUS, "fake": True,
            "min-nodes": self.nodes, "max-nodes": self.nodes,
        }  # fmt: skip
        return SlurmBackend(self.layout, options, 5.0, cli=SlurmCli(self.slurm.env))

    def _limit(self, count: int) -> None:
        self.backend.options = replace(self.backend.options, max_nodes=count)

    def join(self) -> str:
        """The queue is longer than the nodes are wide, and one more may be asked for."""
        before = set(self.states())
        self._limit(self.nodes + 1)
        self.until(lambda: set(self._ready()) - before, "another allocation")
        return (set(self._ready()) - before).pop()

    def leave(self, node: str) -> None:
        self._limit(self.nodes)
        self.backend.cli.notify([self._number(node)])

    @staticmethod
    def _number(node: str) -> int:
        number = job_of(node)
        assert number is not None
        return number

    def lose(self, node: str) -> None:
        self.slurm.kill_machine(node.rpartition("-")[0])
        self.kill_processes(node)

    def mend(self) -> None:
        self.wake_all()
        for name in self.slurm.names:
            self.slurm.revive(name)
        self._limit(self.nodes)
        for extra in self._ready()[self.nodes :]:
            self.backend.cli.notify([self._number(extra)])
        self.until(lambda: len(self._ready()) == self.nodes == len(self.states()), "as many allocations as before")
        self.base = self._ready()

    def close(self) -> None:
        try:
            super().close()
        finally:
            self.slurm.close()
