"""How far an adaptive job is: in iterations at its initial batch, which count the same whatever the batch was."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plait.core.errors import InputError

#: Passes over the data in a row without a step after which a loop of epochs ends: a loss scale halves in each.
MOST_IDLE = 50


class Progress:
    """Scale-invariant iterations: each optimizer step adds what it is worth in steps at the initial batch.

    An epoch of progress is as many of them as the data set has initial batches (Pollux, section 3.1: an epoch at a
    larger batch is worth less, in the measure of its statistical efficiency).
    """

    def __init__(self, size: int, batch_size: int) -> None:
        """Of a job over `size` samples with initial batch `batch_size`."""
        self.an_epoch = -(-size // batch_size)
        self.iterations = 0.0
        self.tried = 0  # steps that were made, or left out by a gradient scaler
        self._due = 0.0  # what the step in hand is worth once it is made
        self.target: float | None = None  # where `remaining_epochs` ends

    @property
    def epochs(self) -> float:
        """Epochs of progress so far."""
        return self.iterations / self.an_epoch

    @property
    def reached(self) -> bool:
        """Whether there is a target and it is reached; what floating point leaves of an iteration is not made up."""
        return self.target is not None and self.iterations >= self.target - 1e-6 * max(self.target, 1.0)

    def begin_step(self, worth: float) -> None:
        """The gradients of a step come, which is worth so many iterations; those of steps that nobody tried add up."""
        self._due += worth

    def made(self) -> None:
        """The optimizer makes the step: a checkpoint from here on has it."""
        self.iterations += self._due
        self.tried += 1
        self._due = 0.0

    def left_out(self) -> None:
        """It was not made, as its gradients were not finite, and will not be."""
        self.tried += 1
        self._due = 0.0

    def abandon(self) -> None:
        """Its pass over the data was left."""
        self._due = 0.0

    def aim(self, epochs: float) -> None:
        """End after that many epochs since the beginning of the job."""
        self.target = epochs * self.an_epoch

    def state_dict(self) -> dict[str, Any]:
        """The progress, for a checkpoint."""
        return {"iterations": self.iterations}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from the progress of a checkpoint."""
        self.iterations = float(state["iterations"])


class Watch:
    """Sees to it that a loop of epochs has an end: `begin` before and `end` after each execution of its body."""

    def __init__(self, progress: Progress) -> None:
        """Of a loop that goes on until this progress has reached its target."""
        self._progress, self._idle = progress, 0
        self.begin()

    def begin(self) -> None:
        """The body of the loop begins."""
        self._iterations, self._tried = self._progress.iterations, self._progress.tried

    def end(self, *, trained: bool) -> None:
        """The body of the loop has ended, and should have `trained`; raises `InputError` if this can go on for ever."""
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
