"""Mark the GPU stage of scripts that do not mark it: from a batch of the loader to the last optimizer's step.

Marks cost about 15 microseconds. While `glance_until` is in the future, one stage in `GLANCE_S` is measured and counts
for those that were not.
"""

from __future__ import annotations

import threading
import time
import weakref
from typing import Any

from plait.core.resources import Resource, skew
from plait.runtime.page import Page
from plait.training.stages import Stages

#: Steps of other optimizers, at least, after which the one that counts is taken for finished.
FINISHED_AFTER = 8
#: Of steps shorter than this many seconds, some are only counted: what belongs to the others is done once in this time.
GLANCE_S = 0.02


class GpuStage:
    """Marks the GPU stage, and knows which optimizer's steps are the iterations of the job."""

    def __init__(self, stages: Stages, page: Page) -> None:
        """No optimizer is known yet, so nothing is marked."""
        self.thread = 0  # the thread that opened the stage
        self._stages, self._page = stages, page
        self._marking = False
        self._counting: weakref.ref[Any] | None = None
        self._first: weakref.ref[Any] | None = None  # that was registered; it counts whenever it steps
        self._between, self._longest = 0, 0  # steps of others since the one that counts has stepped, and at most
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()
        self.optimizer_known = self.optimizer_stepped = False  # of torch, whose steps are seen
        self.stepped_lately: set[Any] = set()  # since the last boundary
        self.glance_until = 0.0  # by CLOCK_MONOTONIC
        self.measured = True  # whether a stage was since the last iteration that was not only counted
        self._measure_s = 0.0  # when the next stage is measured
        self._glancing, self._glanced = False, 0  # at the present stage; stages that were not measured
        self._stepped: set[int] = set()  # ids of known optimizers that have stepped since the batch began

    def know(self, optimizer: Any) -> None:
        """Mark the stage from now on; the steps of the first known optimizer count."""
        inner = getattr(optimizer, "optimizer", None)  # Accelerate's, around torch's
        optimizer = inner if hasattr(inner, "param_groups") else optimizer
        if optimizer in self._known:
            return
        self.optimizer_known |= hasattr(optimizer, "register_step_post_hook")
        if not self._known:
            self._marking = True
            self._counting = self._first = weakref.ref(optimizer)
            sizes = [p.numel() * p.element_size() for group in optimizer.param_groups for p in group["params"]]
            self._page.skew = skew(sizes)
        self._known.add(optimizer)
        if hasattr(optimizer, "register_step_pre_hook"):
            optimizer.register_step_pre_hook(self._step_begins)

    def leave_to_script(self) -> None:
        """Stop marking: the script marks the stage itself."""
        if self._marking:
            self._leave()
            self._marking = False

    def begin(self) -> None:
        """Begin the stage: a loader hands out a batch."""
        if self._marking and not self._stages.is_open(Resource.GPU):
            self.thread = threading.get_ident()
            self._stepped.clear()
            now_s = time.monotonic()
            self._glancing = now_s < self.glance_until and now_s < self._measure_s
            if self._glancing:
                self._glanced += 1
                self._stages.show(Resource.GPU)
            else:
                weight, self._glanced, self.measured = self._glanced + 1, 0, True
                self._measure_s = now_s + GLANCE_S
                self._stages.enter(Resource.GPU, weight=weight)

    def end(self) -> None:
        """End the stage: the script requests the next batch, or leaves its loop."""
        if self._marking:
            self._leave()

    def _leave(self) -> None:
        if self._glancing:
            self._glancing = False
            self._stages.hide()
        else:
            self._stages.leave(Resource.GPU)

    def usual(self, optimizer: Any) -> bool:
        """True if `optimizer` is the only one that is known, so that each step of it ends an iteration."""
        return len(self._known) == 1 and self._counting is not None and self._counting() is optimizer

    def glances(self, now_s: float) -> bool:
        """True if an iteration that ends now is only counted."""
        return now_s < self.glance_until and not self.measured

    def glance(self, optimizer: Any) -> None:
        """Note a step of the `usual` optimizer, whose stage is not measured."""
        self.stepped_lately.add(optimizer)
        self._glancing = False
        self._page.in_stage = 0

    def stepped(self, optimizer: Any, *, hands_over: bool = True) -> bool:
        """Note a step of `optimizer`; returns whether an iteration ends. Several optimizers make one together.

        The first registered optimizer counts, else the first that steps. If it no longer steps (Adam, followed by
        L-BFGS; a warm-up), the next one counts: after twice as many steps of others as were ever between two of its
        own. `hands_over`: False where a loop counts the steps of all.
        """
        self.optimizer_stepped = True
        self.stepped_lately.add(optimizer)
        counting = self._counting() if self._counting is not None else None
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
                self._leave()
            else:  # perhaps the last step of this iteration, so the stage may be over
                self._page.stage_since = 0.0
        return optimizer is counting

    def _step_begins(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Enter the GPU stage again, which was left while the last gradients were sent (with tokens)."""
        if self._glancing:
            return
        stages = self._stages
        if self._marking and stages.gate.kind == "tokens" and not stages.has(Resource.GPU):
            stages.leave(Resource.GPU)
            stages.enter(Resource.GPU)
        stages.wake(Resource.GPU)
