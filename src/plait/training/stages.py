"""Marks of stages: the gate is asked, the clock is read, the page is told.

`busy_s[r]` counts the seconds in which a stage on resource r was open; `exposed_s[r]` those in which no other stage of
this job was. On a CUDA device the host runs ahead of the GPU, so there the GPU's seconds come from events: read later
without waiting if there is no gate; waited for at the end of the stage if there is one, or the next job would be let
in while our work still runs.
"""

from __future__ import annotations

import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from plait.core.resources import Resource
from plait.training.page import Page
from plait.training.stagegate import GateError, GateTimeout, StageGate

LEAST_LEASE_S = 30.0
K = len(Resource)


class Stages:
    """The stages of one process. Open and close may come from different threads, one at a time for a resource."""

    def __init__(
        self,
        page: Page | None,
        gate: StageGate,
        *,
        refresh: Callable[[StageGate], StageGate] = lambda gate: gate,
        clock: Callable[[], float] = time.perf_counter,
        begun: Callable[[], None] | None = None,
    ) -> None:
        """Mark into `page`, ask `gate`; `refresh` is asked between stages which gate is the right one now.

        `begun` is called when a GPU stage has begun.
        """
        self.gate, self._refresh, self._begun = gate, refresh, begun
        self.busy_s, self.exposed_s = [0.0] * K, [0.0] * K
        self._page, self._clock = page, clock
        self._since: list[float | None] = [None] * K
        self._passed = [False] * K  # the gate let us in and waits for our leaving
        self._asleep = [False] * K  # open, but waiting for something else: by the clock as if it were closed
        self._exposed_before = [0.0] * K
        self._last = [(0.0, 0.0)] * K  # busy and exposed seconds of the newest closed stage
        self._open = 0
        self._changed_s = 0.0
        self._lock = threading.Lock()
        self._cuda = CudaSpans()
        self._warned = False

    @property
    def idle(self) -> bool:
        """Whether no stage is open."""
        return self._open == 0

    def is_open(self, resource: Resource) -> bool:
        """Whether a stage on the resource is open."""
        return self._since[resource] is not None

    def has(self, resource: Resource) -> bool:
        """Whether the gate has let us in on the resource, and we have not let go."""
        return self._passed[resource]

    def lease_s(self, resource: Resource) -> float:
        """How long a wait for the resource may take before it counts as somebody's mistake."""
        done = self.gate.stats.stages[resource]
        return max(LEAST_LEASE_S, 10 * self.gate.stats.inside_s[resource] / done if done else 0.0)

    def enter(self, resource: Resource, *, gated: bool = True) -> None:
        """Open a stage; waits for the gate unless it is not `gated`."""
        if gated:
            if not self._open:
                self.gate = self._refresh(self.gate)
            try:
                self.gate.enter(resource, self.lease_s(resource))
                self._passed[resource] = True
            except (GateTimeout, GateError) as error:
                self._ungated(error)
        with self._lock:
            now = self._tick()
            self._since[resource] = now
            self._exposed_before[resource] = self.exposed_s[resource]
            self._open += 1
        if resource is Resource.GPU:
            if self._begun is not None:
                self._begun()
            self._cuda.begin()
        if self._page is not None:
            self._page.in_stage = resource + 1

    def leave(self, resource: Resource, *, sync: bool = False) -> None:
        """Close the stage, if it is open. `sync`: wait for the GPU also without a gate."""
        if self._since[resource] is None:
            return
        on_device = resource is Resource.GPU and self._cuda.end(wait=sync or self.gate.kind != "none")
        with self._lock:
            now = self._tick()
            began, self._since[resource] = self._since[resource], None
            asleep, self._asleep[resource] = self._asleep[resource], False
            self._open -= not asleep
            busy_s = now - began if began is not None and not on_device and not asleep else 0.0
            self.busy_s[resource] += busy_s
            self._last[resource] = busy_s, self.exposed_s[resource] - self._exposed_before[resource]
        self.let_go(resource)
        if self._page is not None:
            self._page.in_stage = next((r + 1 for r in range(K) if self._since[r] is not None), 0)

    @contextmanager
    def stage(self, resource: Resource, *, sync: bool = False) -> Iterator[None]:
        """A stage around a block; inside one of the same resource it changes nothing."""
        if self.is_open(resource):
            yield
            return
        self.enter(resource)
        try:
            yield
        finally:
            self.leave(resource, sync=sync)

    def yield_point(self) -> None:
        """Let others go first if the quantum is used up; waits for the GPU before it asks."""
        if self.gate.kind != "none" and not self.idle:
            self._cuda.wait()
            self.gate.yield_point()

    def let_go(self, resource: Resource) -> None:
        """Give the resource to others while the stage goes on by the clock."""
        if self._passed[resource]:
            self._passed[resource] = False
            self.gate.leave(resource)

    def sleep(self, resource: Resource) -> None:
        """The open stage waits for another one, the GPU's for the network: let go of it, and stop its clock."""
        self.let_go(resource)
        with self._lock:
            began = self._since[resource]
            if began is None or self._asleep[resource]:
                return
            now = self._tick()
            self.busy_s[resource] += 0.0 if resource is Resource.GPU and self._cuda.spanning else now - began
            self._asleep[resource] = True
            self._open -= 1

    def wake(self, resource: Resource) -> None:
        """It goes on, if it slept."""
        with self._lock:
            if self._since[resource] is not None and self._asleep[resource]:
                self._since[resource] = self._tick()
                self._asleep[resource] = False
                self._open += 1

    def split(self, closed: Resource, parts: dict[Resource, float]) -> None:
        """The newest stage on `closed` was in truth on several resources, in these parts (sum 1)."""
        busy_s, exposed_s = self._last[closed]
        self.add(closed, -busy_s, -exposed_s)
        for resource, part in parts.items():
            self.add(resource, busy_s * part, exposed_s * part)

    def close_all(self) -> None:
        """Close every stage; for the way out."""
        for resource in Resource:
            self.leave(resource)

    def publish(self) -> None:
        """Tell the page; at step boundaries, so that a mark costs no more than it must."""
        self.busy_s[Resource.GPU] += self._cuda.collect()
        page, stats = self._page, self.gate.stats
        if page is not None:
            page.busy_s, page.exposed_s = self.busy_s, self.exposed_s
            if self.gate.kind != "none":
                page.waited_s, page.gate_timeouts = stats.waited_s, stats.timeouts

    def add(self, resource: Resource, busy_s: float, exposed_s: float) -> None:
        """Count seconds measured elsewhere: by loader workers."""
        with self._lock:
            self.busy_s[resource] += busy_s
            self.exposed_s[resource] += exposed_s

    def _tick(self) -> float:
        """Give the time since the last change to the stage that was alone, if one was."""
        now = self._clock()
        if self._open == 1:
            alone = next(r for r in range(K) if self._since[r] is not None and not self._asleep[r])
            self.exposed_s[alone] += now - self._changed_s
        self._changed_s = now
        return now

    def _ungated(self, error: Exception) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(f"plait: {error}", RuntimeWarning, stacklevel=4)


