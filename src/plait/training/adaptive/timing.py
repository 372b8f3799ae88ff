"""How long gradients take to be averaged: from the last bucket handed over to the last one that arrived.

What is sent while the backward pass still computes costs nothing; this is the rest. On a CUDA device both moments are
events, and they are read when the GPU has passed them: usually one step later, without waiting for it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Any

import torch


class SyncClock:
    """Measures one step after the other."""

    def __init__(self) -> None:
        """Nothing measured yet."""
        self._lock = threading.Lock()  # buckets arrive in threads of their own
        self._handed: Any = None
        self._arrived: list[Any] = []
        self._waiting: deque[tuple[int, Any, list[Any]]] = deque()
        self.steps = 0
        #: Seconds by number of the step, of those that can be read; whoever uses them takes them out.
        self.seconds: deque[tuple[int, float]] = deque(maxlen=64)

    def handed_over(self, bucket: torch.Tensor) -> None:
        """The last bucket of a step has been handed over, after work on the current stream of its device."""
        moment = _now(bucket)
        with self._lock:
            self._handed = moment

    def arrived(self, bucket: torch.Tensor) -> None:
        """A bucket is complete."""
        moment = _now(bucket)
        with self._lock:
            self._arrived.append(moment)

    def end_step(self) -> int:
        """All buckets have arrived, or there were none; the number of the step that ended, from 0."""
        with self._lock:
            handed, arrived = self._handed, self._arrived
            self._handed, self._arrived = None, []
        number, self.steps = self.steps, self.steps + 1
        if handed is not None and arrived:
            self._waiting.append((number, handed, arrived))
        while self._waiting and all(_passed(moment) for moment in self._waiting[0][2]):
            step, begin, ends = self._waiting.popleft()
            self.seconds.append((step, max(0.0, *(_between_s(begin, end) for end in ends))))
        return number

    def forget_step(self) -> None:
        """The step came to nothing."""
        with self._lock:
            self._handed, self._arrived = None, []


def _now(tensor: torch.Tensor) -> Any:
    if not tensor.is_cuda:
        return time.perf_counter()
    make: Any = torch.cuda.Event  # untyped in torch
    event = make(enable_timing=True)
    event.record(torch.cuda.current_stream(tensor.device))
    return event


def _passed(moment: Any) -> bool:
    return isinstance(moment, float) or bool(moment.query())


def _between_s(begin: Any, end: Any) -> float:
    return end - begin if isinstance(begin, float) else float(begin.elapsed_time(end)) / 1e3
