"""What a live cluster executes of plans, and policies that it takes."""

from __future__ import annotations

from plait.core.errors import InputError
from plait.core.policy import Policy, has_grants
from plait.policies.catalog import make_policy

#: Guest groups on a GPU, at most; plans with more are refused.
GUESTS_PER_GPU = 8
#: Jobs are not killed: all that a policy stops may save a checkpoint first.
KILLS = False
#: Switches do not aggregate: plans that grant memory of switches are refused.
AGGREGATES = False


def live_policy(text: str) -> Policy:
    """The policy of this name and options; `InputError` if there is none, or if it needs what live clusters lack."""
    policy = make_policy(text)
    if has_grants(policy):
        raise InputError(
            f"policy {text} grants memory of switches, and switches of live clusters do not aggregate yet; "
            "`plait simulate` takes it, for a live cluster choose one without"
        )
    return policy
