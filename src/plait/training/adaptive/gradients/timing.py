"""Measure how long the reduction of gradients takes, from the last bucket handed over to the last one that arrived.

Buckets sent while the backward pass still computes cost nothing; this is the rest. On a CUDA device both moments are
events of streams; they are read only after the GPU has passed them, so nothing waits.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import torch


class SyncClock:
    """Measures the reduction of one step at a time."""

    def __init__(self) -> None:
        """Nothing measured yet."""
        self._lock = threading.Lock()  # buckets arrive in other threads
        self._handed: Any = None
        self._arrived: list[Any] = []

    def begin(self) -> None:
        """Begin a step; measurements of an unfinished one are dropped."""
        with self._lock:
            self._handed, self._arrived = None, []

    def handed_over(self, bucket: torch.Tensor) -> None:
        """Note that the last `bucket` of a step was handed over, on the current stream of its device."""
        moment = _now(bucket)
        with self._lock:
            self._handed = moment

    def arrived(self, bucket: torch.Tensor) -> None:
        """Note that `bucket` is complete."""
        moment = _now(bucket)
        with self._lock:
            self._arrived.append(moment)

    def seconds(self) -> float | Callable[[], float] | None:
        """Seconds of this step, once all buckets have arrived; None if there were none.

        On a CUDA device, a function to call after the GPU has finished the step.
        """
        with self._lock:
            handed, arrived = self._handed, list(self._arrived)
        if handed is None or not arrived:
            return None
        if isinstance(handed, float):
            return max(0.0, float(max(arrived)) - handed)
        return lambda: max(0.0, max(handed.elapsed_time(event) for event in arrived) / 1e3)


def _now(tensor: torch.Tensor) -> Any:
    if not tensor.is_cuda:
        return time.perf_counter()
    make: Any = torch.cuda.Event  # untyped in torch
    event = make(enable_timing=True)
    event.record(torch.cuda.current_stream(tensor.device))
    return event
