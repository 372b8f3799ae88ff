"""The processes that train one model together, as far as data and decisions are concerned: how many, where, and talk.

Decisions are rank 0's and small, and are told on the host by gloo whatever backend the gradients use, so that nothing
waits for a GPU. Every method is a collective: all ranks have to come; so is `ranks`, but `world_size` is not.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

import torch

from plait.training.collectives.process_groups import OwnGroup
from plait.training.process import here


class Ranks:
    """The ranks of the default process group as it was when this was made; a process without one is alone."""

    def __init__(self) -> None:
        """Look, and make a group of gloo. All ranks together."""
        self.world_group, self.rank, self.world_size, self.nodes = _world(), 0, 1, 1
        self._own: OwnGroup | None = None
        if self.world_group is None:
            return
        import torch.distributed as dist

        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        if self.world_size > 1:
            self._own = OwnGroup("plait-adaptive")
            part = torch.tensor(1.0 / self._local_world(), dtype=torch.float64)
            dist.all_reduce(part, group=self._own.group)
            self.nodes = max(round(float(part)), 1)  # each node's ranks add up to one

    @property
    def same(self) -> bool:
        """Whether the process group is still the one that was found."""
        return self.world_group is _world()

    def largest(self, values: Sequence[int]) -> list[int]:
        """The largest of each value over all ranks: ranks that have no say send 0."""
        if self.world_size == 1:
            return list(values)
        import torch.distributed as dist

        agreed = torch.tensor(list(values), dtype=torch.int64)
        assert self._own is not None
        dist.all_reduce(agreed, dist.ReduceOp.MAX, group=self._own.group)
        return [int(value) for value in agreed]

    def gather(self, value: Any) -> list[Any]:
        """The values of all ranks, in order of rank; each anything that can be pickled."""
        if self.world_size == 1:
            return [value]
        import torch.distributed as dist

        found: list[Any] = [None] * self.world_size
        assert self._own is not None
        dist.all_gather_object(found, value, group=self._own.group)
        return found

    def close(self) -> None:
        """Give the group of gloo back: another one takes its place."""
        if self._own is not None:
            self._own.close()

    def _local_world(self) -> int:
        """How many ranks this node has: what launchers say, all of them if none does."""
        try:
            return max(int(os.environ["LOCAL_WORLD_SIZE"]), 1)
        except (KeyError, ValueError):
            return self.world_size


def _world() -> Any:
    """The default process group; None without one, and where it is not the job's."""
    dist = sys.modules.get("torch.distributed")
    if dist is None or not here().alone or not (dist.is_available() and dist.is_initialized()):
        return None
    return dist.group.WORLD


def world_size() -> int:
    """How many ranks there are; asks nobody, so one rank may ask alone."""
    group = _world()
    return 1 if group is None else int(group.size())


_found: Ranks | None = None


def ranks() -> Ranks:
    """The ranks there are now; made anew when the process group is another. All ranks together."""
    global _found
    if _found is None or not _found.same:
        if _found is not None:
            _found.close()
        _found = Ranks()
    return _found
