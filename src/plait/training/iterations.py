"""Count the iterations of a job, and decide between which two steps of which loop the job may save or stop.

An iteration is a step of a torch optimizer; in a process where none steps, it is a step of one of the job's loops.
The job acts between two steps of a loop rather than in the optimizer's step, and in `job.steps` rather than in loops
inside it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from typing import Any

from plait.training.stages import GpuStage

#: After so many steps of a loop and so many seconds without a step of an optimizer, optimizers count no more.
WAIT_LOOP_STEPS, WAIT_S = 100, 20.0


def saved_loop_step(about: Mapping[str, Any], step: int) -> int:
    """The step at which `job.steps` resumes, from `about` in a checkpoint; `step` if it is not stated.

    Version 0.2.0 wrote it as `turn`.
    """
    return int(about.get("loop_step", about.get("turn", step)))


class Iterations:
    """Counts the iterations of this process. `compute` knows whether a torch optimizer steps in it."""

    def __init__(self, compute: GpuStage) -> None:
        self._compute = compute
        self.counted = 0  # in this process
        self.had_loop = False  # whether a loop of the job has begun
        self.manual = False  # the script or a trainer counts by itself
        self.pending = False  # the job has not acted on the last iteration
        self.loop_step, self.loop_step_counted = 0, False  # of `job.steps`; whether an iteration ended in it
        self.stepped = False  # whether any optimizer has stepped since the last iteration
        self.in_steps = False  # inside `job.steps`
        self.loops: list[str] = []  # that are running, the innermost last
        self._idle_loop_steps, self._idle_since_s = 0, 0.0  # steps of a loop without a step of an optimizer
        self._most_idle = 0  # between two steps of optimizers

    @contextlib.contextmanager
    def in_loop(self, loop: str) -> Iterator[None]:
        """Context in which the loop `loop` runs: `steps`, `epochs` or `loader`."""
        self.loops.append(loop)
        self.had_loop = True
        self.in_steps = "steps" in self.loops
        try:
            yield
        finally:
            self.loops.remove(loop)
            self.in_steps = "steps" in self.loops

    @property
    def looping(self) -> bool:
        return bool(self.loops)

    @property
    def innermost(self) -> str:
        """The loop of the job whose body runs; "" outside all of them."""
        return self.loops[-1] if self.loops else ""

    def inside(self, loop: str) -> int:
        return self.loops.count(loop)

    @property
    def loop_steps_done(self) -> int:
        """Steps of `job.steps` that a checkpoint made now would not repeat."""
        return self.loop_step + self.loop_step_counted

    @property
    def saves_at_loop_end(self) -> bool:
        """True inside a loop step; a checkpoint is possible only at its end."""
        begun = self.loop_steps_count() or (self.stepped and self.in_steps)
        return self.looping and not self.loop_step_counted and begun

    def begin_loop_step(self, number: int) -> None:
        """Note that `job.steps` begins this step."""
        self.loop_step, self.loop_step_counted, self.stepped = number, False, False

    def count(self) -> None:
        self.counted += 1
        self.loop_step_counted, self.stepped = True, False

    def optimizer_stepped(self) -> None:
        """Note that an optimizer has stepped, one that counts or another."""
        self.stepped = True
        self._most_idle = max(self._most_idle, self._idle_loop_steps)
        self._idle_loop_steps, self._idle_since_s = 0, 0.0

    def end_loop_step(self) -> bool:
        """End a step of a loop in which no iteration ended; returns whether it counts as one."""
        self._idle_loop_steps += 1
        self._idle_since_s = self._idle_since_s or time.monotonic()
        return self.loop_steps_count()

    def loop_steps_count(self) -> bool:
        """True if steps of loops are the iterations, because no torch optimizer steps.

        An optimizer may need several steps of a loop before its next step, up to a limit.
        """
        if self.manual:
            return False
        if not self._compute.optimizer_stepped and not self._compute.optimizer_known:
            return True
        most = max(WAIT_LOOP_STEPS, 2 * self._most_idle)
        return self._idle_loop_steps > most and time.monotonic() - self._idle_since_s > WAIT_S

    def take_pending(self, loop: str) -> bool:
        """True if the job may act on its last iteration between two steps of `loop`; clears the pending iteration."""
        best = loop == "steps" or not self.in_steps
        taken = self.pending and best
        self.pending = self.pending and not best
        return taken
