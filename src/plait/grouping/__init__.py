"""Which jobs share GPUs, and what an iteration of the group takes.

Start at `group.group`.
"""

from plait.grouping.bucket import Candidates, GroupingCache
from plait.grouping.group import Extended, Grouping, extended, group, pair_weights
from plait.grouping.matching import Matching, matching_with_bound, maximum_weight_matching
from plait.grouping.times import (
    best_turns,
    efficiency,
    group_times,
    interleaved_iteration_s,
    speedup,
    together_s,
)

__all__ = [
    "Candidates",
    "Extended",
    "Grouping",
    "GroupingCache",
    "Matching",
    "best_turns",
    "efficiency",
    "extended",
    "group",
    "group_times",
    "interleaved_iteration_s",
    "matching_with_bound",
    "maximum_weight_matching",
    "pair_weights",
    "speedup",
    "together_s",
]
