"""An optimizer and a gradient scaler of a script's own loop that wait while gradients accumulate.

The objects stay the ones they were; `step` and the like of these two instances ask first. So a loop that knows nothing
of accumulation runs unchanged: of s+1 microbatches only the last one steps.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

from plait.core.errors import InputError

#: On the `step` of an optimizer that waits.
_MARK = "_plait_held"


def is_held(optimizer: Any) -> bool:
    """Whether `hold_optimizer` has this one."""
    return _MARK in vars(getattr(optimizer.step, "__func__", optimizer.step))


class Turnstile:
    """Says which calls go through."""

    def __init__(self) -> None:
        """All do."""
        #: Whether the pass under way is the last one of a step, so that the optimizer steps after it.
        self.stepping = True


def hold_optimizer(optimizer: Any, gate: Turnstile, after: Callable[[], None]) -> None:
    """Let `step` through where `gate` says so; `after` is called when a step is over or has failed.

    A step with a closure then raises `InputError`.
    """
    step = optimizer.step

    @functools.wraps(getattr(step, "__func__", step))  # with the marks by which schedulers know it
    def held_step(_: Any, closure: Callable[[], Any] | None = None, **options: Any) -> Any:
        if closure is not None:
            raise InputError(
                "optimizer.step(closure) of an adaptive job: not every batch ends in a step, and its gradients "
                "have to be there before; call loss.backward(), then optimizer.step()"
            )
        if not gate.stepping:
            return None
        try:
            return step(**options)
        finally:
            after()

    held_step.__dict__[_MARK] = True
    optimizer.step = types.MethodType(held_step, optimizer)  # a bound method: schedulers take it apart


def hold_scaler(scaler: Any, gate: Turnstile, after: Callable[[Any], None]) -> None:
    """Let `unscale_`, `step` and `update` through where `gate` says so: without gradients they would complain.

    `after` is called with the optimizer when a `step` is over, in which the optimizer's own was called or was not.
    """

    def held(inner: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            return inner(*args, **options) if gate.stepping else None

        return call

    step = scaler.step

    def step_and_tell(optimizer: Any, *args: Any, **options: Any) -> Any:
        result = step(optimizer, *args, **options)
        after(optimizer)
        return result

    scaler.step = step_and_tell
    scaler.unscale_, scaler.step, scaler.update = held(scaler.unscale_), held(scaler.step), held(scaler.update)
