"""Placement of gangs: from an order of jobs to GPUs by name.

Start at `packing.place`.
"""

from plait.placement.packing import Scheme, SkewAware, TriedPlacement, place, unknown_models

__all__ = ["Scheme", "SkewAware", "TriedPlacement", "place", "unknown_models"]
