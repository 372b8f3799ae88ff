"""Mark stages: pass the gate, measure the time, and write it to the page.

`busy_s[r]` counts the seconds in which a stage on resource r was open, `exposed_s[r]` those in which no other stage
was open. On a CUDA device the host runs ahead of the GPU, so the GPU's seconds come from events. Without a gate they
are read later, without waiting. With a gate the end of the stage waits for them, or the next job would enter while our
work still runs. Nor may guests start then: where a job has any, a thread waits for the GPU and notes in the page when
the stage has ended there, and the script runs on.
"""

from __future__ import annotations

import contextlib
import math
import queue
import threading
import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from plait.core.resources import Resource, skew
from plait.runtime.guest_gate import LINGER_S
from plait.runtime.page import SIZE, WORD, Page
from plait.runtime.stage_gate import GateError, GateTimeout, StageGate
from plait.training.process import ignore_captures, torch_cuda

LEAST_LEASE_S = 30.0
#: Seconds to wait at the end of a job for a GPU that still works.
LATE_S = 10.0
K = len(Resource)
STAGE_SINCE, IN_STAGE = Page.stage_since.index, Page.in_stage.index


class Stages:
    """The stages of one process. Different threads may open and close them, one at a time per resource."""

    #: The memory of an emulated GPU (`training.sharing.device_memory.DeviceMemory`); a real one is found by torch.
    memory: Any = None
    #: Whether stages may be measured one at a time in place of several; False where each has an effect.
    may_sample = True
    #: Whether guests share the GPU: they are let in when the GPU has done a stage, not when the script has left it.
    has_guests = False

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
        #: The words of the page, which short paths write themselves; without a page, words that nobody reads.
        self.floats: Any = [0.0] * (SIZE // WORD) if page is None else page.floats
        self.ints: Any = [0] * (SIZE // WORD) if page is None else page.ints
        self._since: list[float | None] = [None] * K
        self._passed = [False] * K  # stages that have entered the gate
        self._asleep = [False] * K  # open, but waiting for something else; their clocks stand still
        self._exposed_before = [0.0] * K
        self._weight = [1] * K
        self._last = [(0.0, 0.0)] * K  # busy and exposed seconds of the newest closed stage
        self.open = 0  # how many stages are open and not asleep
        self._changed_s = 0.0
        self._lock = threading.Lock()
        self._cuda = CudaSpans()
        self._warned = False
        self._left_s = -LINGER_S  # when the GPU stage was left last, by the clock of the node
        self._entries = 0  # of GPU stages, since `returned`
        self._behind = 0  # GPU stages that the script has left before the GPU had done them
        self._followed: queue.SimpleQueue[tuple[Any, int] | None] = queue.SimpleQueue()  # their ends; None: no more
        self._follower: threading.Thread | None = None

    @property
    def idle(self) -> bool:
        return self.open == 0

    def is_open(self, resource: Resource) -> bool:
        return self._since[resource] is not None

    def has(self, resource: Resource) -> bool:
        """True while this job holds the resource at the gate."""
        return self._passed[resource]

    def refresh(self) -> None:
        """Between two stages: switch to the current gate."""
        if not self.open:
            self.gate = self._refresh(self.gate)

    def wait_for_gpu(self) -> None:
        self._cuda.wait()

    def lease_s(self, resource: Resource) -> float:
        """Seconds that a wait for the resource may take before it counts as an error."""
        done = self.gate.stats.stages[resource]
        return max(LEAST_LEASE_S, 10 * self.gate.stats.inside_s[resource] / done if done else 0.0)

    @property
    def samples(self) -> bool:
        """True if a stage may stand for several that are not marked: nobody waits for its end."""
        return self.may_sample and self.gate.kind == "none"

    def show(self, resource: Resource, since_s: float) -> None:
        """Note in the page alone that a stage on this resource began at `since_s`, which is not measured."""
        self.floats[STAGE_SINCE], self.ints[IN_STAGE] = since_s, resource + 1

    def hide(self) -> None:
        """Note in the page that the stage of `show` has ended."""
        if self.open:
            self.floats[STAGE_SINCE], self.ints[IN_STAGE] = self._open_since_s(), self._in_stage()
        else:
            self.ints[IN_STAGE] = 0

    def _in_stage(self) -> int:
        return next((r + 1 for r in range(K) if self._since[r] is not None), 0)

    def enter(self, resource: Resource, *, gated: bool = True, weight: int = 1) -> None:
        """Open a stage; waits for the gate unless it is not `gated`. It counts as `weight` stages."""
        if gated:
            self.refresh()
            try:
                if self.gate.kind == "none":  # which waits for nobody
                    self.gate.enter(resource)
                else:
                    self.gate.enter(resource, self.lease_s(resource))
                self._passed[resource] = True
            except (GateTimeout, GateError) as error:
                self._ungated(error)
        with self._lock:
            now = self._tick()
            self._since[resource], self._weight[resource] = now, weight
            self._exposed_before[resource] = self.exposed_s[resource]
            self.open += 1
        if resource is Resource.GPU:
            self._entries += time.monotonic() - self._left_s >= LINGER_S
            self._begun()
            self._cuda.begin()
        if self._page is not None:
            self._page.stage_since = self._open_since_s()
            self._page.in_stage = resource + 1

    def leave(self, resource: Resource, *, sync: bool = False) -> None:
        """Close the stage, if it is open. `sync`: wait for the GPU also without a gate."""
        if self._since[resource] is None:
            return
        weight = self._weight[resource]
        wait = sync or self.gate.kind != "none"
        follows = self.has_guests and not wait
        on_device = resource is Resource.GPU and self._cuda.end(wait=wait, weight=weight, sleeps=follows)
        with self._lock:
            now = self._tick()
            began, self._since[resource] = self._since[resource], None
            asleep, self._asleep[resource] = self._asleep[resource], False
            self.open -= not asleep
            busy_s = weight * (now - began) if began is not None and not on_device and not asleep else 0.0
            exposed_s = self.exposed_s[resource] - self._exposed_before[resource]
            self.busy_s[resource] += busy_s
            if weight > 1:
                self.exposed_s[resource] += (weight - 1) * exposed_s
            self._last[resource] = busy_s, weight * exposed_s
        self.let_go(resource)
        if resource is Resource.GPU:
            self._note_left(follows and on_device)
        if self._page is not None:
            self._page.in_stage = self._in_stage()

    def _note_left(self, follows: bool) -> None:
        """Note that the script has left the GPU stage; `follows`: it ends when the GPU has done what was launched."""
        with self._lock:
            self._left_s = math.inf if follows else time.monotonic()
            self._behind += follows
            if self._page is not None:
                self._page.gpu_left_monotonic = self._left_s
        if not follows:
            return
        self._followed.put((self._cuda.ended, self._behind))
        if self._follower is None:
            self._follower = threading.Thread(target=self._note_ends, name="plait-gpu", daemon=True)
            self._follower.start()

    def _note_ends(self) -> None:
        """Note when the GPU has done the newest stage. Waiting holds neither a core nor the interpreter's lock."""
        ignore_captures()  # the script may have begun one before this thread has run
        while (behind := self._followed.get()) is not None:
            ended, number = behind
            with contextlib.suppress(RuntimeError):  # the GPU is lost, which the script gets to know
                ended.synchronize()
            with self._lock:
                if number == self._behind and self._left_s == math.inf:
                    self._left_s = time.monotonic()
                    if self._page is not None:
                        self._page.gpu_left_monotonic = self._left_s

    def returned(self) -> tuple[int, int]:
        """How often the job returned to an idle GPU since the last call: in all (0: not known), and into a stage."""
        entries, self._entries = self._entries, 0
        return 0, entries

    @contextmanager
    def stage(self, resource: Resource, *, sync: bool = False, weight: int = 1) -> Iterator[None]:
        """A stage around a block; within a stage on the same resource it does nothing. `weight` as for `enter`."""
        if self.is_open(resource):
            yield
            return
        self.enter(resource, weight=weight)
        try:
            yield
        finally:
            self.leave(resource, sync=sync)

    def yield_point(self) -> None:
        """Give way to others if the quantum is used up; their time does not count.

        The host runs at most one quantum of work ahead of the GPU, and waits for all of it only if it gives way.
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
        """Continue the open stages as if no time had passed since they gave way."""
        with self._lock:
            self._changed_s = now = self._clock()
            self._since = [s if s is None else s + now - gave_way_s for s in self._since]
        if self.is_open(Resource.GPU):
            self._begun()
            self._cuda.begin()
        if self._page is not None:
            self._page.stage_since = self._open_since_s()

    def _open_since_s(self) -> float:
        """For the page: when the open stage last made progress; 0 for a guest.

        The peers of a guest may wait for it as long as its hosts need the GPU: that is no hanging.
        """
        return time.monotonic() if self.gate.kind != "guest" else 0.0

    def let_go(self, resource: Resource) -> None:
        """Release the resource to others while the clock of the stage continues."""
        if self._passed[resource]:
            if resource is Resource.GPU and self.gate.kind != "none":
                self._cuda.wait()  # launched work still runs
            self._passed[resource] = False
            self.gate.leave(resource)

    def sleep(self, resource: Resource) -> None:
        """Release the open stage and stop its clock while it waits for another one (the GPU's for the network)."""
        self.let_go(resource)
        with self._lock:
            began = self._since[resource]
            if began is None or self._asleep[resource]:
                return
            now = self._tick()
            self.busy_s[resource] += 0.0 if resource is Resource.GPU and self._cuda.spanning else now - began
            self._asleep[resource] = True
            self.open -= 1

    def wake(self, resource: Resource) -> bool:
        """Continue a sleeping stage; returns whether it slept."""
        with self._lock:
            slept = self._since[resource] is not None and self._asleep[resource]
            if slept:
                self._since[resource] = self._tick()
                self._asleep[resource] = False
                self.open += 1
            return slept

    def split(self, closed: Resource, parts: dict[Resource, float]) -> None:
        """The newest stage on `closed` was in truth on several resources, in these parts (sum 1)."""
        busy_s, exposed_s = self._last[closed]
        with self._lock:
            self.busy_s[closed] -= busy_s
            self.exposed_s[closed] -= exposed_s
            for resource, part in parts.items():
                self.busy_s[resource] += busy_s * part
                self.exposed_s[resource] += exposed_s * part

    def close_all(self) -> None:
        """Close all stages, at the end of the job."""
        self.settle()
        for resource in Resource:
            self.leave(resource)

    def settle(self) -> None:
        """Follow no stage from now on: a thread that waits when the interpreter ends would abort the process."""
        self.has_guests = False
        follower, self._follower = self._follower, None
        if follower is not None:
            self._followed.put(None)
            follower.join(LATE_S)

    def publish(self) -> None:
        """Write the times to the page; only at step boundaries, so that marks stay cheap."""
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
        """Add `busy_s` and `exposed_s` seconds of `resource` that loader workers measured."""
        with self._lock:
            self.busy_s[resource] += busy_s
            self.exposed_s[resource] += exposed_s

    def _tick(self) -> float:
        """Count the time since the last change for the only open stage, if there is exactly one."""
        now = self._clock()
        if self.open == 1:
            for r in range(K):  # a loop takes half as long as a generator
                if self._since[r] is not None and not self._asleep[r]:
                    self.exposed_s[r] += now - self._changed_s
                    break
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
        self._spans: deque[tuple[Any, Any, int]] = deque()  # with the number of spans that each stands for
        self._begun: Any = None
        self._stream: Any = None
        self.ended: Any = None  # the end of the newest span
        self._marks: deque[Any] = deque()  # at yield points of this span, not yet waited for
        self._passed: Any = None  # the newest that was
        self._between_s = 0.0  # mean seconds of the GPU from one to the next

    @property
    def spanning(self) -> bool:
        return self._begun is not None

    def begin(self) -> None:
        cuda = torch_cuda()
        self._begun, self._passed = None, None
        self._marks.clear()
        if cuda is not None and not cuda.is_current_stream_capturing():
            self._stream, self._begun = cuda.current_stream(), cuda.Event(enable_timing=True)
            self._begun.record(self._stream)

    def end(self, *, wait: bool, weight: int = 1, sleeps: bool = False) -> bool:
        """It ends, and stands for `weight` spans; true if there was one. `sleeps`: who waits for it needs no core.

        There is none if it begins or ends within a captured CUDA graph, which runs later.
        """
        begun, self._begun = self._begun, None
        cuda = torch_cuda() if begun is not None else None
        if cuda is None or cuda.is_current_stream_capturing():
            return False
        ended = self.ended = cuda.Event(enable_timing=True, blocking=wait or sleeps)  # others need the core
        ended.record(self._stream)
        self._spans.append((begun, ended, weight))
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
            begun, ended, weight = self._spans.popleft()
            total_s += weight * begun.elapsed_time(ended) / 1e3
        return total_s


# Mark the GPU stage of scripts that do not mark it: from a batch of the loader to the last optimizer's step.
#
# A measured step costs about half a millisecond of a loop that computes (its code and data are no longer in the caches
# of the core). So while nothing depends on every single step, one step in `GLANCE_S` is measured and stands for those
# that were only counted: short steps pay for about one part in a hundred of it.

#: Steps of other optimizers, at least, after which the one that counts is taken for finished.
FINISHED_AFTER = 8
#: Of steps shorter than this many seconds, some are only counted: what belongs to the others is done once in this time.
GLANCE_S = 0.05
STOP, CONTROL = Page.stop.index, Page.control_version.index
_IN_GPU = Resource.GPU + 1


class GpuStage:
    """Marks the GPU stage, and knows which optimizer's steps are the iterations of the job."""

    def __init__(self, stages: Stages, page: Page) -> None:
        """No optimizer is known yet, so nothing is marked."""
        self.thread = 0  # the thread that opened the stage
        self._stages, self._page = stages, page
        self._marking = self._sleeps = False
        self._counting: weakref.ref[Any] | None = None
        self._first: weakref.ref[Any] | None = None  # that was registered; it counts whenever it steps
        self._between, self._longest = 0, 0  # steps of others since the one that counts has stepped, and at most
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()
        self.optimizer_known = self.optimizer_stepped = False  # of torch, whose steps are seen
        self.stepped_lately: set[Any] = set()  # since the last boundary
        #: True while iterations are only counted; `may_glance`: also in an evaluation, which ends none.
        self.glances = self.may_glance = False
        self.only_counted = 0  # iterations since the last one with everything that belongs to a count
        self.glance_until = 0.0  # by CLOCK_MONOTONIC
        self.late_s = 0.0  # when glancing ends although no iteration has ended
        self.version = 0  # of control.json, when glancing began
        self._weight = 1  # for how many iterations a stage that is measured now stands
        self.glancing = False  # at the present stage, which the page may show
        self.shown = 0  # what the page shows of a stage that is not measured
        self._evaluated, self._measure_s = 0, 0.0  # stages of an evaluation, not measured; when the next one is
        self._stepped: set[int] = set()  # ids of known optimizers that have stepped since the batch began

    def know(self, optimizer: Any) -> None:
        """Mark the stage from now on; the steps of the first known optimizer count."""
        inner = getattr(optimizer, "optimizer", None)  # Accelerate's, around torch's
        optimizer = inner if hasattr(inner, "param_groups") else optimizer
        if optimizer in self._known:
            return
        self.optimizer_known |= hasattr(optimizer, "register_step_post_hook")
        if not self._known:
            self._marking, self.shown = True, _IN_GPU
            self._counting = self._first = weakref.ref(optimizer)
            self._note_skew(optimizer)
        self._known.add(optimizer)
        if self._sleeps:
            self._wake_before(optimizer)

    def _note_skew(self, optimizer: Any) -> None:
        sizes = [p.numel() * p.element_size() for group in optimizer.param_groups for p in group["params"]]
        self._page.skew = skew(sizes)

    def sleeps(self) -> None:
        """From now on the stage may sleep while gradients are sent: wake it before each step of an optimizer."""
        if not self._sleeps:
            self._sleeps = True
            for optimizer in self._known:
                self._wake_before(optimizer)

    def _wake_before(self, optimizer: Any) -> None:
        if hasattr(optimizer, "register_step_pre_hook"):
            optimizer.register_step_pre_hook(self._step_begins)

    def leave_to_script(self) -> None:
        """Stop marking: the script marks the stage itself."""
        if self._marking:
            self.end()
            self._marking, self.shown = False, 0

    def begin(self, *, evaluating: bool = False) -> bool:
        """Begin the stage: a loader hands out a batch. Returns True if it is not measured."""
        now_s = time.monotonic()
        if now_s >= self.late_s:
            self.measure()
        skips = self._skips(now_s) if evaluating else self.glances
        if skips and self._marking:
            self.glancing = True
            self._stages.show(Resource.GPU, now_s)
        elif self._marking and not self._stages.is_open(Resource.GPU):
            self.thread = threading.get_ident()
            self._stepped.clear()
            weight = self._weight
            if evaluating:
                weight, self._evaluated, self._measure_s = self._evaluated + 1, 0, now_s + GLANCE_S
            self._stages.enter(Resource.GPU, weight=weight)
        return skips

    def _skips(self, now_s: float) -> bool:
        """True if a stage of an evaluation that begins now is not measured."""
        skips = self.may_glance and now_s < self._measure_s and not self.requested
        self._evaluated += skips
        return skips

    def end(self) -> None:
        """End the stage: the script requests the next batch, or leaves its loop."""
        if self.glancing:
            self.glancing = False
            self._stages.hide()
        elif self._marking:
            self._stages.leave(Resource.GPU)

    def usual(self, optimizer: Any) -> bool:
        """True if `optimizer` is the only one that is known, so that each step of it ends an iteration."""
        return len(self._known) == 1 and self._counting is not None and self._counting() is optimizer

    def glance(self, now_s: float, *, may_glance: bool, now: bool, version: int) -> None:
        """From `now_s` on iterations are only counted, for `GLANCE_S`, if `may_glance`, and the next one if `now`.

        `version`: of the control.json that the job obeys.
        """
        self.may_glance, self.glances = may_glance, may_glance and now
        self.glance_until, self.late_s, self.version = now_s + GLANCE_S, now_s + 2 * GLANCE_S, version
        self.only_counted, self._weight = 0, 1

    @property
    def requested(self) -> bool:
        """True if the agent has written a request since glancing began."""
        ints = self._page.ints
        return bool(ints[STOP] or ints[CONTROL] != self.version)

    def measure(self) -> None:
        """From now on measure: the next iteration stands for those that were only counted."""
        self.glances, self._weight = False, self.only_counted + 1

    def stepped(self, optimizer: Any, *, hands_over: bool = True) -> bool:
        """Note a step of `optimizer`; returns whether an iteration ends. Several optimizers make one together.

        The first registered optimizer counts, else the first that steps. If it no longer steps (Adam, followed by
        L-BFGS; a warm-up), the next one counts: after twice as many steps of others as were ever between two of its
        own. `hands_over`: False where a loop counts the steps of all.
        """
        self.optimizer_stepped = True
        self.stepped_lately.add(optimizer)
        counting = self._counting() if self._counting is not None else None
        if counting is None and not self._known:
            self._note_skew(optimizer)
        if counting is None or (self._first is not None and optimizer is self._first()):
            self._counting, counting = weakref.ref(optimizer), optimizer
        if optimizer is counting:
            self._longest, self._between = max(self._longest, self._between), 0
        elif hands_over:
            self._between += 1
            if self._between > max(2 * self._longest, FINISHED_AFTER):
                self._counting, counting = weakref.ref(optimizer), optimizer
                self._longest = self._between = 0
        if self._marking:
            self._stepped.add(id(optimizer))
            if len(self._stepped) >= len(self._known):
                self.end()
            else:  # perhaps the last step of this iteration, so the stage may be over
                self._page.stage_since = 0.0
        return optimizer is counting

    def _step_begins(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Enter the GPU stage again, which was left while the last gradients were sent (with tokens)."""
        stages = self._stages
        if self._marking and stages.gate.kind == "tokens" and not stages.has(Resource.GPU):
            stages.leave(Resource.GPU)
            stages.enter(Resource.GPU)
        stages.wake(Resource.GPU)
