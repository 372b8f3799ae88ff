"""How busy each GPU of a node was over the last ten seconds.

The driver reports it for GPUs. A CPU slot is as busy as the GPU stages that its processes mark; it is unknown if one of
them marks none. Processes publish marks when a step ends, so that of steps longer than the window whole steps count.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from plait.live.agent.journal import Key
from plait.live.protocol.wire import GpuMean, GpuUsage

#: The window, and the least time between two samples, seconds.
WINDOW_S, SAMPLE_S = 10.0, 0.5
#: A process that has ended no step for so many of its steps does no GPU work.
LONG_STEPS = 3.0


@dataclass(frozen=True)
class Busy:
    """A process on a GPU: seconds of marked GPU work until its last step ended at `at_s` (monotonic); None: unknown.

    `memory_bytes` of the device that it uses; None: unknown.
    """

    key: Key
    gpu: int
    busy_s: float | None
    at_s: float = 0.0
    memory_bytes: float | None = None


class GpuWindow:
    """Samples of the last ten seconds."""

    def __init__(self, gpus: int) -> None:
        """No samples yet; `gpus`: number of GPUs or slots."""
        self._gpus = gpus
        self._samples: deque[tuple[float, list[float]]] = deque()
        #: Ends of steps that were seen, and the seconds marked until then.
        self._steps: dict[Key, deque[tuple[float, float]]] = {}

    def slots(self, now_s: float, processes: Iterable[Busy]) -> list[GpuMean]:
        """Mean use of each slot, from the marks of its processes; `now_s`: monotonic seconds."""
        here: list[list[Busy]] = [[] for _ in range(self._gpus)]
        for one in processes:
            if 0 <= one.gpu < self._gpus:
                here[one.gpu].append(one)
        keys = {one.key for some in here for one in some}
        self._steps = {key: steps for key, steps in self._steps.items() if key in keys}
        return [GpuMean(_sum([self._share(now_s, one) for one in some]), _memory(some)) for some in here]

    def _share(self, now_s: float, one: Busy) -> float | None:
        """The part of the time that a process marked as GPU work, between ends of steps; open steps do not count."""
        if one.busy_s is None:
            return None
        steps = self._steps.setdefault(one.key, deque())
        if steps and one.busy_s < steps[-1][1]:
            steps.clear()
        if not steps or one.at_s > steps[-1][0]:
            steps.append((one.at_s, one.busy_s))
        while len(steps) > 2 and now_s - steps[1][0] >= WINDOW_S:
            steps.popleft()
        (first_s, before_s), (last_s, after_s) = steps[0], steps[-1]
        if last_s <= first_s:
            return None
        step_s = (last_s - first_s) / (len(steps) - 1)
        until_s = now_s if now_s - last_s > max(WINDOW_S, LONG_STEPS * step_s) else last_s
        return (after_s - before_s) / (until_s - first_s)

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


def _sum(shares: Sequence[float | None]) -> float | None:
    """How busy a slot is, 0..1; None if that is unknown of one of its processes."""
    known = [share for share in shares if share is not None]
    return min(sum(known), 1.0) if len(known) == len(shares) else None


def _memory(processes: Sequence[Busy]) -> float | None:
    """Bytes in use on a slot; None if that is unknown of one of its processes."""
    known = [one.memory_bytes for one in processes if one.memory_bytes is not None]
    return sum(known) if len(known) == len(processes) else None
