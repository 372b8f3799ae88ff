"""Jobs that adapt their batch (Pollux, OSDI'21): the limits of the batch, and one row of estimates per job.

And what such a job takes of each GPU's memory under an execution plan (`plait.goodput.execution_plans`).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cache
from typing import NamedTuple

from plait.core.codec.values import form
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


#: ZeRO stages of plans: 0 data parallel (DDP), 2 gradients and states in shards, 3 parameters too.
ZERO_STAGES = (0, 2, 3)

#: In place of a stage: any of them.
ANY = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """Between which bounds a job may choose its batch size, in examples.

    `initial` is the total batch of one optimiser step that the user tuned the learning rate for (M0 of the paper),
    `most` the largest total batch; `least_local` and `most_local` bound the examples that one GPU takes in one pass.
    `accumulation`: whether several passes may make one step. With `most` = `initial` the batch is fixed, and only the
    number of GPUs changes.

    With `parameters` > 0 the job chooses an execution plan too (`plait.goodput.execution_plans`): its model has so
    many, an example takes `example_bytes` of activations on a GPU, and `zero_stage` is its only ZeRO stage, or `ANY`.
    """

    initial: int
    most: int
    least_local: int
    most_local: int
    accumulation: bool = False
    parameters: int = field(default=0, metadata=form(omit=True))
    example_bytes: int = field(default=0, metadata=form(omit=True))
    zero_stage: int = field(default=ANY, metadata=form(omit=True))

    def __post_init__(self) -> None:
        if self.parameters < 0 or self.example_bytes < 0 or self.zero_stage not in (ANY, *ZERO_STAGES):
            raise InputError(
                f"plan of {self.parameters} parameters, {self.example_bytes} bytes an example, zero_stage "
                f"{self.zero_stage}: needs numbers >= 0, and a stage of {', '.join(map(str, ZERO_STAGES))}, or none"
            )
        check_bounds(self.initial, self.most, self.least_local, self.most_local, self.accumulation, names=BoundNames())

    @property
    def most_gpus(self) -> int:
        """The most GPUs for which the largest batch has a smallest pass each."""
        return self.most // self.least_local


#: Bytes of a parameter, of its gradient, and of all its states, the weight in single precision included.
PARAMETER, GRADIENT, STATE = 2, 2, 2 + 2 + 12

#: Bytes a parameter that every GPU holds, by stage; the rest of `STATE` is in shards.
WHOLE = {0: STATE, 2: PARAMETER, 3: 0}

#: Plans that are compared: a stage, and whether it may accumulate, which takes memory. Equals go to the earlier one.
PLANS = ((0, True), (2, False), (2, True), (3, False), (3, True))


def bytes_a_parameter(stage: int, accumulates: bool) -> tuple[int, int]:
    """Bytes a parameter that each GPU holds whole, and that all GPUs hold in shards (ZeRO, section 5)."""
    whole = WHOLE[stage] + (GRADIENT if accumulates and stage else 0)
    return whole, STATE - whole


def state_bytes(parameters: float, stage: int, gpus: int, accumulates: bool) -> float:
    """Bytes of parameters, gradients and optimizer states on each of `gpus` GPUs."""
    whole, in_shards = bytes_a_parameter(stage, accumulates)
    return parameters * (whole + in_shards / gpus)


def needed_bytes(limits: BatchLimits, gpus: int) -> float:
    """Minimum bytes of each of `gpus` GPUs under any plan of a job; infinite if its batch does not allow the size."""
    if gpus > limits.most_gpus:
        return math.inf
    whole = max(-(-limits.initial // gpus), limits.least_local)
    pieces = gpus * -(-limits.initial // (gpus * limits.least_local))
    if pieces * (limits.least_local - 1) < limits.most:
        part = limits.least_local
    else:  # the total would be too large by more than rounding up: a pass less
        part = -(-limits.initial // (pieces - gpus))
    needed = [math.inf]
    for stage, accumulates in PLANS:
        local = part if accumulates and limits.accumulation else whole
        if limits.zero_stage in (ANY, stage) and local <= limits.most_local:
            states = state_bytes(limits.parameters, stage, gpus, accumulates and limits.accumulation)
            needed.append(states + local * limits.example_bytes)
    return min(needed)


@cache
def fewest_gpus(limits: BatchLimits, memory_bytes: float) -> int | None:
    """The fewest GPUs of `memory_bytes` on which a plan of the job fits; None if it fits on no number of them."""
    if not limits.parameters:
        return 1
    # More GPUs never need more of each, and a batch in tokens allows millions of them.
    sizes = range(1, limits.most_gpus + 1)
    at = bisect_left(sizes, True, key=lambda gpus: needed_bytes(limits, gpus) <= memory_bytes)
    return sizes[at] if at < len(sizes) else None


def shortage(limits: BatchLimits, gpus: int, memory_bytes: float) -> str | None:
    """Why no plan fits on `gpus` GPUs of `memory_bytes`, and what would; None if one does."""
    needed = needed_bytes(limits, gpus) if limits.parameters else 0.0
    if needed <= memory_bytes:
        return None
    if needed == math.inf:
        local = f"{limits.least_local} to {limits.most_local} examples on each"
        return f"no plan divides a batch of {limits.initial} to {limits.most} over {gpus} GPUs with {local}"
    fewest = fewest_gpus(limits, memory_bytes)
    more = "no number of them does" if fewest is None else f"{fewest} of them do"
    return (
        f"{limits.parameters:,} parameters need {needed:,.0f} bytes on each of {gpus} GPUs under the plan that takes "
        f"the minimum; they have {memory_bytes:,.0f} ({more}, or GPUs of {needed / 1e9:.3g} GB)"
    )


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
