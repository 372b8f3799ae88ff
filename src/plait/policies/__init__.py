"""Scheduling policies: each is one file or one row of the catalog.

Start at `catalog.make_policy`; `parts` and `sizing` are what policies are made of.
"""

from plait.policies.compose import Composed, Ranking

__all__ = ["Composed", "Ranking"]
