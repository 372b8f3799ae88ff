"""Share a GPU with other jobs: what a job does between two steps and within one.

    alone   reports a step a second, nothing else
    host    reports every step, keeps to a memory limit while it has one; never paced
    guest   also paced by `runtime.guest_gate` from yield point to yield point, and paused between two steps

control.json (`runtime.guest_gate`) determines the role, which may change while the job runs, without a restart.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from plait.core.errors import InputError
from plait.core.resources import Resource
from plait.runtime.guest_gate import GuestGate, Neighbours
from plait.runtime.page import Page
from plait.runtime.stage_gate import StageGate
from plait.sharing.directive import Action, SpillReason, StepStats
from plait.training.process import capturing, torch_cuda
from plait.training.sharing.device_memory import CudaMemory, DeviceMemory, MemoryLimit, MemoryUse, find_device_memory
from plait.training.sharing.host_pool import HostPool, HostPoolError, arena_bytes, build_allocator
from plait.training.sharing.saved_tensors import SavedTensors, budget
from plait.training.stages import Stages

# Yield points of a guest whose script has none: a few places within each step at which others may use the GPU.
#
# Only a few large blocks are hooked (hooks at every module cost up to 65 % of a short step): when the gradients of each
# eighth of the parameters are complete, before the optimizer steps, and before the blocks of a model that the script
# has registered. A compiled model keeps its forward pass in one piece, and a script that replays CUDA graphs its whole
# step (`GraphReplays`).

#: Into how many pieces a pass through the model is divided at most.
PIECES = 8


class YieldPoints:
    """Hooks that call `reached`; there are none before `install`."""

    def __init__(self, reached: Callable[[], object]) -> None:
        """`reached`: called at each yield point, in the thread that computes."""
        self._reached = reached
        self._hooks: list[Any] = []

    @property
    def installed(self) -> bool:
        return bool(self._hooks)

    def install(self, optimizer: Any, models: Iterable[Any]) -> None:
        """Hook the parameters and the step of an optimizer, and the blocks of models; instead of those before."""
        self.remove()
        parameters = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
        for parameter in divided(parameters, [p.numel() for p in parameters]):
            if hasattr(parameter, "register_post_accumulate_grad_hook"):
                self._hooks.append(parameter.register_post_accumulate_grad_hook(lambda _: self._reached()))
        if hasattr(optimizer, "register_step_pre_hook"):
            self._hooks.append(optimizer.register_step_pre_hook(lambda *_: self._reached()))
        for model in models:
            for block in blocks(model):
                self._hooks.append(block.register_forward_pre_hook(lambda *_: self._reached()))

    def remove(self) -> None:
        while self._hooks:
            self._hooks.pop().remove()


def divided(items: list[Any], sizes: list[int], pieces: int = PIECES) -> list[Any]:
    """Those of the items at which pieces of about equal size end, without the last: at most `pieces - 1`.

    >>> divided(list("abcdefgh"), [1] * 8, 4)
    ['b', 'd', 'f']
    >>> divided(list("abc"), [1, 98, 1], 4)
    ['b']
    """
    whole, done, found = sum(sizes), 0, []
    for item, size in zip(items[:-1], sizes, strict=False):
        before, done = done, done + size
        if before * pieces // max(whole, 1) < done * pieces // max(whole, 1):
            found.append(item)
    return found[: pieces - 1]


def blocks(model: Any) -> list[Any]:
    """The largest parts of a model whose forward pass is called one after the other: at most `PIECES`.

    The largest part is divided into its own parts while that gives more of them. A part that is only a list is never
    called itself.
    """
    if hasattr(model, "_orig_mod") or getattr(model, "_compiled_call_impl", None) is not None:
        return []
    found = [model]
    while len(found) < PIECES:
        inner = [module for module in found if any(True for _ in module.children())]
        if not inner:
            break
        largest = max(inner, key=_size)
        parts = [part for part in largest.children() if _size(part)]
        if not parts:
            break
        at = found.index(largest)
        found[at : at + 1] = parts
    called = [module for module in found if type(module).__name__ not in ("ModuleList", "ModuleDict")]
    return divided([*called, None], [*map(_size, called), 0]) if len(called) > PIECES else called


def _size(module: Any) -> int:
    return sum(p.numel() for p in module.parameters())


class GraphReplays:
    """Counts replays of torch's CUDA graphs in this process."""

    def __init__(self) -> None:
        self.replays = 0  # since the last check
        self._watched: Any = None

    def watch(self, cuda: Any) -> None:
        """Count from now on; `cuda`: torch.cuda, initialised. May be called twice."""
        graph: Any = getattr(cuda, "CUDAGraph", None)
        replay = getattr(graph, "replay", None)
        if replay is None or self._watched is graph:
            return
        self._watched = graph

        def counted(this: Any) -> Any:
            self.replays += 1
            return replay(this)

        graph.replay = counted

    def check(self, yield_points: int) -> None:
        """At the end of a step of a guest that called so many yield points; raises `InputError` for graphs without."""
        replays, self.replays = self.replays, 0
        if replays and not yield_points:
            raise InputError(
                f"an opportunistic job cannot run as a guest with CUDA graphs and no yield points: its step replayed "
                f"{replays} of them as one piece of GPU work, and the guaranteed job would have to wait for all of it; "
                "call job.yield_point() between replays, capture smaller graphs, or submit it with --class guaranteed"
            )


