"""Which jobs share GPUs, and what an iteration of the group takes."""

from plait.grouping.cache import GroupingCache
from plait.grouping.candidates import Candidates
from plait.grouping.extend import Extended, extended
from plait.grouping.front import group
from plait.grouping.interleave import (
    best_turns,
    efficiency,
    group_times,
    interleaved_iteration_s,
    speedup,
    together_s,
)
from plait.grouping.matching import Matching, matching_with_bound, maximum_weight_matching
from plait.grouping.result import Grouping
from plait.grouping.weights import pair_weights

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
