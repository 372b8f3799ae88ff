"""What a gate is, what it counts, and the gate that lets everybody through."""

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
    """A gate was used in a way that could lock jobs up; says which way."""


class GateTimeout(PlaitError, TimeoutError):
    """A wait at a gate ran out of time. Gates only pace: a job that gets this may go on without waiting.

    `resource`, `group`, `waited_s`, and `holder_pid` (0 if nobody is known to hold it).
    """

    def __init__(self, resource: Resource, group: str, waited_s: float, holder: str, holder_pid: int) -> None:
        """Name what was waited for, how long, and who has it."""
        self.resource, self.group, self.waited_s, self.holder_pid = resource, group, waited_s, holder_pid
        super().__init__(
            f"waited {waited_s:.1f} s for {resource.name} in group {group}; {holder}; the job may go on without a gate"
        )


class GateStats:
    """What happened at a gate in this process, by resource: stages, seconds waited, seconds inside.

    Threads of one process that use the same resource at the same time may lose a count.
    """

    def __init__(self) -> None:
        """All zero."""
        self.stages, self.waited_s, self.inside_s = [0] * K, [0.0] * K, [0.0] * K
        self.timeouts = self.yields = self.reformed = 0


class StageGate(Protocol):
    """Decides when a job may enter a stage.

    `enter` waits at most `timeout_s` and raises `GateTimeout`; each that returns is followed by one `leave`, in the
    same thread. `yield_point` within a stage lets others go first if its quantum is used up. `drop`: not taking part
    until the next `enter` (evaluation, checkpoint, pause, end), so that nobody waits for this job. `close` ends it.
    """

    stats: GateStats
    #: Why there is no gate although one was planned; "" otherwise.
    reason: str

    @property
    def kind(self) -> str:
        """The gate in effect: none, tokens or barrier."""

    @property
    def version(self) -> int:
        """The version of the group's plan it follows; 0 without one."""

    def enter(self, resource: Resource, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """Wait until this job may be on the resource."""

    def leave(self, resource: Resource) -> None:
        """Done with the resource."""

    def yield_point(self, before: Callable[[], None] | None = None) -> None:
        """A good moment to let others go first; `before` is called only when they do."""

    def drop(self) -> None:
        """Take no part until the next `enter`."""

    def close(self) -> None:
        """Take no part any more; twice does no harm."""


class NullGate:
    """Lets everybody in at once and counts."""

    def __init__(self, reason: str = "") -> None:
        """`reason`: why a planned gate is not in effect."""
        self.stats, self.reason, self.kind, self.version = GateStats(), reason, "none", 0
        self._began: dict[tuple[int, int], float] = {}  # by thread and resource

    def enter(self, resource: Resource, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """Go on at once."""
        self._began[threading.get_ident(), resource] = time.perf_counter()

    def leave(self, resource: Resource) -> None:
        """Count the stage, and the seconds spent in it."""
        began = self._began.pop((threading.get_ident(), resource), None)
        if began is not None:
            self.stats.stages[resource] += 1
            self.stats.inside_s[resource] += time.perf_counter() - began

    def yield_point(self, before: Callable[[], None] | None = None) -> None:
        """Do nothing: nobody waits."""

    def drop(self) -> None:
        """Do nothing: nobody waits."""

    def close(self) -> None:
        """Do nothing: nobody waits."""
