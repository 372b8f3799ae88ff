"""Progress of an adaptive job, in iterations at its initial batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plait.core.errors import InputError

#: A loop of epochs fails after so many passes over the data without a step; a loss scale halves in each.
MOST_IDLE = 50


class Progress:
    """Scale-invariant iterations: each optimizer step adds its progress in steps at the initial batch.

    An epoch of progress is as many iterations as the data set has initial batches. A pass over the data at a larger
    batch makes less progress, by its statistical efficiency (Pollux, section 3.1).
    """

    def __init__(self, size: int, batch_size: int) -> None:
        """Start at zero, for `size` samples and the initial batch `batch_size`."""
        self.an_epoch = -(-size // batch_size)
        self.iterations = 0.0
        self.tried = 0  # steps that were made, or skipped by a gradient scaler
        self._due = 0.0  # progress of the current step, added once it is made
        self.target: float | None = None  # at which `remaining_epochs` ends

    @property
    def epochs(self) -> float:
        """Epochs of progress so far."""
        return self.iterations / self.an_epoch

    @property
    def reached(self) -> bool:
        """True if there is a target and it is reached, up to rounding error."""
        return self.target is not None and self.iterations >= self.target - 1e-6 * max(self.target, 1.0)

    def begin_step(self, worth: float) -> None:
        """Begin a step of `worth` iterations of progress; steps without an optimizer step add up."""
        self._due += worth

    def made(self) -> None:
        """Count the step that the optimizer makes now."""
        self.iterations += self._due
        self.tried += 1
        self._due = 0.0

    def left_out(self) -> None:
        """Drop a step that was skipped because its gradients were not finite."""
        self.tried += 1
        self._due = 0.0

    def abandon(self) -> None:
        """Drop the current step: its pass over the data was left."""
        self._due = 0.0

    def aim(self, epochs: float) -> None:
        """Set the target to `epochs` epochs since the beginning of the job."""
        self.target = epochs * self.an_epoch

    def state_dict(self) -> dict[str, Any]:
        """The progress, for a checkpoint."""
        return {"iterations": self.iterations}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the progress of a checkpoint."""
        self.iterations = float(state["iterations"])


class Watch:
    """Detects a loop of epochs that would never end: call `begin` before and `end` after each pass."""

    def __init__(self, progress: Progress) -> None:
        """Watch a loop that runs until `progress` reaches its target."""
        self._progress, self._idle = progress, 0
        self.begin()

    def begin(self) -> None:
        """Note that the body of the loop begins."""
        self._iterations, self._tried = self._progress.iterations, self._progress.tried

    def end(self, *, trained: bool) -> None:
        """Note its end. `trained`: it should have made a step. Raises `InputError` if the loop would never end."""
        if trained and self._progress.tried == self._tried:
            raise InputError(
                "remaining_epochs: no optimizer step was made in this pass, so there is no end; "
                "iterate over the loader inside the loop, and call optimizer.step() for each batch"
            )
        self._idle = self._idle + 1 if self._progress.iterations == self._iterations else 0
        if self._idle == MOST_IDLE:
            raise InputError(
                f"remaining_epochs: no step of {MOST_IDLE} passes over the data was progress (a gradient scaler has "
                f"left out every step of {MOST_IDLE} passes, or the loss is NaN): gradients were not finite; look for "
                "the first loss that is not"
            )
