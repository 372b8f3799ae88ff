"""Save and restore in place the state of loops without torch: dicts, lists, NumPy arrays, generators, objects.

A registered object stays the same object: the state of a checkpoint is written into it. So a value that cannot be
changed in place (a number, a tuple, an array of JAX) belongs into a dict that the loop reads and writes.
"""

from __future__ import annotations

import copy
import pickle
import random
import sys
import zlib
from collections import deque
from collections.abc import Callable, MutableMapping
from types import FunctionType, ModuleType
from typing import Any

from plait.core.errors import InputError

_NEVER = (type, ModuleType, FunctionType, str, bytes, int, float, complex, tuple, frozenset, type(None))


class PlainState:
    """`state_dict` and `load_state_dict` for an object that has none."""

    def __init__(self, name: str, value: Any, take: Callable[[], Any], put: Callable[[Any], None]) -> None:
        """Use `plain_state` instead. `take` returns the state to save, `put` writes it back into `value`."""
        self.name, self.value = name, value
        self._take, self._put = take, put
        self._mark = 0
        self.mark()

    def state_dict(self) -> Any:
        """The state to save, without copying it."""
        return self._take()

    def load_state_dict(self, state: Any) -> None:
        """Write `state` into the object."""
        self._put(copy.deepcopy(state))
        self.mark()

    def mark(self) -> None:
        """Store a checksum of the present state; raises `InputError` if it cannot be saved."""
        try:
            self._mark = _sum_of(self._take())
        except Exception as error:  # whatever the object's own methods raise
            raise InputError(
                f"register_state({self.name}=...): {type(self.value).__name__} cannot be saved: {error}; "
                "leave out of it what cannot be pickled (open files, locks, lambdas)"
            ) from error

    @property
    def stale(self) -> bool:
        """True if not empty and unchanged since it was registered or restored: the loop may use another object."""
        empty = hasattr(self.value, "__len__") and len(self.value) == 0
        return not empty and _sum_of(self._take()) == self._mark


def plain_state(name: str, value: Any) -> PlainState:
    """Wrap `value`, which has no `state_dict`; raises `InputError` if it cannot be restored in place."""
    ways = _ways(name, value)
    if ways is None:
        raise InputError(
            f"register_state({name}=...): {type(value).__name__} has no state_dict() and load_state_dict() and cannot "
            f"be changed in place; put it into a dict that the loop reads and writes: state = {{{name!r}: ...}}, "
            "attach(state=state)"
        )
    return PlainState(name, value, *ways)


def _ways(name: str, value: Any) -> tuple[Callable[[], Any], Callable[[Any], None]] | None:
    """Functions that take the state of a value and restore it; None if it cannot be restored in place."""
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if isinstance(value, (MutableMapping, list)):
        _refuse_stateful(name, value)
    if isinstance(value, (MutableMapping, set)):
        return lambda: copy.copy(value), lambda state: _refill(value, value.update, state)
    if isinstance(value, (list, deque)):
        return lambda: list(value), lambda state: _refill(value, value.extend, state)
    if isinstance(value, random.Random):
        return value.getstate, value.setstate
    if numpy is not None and isinstance(value, numpy.random.Generator):
        return lambda: value.bit_generator.state, lambda state: setattr(value.bit_generator, "state", state)
    if numpy is not None and isinstance(value, numpy.ndarray):
        return lambda: value, lambda state: _fill(value, state)
    if hasattr(torch, "Tensor") and isinstance(value, torch.Tensor):  # type: ignore[union-attr]
        tensor = value.detach()  # the same memory
        return lambda: tensor, lambda state: _fill(tensor, state)
    return None if isinstance(value, _NEVER) else _attributes(value)


def _refuse_stateful(name: str, value: Any) -> None:
    """Refuse a model inside a dict: restoring would replace it by an object that the loop does not use."""
    items = value.items() if isinstance(value, MutableMapping) else enumerate(value)
    for key, item in items:
        if callable(getattr(item, "load_state_dict", None)):
            raise InputError(
                f"register_state({name}=...): {name}[{key!r}] is a {type(item).__name__}, which has state of its own; "
                "register it by itself: attach(model=model)"
            )


def _attributes(value: Any) -> tuple[Callable[[], Any], Callable[[Any], None]] | None:
    """Save and restore by attributes, as pickle does; None for types with their own way of pickling."""
    kind: Any = type(value)
    if hasattr(value, "__setstate__"):
        return value.__getstate__, value.__setstate__
    ordinary = (kind.__reduce__, kind.__reduce_ex__) == (object.__reduce__, object.__reduce_ex__)
    if not ordinary or not hasattr(value, "__dict__"):
        return None
    held = vars(value)
    return lambda: dict(held), lambda state: _refill(held, held.update, state)


def _refill(value: Any, add: Callable[[Any], object], state: Any) -> None:
    value.clear()
    add(state)


def _fill(value: Any, state: Any) -> None:
    if tuple(value.shape) != tuple(state.shape):
        raise ValueError(f"its shape is {tuple(value.shape)}, the checkpoint's {tuple(state.shape)}")
    value[...] = state


class _Sum:
    """A file that computes a checksum of what is written, and keeps nothing else."""

    def __init__(self) -> None:
        self.sum = 0

    def write(self, data: Any) -> int:
        """Add some bytes."""
        self.sum = zlib.crc32(data, self.sum)
        return len(data)


def _sum_of(state: Any) -> int:
    """A checksum of a state as it would be saved."""
    file = _Sum()
    pickle.Pickler(file, protocol=5).dump(state)
    return file.sum
