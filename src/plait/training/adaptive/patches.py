"""An optimizer and a gradient scaler of a script's own loop that wait while gradients accumulate.

The objects stay the ones they were; `step`, `zero_grad` and so on of these two instances ask first. So a loop that
knows nothing of accumulation runs unchanged: of s+1 turns only the last one steps.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import torch


class Turnstile:
    """Says which calls go through."""

    def __init__(self) -> None:
        """All do."""
        #: Whether the pass under way is the last one of a step, so that the optimizer steps after it.
        self.stepping = True
        #: Whether gradients of a step that is not over lie in `.grad`: they must not be lost.
        self.pending = False


def hold_optimizer(optimizer: Any, gate: Turnstile, after: Callable[[], None]) -> None:
    """Let `step` and `zero_grad` through where `gate` says so; `after` is called when a step is over or has failed."""
    step, zero_grad = optimizer.step, optimizer.zero_grad

    @functools.wraps(getattr(step, "__func__", step))  # with the marks by which schedulers know it
    def held_step(_: Any, closure: Callable[[], Any] | None = None, **options: Any) -> Any:
        if not gate.stepping:
            gate.pending = True
            if closure is None:
                return None
            with torch.enable_grad():  # the pass itself is in there
                return closure()
        try:
            return step(closure, **options) if closure is not None else step(**options)
        finally:
            gate.pending = False
            after()

    @functools.wraps(getattr(zero_grad, "__func__", zero_grad))
    def held_zero_grad(_: Any, *args: Any, **options: Any) -> None:
        if not gate.pending:
            zero_grad(*args, **options)

    # Bound methods, because schedulers take them apart.
    optimizer.step = types.MethodType(held_step, optimizer)
    optimizer.zero_grad = types.MethodType(held_zero_grad, optimizer)


def hold_scaler(scaler: Any, gate: Turnstile) -> None:
    """Let `unscale_`, `step` and `update` through where `gate` says so; a step that is skipped is over too."""
    unscale, step, update = scaler.unscale_, scaler.step, scaler.update

    def held_unscale(optimizer: Any) -> None:
        if gate.stepping:
            unscale(optimizer)

    def held_step(optimizer: Any, *args: Any, **options: Any) -> Any:
        if not gate.stepping:
            gate.pending = True
            return None
        try:
            return step(optimizer, *args, **options)
        finally:
            gate.pending = False

    def held_update(*args: Any, **options: Any) -> None:
        if gate.stepping:
            update(*args, **options)

    scaler.unscale_, scaler.step, scaler.update = held_unscale, held_step, held_update


def hold_model(model: Any, gate: Turnstile) -> None:
    """`model.zero_grad()` is the other way to lose gradients."""
    zero_grad = model.zero_grad

    def held_zero_grad(*args: Any, **options: Any) -> None:
        if not gate.pending:
            zero_grad(*args, **options)

    model.zero_grad = held_zero_grad
