"""The ranks that train one model: how many there are, on how many nodes, and how they exchange small values.

Rank 0 decides; values are exchanged on the host by gloo, whatever backend the gradients use, so nothing waits for a
GPU. Every method is a collective that all ranks must call; so is `ranks`, but `world_size` is not.
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
    """The ranks of the default process group at the time of construction; one rank without a process group."""

    def __init__(self) -> None:
        """Count ranks and nodes, and create a gloo group; collective."""
        self.process_group, self.rank, self.world_size, self.nodes = _default_group(), 0, 1, 1
        self._own: OwnGroup | None = None
        if self.process_group is None:
            return
        import torch.distributed as dist

        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        if self.world_size > 1:
            self._own = OwnGroup("plait-adaptive")
            part = torch.tensor(1.0 / self._local_world_size(), dtype=torch.float64)
            dist.all_reduce(part, group=self._own.group)
            self.nodes = max(round(float(part)), 1)  # the parts of each node's ranks add up to 1

    @property
    def same(self) -> bool:
        """True while the process group is the one found at construction."""
        return self.process_group is _default_group()

    def largest(self, values: Sequence[int]) -> list[int]:
        """Elementwise maximum of `values` over all ranks; ranks without a value send 0."""
        if self.world_size == 1:
            return list(values)
        import torch.distributed as dist

        agreed = torch.tensor(list(values), dtype=torch.int64)
        assert self._own is not None
        dist.all_reduce(agreed, dist.ReduceOp.MAX, group=self._own.group)
        return [int(value) for value in agreed]

    def gather(self, value: Any) -> list[Any]:
        """The values of all ranks, in order of rank; `value` must be picklable."""
        if self.world_size == 1:
            return [value]
        import torch.distributed as dist

        found: list[Any] = [None] * self.world_size
        assert self._own is not None
        dist.all_gather_object(found, value, group=self._own.group)
        return found

    def close(self) -> None:
        """Destroy the gloo group."""
        if self._own is not None:
            self._own.close()

    def _local_world_size(self) -> int:
        """Ranks on this node, from LOCAL_WORLD_SIZE; without it, all ranks."""
        try:
            return max(int(os.environ["LOCAL_WORLD_SIZE"]), 1)
        except (KeyError, ValueError):
            return self.world_size


def _default_group() -> Any:
    """The default process group; None without one, or if it does not belong to the job."""
    dist = sys.modules.get("torch.distributed")
    if dist is None or not here().owns_default_group or not (dist.is_available() and dist.is_initialized()):
        return None
    return dist.group.WORLD


def world_size() -> int:
    """Number of ranks; not a collective, so one rank may call it alone."""
    group = _default_group()
    return 1 if group is None else int(group.size())


_found: Ranks | None = None


def ranks() -> Ranks:
    """The current ranks, counted again if the process group has changed; collective."""
    global _found
    if _found is None or not _found.same:
        if _found is not None:
            _found.close()
        _found = Ranks()
    return _found
