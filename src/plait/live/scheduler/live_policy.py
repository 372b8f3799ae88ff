"""Which policies may decide about a live cluster: all but those that share GPUs with guests, so far."""

from __future__ import annotations

from plait.core.errors import InputError
from plait.core.policy import Policy, has_guests
from plait.policies.catalog import make_policy

#: Guest groups on a GPU that plans of a live cluster may have: agents cannot run any yet.
GUESTS_PER_GPU = 0


def make_live_policy(text: str) -> Policy:
    """The policy of this name, as `make_policy`; `InputError` also for one whose plans have guests."""
    policy = make_policy(text)
    if has_guests(policy):
        raise InputError(
            f"policy {text[:100]!r} shares GPUs with guests, which is simulated only, so far; try it with plait "
            "simulate, or take another policy for a live cluster (plait policies)"
        )
    return policy
