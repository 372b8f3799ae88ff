"""The resources of a training iteration, and how long each stage keeps its resource busy."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum

from plait.core.errors import InputError

#: Kind of nodes whose "GPUs" are slots of CPU for jobs without GPUs.
CPU_KIND = "cpu"


class Resource(IntEnum):
    """Resource of a stage of an iteration; the order of the members is the order of the stages."""

    STORAGE = 0
    CPU = 1
    GPU = 2
    NETWORK = 3


@dataclass(frozen=True, slots=True)
class StageProfile:
    """Seconds that one iteration keeps each resource busy when the job runs alone (Muri, section 3).

    `stage_s[r]` is the time on resource `r`; `iteration_s` is the whole iteration, which may be less than
    the sum (stages of the same job overlap) or more (idle gaps).

    >>> StageProfile.of(cpu=0.2, gpu=0.6).iteration_s
    0.8
    """

    stage_s: tuple[float, ...]
    iteration_s: float

    def __post_init__(self) -> None:
        if len(self.stage_s) != len(Resource):
            raise InputError(f"a profile needs {len(Resource)} stage times, got {len(self.stage_s)}")
        if any(not math.isfinite(t) or t < 0 for t in self.stage_s) or sum(self.stage_s) <= 0:
            raise InputError(f"stage times must be finite, >= 0 and not all 0 seconds, got {list(self.stage_s)}")
        if not (math.isfinite(self.iteration_s) and self.iteration_s > 0):
            raise InputError(f"iteration_s must be a positive number of seconds, got {self.iteration_s}")

    @classmethod
    def of(
        cls,
        *,
        storage: float = 0.0,
        cpu: float = 0.0,
        gpu: float = 0.0,
        network: float = 0.0,
        iteration_s: float | None = None,
    ) -> StageProfile:
        """A profile by resource name, in seconds; without `iteration_s` the stages do not overlap."""
        stages = (storage, cpu, gpu, network)
        return cls(stages, sum(stages) if iteration_s is None else iteration_s)

    @classmethod
    def from_sequence(cls, stage_s: Sequence[float], iteration_s: float) -> StageProfile:
        """A profile from any sequence of stage seconds in `Resource` order."""
        return cls(tuple(float(t) for t in stage_s), float(iteration_s))


def skew(sizes: Iterable[float]) -> float:
    """Tensor-size skew: the largest tensor's part of all (Tiresias, section 3.4); NaN without tensors.

    >>> skew([100, 300])
    0.75
    """
    known = [size for size in sizes if size > 0]
    return max(known) / sum(known) if known else math.nan
