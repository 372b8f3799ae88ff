"""Priorities of packets after the published description of ESA: a product of three factors, on 8 bits.

That product, which the paper says workers compute at run time, is public; its scale is our design.
"""

from __future__ import annotations

import math

#: log2 of the products that get the lowest and the highest priority.
LOWEST, HIGHEST = -32.0, 8.0


def esa_priority(layer_rank: int, communication_s: float, computation_s: float, remaining_s: float) -> int:
    """(1 / layer_rank) x (communication / computation) x (1 / remaining), on a scale of logarithms from 1 to 255.

    layer_rank       1 for the layer nearest to the input, whose gradients are needed first
    communication_s  and `computation_s`: of one iteration
    remaining_s      of the job; the service that it has attained, where nobody knows: little of it comes first

    Raises `ValueError` for a rank below 1.
    """
    if layer_rank < 1:
        raise ValueError(f"layer rank {layer_rank}: ranks start at 1")
    least = 2.0**-40
    factors = (1 / layer_rank, max(least, communication_s) / max(least, computation_s), 1 / max(least, remaining_s))
    product = sum(math.log2(factor) for factor in factors)
    place = (product - LOWEST) / (HIGHEST - LOWEST)
    return 1 + round(254 * min(1.0, max(0.0, place)))
