"""The contents of a job's checkpoints: registered state by name, random streams, and progress."""

from __future__ import annotations

import copy
import pickle
import random
import sys
import zlib
from collections import deque
from collections.abc import Callable, Collection, MutableMapping
from types import FunctionType, ModuleType
from typing import Any

from plait.core.errors import InputError
from plait.training.state import random_streams
from plait.training.state.structure import check_layout, extras_of, layout_of, parameters_of, prepare, put_back

# Save and restore in place the state of loops without torch: dicts, lists, NumPy arrays, generators, objects.
#
# A registered object stays the same object: the state of a checkpoint is written into it. So a value that cannot be
# changed in place (a number, a tuple, an array of JAX) belongs into a dict that the loop reads and writes.

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
        # Refuse a model inside a dict: restoring would replace it by an object that the loop does not use.
        items = value.items() if isinstance(value, MutableMapping) else enumerate(value)
        for key, item in items:
            if callable(getattr(item, "load_state_dict", None)):
                raise InputError(
                    f"register_state({name}=...): {name}[{key!r}] is a {type(item).__name__}, which has state of its "
                    "own; register it by itself: attach(model=model)"
                )
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
        self.sum = zlib.crc32(data, self.sum)
        return len(data)


def _sum_of(state: Any) -> int:
    """A checksum of a state as it would be saved."""
    file = _Sum()
    pickle.Pickler(file, protocol=5).dump(state)
    return file.sum


class StateRegistry:
    """The registered state of one rank, and loaded state that was not registered yet."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.given: set[str] = set()  # names that hold work, not only a position in the data
        self.replicated: set[str] = set()  # names of models that are the same on all ranks
        self.rng: Any = None
        self._layouts: dict[str, tuple[Any, ...]] = {}  # of models and optimizers when they were registered
        self._found: dict[str, Any] | None = None  # of the checkpoint, without what was restored already

    def free_name(self, name: str) -> str:
        """`name`, with a number appended if it is taken."""
        numbers = (f"{name}{i}" if i > 1 else name for i in range(1, len(self.values) + 2))
        return next(n for n in numbers if n not in self.values)

    def name_of(self, *values: Any) -> str | None:
        """The name under which one of these is registered."""
        return next((name for name, kept in self.values.items() if any(kept is value for value in values)), None)

    def give(self, name: str, value: Any) -> None:
        """Register `value` of the script as `name`; raises `InputError` if it cannot be saved."""
        value = value if _has_state(value) else plain_state(name, value)
        self.given.add(name)
        self.add(name, value)

    @property
    def missing(self) -> str:
        """Why the registered state is not enough to resume from; "" if it may be."""
        if not self.given:
            return "nothing is registered" if not self.values else "only the place in the data is registered"
        if all(hasattr(self.values[name], "param_groups") for name in self.given):
            return "an optimizer is registered, and no model"
        return ""

    @property
    def stale(self) -> list[str]:
        """Names of plain values that are unchanged since they were registered or restored."""
        return [name for name, value in self.values.items() if isinstance(value, PlainState) and value.stale]

    @property
    def trouble(self) -> str:
        """Why the present position in the data cannot be restored, which is tried; "" if it can."""
        tried = (value.trouble() for value in self.values.values() if hasattr(value, "trouble"))
        return next((why for why in tried if why), "")

    def add(self, name: str, value: Any) -> None:
        """Register it, and restore it if a checkpoint was loaded; raises `InputError` if that does not fit."""
        self.values[name] = value
        self._layouts[name] = layout_of(value)
        self._put_back(name, value)

    def found(self, state: dict[str, Any]) -> None:
        """Restore all registered values from a loaded checkpoint, and others when they are registered."""
        self._found = state
        for name, value in self.values.items():
            self._put_back(name, value)
        self.restore_streams()

    def restore_streams(self) -> None:
        """Restore the random streams of the checkpoint, after everything that is drawn during a resume."""
        if self._found is not None:
            self.put_streams(self._found["streams"])

    def streams(self) -> dict[str, Any]:
        return random_streams.capture(self._own_generators())

    def put_streams(self, streams: dict[str, Any]) -> None:
        random_streams.restore(streams, self._own_generators())

    def generator(self, seed: int) -> Any:
        """The job's own torch generator; if a checkpoint was loaded, it continues from there."""
        if self.rng is None:
            import torch

            self.rng = torch.Generator().manual_seed(seed)
            if self._found is not None and self._found["streams"]["own"]:
                self.rng.set_state(self._found["streams"]["own"][0])
        return self.rng

    def collect(self, rank: int, about: dict[str, Any], stepped: Collection[Any] = ()) -> dict[str, Any]:
        """The state of this rank at a boundary; state that is the same on all ranks is only in that of rank 0.

        `about`: step and epoch of the job; `stepped`: optimizers that have used their gradients. Raises
        `NotRestorable` if no new process could load the state.
        """
        parameters = parameters_of(self.values)
        for name, value in self.values.items():
            check_layout(name, value, self._layouts.get(name, ()), parameters)
        for value in self.values.values():
            if hasattr(value, "before_checkpoint"):  # a collective step, which all ranks reach together
                value.before_checkpoint()
        left_out: set[str] = set()
        if rank and self.replicated:  # replicas are identical, and so are the optimizers that step nothing else
            models = [self.values[name] for name in self.replicated if hasattr(self.values[name], "parameters")]
            same = {id(parameter) for model in models for parameter in model.parameters()}
            left_out = self.replicated | {name for name, value in self.values.items() if _steps_only(value, same)}
        return {
            "plait": about,
            "states": {name: v.state_dict() for name, v in self.values.items() if name not in left_out},
            "extras": {name: extras_of(v, parameters, stepped) for name, v in self.values.items()},
            "streams": self.streams(),
        }

    def _own_generators(self) -> list[Any]:
        return [] if self.rng is None else [self.rng]

    def _put_back(self, name: str, value: Any) -> None:
        if self._found is None or name not in self._found["states"]:
            return
        extras = self._found.get("extras", {}).get(name, {})  # version 0.2.0 wrote none
        try:
            prepare(value, extras, parameters_of(self.values))
            value.load_state_dict(self._found["states"].pop(name))
            put_back(value, extras)
        except (RuntimeError, ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"the checkpoint of step {self._found['plait']['step']} does not fit {name!r} "
                f"({type(value).__name__}): {error}; if the script was changed, submit it as a new job"
            ) from error


def _has_state(value: Any) -> bool:
    return all(callable(getattr(value, name, None)) for name in ("state_dict", "load_state_dict"))


def _steps_only(value: Any, parameters: set[int]) -> bool:
    """True for an optimizer whose parameters are all among `parameters`, given by their ids."""
    groups = getattr(value, "param_groups", None)
    return groups is not None and all(id(parameter) in parameters for group in groups for parameter in group["params"])
