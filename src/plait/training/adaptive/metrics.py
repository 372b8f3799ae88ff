"""Sums over samples that do not depend on how many ranks saw them, nor on how often the job was restarted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from weakref import WeakValueDictionary

import torch

from plait.core.errors import InputError
from plait.training.adaptive.ranks import ranks, world_size
from plait.training.attachment import current

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
        """The names of all sums, inside `synchronized`."""
        return iter(self.sums())

    def add(self, **values: Any) -> None:
        """Add several values at once, by name."""
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
