"""Jobs of the artifact's world between two events, and the columns that a rule may change."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from plait.core.arrays import BoolArray, FloatArray, IntArray
from plait.reproduce.muri.artifact.speeds import SLOTS
from plait.reproduce.muri.artifact.trace import ArtifactTrace


@dataclass(eq=False)
class State:
    """Columns over all jobs of the trace, and `listed`, the jobs submitted and not ended, in their present order.

    `last_s` is when progress was last counted, `remaining` is in iterations, `attained_s` is wall time run with
    overheads. A rule writes `listed`, `running`, `where` (nodes as bits), `current_s` (seconds of an iteration
    from now on), `charge_s` (overhead) and `mates` (jobs of its group, ascending, -1 beyond).
    """

    trace: ArtifactTrace
    now_s: float
    listed: IntArray
    remaining: FloatArray
    attained_s: FloatArray
    last_s: FloatArray
    running: BoolArray
    has_run: BoolArray
    where: IntArray
    current_s: FloatArray
    charge_s: FloatArray
    mates: IntArray

    @classmethod
    def before(cls, trace: ArtifactTrace) -> State:
        """No job has been submitted."""
        n = len(trace)
        return cls(
            trace=trace,
            now_s=0.0,
            listed=np.zeros(0, dtype=np.int64),
            remaining=trace.iterations.copy(),
            attained_s=np.zeros(n),
            last_s=trace.submit_s.copy(),
            running=np.zeros(n, dtype=np.bool_),
            has_run=np.zeros(n, dtype=np.bool_),
            where=np.zeros(n, dtype=np.int64),
            current_s=trace.iteration_s.copy(),
            charge_s=trace.overhead_s,
            mates=np.full((n, SLOTS), -1, dtype=np.int64),
        )


class Rule(ABC):
    """A policy of the artifact with the tolerances of its event loop.

    Completions whose times differ by a part `bucket` are one event; so are completions within `near_s`. An arrival and
    a completion are one event if they differ by at most a part `joint` of the later or `joint_s`.
    """

    bucket = 1e-9
    near_s = 0.0
    joint = 0.0
    joint_s = 0.0

    def due_s(self, state: State) -> float:
        """When the rule wants an event of its own; never, by default."""
        return math.inf

    def arrive(self, state: State, jobs: IntArray) -> None:  # noqa: B027 - most rules have nothing to do
        """Jobs have been submitted and are on the list."""

    def leave(self, state: State, jobs: IntArray) -> None:  # noqa: B027 - most rules have nothing to do
        """Jobs have ended and left the list; `running` still marks them as running."""

    def advanced(self, state: State) -> None:  # noqa: B027 - most rules have nothing to do
        """Progress has been counted up to now, before the decision."""

    @abstractmethod
    def decide(self, state: State) -> None:
        """Decide which jobs run from now on, where and how fast."""
