"""The contents of a job's checkpoints: registered state by name, random streams, and progress."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from plait.core.errors import InputError
from plait.training.state import random_streams
from plait.training.state.plain_state import PlainState, plain_state
from plait.training.state.structure import check_layout, extras_of, layout_of, parameters_of, prepare, put_back


class StateRegistry:
    """The registered state of one rank, and loaded state that was not registered yet."""

    def __init__(self) -> None:
        """Nothing registered."""
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
        """The random streams as they are."""
        return random_streams.capture(self._own_generators())

    def put_streams(self, streams: dict[str, Any]) -> None:
        """Restore the result of `streams`."""
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
    """True if `value` has `state_dict` and `load_state_dict`."""
    return all(callable(getattr(value, name, None)) for name in ("state_dict", "load_state_dict"))


def _steps_only(value: Any, parameters: set[int]) -> bool:
    """True for an optimizer whose parameters are all among `parameters`, given by their ids."""
    groups = getattr(value, "param_groups", None)
    return groups is not None and all(id(parameter) in parameters for group in groups for parameter in group["params"])
