"""Measure passes by nodes, GPUs and examples per GPU; the throughput model is fitted to these times.

A pass lasts from the moment the script has its batch until it asks for the next one. The reduction of gradients is
measured separately, so the rest of a pass can be pooled with the passes that only accumulate (as AdaptDL's master
does). On a GPU both ends are events of its stream, read after they have completed: the host never waits for them. A
pass does not count if it is the first of an epoch or of a batch size (buckets are built, kernels are chosen and
compiled), if its batch is smaller than planned, or if it was not finished.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch

from plait.training.adaptive.plan import Microbatch
from plait.training.process import torch_cuda

if TYPE_CHECKING:
    from plait.goodput.fit import Measurements


class SyncClock:
    """Measures the reduction of gradients in one step, from the last bucket handed over to the last one that arrived.

    Buckets sent while the backward pass still computes cost nothing; this is the rest. On a CUDA device both moments
    are events of streams; they are read only after the GPU has passed them, so nothing waits.
    """

    def __init__(self) -> None:
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


Key = tuple[int, int, int, int]


@dataclass(slots=True)
class Timing:
    """Sums over the passes of a key: seconds and counts."""

    grad_s: float = 0.0  # of passes that only accumulate
    grads: int = 0
    step_s: float = 0.0  # of passes that reduce and step, all of them
    sync_s: float = 0.0  # ... of which reducing
    steps: int = 0


@dataclass(slots=True)
class _Pass:
    """A running pass, or one that has ended and is not counted yet."""

    key: Key
    is_sync: bool
    counts: bool
    begin: Any
    waited_s: tuple[float, float]
    end: Any = None
    sync: float | Callable[[], float | None] | None = None


#: Most passes that may wait for the device or for the time of their reduction; older ones are dropped.
WAITING = 16


class Timings:
    """Times of this rank's passes. The state survives restarts, so it covers all sizes that the job ever had."""

    def __init__(
        self,
        waited_s: Callable[[], tuple[float, float]] = lambda: (0.0, 0.0),
        clock: Callable[[], float] | None = None,
    ) -> None:
        """`waited_s` returns the seconds in which the job stood still, and in which its reductions waited for others.

        `clock` returns seconds and replaces the device's own clock.
        """
        self._keys: dict[Key, Timing] = {}
        self._waited_s, self._clock = waited_s, clock
        self._pass: _Pass | None = None
        self._over: deque[_Pass] = deque()
        self._warm: int | None = None  # examples per GPU of the previous pass in this epoch
        self.changed = False  # since `changed` was last set to False
        self.stage = 0  # of ZeRO, of the execution plan
        #: Whether reductions are no part that could be measured by itself: FSDP2 starts them within the backward pass.
        #: They are then what a pass with one takes longer than a pass that only accumulates; without such passes they
        #: count as computation, which is right for every batch on the same GPUs.
        self.pooled = False

    @property
    def keys(self) -> Mapping[Key, Timing]:
        """(nodes, gpus, local, ZeRO stage) -> sums."""
        return self._keys

    @property
    def most_gpus(self) -> int:
        """The largest number of GPUs with measured steps; 0 without any."""
        return max((gpus for (_, gpus, *_), timing in self._keys.items() if timing.steps), default=0)

    def begin_epoch(self) -> None:
        """Note that the next pass is the first of an epoch, or of the rest of one."""
        self._pass, self._warm = None, None

    def begin(self, microbatch: Microbatch, nodes: int) -> None:
        """Begin a pass of `microbatch` on `nodes` nodes: the script gets its batch."""
        self._count()
        key = nodes, microbatch.step.ranks, microbatch.local, self.stage
        counts = microbatch.step.full and not microbatch.step.halves and self._warm == microbatch.local
        if not microbatch.step.halves:
            self._warm = microbatch.local
        self._pass = _Pass(key, microbatch.is_sync, counts, self._mark(), self._waited_s())

    def synced(self, seconds: float | Callable[[], float | None]) -> None:
        """Note the `seconds` that the reduction of this pass took.

        A function is called after the pass has ended on the device, and again one pass later while it returns None.
        """
        if self._pass is not None:
            self._pass.sync = seconds

    def end(self) -> None:
        """End the current pass: the script asks for the next batch."""
        done, self._pass = self._pass, None
        if done is None or not done.counts:
            return
        still_s, reducing_s = self._waited_s()
        done.end, done.waited_s = self._mark(), (still_s - done.waited_s[0], reducing_s - done.waited_s[1])
        self._over.append(done)
        self._count()

    def _mark(self) -> Any:
        if self._clock is not None:
            return self._clock()
        cuda = torch_cuda()
        if cuda is None:
            return time.perf_counter()
        event = cuda.Event(enable_timing=True)
        event.record()
        return event

    def _count(self) -> None:
        """Count the passes that have ended on the device, too."""
        while self._over and (isinstance(self._over[0].end, float) or self._over[0].end.query()):
            first = self._over[0]
            sync_s = 0.0 if first.key[1] == 1 or self.pooled else first.sync() if callable(first.sync) else first.sync
            if callable(first.sync) and sync_s is None and len(self._over) < WAITING:
                return
            self._add(self._over.popleft(), sync_s)

    def _add(self, done: _Pass, sync_s: float | None) -> None:
        on_host = isinstance(done.end, float)
        took_s = done.end - done.begin if on_host else done.begin.elapsed_time(done.end) / 1000
        if done.is_sync and sync_s is None:  # the reduction was not measured, so it cannot be separated
            return
        still_s, reducing_s = done.waited_s
        waited_s = min(
            max(reducing_s, 0.0), float(sync_s or 0.0)
        )  # waiting that was hidden behind backward passes costs nothing
        took_s = max(took_s - still_s - waited_s, 1e-9)
        timing = self._keys.setdefault(done.key, Timing())
        if sync_s is None or not done.is_sync:
            timing.grad_s, timing.grads = timing.grad_s + took_s, timing.grads + 1
        else:
            timing.step_s, timing.steps = timing.step_s + took_s, timing.steps + 1
            timing.sync_s += min(max(float(sync_s) - waited_s, 0.0), took_s)
        self.changed = True

    def table(self) -> Measurements | None:
        """Mean seconds by (nodes, GPUs, examples per GPU, ZeRO stage) with an optimizer step; None without any.

        Seconds of a pass are the mean over accumulating passes and over others without their reduction, each pass with
        the same weight.
        """
        import numpy as np

        from plait.goodput.execution_plans import STEP_VOLUME
        from plait.goodput.fit import Measurements

        def grad_s_of(t: Timing) -> float:
            if self.pooled and t.grads:
                return min(t.grad_s / t.grads, t.step_s / t.steps)
            return (t.grad_s + t.step_s - t.sync_s) / (t.grads + t.steps)

        rows = [(*key, grad_s_of(t), t.step_s / t.steps) for key, t in sorted(self._keys.items()) if t.steps]
        if not rows:
            return None
        nodes, gpus, local, stage, grad_s, step_s = np.array(rows, dtype=np.float64).T
        return Measurements(
            nodes=nodes.astype(np.int64),
            gpus=gpus.astype(np.int64),
            local=local.astype(np.int64),
            grad_s=np.maximum(grad_s, 1e-9),
            step_s=step_s,
            volume=np.array([STEP_VOLUME[int(one)] for one in stage]),
        )

    def state_dict(self) -> dict[str, Any]:
        return {"keys": [[*key, t.grad_s, t.grads, t.step_s, t.sync_s, t.steps] for key, t in self._keys.items()]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the timings; running passes are dropped."""
        self._keys = {
            cast("Key", (*map(int, key), 0)[:4]): Timing(float(g), int(gs), float(s), float(y), int(ss))
            for *key, g, gs, s, y, ss in state["keys"]  # an older checkpoint has no stage
        }
        self._pass, self._warm, self.changed = None, None, bool(self._keys)
        self._over.clear()
