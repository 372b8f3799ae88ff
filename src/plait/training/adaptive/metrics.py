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
    """What `accumulator[key]` is where the sum of all ranks is not known: something to add to."""

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

    Add anywhere, read where all ranks are:

        metrics["loss"] += float(loss) * len(x)
        metrics["samples"] += len(x)
        ...
        with metrics.synchronized():                       # all ranks together
            print(metrics["loss"] / metrics["samples"])
        metrics.reset()                                    # all ranks; or go on adding

    Under plait it is in checkpoints by its name, and what ranks that are gone have added stays in the sum.
    """

    def __init__(self, name: str = "metrics") -> None:
        """Nothing yet, or what the checkpoint had; raises `InputError` if there is another of that name."""
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
        """Inside `synchronized`: the sum of all ranks; outside: something that can only be added to."""
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
        """Whether this rank has something under the name."""
        return key in self._total or key in self._own

    def __iter__(self) -> Iterator[str]:
        """The names of all sums, inside `synchronized`."""
        return iter(self.sums())

    def add(self, **values: Any) -> None:
        """Add several at once."""
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
        """Inside, the sums can be read. All ranks have to come."""
        self.before_checkpoint()
        self._together = True
        try:
            yield self
        finally:
            self._together = False

    def reset(self) -> None:
        """Begin anew. All ranks have to."""
        self._total, self._own = {}, {}

    def before_checkpoint(self) -> None:
        """Put together what the ranks have added. All ranks have to come; a checkpoint of the job does it itself."""
        own = {key: value.cpu() if isinstance(value, torch.Tensor) else value for key, value in self._own.items()}
        self._own = {}
        for added in ranks().gather(own):  # in order of rank, so all have the same sums to the last bit
            for key, value in added.items():
                self._total[key] = self._total[key] + value if key in self._total else value

    def state_dict(self) -> dict[str, Any]:
        """The sums: numbers and tensors, loads with `weights_only=True`.

        Raises `InputError` if this rank of several has added something that the others do not know of yet.
        """
        if self._own and world_size() > 1:
            raise InputError(
                f"{self.name}.state_dict() on one rank of several would lose what others have added; "
                "call before_checkpoint() on all ranks first, as checkpoints of plait do"
            )
        return {"total": {**self._total, **{k: self._total.get(k, 0) + v for k, v in self._own.items()}}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on adding to these sums; the same on all ranks, however many there are."""
        self._total, self._own = dict(state["total"]), {}
