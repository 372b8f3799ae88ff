"""Which jobs share GPUs, and what an iteration of the group takes.

Start at `group.group`.
"""

from plait.grouping.cache import GroupingCache
from plait.grouping.extend import Extended, extended
from plait.grouping.group import group
from plait.grouping.matching.blossom import Matching, matching_with_bound, maximum_weight_matching
from plait.grouping.model.candidates import Candidates
from plait.grouping.model.result import Grouping
from plait.grouping.model.times import (
    best_turns,
    efficiency,
    group_times,
    interleaved_iteration_s,
    speedup,
    together_s,
)
from plait.grouping.model.weights import pair_weights

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
