"""The ranks that train one model: how many there are, on how many nodes, and what they sum and exchange.

Rank 0 decides; values are exchanged on the host by gloo, whatever backend the gradients use, so nothing waits for a
GPU. Every method is a collective that all ranks must call; so is `ranks`, but `world_size` is not. `Accumulator` has
sums over samples that do not depend on how many ranks saw them, nor on how often the job was restarted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import WeakValueDictionary

import torch

from plait.core.errors import InputError
from plait.training.attachment import current
from plait.training.process import OwnGroup, here


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


_known: WeakValueDictionary[str, Accumulator] = WeakValueDictionary()


class _Sum:
    """The value of `accumulator[key]` outside of `synchronized`, which supports addition only."""

    def __init__(self, key: str, change: Any = None) -> None:
        self.key, self.change = key, change

    def __add__(self, value: Any) -> _Sum:
        return _Sum(self.key, value if self.change is None else self.change + value)

    def __sub__(self, value: Any) -> _Sum:
        return self.__add__(-value)

    def __repr__(self) -> str:
        return f"accumulator[{self.key!r}], to be read inside `with accumulator.synchronized():`"


class Accumulator:
    """Numbers or tensors by name, summed over all samples of all ranks.

    Add anywhere; read where all ranks are:

        metrics["loss"] += float(loss) * len(x)
        metrics["samples"] += len(x)
        ...
        with metrics.synchronized():                       # all ranks together
            print(metrics["loss"] / metrics["samples"])
        metrics.reset()                                    # on all ranks; or continue adding

    Under plait, checkpoints contain it by its name. The sum keeps what ranks of earlier attempts have added.
    """

    def __init__(self, name: str = "metrics") -> None:
        """Start at zero, or at the checkpoint's sums. Raises `InputError` if another accumulator has that `name`."""
        job = current()
        if name in _known or (job is not None and name in job.kept.values):
            raise InputError(f"Accumulator({name!r}): this name is taken; give each its own, Accumulator(name=...)")
        self.name = name
        self._total: dict[str, Any] = {}
        self._own: dict[str, Any] = {}
        self._together = False
        _known[name] = self
        if job is not None:
            job.kept.add(name, self)

    def __getitem__(self, key: str) -> Any:
        """Inside `synchronized`, the sum of all ranks; outside, a value that supports addition only."""
        if not self._together:
            return _Sum(key)
        if key not in self._total:
            raise KeyError(key)
        return self._total[key]

    def __setitem__(self, key: str, value: Any) -> None:
        """`accumulator[key] += value`, outside `synchronized`."""
        if self._together or not isinstance(value, _Sum) or value.key != key:
            raise InputError(
                f"{self.name}[{key!r}] = ...: sums of all ranks can only be added to, by += outside "
                "`with synchronized()`; reset() starts over"
            )
        if value.change is not None:
            change = value.change.detach().clone() if isinstance(value.change, torch.Tensor) else value.change
            self._own[key] = self._own[key] + change if key in self._own else change

    def __contains__(self, key: str) -> bool:
        """True if this rank has a sum of that name."""
        return key in self._total or key in self._own

    def __iter__(self) -> Iterator[str]:
        return iter(self.sums())

    def add(self, **values: Any) -> None:
        for key, value in values.items():
            self[key] += value

    def sums(self) -> dict[str, Any]:
        """All sums, inside `synchronized`."""
        if not self._together:
            raise InputError(
                f"{self.name} is read outside `with {self.name}.synchronized():`; all ranks take part only there"
            )
        return dict(self._total)

    @contextmanager
    def synchronized(self) -> Iterator[Accumulator]:
        """Context in which the sums can be read; all ranks must enter it."""
        self.before_checkpoint()
        self._together = True
        try:
            yield self
        finally:
            self._together = False

    def reset(self) -> None:
        """Set all sums to zero; all ranks must call it."""
        self._total, self._own = {}, {}

    def before_checkpoint(self) -> None:
        """Sum over the ranks; all of them must call it. The job calls it before each checkpoint."""
        own = {key: value.cpu() if isinstance(value, torch.Tensor) else value for key, value in self._own.items()}
        self._own = {}
        for added in ranks().gather(own):  # in order of rank, so that all ranks have bitwise the same sums
            for key, value in added.items():
                self._total[key] = self._total[key] + value if key in self._total else value

    def state_dict(self) -> dict[str, Any]:
        """The sums: numbers and tensors, loads with `weights_only=True`.

        Raises `InputError` if this rank has values that were not summed over the ranks yet.
        """
        if self._own and world_size() > 1:
            raise InputError(
                f"{self.name}.state_dict() on one rank of several would lose what others have added; "
                "call before_checkpoint() on all ranks first, as checkpoints of plait do"
            )
        return {"total": {**self._total, **{k: self._total.get(k, 0) + v for k, v in self._own.items()}}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from these sums, which are the same for any number of ranks."""
        self._total, self._own = dict(state["total"]), {}
