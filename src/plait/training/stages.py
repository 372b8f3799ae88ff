"""Marks of stages: the gate is asked, the clock is read, the page is told.

`busy_s[r]` counts the seconds in which a stage on resource r was open; `exposed_s[r]` those in which no other stage of
this job was. On a CUDA device the host runs ahead of the GPU, so there the GPU's seconds come from events: read later
without waiting if there is no gate; waited for at the end of the stage if there is one, or the next job would be let
in while our work still runs.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from plait.core.resources import Resource
from plait.runtime.page import Page
from plait.runtime.stage_gate import GateError, GateTimeout, StageGate
from plait.training.device.cuda import torch_cuda

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
        begun: Callable[[], None] = lambda: None,
    ) -> None:
        """Mark into `page`, ask `gate`; `refresh` is asked between stages which gate is the right one now.

        `begun` is called when a GPU stage has begun, or goes on.
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
            self._begun()
            self._cuda.begin()
        if self._page is not None:
            self._page.stage_since, self._page.in_stage = time.monotonic(), resource + 1

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

    @contextmanager
    def waiting(self, resource: Resource) -> Iterator[None]:
        """While this thread waits for what others load: whoever looks at the page sees for what, and since when."""
        page = self._page
        if page is not None:
            page.stage_since, page.in_stage = time.monotonic(), resource + 1
        try:
            yield
        finally:
            if page is not None:
                page.in_stage = next((r + 1 for r in range(K) if self._since[r] is not None), 0)

    def yield_point(self) -> None:
        """Let others go first if the quantum is used up; the time they take is not counted.

        The host runs ahead of the GPU by one quantum of work at most, and waits for all of it only to give way.
        """
        if self.gate.kind == "none" or self.idle:
            return
        gave_way_s: float | None = None

        def before() -> None:
            nonlocal gave_way_s
            gave_way_s = self._give_way()

        if self.is_open(Resource.GPU):
            self._cuda.pace(getattr(self.gate, "quantum_s", 0.0))
        self.gate.yield_point(before)
        if gave_way_s is not None:
            self._go_on(gave_way_s)

    def _give_way(self) -> float:
        """Finish what was launched on the GPU; when the open stages stopped, by the clock."""
        if self.is_open(Resource.GPU):
            self._cuda.end(wait=True)
        with self._lock:
            return self._tick()

    def _go_on(self, gave_way_s: float) -> None:
        """The open stages go on, as if no time had passed since they gave way."""
        with self._lock:
            self._changed_s = now = self._clock()
            self._since = [s if s is None else s + now - gave_way_s for s in self._since]
        if self.is_open(Resource.GPU):
            self._begun()
            self._cuda.begin()
        if self._page is not None:
            self._page.stage_since = time.monotonic()

    def let_go(self, resource: Resource) -> None:
        """Give the resource to others while the stage goes on by the clock."""
        if self._passed[resource]:
            if resource is Resource.GPU and self.gate.kind != "none":
                self._cuda.wait()  # what was launched is still running
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

    def wake(self, resource: Resource) -> bool:
        """It goes on, if it slept; whether it did."""
        with self._lock:
            slept = self._since[resource] is not None and self._asleep[resource]
            if slept:
                self._since[resource] = self._tick()
                self._asleep[resource] = False
                self._open += 1
            return slept

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

    def busy_so_far(self) -> list[float]:
        """`busy_s` with what open stages have taken until now; the GPU's own clock says nothing before a span ends."""
        with self._lock:
            now, out = self._clock(), list(self.busy_s)
            for r, since in enumerate(self._since):
                if since is not None and not self._asleep[r] and not (r == Resource.GPU and self._cuda.spanning):
                    out[r] += now - since
        return out

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
    """Time between pairs of CUDA events; does nothing while the process has no CUDA context.

    A span is on the stream that was current where it began, whichever thread ends it.
    """

    def __init__(self) -> None:
        """No spans."""
        self._spans: deque[tuple[Any, Any]] = deque()
        self._begun: Any = None
        self._stream: Any = None
        self._marks: deque[Any] = deque()  # at yield points of this span, not yet waited for
        self._passed: Any = None  # the newest that was
        self._between_s = 0.0  # mean seconds of the GPU from one to the next

    @property
    def spanning(self) -> bool:
        """Whether a span has begun and not ended."""
        return self._begun is not None

    def begin(self) -> None:
        """A span begins on the current stream."""
        cuda = torch_cuda()
        self._begun, self._passed = None, None
        self._marks.clear()
        if cuda is not None:
            self._stream, self._begun = cuda.current_stream(), cuda.Event(enable_timing=True)
            self._begun.record(self._stream)

    def end(self, *, wait: bool) -> bool:
        """It ends; true if there was one."""
        begun, self._begun = self._begun, None
        cuda = torch_cuda() if begun is not None else None
        if cuda is None:
            return False
        ended = cuda.Event(enable_timing=True, blocking=wait)  # a waiting host sleeps: others need the core
        ended.record(self._stream)
        self._spans.append((begun, ended))
        if wait:
            ended.synchronize()
        return True

    def wait(self) -> None:
        """Wait for what has been launched in the span, or outside of one on the current stream."""
        if cuda := torch_cuda():
            reached = cuda.Event(blocking=True)
            reached.record(self._stream if self._begun is not None else cuda.current_stream())
            reached.synchronize()

    def pace(self, quantum_s: float) -> None:
        """At a yield point: wait until the GPU is behind the host by at most a quantum, or by one yield point."""
        cuda = torch_cuda()
        if cuda is None or self._begun is None:
            return
        mark = cuda.Event(enable_timing=True, blocking=True)
        mark.record(self._stream)
        self._marks.append(mark)
        ahead = max(1, int(quantum_s / self._between_s)) if self._between_s > 0 else 1
        while len(self._marks) > ahead:
            done = self._marks.popleft()
            done.synchronize()
            if self._passed is not None:
                took_s = self._passed.elapsed_time(done) / 1e3
                self._between_s = took_s if not self._between_s else 0.8 * self._between_s + 0.2 * took_s
            self._passed = done

    def collect(self) -> float:
        """Seconds of the spans that have ended on the device since the last call."""
        total_s = 0.0
        while self._spans and self._spans[0][1].query():
            begun, ended = self._spans.popleft()
            total_s += begun.elapsed_time(ended) / 1e3
        return total_s