#: A job that shares its GPU with nobody reports a step after so many seconds: what it uses says where guests fit.
ALONE_EVERY_S = 1.0
_NAMES = tuple(r.name.lower() for r in Resource)


class StepReports:
    """Of one process. `work` and `phase` are what the script says about its steps, if it does."""

    def __init__(self, page: Page, limit: MemoryLimit) -> None:
        self._page, self._limit = page, limit
        self._last_s: float | None = None
        self._busy_s: Sequence[float] = (0.0,) * len(Resource)
        self._next_s = 0.0
        self.work, self.phase, self.left_out = 0.0, "", False
        self.last_use = MemoryUse()

    def step_ended(
        self,
        step: int,
        now_s: float,
        busy_s: Sequence[float],
        *,
        shared: bool,
        waited_s: float = 0.0,
        quantum_s: float = 0.0,
        spilled_bytes: int = 0,
        returns: int = 0,
        entries: int = 0,
    ) -> None:
        """Step number `step` has ended at `now_s`; `busy_s`: seconds by resource since the beginning.

        waited_s       of this step, because others had the GPU
        quantum_s      longest quantum of this step
        spilled_bytes  that the script's saved tensors had on the host
        returns        to an idle GPU within this step, and `entries` of GPU stages of those; 0: not known
        """
        if not shared and now_s < self._next_s:
            self._last_s = None  # the next report has to see a whole step
            return
        before_s, self._last_s = self._last_s, now_s
        busy_before_s, self._busy_s = self._busy_s, tuple(busy_s)
        use = self._limit.end_step(reset=shared)  # a script that shares with nobody may read its own peaks
        if spilled_bytes:
            use = replace(use, spilled_bytes=use.spilled_bytes + spilled_bytes, reason=SpillReason.OUT_OF_MEMORY)
        self.last_use = use
        left_out, self.left_out = self.left_out, False
        if before_s is None:
            return
        self._next_s = now_s + ALONE_EVERY_S
        stage_s = {
            name: after - before
            for name, after, before in zip(_NAMES, busy_s, busy_before_s, strict=True)
            if after > before
        }
        if not stage_s and waited_s > 0:
            stage_s = {"gpu": max(now_s - before_s - waited_s, 0.0)}
        self._page.add_step(
            StepStats(
                step=step,
                step_s=now_s - before_s,
                stage_s=stage_s,
                device_peak_bytes=use.peak_bytes,
                device_persistent_bytes=use.persistent_bytes,
                device_reserved_bytes=use.reserved_bytes,
                host_spill_bytes=use.spilled_bytes,
                spill_reason=use.reason,
                quantum_s=quantum_s,
                work=self.work,
                phase=self.phase,
                left_out=left_out,
                ended_s=max(now_s, 0.0),
                returns=returns,
                entries=entries,
            )
        )


LOOK_EVERY_S = 0.005
#: The memory that steps need is the most of the last hundred or so.
DECAY = 0.99
_HOLDS = frozenset((Action.PAUSE.value, Action.CHECKPOINT.value))


