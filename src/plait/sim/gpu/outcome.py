"""What happened on a simulated GPU."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from plait.sharing import Directive, Observation, State


@dataclass(frozen=True, slots=True)
class Mark:
    """The end of a guaranteed step: seconds it took and took on the GPU, opportunistic GPU seconds so far, share."""

    end_s: float
    step_s: float
    alone_s: float
    gpu_s: float
    others_s: float
    share: float
    spill_bytes: int


@dataclass
class Outcome:
    """What happened: the guaranteed steps; GPU seconds of each opportunistic job; what was decided.

    `shares` are (seconds, sum of opportunistic shares) at each decision that changed it.
    """

    marks: list[Mark] = field(default_factory=list)
    busy_s: dict[str, float] = field(default_factory=dict)
    shares: list[tuple[float, float]] = field(default_factory=list)
    observations: list[Observation] = field(default_factory=list)
    decisions: list[tuple[State, dict[str, Directive]]] = field(default_factory=list)
    state: State = field(default_factory=State)

    def slowdown(self, from_s: float = 0.0) -> float:
        """Mean guaranteed step that ended after `from_s` over the same steps without sharing and noise."""
        marks = [m for m in self.marks if m.end_s > from_s]
        return math.fsum(m.step_s for m in marks) / math.fsum(m.alone_s for m in marks)

    def slack_share(self, from_s: float = 0.0) -> float:
        """Opportunistic GPU time after `from_s` over the time in which the guaranteed job left the GPU, 0 to 1."""
        marks = [m for m in self.marks if m.end_s > from_s]
        first, last = marks[0], marks[-1]
        others_s = last.others_s - first.others_s
        return others_s / (last.end_s - first.end_s - math.fsum(m.gpu_s for m in marks[1:]))
