"""QSSF of Helios (Hu et al., SC'21) as a policy: the published description with plait's predictions.

As in the released simulator jobs start in order of GPUs times predicted seconds, the first that does not fit blocks
those behind it, and none is stopped. Helios blends a rolling estimate by user and job name with boosted trees over
times and names; here the estimate is the mean of the job's kind (`plait.policies.kinds`), which changes as jobs end,
while a job of Helios keeps the priority that it got first. Virtual clusters are left to quotas.
"""

from __future__ import annotations

from plait.policies.catalog import Row
from plait.policies.compose import Composed
from plait.policies.predicted import ByPrediction


def qssf() -> Composed:
    """Quasi-shortest service first."""
    return Composed("qssf", order=ByPrediction(power=1.0, mean=True), preempt=False, strict=True)


QSSF = Row(
    "smallest predicted GPU time first, not preemptive; Helios's published description, with plait's predictions",
    qssf, "predicted durations", ("helios",), preempts=False,
)  # fmt: skip
