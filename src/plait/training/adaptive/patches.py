"""Suppress steps of a script's optimizer and gradient scaler while gradients accumulate.

Only `step` and similar methods of these two instances are replaced. An ordinary loop runs unchanged: of s+1
microbatches only the last one makes a step.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

from plait.core.errors import InputError

#: Attribute that marks the replaced `step` of an optimizer.
_MARK = "_plait_held"


def is_held(optimizer: Any) -> bool:
    """True if `hold_optimizer` was called with this optimizer."""
    return _MARK in vars(getattr(optimizer.step, "__func__", optimizer.step))


class StepGate:
    """Decides which calls of `step` take effect."""

    def __init__(self) -> None:
        """All calls take effect."""
        #: True if the current pass is the last one of a step, after which the optimizer steps.
        self.stepping = True


def hold_optimizer(optimizer: Any, gate: StepGate, after: Callable[[], None]) -> None:
    """Run `optimizer.step` only while `gate.stepping`; `after` is called after each step, also a failed one.

    A step with a closure raises `InputError`.
    """
    step = optimizer.step

    @functools.wraps(getattr(step, "__func__", step))  # with the attributes that schedulers look for
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
    optimizer.step = types.MethodType(held_step, optimizer)  # a bound method, as schedulers expect


def hold_scaler(scaler: Any, gate: StepGate, after: Callable[[Any], None]) -> None:
    """Run `unscale_`, `step` and `update` of `scaler` only while `gate.stepping`: without gradients they would fail.

    `after(optimizer)` is called after each `step` of the scaler, whether or not it called the optimizer's own.
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
