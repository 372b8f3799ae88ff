"""How far an adaptive job is: in iterations at its initial batch, which count the same whatever the batch was."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Progress:
    """Scale-invariant iterations: each optimizer step adds what it is worth in steps at the initial batch.

    An epoch of progress is as many of them as the data set has initial batches (Pollux, section 3.1: an epoch at a
    larger batch is worth less, in the measure of its statistical efficiency).
    """

    def __init__(self, size: int, batch_size: int) -> None:
        """Of a job over `size` samples with initial batch `batch_size`."""
        self.an_epoch = -(-size // batch_size)
        self.iterations = 0.0
        self.target: float | None = None  # where `remaining_epochs` ends

    @property
    def epochs(self) -> float:
        """Epochs of progress so far."""
        return self.iterations / self.an_epoch

    @property
    def reached(self) -> bool:
        """Whether there is a target and it is reached; what floating point leaves of an iteration is not made up."""
        return self.target is not None and self.iterations >= self.target - 1e-6 * max(self.target, 1.0)

    def aim(self, epochs: float) -> None:
        """End after that many epochs since the beginning of the job."""
        self.target = epochs * self.an_epoch

    def state_dict(self) -> dict[str, Any]:
        """A number."""
        return {"iterations": self.iterations}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put it back."""
        self.iterations = float(state["iterations"])
