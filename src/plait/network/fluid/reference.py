"""Water-filling as its definition reads, for tests of the compiled one. Start at `max_min_reference`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence


def max_min_reference(
    capacity: Sequence[float],
    uses: Sequence[Mapping[int, float]],
    weight: Sequence[float],
    limit: Sequence[float],
) -> list[float]:
    """The max-min fair rate of each job; arguments as for `max_min`, with a mapping of resources for each job."""
    rate: dict[int, float] = {}
    while len(rate) < len(uses):
        rising = [job for job in range(len(uses)) if job not in rate]
        levels: dict[int, float] = {}
        for resource, whole in enumerate(capacity):
            taken = sum(uses[job].get(resource, 0.0) * rate[job] for job in rate if uses[job].get(resource))
            slope = sum(uses[job].get(resource, 0.0) * weight[job] for job in rising)
            if slope > 0:
                levels[resource] = max(whole - taken, 0.0) / slope
        level = min([*levels.values(), *(limit[job] / weight[job] for job in rising)], default=math.inf)
        for job in rising:
            full = any(levels[resource] <= level * (1 + 1e-12) for resource in uses[job] if resource in levels)
            if full or limit[job] / weight[job] <= level:
                rate[job] = min(weight[job] * level, limit[job])
    return [rate[job] for job in range(len(uses))]
