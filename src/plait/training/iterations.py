"""What counts as one iteration of a job, and between which two steps of which loop the job may act on it.

An iteration is a step of a torch optimizer; in a process where none steps it is a step of one of the job's loops. Loops
know better moments to act than the optimizer, and `job.steps` better ones than those inside it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from typing import Any

from plait.training.device.gpu_stage import GpuStage

#: Steps of a loop, and their seconds, after which a registered optimizer that never stepped is waited for no longer.
WAIT_LOOP_STEPS, WAIT_S = 100, 20.0


def saved_loop_step(about: Mapping[str, Any], step: int) -> int:
    """The step at which `job.steps` resumes, of what a checkpoint says about its job; `step` if it says nothing.

    Version 0.2.0 wrote it as `turn`.
    """
    return int(about.get("loop_step", about.get("turn", step)))


class Iterations:
    """Counts the iterations of this process. `compute` knows whether a torch optimizer steps in it."""

    def __init__(self, compute: GpuStage) -> None:
        """None has been done, and no loop runs."""
        self._compute = compute
        self.counted = 0  # in this process
        self.had_loop = False  # whether a loop of the job has begun
        self.manual = False  # the script or a trainer counts
        self.pending = False  # the job has not acted on the last iteration
        self.loop_step, self.loop_step_counted = 0, False  # of `job.steps`; whether an iteration ended in it
        self._loops: list[str] = []  # that are running, the innermost last
        self._idle_loop_steps, self._idle_since_s = 0, 0.0  # steps of a loop without a step of an optimizer

    @contextlib.contextmanager
    def in_loop(self, loop: str) -> Iterator[None]:
        """While a loop of the job runs: `steps`, `epochs` or `loader`."""
        self._loops.append(loop)
        self.had_loop = True
        try:
            yield
        finally:
            self._loops.remove(loop)

    @property
    def looping(self) -> bool:
        """Whether a loop of the job is running."""
        return bool(self._loops)

    def inside(self, loop: str) -> bool:
        """Whether this loop is running."""
        return loop in self._loops

    @property
    def loop_steps_done(self) -> int:
        """Steps of `job.steps` that a checkpoint made now would not repeat."""
        return self.loop_step + self.loop_step_counted

    @property
    def saves_at_loop_end(self) -> bool:
        """Whether the script is in the middle of a loop step that is an iteration: only its end can be saved."""
        return self.looping and not self.loop_step_counted and self.loop_steps_count()

    def begin_loop_step(self, number: int) -> None:
        """`job.steps` is at this step."""
        self.loop_step, self.loop_step_counted = number, False

    def count(self) -> None:
        """Note that an iteration has ended."""
        self.counted += 1
        self.loop_step_counted = True

    def end_loop_step(self) -> bool:
        """A step of a loop is over in which no optimizer has stepped; returns whether it is an iteration."""
        self._idle_loop_steps += 1
        self._idle_since_s = self._idle_since_s or time.monotonic()
        return self.loop_steps_count()

    def loop_steps_count(self) -> bool:
        """Whether the steps of loops are the iterations: where no torch optimizer steps.

        One that is registered may need several steps of a loop for its first step, but not for ever.
        """
        if self.manual:
            return False
        if self._compute.optimizer_stepped or not self._compute.optimizer_known:
            return not self._compute.optimizer_stepped
        return self._idle_loop_steps > WAIT_LOOP_STEPS and time.monotonic() - self._idle_since_s > WAIT_S

    def take_pending(self, loop: str) -> bool:
        """Whether the job may act on its last iteration between two steps of `loop`; then it is no longer pending."""
        best = loop == "steps" or not self.inside("steps")
        taken = self.pending and best
        self.pending = self.pending and not best
        return taken
