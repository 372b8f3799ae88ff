"""Which jobs share GPUs, and what an iteration of the group takes."""

from plait.grouping.interleave import interleaved_iteration_s

__all__ = ["interleaved_iteration_s"]
