"""The parts of plans that a live cluster executes, and the policies that it accepts."""

from __future__ import annotations

from dataclasses import replace

from plait.core.errors import InputError
from plait.core.policy import Policy, has_grants
from plait.policies.aggregation import WithAggregation, aggregation_of
from plait.policies.catalog import make_policy

#: Guest groups on a GPU, at most; plans with more are refused.
GUESTS_PER_GPU = 8
#: Jobs are not killed: all that a policy stops may save a checkpoint first.
KILLS = False
#: Where the cluster has a network, switches aggregate.
AGGREGATES = True
#: A plan with grants is looked at again after so many seconds: priorities and deadlines follow the progress of jobs.
REVIEW_S = 10.0


def made(text: str) -> Policy:
    """The policy of this name and options as live clusters run it; `InputError` if there is none.

    Gradients of a job are added up at one switch, that of its server: software switches reach each other as easily as
    a leaf reaches its nodes.
    """
    return _as_live(make_policy(text))


def _as_live(policy: Policy) -> Policy:
    if isinstance(policy, WithAggregation):
        return replace(policy, routing="server", review_s=REVIEW_S)
    inner = getattr(policy, "policy", None)
    changed = None if inner is None or not has_grants(inner) else _as_live(inner)
    return policy if changed is None else replace(policy, policy=changed)  # type: ignore[type-var]


def live_policy(text: str, network: bool) -> Policy:
    """The same, for a cluster with or without a `network`; `InputError` if the policy needs a missing one."""
    policy = made(text)
    if has_grants(policy) and not network:
        raise InputError(
            f"policy {text} grants memory of switches, and this cluster has no network; start it with one, e.g. "
            "plait up --network leaf-spine:aggregators=4096, or choose a policy without ina="
        )
    aggregation = aggregation_of(make_policy(text))
    if aggregation is not None and aggregation.routing not in ("auto", "server"):
        raise InputError(
            f"policy {text}: routing={aggregation.routing} is for simulations; live jobs aggregate at one switch"
        )
    return policy


def system_of(policy: Policy | None) -> str:
    """The system that the switches run by `ina=` of a policy, "" without."""
    found = aggregation_of(policy)
    return "" if found is None else found.system.partition("/")[0]
