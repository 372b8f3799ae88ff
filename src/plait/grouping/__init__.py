"""Which jobs share GPUs, and what an iteration of the group takes."""

from plait.grouping.interleave import best_turns, efficiency, group_times, interleaved_iteration_s, speedup

__all__ = ["best_turns", "efficiency", "group_times", "interleaved_iteration_s", "speedup"]