class SharedGpu:
    """Of one process. `stages`: its marks, whose gate is a `GuestGate` while it is a guest."""

    def __init__(
        self,
        page: Page,
        stages: Stages,
        neighbours: Callable[[], Neighbours | None],
        *,
        own_process: bool = True,
        wants_stop: Callable[[], object] = lambda: False,
        note: Callable[[str], object] = lambda text: None,
        models: Callable[[], Sequence[Any]] = lambda: (),
        find_memory: Callable[[], DeviceMemory | None] = find_device_memory,
        ran_out: Path | None = None,
    ) -> None:
        """`neighbours`: who else is on the GPU now; `own_process`: whether the job has its process to itself.

        `models`: those that the script has registered; `ran_out`: as for `MemoryLimit`.
        """
        self._models = models
        self._page, self._stages, self._look = page, stages, neighbours
        self._wants_stop, self._note = wants_stop, note
        self.neighbours: Neighbours | None = None
        self.limit = MemoryLimit(page, find_memory, own_process=own_process, note=note, ran_out=ran_out)
        self.reports = StepReports(page, self.limit)
        self.saved_tensors = SavedTensors()
        self.yields = YieldPoints(self.reached)
        self._graphs = GraphReplays()
        self._pool: HostPool | None = None
        self._pool_wanted = True
        self._builder: threading.Thread | None = None  # of the pool's allocator
        self._demand_bytes: float | None = None
        self._script_points = 0  # since the last boundary
        self._waited_s = 0.0  # of the gate, when the last step ended
        self._optimizer: Any = None

    # -- the role -------------------------------------------------------------------------------------------------

    @property
    def guest(self) -> bool:
        return self.neighbours is not None and self.neighbours.guest

    @property
    def gate(self) -> GuestGate | None:
        """The gate of a guest; None for others."""
        gate = self._stages.gate
        return gate if isinstance(gate, GuestGate) else None

    def trains(self, optimizer: Any) -> None:
        """The optimizer whose steps count: its parameters and step are where a guest's yield points are."""
        if optimizer is not self._optimizer:
            self._optimizer = optimizer
            if self.guest:
                self.yields.install(optimizer, self._models())

    def start(self) -> None:
        """Take the role in control.json: before the first step, and whenever the file changes."""
        found = self._look()
        if found is not self.neighbours:
            self.neighbours = found
            self._stages.has_guests = found is not None and not found.guest
            if self.guest and self._optimizer is not None:
                self.yields.install(self._optimizer, self._models())
            elif not self.guest:
                self.yields.remove()
                self.saved_tensors.budget_bytes = 0.0
        self._stages.refresh()

    def wrap(self, inner: StageGate) -> StageGate:
        """The gate that control.json asks for, around that of the job's own group."""
        found = self._look()
        if found is None or not found.guest:
            return inner
        return GuestGate(self._page, found, inner, look=self._look, wants_stop=self._wants_stop)

    # -- within a step --------------------------------------------------------------------------------------------

    def reached(self) -> None:
        """Note a yield point of plait."""
        gate = self.gate
        if gate is None or capturing():
            return
        if self._stages.is_open(Resource.GPU):
            self._stages.yield_point()
        elif not gate.marked:
            gate.yield_point(self._stages.wait_for_gpu)

    def script_yields(self) -> None:
        """Note a yield point of the script."""
        self._script_points += 1
        self.reached()

    # -- between two steps ----------------------------------------------------------------------------------------

    def waited_since_last(self) -> float:
        """Seconds in which a guest was not allowed to use the GPU, since the last call."""
        gate = self.gate
        before_s, self._waited_s = self._waited_s, gate.waited_s if gate is not None else 0.0
        return max(self._waited_s - before_s, 0.0)

    def step_ended(self, step: int, now_s: float, busy_s: Sequence[float], waited_s: float) -> None:
        """Report step number `step`, which ended at `now_s`; for `busy_s` and `waited_s` see `StepReports`."""
        gate, quantum_s = self.gate, 0.0
        if gate is not None:
            quantum_s, gate.longest_s = gate.longest_s, 0.0
            self._page.longest_quantum_s = 0.0
        returns, entries = self._stages.returned()
        self.reports.step_ended(
            step,
            now_s,
            busy_s,
            shared=self.neighbours is not None,
            waited_s=waited_s,
            quantum_s=quantum_s,
            spilled_bytes=self.saved_tensors.begin_step(),
            returns=returns,
            entries=entries,
        )
        use = self.reports.last_use
        demand = float(use.peak_bytes + use.spilled_bytes)
        self._demand_bytes = max(demand, DECAY * (self._demand_bytes or 0.0)) or None

    def boundary(self) -> float:
        """Keep to what the agent says; the seconds for which the job was held. Raises `InputError` where it cannot.

        For a job that shares with nobody this is two reads of the page.
        """
        if self._look() is not self.neighbours:
            self.start()
        if self.neighbours is None and not self.limit.due:
            return 0.0
        gate = self.gate
        if gate is not None:
            if not gate.marked:
                self._stages.wait_for_gpu()
                gate.end()
            cuda, points = torch_cuda(), self._script_points
            self._script_points = 0
            if cuda is not None:
                self._graphs.watch(cuda)
                self._graphs.check(points)
        self._bound()
        held_s = self._hold() if self._page.action in _HOLDS else 0.0
        if self._page.action == Action.STOP.value and self.neighbours is not None:
            raise InputError(self._too_large())
        self.begin_unmarked()
        return held_s

    def begin_unmarked(self) -> None:
        """Where no stages are marked, a guest's next quantum begins here."""
        gate = self.gate
        if gate is not None and not gate.marked:
            gate.begin()

    @property
    def leaves(self) -> bool:
        """Whether the job is to save its state and to leave the GPU to others."""
        return self.neighbours is not None and self._page.action == Action.CHECKPOINT.value

    def _hold(self) -> float:
        """Stay here while the agent says so, at most until the job is asked to stop; the seconds it took."""
        begin_s = time.monotonic()
        self._stages.gate.drop()
        while self._page.action == Action.PAUSE.value and not self._wants_stop():
            self._page.share_reached, self._page.paced_monotonic = self._page.share_number, time.monotonic()
            time.sleep(LOOK_EVERY_S)
            if self.limit.due:
                self._bound()
            if self._look() is not self.neighbours:
                self.start()
        return time.monotonic() - begin_s

    # -- memory ---------------------------------------------------------------------------------------------------

    def _bound(self) -> None:
        """Keep to the limit of memory, and have what exceeds it on the host."""
        if self.limit.due:
            if self._pool_wanted and 0 < self._page.memory_limit_bytes < math.inf:
                self._make_pool()
            self.limit.act(guest=self.guest)
        limit, memory = self.limit.given_bytes, self.limit.memory
        if memory is None or limit == math.inf or not self.guest:
            self.saved_tensors.budget_bytes = 0.0
        elif self._pool is None:
            self.saved_tensors.install()
            self.saved_tensors.budget_bytes = budget(self._demand_bytes, limit)

    def _make_pool(self) -> None:
        """Before the first limit on a real GPU: an arena on the host, for which torch's limit has to be off."""
        memory = self.limit.memory
        if not isinstance(memory, CudaMemory):
            return
        if self._builder is None:
            self._builder = threading.Thread(target=_build_ahead, name="host allocator", daemon=True)
            self._builder.start()
        if self.guest:
            self._builder.join()
        elif self._builder.is_alive():  # its steps do not wait; until then the device counts as its own
            return
        self._pool_wanted = False
        try:
            size = arena_bytes()
            if size:
                memory.bound(math.inf)
                self._pool = HostPool(torch_cuda(), size, build_allocator())
                memory.host_bytes = size
        except (HostPoolError, InputError, OSError, RuntimeError) as error:
            without = "saved tensors go to the host by copies" if self.guest else "this job keeps a budget, no limit"
            self._note(f"{without}, without a pool: {error}")

    def _too_large(self) -> str:
        use = self.reports.last_use
        device, host = use.peak_bytes / 2**30, use.spilled_bytes / 2**30
        return (
            f"this job needs more GPU memory than it can have: its last step used {device:.2f} GiB on the device and "
            f"{host:.2f} GiB on the host; use a smaller batch, or a GPU with more memory"
        )


def _build_ahead() -> None:
    with contextlib.suppress(HostPoolError, OSError, RuntimeError):  # raised again where the pool is made
        build_allocator()
