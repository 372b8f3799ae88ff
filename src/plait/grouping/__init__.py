"""Which jobs share GPUs, and what an iteration of the group takes."""

from plait.grouping.cache import GroupingCache
from plait.grouping.front import Candidates, Grouping, group
from plait.grouping.interleave import best_turns, efficiency, group_times, interleaved_iteration_s, speedup

__all__ = [
    "Candidates",
    "Grouping",
    "GroupingCache",
    "best_turns",
    "efficiency",
    "group",
    "group_times",
    "interleaved_iteration_s",
    "speedup",
]
