"""How busy each GPU of a node was over the last ten seconds.

The driver reports it for GPUs. A CPU slot is as busy as the GPU stages that its processes mark; it is unknown if one of
them marks none.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from plait.live.agent.journal import Key
from plait.live.protocol.wire import GpuMean, GpuUsage

#: The window, and the least time between two samples, seconds.
WINDOW_S, SAMPLE_S = 10.0, 0.5


@dataclass(frozen=True)
class Busy:
    """A process on a GPU: seconds of marked GPU work so far, and bytes of its memory; None: unknown."""

    key: Key
    gpu: int
    busy_s: float | None
    memory_bytes: float | None = None


class GpuWindow:
    """Samples of the last ten seconds."""

    def __init__(self, gpus: int) -> None:
        """No samples yet; `gpus`: number of GPUs or slots."""
        self._gpus = gpus
        self._samples: deque[tuple[float, list[float]]] = deque()
        self._totals = [0.0] * gpus
        self._before: dict[Key, float] = {}

    def slots(self, now_s: float, processes: Iterable[Busy]) -> list[GpuMean]:
        """Mean use of each slot, from the marks of its processes; `now_s`: monotonic seconds."""
        here: list[list[Busy]] = [[] for _ in range(self._gpus)]
        for one in processes:
            if 0 <= one.gpu < self._gpus:
                here[one.gpu].append(one)
        for gpu, some in enumerate(here):
            for one in some:
                if one.busy_s is not None:
                    self._totals[gpu] += max(one.busy_s - self._before.get(one.key, one.busy_s), 0.0)
        self._before = {one.key: one.busy_s for some in here for one in some if one.busy_s is not None}
        first_s, first = self._sampled(now_s, self._totals)
        length_s = now_s - first_s
        known = [all(one.busy_s is not None for one in some) for some in here]
        memory = [[one.memory_bytes for one in some if one.memory_bytes is not None] for some in here]
        return [
            GpuMean(
                min((self._totals[gpu] - first[gpu]) / length_s, 1.0) if known[gpu] and length_s > 0 else None,
                sum(memory[gpu]) if len(memory[gpu]) == len(here[gpu]) else None,
            )
            for gpu in range(self._gpus)
        ]

    def gpus(self, now_s: float, read: Sequence[GpuUsage]) -> list[GpuMean]:
        """Mean use of each GPU, from readings of the driver; `now_s`: monotonic seconds."""
        self._sampled(now_s, [one.utilisation for one in read])
        rows = [values for _, values in self._samples if len(values) == len(read)]
        return [
            GpuMean(sum(row[gpu] for row in rows) / len(rows), one.memory_bytes) if rows else GpuMean()
            for gpu, one in enumerate(read)
        ]

    def _sampled(self, now_s: float, values: Sequence[float]) -> tuple[float, list[float]]:
        """Take a sample unless there has just been one; the oldest one of the window."""
        if not self._samples or now_s - self._samples[-1][0] >= SAMPLE_S:
            self._samples.append((now_s, list(values)))
        while len(self._samples) > 2 and now_s - self._samples[1][0] >= WINDOW_S:
            self._samples.popleft()
        return self._samples[0]
