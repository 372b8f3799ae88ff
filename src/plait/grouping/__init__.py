"""Which jobs share GPUs, and what an iteration of the group takes."""

from plait.grouping.cache import GroupingCache
from plait.grouping.front import Candidates, Grouping, group
from plait.grouping.interleave import best_turns, efficiency, group_times, interleaved_iteration_s, speedup
from plait.grouping.matching import Matching, matching_with_bound, maximum_weight_matching

__all__ = [
    "Candidates",
    "Grouping",
    "GroupingCache",
    "Matching",
    "best_turns",
    "efficiency",
    "group",
    "group_times",
    "interleaved_iteration_s",
    "matching_with_bound",
    "maximum_weight_matching",
    "speedup",
]
