"""Scheduling policies: each one file or one row of the catalog."""

from plait.policies.parts.compose import Composed, Ranking

__all__ = ["Composed", "Ranking"]
