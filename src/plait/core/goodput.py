"""Jobs that adapt their batch (Pollux, OSDI'21): the limits of the batch, and one row of estimates per job."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from plait.core.errors import InputError

#: Limit of the magnitude of a term of a sum over jobs: a million of them have a finite sum.
MOST_TERM = 1e290
#: The largest exponent, either way: goodputs that differ by a million to this power are numbers that sums can hold.
MOST_POWER = math.floor(math.log(MOST_TERM) / math.log(1e6))


class BoundNames(NamedTuple):
    """The names of the bounds for error messages: of arguments, options, or fields of a file."""

    initial: str = "initial"
    most: str = "most"
    least_local: str = "least_local"
    most_local: str = "most_local"
    accumulation: str = "accumulation"


def check_bounds(
    initial: int, most: int, least_local: int, most_local: int, accumulation: bool, names: BoundNames
) -> None:
    """Raise `InputError` for bounds between which there is nothing to choose, in the words of `names`.

    The bounds are fields of `BatchLimits`.
    """
    if not 1 <= initial <= most:
        raise InputError(f"batch size {initial} to {most}: needs 1 <= {names.initial} <= {names.most}, in examples")
    if not 1 <= least_local <= most_local:
        raise InputError(
            f"batch of one GPU {least_local} to {most_local}: needs 1 <= {names.least_local} <= {names.most_local}, "
            "in examples"
        )
    if initial < least_local:
        raise InputError(
            f"batch size {initial} is less than one GPU has to take, {least_local}; "
            f"give a smaller {names.least_local} or a larger {names.initial}"
        )
    if initial > most_local and not accumulation:
        raise InputError(
            f"batch size {initial} is more than one GPU may take, {most_local}; "
            f"allow {names.accumulation}, or give a larger {names.most_local} or a smaller {names.initial}"
        )
    passes = -(-initial // most_local)
    if passes * (least_local - 1) >= most:  # ignore what rounding adds to `most`
        raise InputError(
            f"batch size {initial} to {most} takes {passes} passes of {least_local} to {most_local} examples, at least "
            f"{passes * least_local}; give {names.most} {passes * least_local}, {names.least_local} "
            f"{(most - 1) // passes + 1} or {names.most_local} {initial}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """Between which bounds a job may choose its batch size, in examples.

    `initial` is the total batch of one optimiser step that the user tuned the learning rate for (M0 of the paper),
    `most` the largest total batch; `least_local` and `most_local` bound the examples that one GPU takes in one pass.
    `accumulation`: whether several passes may make one step. With `most` = `initial` the batch is fixed, and only the
    number of GPUs changes.
    """

    initial: int
    most: int
    least_local: int
    most_local: int
    accumulation: bool = False

    def __post_init__(self) -> None:
        check_bounds(self.initial, self.most, self.least_local, self.most_local, self.accumulation, names=BoundNames())

    @property
    def most_gpus(self) -> int:
        """The most GPUs for which the largest batch has a smallest pass each."""
        return self.most // self.least_local


class Estimate(IntEnum):
    """Columns of `JobTable.goodput`: what the job itself has fitted and measured.

    ALPHA_C to GAMMA are the seven parameters of its throughput (Pollux, section 3.2; seconds, seconds an example or
    GPU), SQR and VAR the squared norm of its gradient and the variance at its initial batch, PROFILED_GPUS the most
    GPUs it has measured itself on, RESTART_S seconds that a restart has cost it. NaN: not known yet.
    """

    ALPHA_C = 0
    BETA_C = 1
    ALPHA_N = 2
    BETA_N = 3
    ALPHA_R = 4
    BETA_R = 5
    GAMMA = 6
    SQR = 7
    VAR = 8
    PROFILED_GPUS = 9
    RESTART_S = 10


#: How many of an estimate's columns are parameters of the throughput, from the first on.
THETA = 7

#: Seconds that a parameter of the throughput may be, and gamma, and a squared norm or a variance at most: others are
#: no estimates. Far beyond what is measured, and within what sums and products of them can hold.
LEAST_S, MOST_S, MOST_GAMMA, MOST_NOISE = 1e-8, 1e6, 10.0, 1e30
