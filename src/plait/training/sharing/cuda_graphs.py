"""Detect scripts that replay CUDA graphs: a whole step is then one uninterruptible piece of GPU work."""

from __future__ import annotations

from typing import Any

from plait.core.errors import InputError


class GraphReplays:
    """Counts replays of torch's CUDA graphs in this process."""

    def __init__(self) -> None:
        """Start at zero."""
        self.replays = 0  # since the last check
        self._watched: Any = None

    def watch(self, cuda: Any) -> None:
        """Count from now on; `cuda`: torch.cuda, initialised. May be called twice."""
        graph: Any = getattr(cuda, "CUDAGraph", None)
        replay = getattr(graph, "replay", None)
        if replay is None or self._watched is graph:
            return
        self._watched = graph

        def counted(this: Any) -> Any:
            self.replays += 1
            return replay(this)

        graph.replay = counted

    def check(self, yield_points: int) -> None:
        """At the end of a step of a guest that called so many yield points; raises `InputError` for graphs without."""
        replays, self.replays = self.replays, 0
        if replays and not yield_points:
            raise InputError(
                f"an opportunistic job cannot run as a guest with CUDA graphs and no yield points: its step replayed "
                f"{replays} of them as one piece of GPU work, and the guaranteed job would have to wait for all of it; "
                "call job.yield_point() between replays, capture smaller graphs, or submit it with --class guaranteed"
            )
