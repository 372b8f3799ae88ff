"""Memory of switches for the jobs of any policy. Start at `policy.WithAggregation`, a policy around a policy."""

from plait.policies.aggregation.policy import ROUTES, WithAggregation, aggregation_of, manager_of

__all__ = ["ROUTES", "WithAggregation", "aggregation_of", "manager_of"]
