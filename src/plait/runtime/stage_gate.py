"""The interface of stage gates, their counters, and the null gate."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

from plait.core.errors import PlaitError
from plait.core.resources import Resource

K = len(Resource)
DEFAULT_TIMEOUT_S = 60.0


class GateError(PlaitError):
    """A gate was used in a way that could deadlock jobs; the message explains it."""


class GateTimeout(PlaitError, TimeoutError):
    """A wait at a gate timed out. Gates only pace, so the job may continue without waiting.

    Attributes: `resource`, `group`, `waited_s`, and `holder_pid` (0 if unknown).
    """

    def __init__(self, resource: Resource, group: str, waited_s: float, holder: str, holder_pid: int) -> None:
        """State the `resource`, the `group`, the seconds waited, and the `holder` in words with its process id."""
        self.resource, self.group, self.waited_s, self.holder_pid = resource, group, waited_s, holder_pid
        super().__init__(
            f"waited {waited_s:.1f} s for {resource.name} in group {group}; {holder}; the job may go on without a gate"
        )


class GateStats:
    """Counters of a gate in this process, by resource: stages, seconds waited, seconds inside.

    Threads of one process that use the same resource at the same time may lose a count.
    """

    def __init__(self) -> None:
        self.stages, self.waited_s, self.inside_s = [0] * K, [0.0] * K, [0.0] * K
        self.timeouts = self.yields = 0


class StageGate(Protocol):
    """Decides when a job may enter a stage.

    Each `enter` that returns needs one `leave` in the same thread. `enter` waits at most `timeout_s` seconds and then
    raises `GateTimeout`. `yield_point` within a stage gives way to others if the quantum is used up. `drop` suspends
    the job until its next `enter` (evaluation, checkpoint, pause, end), so that no other waits for it. `close` ends it.
    """

    stats: GateStats
    #: Why there is no gate although one was planned; "" otherwise.
    reason: str

    @property
    def kind(self) -> str:
        """The gate in effect: none, tokens or barrier."""

    @property
    def version(self) -> int:
        """Version of the group's plan that it follows; 0 without one."""

    def enter(self, resource: Resource, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """Wait until this job may use the resource."""

    def leave(self, resource: Resource) -> None:
        """Release the resource."""

    def yield_point(self, before: Callable[[], None] | None = None) -> None:
        """Give way to others if the quantum is used up; `before` is called first, and only in that case."""

    def drop(self) -> None:
        """Suspend the job until its next `enter`."""

    def close(self) -> None:
        """Leave the group; may be called twice."""


class NullGate:
    """Admits every stage at once and counts."""

    def __init__(self, reason: str = "") -> None:
        """`reason`: why a planned gate is not in effect."""
        self.stats, self.reason, self.kind, self.version = GateStats(), reason, "none", 0
        self._began: dict[tuple[int, int], float] = {}  # by thread and resource

    def enter(self, resource: Resource, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        self._began[threading.get_ident(), resource] = time.perf_counter()

    def leave(self, resource: Resource) -> None:
        began = self._began.pop((threading.get_ident(), resource), None)
        if began is not None:
            self.stats.stages[resource] += 1
            self.stats.inside_s[resource] += time.perf_counter() - began

    def yield_point(self, before: Callable[[], None] | None = None) -> None:
        """Do nothing: there are no waiters."""

    def drop(self) -> None:
        """Do nothing: there are no waiters."""

    def close(self) -> None:
        """Do nothing: there are no waiters."""
