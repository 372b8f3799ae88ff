"""Detect gradients that are not finite: a loss of NaN makes all of them NaN, and such steps are no progress.

Only the smallest gradient of each step is checked: a loss that is not finite reaches every parameter it depends on.
On a CUDA device it is read one step late, so that the host never waits for the current step.
"""

from __future__ import annotations

import sys
from typing import Any

import torch


class Finite:
    """Checks the gradients of one optimizer."""

    def __init__(self, optimizer: Any) -> None:
        """Check the gradients of `optimizer`."""
        self._optimizer = optimizer
        self._smallest: Any = None  # parameter
        self._waiting: tuple[torch.Tensor, Any] | None = None
        self.steps = 0  # in a row whose gradients are not finite

    def broken(self, step: int) -> bool:
        """True if the gradients of the coming step (on a CUDA device: of the previous one) are not finite.

        The first of several such steps in a row is logged as step number `step`.
        """
        finite = self._look()
        if finite:
            if self.steps:
                _tell(f"gradients are finite again after {self.steps} step{'s' * (self.steps > 1)}")
            self.steps = 0
            return False
        self.steps += 1
        if self.steps == 1:
            _tell(
                f"gradients of step {step} are not finite (the loss is NaN or infinite): such steps are no progress, "
                "and the batch is not enlarged by them; look for the first loss that is not finite, and begin again "
                "from before it, with a smaller learning rate or clipped gradients"
            )
        return True

    def _look(self) -> bool:
        if self._smallest is None or self._smallest.grad is None:
            given = [p for group in self._optimizer.param_groups for p in group["params"] if p.grad is not None]
            self._smallest = min(given, key=lambda parameter: parameter.numel(), default=None)
        if self._smallest is None:
            return True
        smallest = self._smallest.grad
        if smallest.is_sparse:
            smallest = smallest.coalesce().values()
        smallest = getattr(smallest, "to_local", lambda: smallest)()
        good = torch.isfinite(smallest).all()
        if not good.is_cuda:
            return bool(good)
        before, host = self._waiting, torch.empty((), dtype=torch.bool, pin_memory=True)
        host.copy_(good, non_blocking=True)
        make: Any = torch.cuda.Event  # untyped in torch
        copied = make()
        copied.record(torch.cuda.current_stream(good.device))
        self._waiting = host, copied
        if before is None:
            return True
        before[1].synchronize()
        return bool(before[0])


def _tell(what: str) -> None:
    print(f"plait: {what}", file=sys.stderr, flush=True)
