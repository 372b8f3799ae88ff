"""Measure the times of an iteration and of its stages in the first tens of iterations, then publish them once.

After five iterations of warm-up, the next 20 to 50 are measured while the job has its GPUs to itself, as by Muri's
profiler (section 5 of the paper); 20 are enough if they hardly differ. In company, waiting would count as work of the
job, so profiling restarts when the job no longer has its GPUs to itself. A script without marks that has never been
alone is measured next to others, by hooks that see what it waits for, until it has its GPUs to itself. Stage marks cost
microseconds and stay on after the profile. They cannot see how long transfers really take; torch's profiler adds this
in these iterations only. The stages of a script without marks are seen by hooks in these iterations (`passive`).
When ten iterations in a row take a fifth more or less time, the job is profiled again.
"""

from __future__ import annotations

import math
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from plait.core.resources import Resource
from plait.runtime.page import ProfileSource
from plait.training.passive import Hooks

# Measure how long the network was busy, by torch's profiler, while a job is profiled and not afterwards.
#
# A communication hook sees a bucket from its launch to its arrival, with the gaps between buckets. The transfer itself
# is the range `gloo:all_reduce` (`c10d::allreduce_` is the launch). Only named ranges are recorded, not every
# operation, so the profiler costs little and its result is read in milliseconds. This needs private functions of torch;
# where they are missing, the stage marks count.

TRANSFER = "gloo:"
_STARTERS = ("_prepare_profiler", "_enable_profiler")


class Transfers:
    """A profiler that runs between `start` and `stop`, and stops when the script starts its own."""

    def __init__(self) -> None:
        self._thread = 0
        self._given: dict[str, Callable[..., Any]] = {}  # torch's functions that ours replace

    @property
    def on(self) -> bool:
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


WARM_UP = 5
FEWEST, MOST = 20, 50
STEADY = 0.02  # relative standard error of the mean at which 20 samples are enough
RECENT = 20
DRIFT, DRIFTING = 0.2, 10  # another iteration time, relative, in so many iterations in a row


class Profiler:
    """Iteration and stage times from step boundaries. Times are seconds on any clock that never goes back."""

    def __init__(self, transfers: Transfers | None = None, hooks: Hooks | None = None) -> None:
        """Start without measurements.

        While iterations are measured, `transfers` records those of the network of a script with marks, and `hooks` the
        stages of one without.
        """
        self._transfers = transfers if transfers is not None else Transfers()
        self._hooks = hooks
        self._drifting = 0
        self._recent: deque[float] = deque(maxlen=RECENT)
        self._last_s: float | None = None
        self._seen = 0
        self._samples: list[float] = []
        self._busy_before: tuple[float, ...] = (0.0,) * len(Resource)
        self.result: tuple[tuple[float, ...], float, int] | None = None
        self.source = ProfileSource.UNKNOWN  # of the stages in `result`
        self._beside = False  # whether others shared the GPUs in one of the measured iterations

    @property
    def step_s(self) -> float:
        """Mean seconds of the last 20 iterations; 0 before the second."""
        return sum(self._recent) / len(self._recent) if self._recent else 0.0

    def step(
        self,
        now_s: float,
        busy_s: Sequence[float],
        *,
        alone: bool = True,
        free: bool = False,
        idle_s: float = 0.0,
        count: int = 1,
    ) -> bool:
        """Note the end of an iteration at `now_s`; returns True if it completed the profile, now in `result`.

        `count`: iterations since the last call; more than one only where `result` is complete.
        `busy_s`: seconds of each resource since the beginning. `alone`: whether the job has its GPUs to itself; `free`:
        whether it never waits for a turn or a share of them.
        `idle_s`: seconds of this iteration that are no work of the job (a pause, a reduced share, a checkpoint).
        """
        before, self._last_s = self._last_s, now_s
        if before is None:
            return False
        took = max(now_s - before - idle_s, 0.0) / count
        self._recent.append(took)
        if not alone and not (free and self._hooks is not None and self.result is None and not any(busy_s)):
            self._begin_anew()
            return False
        self._beside |= not alone
        if self.result is not None:
            if self.source is not ProfileSource.BESIDE and not self._drifted(took):
                return False
            self._begin_anew()
            self.result = None
        if self._hooks is not None and self._hooks.interrupted:
            self._begin_anew()
        self._seen += 1
        if self._seen <= WARM_UP:
            self._busy_before = tuple(busy_s)
            if self._seen == WARM_UP:
                # Measure from the next iteration on; hooks see the transfers of a script that is not `marked`, too
                marked = any(busy_s)
                if marked or self._hooks is None or not self._hooks.start(self.step_s):
                    self._transfers.start()
            return False
        self._samples.append(took)
        return self._complete(busy_s)

    def close(self) -> None:
        self._transfers.stop()
        if self._hooks is not None:
            self._hooks.stop()

    def _begin_anew(self) -> None:
        self._seen, self._samples, self._drifting, self._beside = 0, [], 0, False
        self.close()

    def _drifted(self, took_s: float) -> bool:
        assert self.result is not None
        usual_s = self.result[1]
        way = (took_s >= (1 + DRIFT) * usual_s) - (took_s <= (1 - DRIFT) * usual_s)  # longer 1, shorter -1
        self._drifting = way if way * self._drifting <= 0 else self._drifting + way
        return abs(self._drifting) >= DRIFTING

    def _complete(self, busy_s: Sequence[float]) -> bool:
        count = len(self._samples)
        if count < FEWEST:
            return False
        mean = math.fsum(self._samples) / count
        # Not statistics.stdev: its fractions take tens of microseconds, in every measured iteration.
        error = math.sqrt(math.fsum((took - mean) ** 2 for took in self._samples) / (count - 1) / count)
        if mean <= 0 or (count < MOST and error > STEADY * mean):
            return False
        stages = [(b - a) / count for a, b in zip(self._busy_before, busy_s, strict=True)]
        moving_s = self._transfers.stop() / count
        seen = self._hooks.stages(count, mean) if self._hooks is not None else None
        self.source = ProfileSource.MARKS
        if not sum(stages):
            self.source = ProfileSource.NONE if seen is None else ProfileSource.HOOKS
            if seen is not None and self._beside:
                self.source = ProfileSource.BESIDE
            # Unseen, all time without a transfer counts as GPU time.
            stages = [0.0, 0.0, max(mean - moving_s, 0.0), 0.0] if seen is None else list(seen)
        if moving_s > 0:
            stages[Resource.NETWORK] = moving_s
        self.result = (tuple(stages), mean, count)
        return True
