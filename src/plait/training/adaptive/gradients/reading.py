"""Estimates off the device. On a CUDA device they are read one step late, so that the host never waits for this step.

All ranks read at the same steps: what a rank makes of an estimate (its learning rate) has to be the same everywhere.
"""

from __future__ import annotations

from typing import Any

import torch

from plait.training.adaptive.gradients.noise import Estimate
from plait.training.adaptive.gradients.passes import Squares, estimate


class Reading:
    """What was measured and not read yet."""

    def __init__(self) -> None:
        """Nothing."""
        self._waiting: tuple[torch.Tensor, Any, float, float, bool] | None = None

    def take(self, squares: Squares | None, initial_batch: int) -> Estimate | None:
        """Begin to read `squares`; the estimate of this step on a CPU, of the one before on a CUDA device."""
        if squares is not None and not squares.first.is_cuda:
            return squares.estimate(initial_batch)
        found, self._waiting = self._waiting, None
        if squares is not None:
            rows = torch.stack([squares.first, squares.second])
            host = torch.empty(rows.shape, dtype=rows.dtype, pin_memory=True)
            host.copy_(rows, non_blocking=True)
            make: Any = torch.cuda.Event  # untyped in torch
            copied = make()
            copied.record(torch.cuda.current_stream(rows.device))
            self._waiting = host, copied, squares.samples, squares.batch / initial_batch, squares.divided
        if found is None:
            return None
        host, copied, samples, scale, divided = found
        copied.synchronize()  # of the step before: the GPU has it behind it, unless the host is a whole step ahead
        return estimate(host.tolist(), samples, scale, divided=divided)
