"""What happened on a simulated GPU."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from plait.sharing import Directive, Observation, State

#: Windows of a minute begin so many seconds apart.
WINDOW_S, APART_S = 60.0, 10.0


@dataclass(frozen=True, slots=True)
class Mark:
    """The end of a guaranteed step: seconds it took and took on the GPU, opportunistic GPU seconds so far, share.

    `alone_s`: the same step without others; `latency_s`: of a request, from its arrival.
    """

    end_s: float
    step_s: float
    alone_s: float
    gpu_s: float
    others_s: float
    share: float
    spill_bytes: int
    latency_s: float = 0.0


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

    def slowdown(self, from_s: float = 0.0, until_s: float = math.inf) -> float:
        """Mean guaranteed step that ended between these times over the same steps without sharing; 1 without any."""
        marks = [m for m in self.marks if from_s < m.end_s <= until_s]
        return math.fsum(m.step_s for m in marks) / math.fsum(m.alone_s for m in marks) if marks else 1.0

    def worst_minute(self) -> float:
        """The largest slowdown of a minute; of all of it if it is shorter."""
        if not self.marks or self.marks[-1].end_s < WINDOW_S:
            return self.slowdown()
        slots: dict[int, list[float]] = {}
        for mark in self.marks:
            slot = slots.setdefault(int(mark.end_s // APART_S), [0.0, 0.0])
            slot[0], slot[1] = slot[0] + mark.step_s, slot[1] + mark.alone_s
        worst, width = 1.0, int(WINDOW_S / APART_S)
        for first in range(int(self.marks[-1].end_s // APART_S) - width + 1):
            window = [slots.get(slot, (0.0, 0.0)) for slot in range(first, first + width)]
            alone_s = sum(one[1] for one in window)
            if alone_s > 0.0:
                worst = max(worst, sum(one[0] for one in window) / alone_s)
        return worst

    def latency_s(self, part: float = 0.99) -> float:
        """The latency that this part of requests does not exceed, in seconds."""
        ranked = sorted(mark.latency_s for mark in self.marks)
        return ranked[min(int(part * len(ranked)), len(ranked) - 1)]

    def slack_share(self, from_s: float = 0.0) -> float:
        """Opportunistic GPU time after `from_s` over the time in which the guaranteed job left the GPU, 0 to 1."""
        marks = [m for m in self.marks if m.end_s > from_s]
        first, last = marks[0], marks[-1]
        others_s = last.others_s - first.others_s
        return others_s / (last.end_s - first.end_s - math.fsum(m.gpu_s for m in marks[1:]))
