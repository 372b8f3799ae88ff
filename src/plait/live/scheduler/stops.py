"""Telling an attempt to stop."""

from __future__ import annotations

from plait.live.scheduler.context import Context
from plait.live.scheduler.records.attempts import Attempt
from plait.live.scheduler.records.notes import StopAsked

#: Reasons for stopping an attempt that could have continued.
GRACEFUL = frozenset({"preempted", "moved", "drained", "leaving", "yields"})
#: ... by the coordinator of its GPU: there is no room for a guest, which goes back to the queue.
YIELDS = "yields"


def ask_stop(ctx: Context, attempt: Attempt, why: str, now_s: float) -> StopAsked:
    """Tell an attempt to stop; one whose node is about to go has no longer for its checkpoint than the node has."""
    grace_s = None
    if why == "leaving":
        nodes = [ctx.state.nodes[r.node] for r in attempt.ranks if not r.ended]
        left_s = [n.leaving_s for n in nodes if n.leaving and n.leaving_s is not None]
        grace_s = min(left_s, default=None)  # None after a restart, until the node has said it again
    return StopAsked(now_s, attempt.job, attempt.epoch, why, grace_s)
