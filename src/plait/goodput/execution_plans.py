"""Execution plans: how a job divides its model and batch over its GPUs (ours; after Rubick, arXiv 2408.08586).

A plan of K GPUs is a ZeRO stage, a local batch m and s accumulation-only passes. For P parameters in half precision
under Adam (2 bytes a parameter, 2 a gradient, 12 of states), with what FSDP2 exchanges:

    stage                               bytes on a GPU      exchanged, in P, by the step    by a pass before it
    0  nothing in shards (DDP)          16 P                2 (all-reduce)                  0
    2  gradients and states             2 P + 14 P / K      2 (gather, reduce-scatter)      1 (gather)
    3  parameters too                   16 P / K            3 (another gather, backward)    2

(ZeRO, SC'20, arXiv 1910.02054, sections 3, 5 and 7). Gradients of passes before the step are not reduced, so with them
stages 2 and 3 hold 2 P bytes of gradients whole (`set_requires_gradient_sync(False)`). To this comes `example_bytes` of
activations for each of m examples.

T_sync of `plait.goodput.throughput` is that of 2 P, and other volumes take in proportion. So plans add no parameter to
fit, and what is measured under one predicts the others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from plait.core.arrays import FloatArray, IntArray
from plait.core.goodput import THETA, Estimate
from plait.goodput.throughput import iteration_s, step_s

Speed = Callable[
    [FloatArray, npt.ArrayLike, npt.ArrayLike, npt.ArrayLike, npt.ArrayLike],
    FloatArray,
]
"""(theta, nodes, gpus, local, passes) -> examples per second, all broadcast against each other."""

#: Volume of the synchronising pass and of one that only accumulates, relative to an all-reduce of the gradients.
STEP_VOLUME, PASS_VOLUME = {0: 1.0, 2: 1.0, 3: 1.5}, {0: 0.0, 2: 0.5, 3: 1.0}


def with_volume(theta: FloatArray, volume: float) -> FloatArray:
    """`theta` (..., 7) where synchronising exchanges `volume` times the gradients' all-reduce."""
    out = np.array(theta)
    out[..., Estimate.ALPHA_N : Estimate.GAMMA] *= volume
    out[..., THETA:] *= volume  # the pair of racks
    return out


def speed_of(stage: int, speed: Speed) -> Speed:
    """The model of throughput `speed` for plans of a ZeRO stage."""
    if stage == 0:
        return speed

    def planned(
        theta: FloatArray, nodes: npt.ArrayLike, gpus: npt.ArrayLike, local: npt.ArrayLike, passes: npt.ArrayLike
    ) -> FloatArray:
        examples = np.asarray(gpus) * np.asarray(local)
        step_s, pass_s = (
            examples / speed(with_volume(theta, volume[stage]), nodes, gpus, local, 0)
            for volume in (STEP_VOLUME, PASS_VOLUME)
        )
        rate: FloatArray = examples * (np.asarray(passes) + 1) / (step_s + np.asarray(passes) * pass_s)
        return rate

    return planned


def plan_s(
    theta: FloatArray,
    stage: int,
    nodes: npt.ArrayLike,
    gpus: npt.ArrayLike,
    local: npt.ArrayLike,
    passes: npt.ArrayLike,
) -> FloatArray:
    """Seconds of an iteration: `passes` accumulation-only passes of `local` examples a GPU, and one with the step."""
    if stage == 0:
        return iteration_s(theta, nodes, gpus, local, passes)
    last_s, pass_s = (
        step_s(with_volume(theta, volume[stage]), nodes, gpus, local) for volume in (STEP_VOLUME, PASS_VOLUME)
    )
    return last_s + np.asarray(passes) * pass_s


@dataclass(frozen=True, slots=True, eq=False)
class PlanSpace:
    """The plans that J jobs choose from, a row each."""

    parameters: IntArray
    """(J,): of the model; 0 for a job that has no plans."""
    example_bytes: IntArray
    """(J,): activations of an example on a GPU."""
    zero_stage: IntArray
    """(J,): the only stage, or `ANY`."""
    memory_bytes: FloatArray
    """(J,): memory of each GPU; infinite if not known."""

    @classmethod
    def of(cls, column: Callable[[str], Any], memory_bytes: npt.ArrayLike = np.inf) -> PlanSpace | None:
        """The columns of jobs by name; None if no job has plans."""
        parameters = np.asarray(column("parameters"))
        if not parameters.any():
            return None
        memory = np.array(np.broadcast_to(np.asarray(memory_bytes, dtype=np.float64), parameters.shape))
        return cls(parameters, np.asarray(column("example_bytes")), np.array(column("zero_stage")), memory)

    def __getitem__(self, rows: Any) -> PlanSpace:
        return PlanSpace(*(getattr(self, field.name)[rows] for field in fields(self)))
