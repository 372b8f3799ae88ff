"""Placement of gangs: from an order of jobs to GPUs by name.

Start at `packing.place`.
"""

from plait.placement.packing import Scheme, SkewAware, Trial, place, unknown_models

__all__ = ["Scheme", "SkewAware", "Trial", "place", "unknown_models"]
