"""Measure how long the network was busy, by torch's profiler, while a job is profiled and not afterwards.

A communication hook sees a bucket from its launch to its arrival, with the gaps between buckets. The transfer itself is
the range `gloo:all_reduce` (`c10d::allreduce_` is the launch). Only named ranges are recorded, not every operation,
so the profiler costs little and its result is read in milliseconds. This needs private functions of torch; where they
are missing, the stage marks count.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

TRANSFER = "gloo:"
_STARTERS = ("_prepare_profiler", "_enable_profiler")


class Transfers:
    """A profiler that runs between `start` and `stop`, and stops when the script starts its own."""

    def __init__(self) -> None:
        """Start switched off."""
        self._thread = 0
        self._given: dict[str, Callable[..., Any]] = {}  # torch's functions that ours replace

    @property
    def on(self) -> bool:
        """True while transfers are recorded."""
        return self._thread != 0

    def start(self) -> None:
        """Start recording, if torch.distributed is in use and no other profiler runs."""
        torch = sys.modules.get("torch")
        dist = sys.modules.get("torch.distributed")
        if self.on or torch is None or dist is None or not (dist.is_available() and dist.is_initialized()):
            return
        try:
            from torch._C import _profiler as kinds

            module = torch.autograd.profiler
            if torch.autograd._profiler_enabled():
                return
            experimental = kinds._ExperimentalConfig()
            config = kinds.ProfilerConfig(kinds.ProfilerState.KINETO, False, False, False, False, False, experimental)
            activities = {kinds.ProfilerActivity.CPU}
            self._given = {name: getattr(module, name) for name in _STARTERS}
            self._given["_prepare_profiler"](config, activities)
            self._given["_enable_profiler"](config, activities, {kinds.RecordScope.USER_SCOPE})
        except (ImportError, AttributeError, TypeError, RuntimeError):
            self._given = {}
            return
        self._thread = threading.get_ident()
        for name in _STARTERS:
            setattr(module, name, self._making_way(name))

    def stop(self) -> float:
        """Stop recording; returns the seconds in which transfers ran, 0 if none was seen."""
        if (
            not self.on or threading.get_ident() != self._thread
        ):  # torch can stop a profiler only in the thread that started it
            return 0.0
        module = sys.modules["torch"].autograd.profiler
        for name, given in self._given.items():
            setattr(module, name, given)
        self._thread, self._given = 0, {}
        try:
            events = module._disable_profiler().events()
            spans = [(e.start_ns(), e.start_ns() + e.duration_ns()) for e in events if e.name().startswith(TRANSFER)]
        except (AttributeError, RuntimeError):
            return 0.0
        return covered(spans) / 1e9

    def _making_way(self, name: str) -> Callable[..., Any]:
        def start(*args: Any, **options: Any) -> Any:
            given = self._given.get(name)
            self.stop()
            return (given or getattr(sys.modules["torch"].autograd.profiler, name))(*args, **options)

        return start


def covered(spans: list[tuple[int, int]]) -> int:
    """Total length of the union of `spans`, (first, last) each.

    >>> covered([(0, 4), (2, 6), (10, 11)])
    7
    """
    total, end = 0, -1
    for first, last in sorted(spans):
        total += max(last - max(first, end), 0)
        end = max(end, last)
    return total
