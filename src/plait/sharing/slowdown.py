"""First-order cost of sharing for the guaranteed job."""

from __future__ import annotations

from plait.sharing.grant import EPS


def longest_quantum_s(baseline_s: float, gaps: int) -> float:
    """The longest opportunistic quantum that leaves nearly all of the slack usable: eps b0 / n, in seconds.

    baseline_s: the guaranteed step alone; gaps: times a step in which the GPU waits for it, at least 1. Each gap costs
    the step up to one quantum, half of one on average. Above this quantum the law lowers the share to keep the promise.
    The rule is plait's own, found in virtual time.

    >>> longest_quantum_s(0.2, gaps=1)
    0.004
    """
    return EPS * baseline_s / max(gaps, 1)