class CudaSpans:
    """Time between pairs of CUDA events; does nothing while the process has no CUDA context."""

    def __init__(self) -> None:
        """No spans."""
        self._spans: deque[tuple[Any, Any]] = deque()
        self._begun: Any = None

    @property
    def spanning(self) -> bool:
        """Whether a span has begun and not ended."""
        return self._begun is not None

    def begin(self) -> None:
        """A span begins on the current stream."""
        cuda = _cuda()
        self._begun = cuda.Event(enable_timing=True) if cuda else None
        if self._begun is not None:
            self._begun.record()

    def end(self, *, wait: bool) -> bool:
        """It ends; true if there was one."""
        begun, self._begun = self._begun, None
        cuda = _cuda() if begun is not None else None
        if cuda is None:
            return False
        ended = cuda.Event(enable_timing=True)
        ended.record()
        self._spans.append((begun, ended))
        if wait:
            ended.synchronize()
        return True

    def wait(self) -> None:
        """Wait for what has been launched on the current stream."""
        if cuda := _cuda():
            cuda.current_stream().synchronize()

    def collect(self) -> float:
        """Seconds of the spans that have ended on the device since the last call."""
        total_s = 0.0
        while self._spans and self._spans[0][1].query():
            begun, ended = self._spans.popleft()
            total_s += begun.elapsed_time(ended) / 1e3
        return total_s


def _cuda() -> Any:
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    return cuda if cuda is not None and hasattr(cuda, "is_initialized") and cuda.is_initialized() else None
