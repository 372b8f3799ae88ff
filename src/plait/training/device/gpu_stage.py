"""Mark the GPU stage of scripts that do not mark it: from a batch of the loader to the last optimizer's step.

A measured step costs about half a millisecond of a loop that computes (its code and data are no longer in the caches of
the core). So while nothing depends on every single step, one step in `GLANCE_S` is measured and stands for those that
were only counted: short steps pay for about one part in a hundred of it.
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
GLANCE_S = 0.05
STOP, PAUSE, CONTROL = Page.stop.index, Page.pause.index, Page.control_version.index
_GPU = Resource.GPU + 1


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
            self._marking, self.shown = True, _GPU
            self._counting = self._first = weakref.ref(optimizer)
            sizes = [p.numel() * p.element_size() for group in optimizer.param_groups for p in group["params"]]
            self._page.skew = skew(sizes)
        self._known.add(optimizer)
        if self._sleeps:
            self._wake_before(optimizer)

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
        return bool(ints[STOP] or ints[PAUSE] or ints[CONTROL] != self.version)

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
