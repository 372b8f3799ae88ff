"""Reports of finished steps through the page: of jobs that share a GPU every step, of others one a second."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from plait.core.resources import Resource
from plait.runtime.page import Page
from plait.sharing.directive import SpillReason, StepStats
from plait.training.sharing.device_memory import MemoryUse
from plait.training.sharing.memory_limit import MemoryLimit

#: A job that shares its GPU with nobody reports a step after so many seconds: what it uses says where guests fit.
ALONE_EVERY_S = 1.0
_NAMES = tuple(r.name.lower() for r in Resource)


class StepReports:
    """Of one process. `work` and `phase` are what the script says about its steps, if it does."""

    def __init__(self, page: Page, limit: MemoryLimit) -> None:
        """No step has ended."""
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
