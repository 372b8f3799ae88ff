"""State that a sampler keeps in its attributes: generators of its own, weights, counters, orders.

Saved are the attributes of a sampler, and of samplers inside it, that have changed since the loader was wrapped; a
sampler that stays as it was built adds nothing to a checkpoint. Attributes that hold data sets or other objects stay
as they are.
"""

from __future__ import annotations

import pickle
import random
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch.utils.data import Sampler

#: Attributes that hold the data.
DATA = ("data_source", "dataset")
#: The first items of a container that are examined to find out what it holds.
EXAMINED = 8
_PLAIN = (int, float, str, bytes, type(None))


#: A copy of an attribute: its pickle, and whether it is a generator or a number, which the sampler itself advances.
#: Plain types, because some libraries load their checkpoints without any others.
Value = tuple[bytes, bool]


class SamplerState:
    """The attributes of a sampler that change."""

    def __init__(self, sampler: Any) -> None:
        """Record the attributes of `sampler` as it was built."""
        self._sampler = sampler
        self._built = self._take()

    def save_all(self) -> None:
        """Save all attributes from now on: a new process may build the sampler in another state."""
        self._built = {}

    def changes(self) -> dict[str, Value]:
        """The attributes that differ from those recorded at first, by path."""
        return {path: value for path, value in self._take().items() if value != self._built.get(path)}

    def put(self, changes: Mapping[str, Value], *, draws: bool = True) -> None:
        """Restore the result of `changes`, in place; without `draws`, generators and numbers stay as they are."""
        now = self._take()
        for path, value in {**self._built, **changes}.items():
            pickled, drawn = value
            if value != now.get(path) and (draws or not drawn):
                owner: Any = self._sampler
                *names, last = path.split(".")
                for name in names:
                    owner = getattr(owner, name)
                _put(owner, last, pickle.loads(pickled))

    def _take(self) -> dict[str, Value]:
        return {
            path + name: copied
            for path, owner in self._owners()
            for name, value in vars(owner).items()
            if name not in DATA and (copied := _copied(value)) is not None
        }

    def _owners(self) -> Iterator[tuple[str, Any]]:
        """The sampler and those inside it, each with the beginning of its paths."""
        found = [("", self._sampler)]
        for path, owner in found:
            if not hasattr(owner, "__dict__"):
                continue
            yield path, owner
            for name, inner in vars(owner).items():
                nested = name in ("sampler", "batch_sampler") or isinstance(inner, Sampler)
                if nested and all(inner is not other for _, other in found):
                    found.append((f"{path}{name}.", inner))


def _copied(value: Any) -> Value | None:
    """A copy of the value; None if it is neither plain data nor a generator, or cannot be copied."""
    try:
        return _pickled(value)
    except Exception:  # `random.SystemRandom` has no state, NumPy no bfloat16, and a list may hold anything further on
        return None


def _pickled(value: Any) -> Value | None:
    if isinstance(value, torch.Generator):
        return (pickle.dumps(value.get_state().numpy()), True)
    if isinstance(value, (*_PLAIN, np.random.Generator, np.random.RandomState, random.Random)):
        return (pickle.dumps(value), True)
    if isinstance(value, torch.Tensor) and value.device.type == "cpu" and value.layout == torch.strided:
        return (pickle.dumps(value.detach().numpy()), False)
    return (pickle.dumps(value), False) if _is_data(value) else None


def _is_data(value: Any) -> bool:
    """True for an array, or a container of numbers, texts, and such containers."""
    if isinstance(value, np.ndarray):
        return bool(value.dtype != object)
    if type(value) not in (list, tuple, set, deque, dict):
        return isinstance(value, (*_PLAIN, np.generic))
    items = [item for pair in value.items() for item in pair] if isinstance(value, dict) else value
    return all(_is_data(item) for _, item in zip(range(EXAMINED), items, strict=False))


def _put(owner: Any, name: str, value: Any) -> None:
    """Write the value into the attribute, into the same object if that is possible: the script may hold it, too."""
    here: Any = getattr(owner, name, None)
    if isinstance(here, torch.Generator):
        here.set_state(torch.from_numpy(value))
    elif isinstance(here, torch.Tensor) and isinstance(value, np.ndarray):
        if here.shape == value.shape:
            here.detach().copy_(torch.from_numpy(value))
        else:
            setattr(owner, name, torch.from_numpy(value))
    elif here is None or type(here) is not type(value):
        setattr(owner, name, value)
    elif isinstance(here, np.random.Generator):
        here.bit_generator.state = value.bit_generator.state
    elif isinstance(here, np.random.RandomState):
        here.set_state(value.get_state())
    elif isinstance(here, random.Random):
        here.setstate(value.getstate())
    elif isinstance(here, np.ndarray) and here.shape == value.shape:
        here[...] = value
    elif isinstance(here, (list, deque)):
        here.clear()
        here.extend(value)
    elif isinstance(here, (dict, set)):
        here.clear()
        here.update(value)
    else:
        setattr(owner, name, value)
