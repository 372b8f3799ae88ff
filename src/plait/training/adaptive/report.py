"""Report progress, batch size and estimates of an adaptive job to its agent, through the page of its rank."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from plait.core.goodput import THETA, Estimate

if TYPE_CHECKING:
    from plait.runtime.page import Page
    from plait.training.adaptive.choosing import Noise, Theta
    from plait.training.adaptive.profile import Timings


def report_progress(page: Page, done: float, total: float, batch_size: int) -> None:
    """After each optimizer step: iterations at the initial batch, done and in all (0 unknown), and examples a step."""
    page.progress, page.total_progress, page.batch_size = done, total, float(batch_size)


def report_estimate(page: Page, theta: Theta | None, noise: Noise | None, timings: Timings) -> None:
    """Of rank 0, after each interval: the newest fit, gradient noise, the most GPUs there are times of.

    NaN for what is not known; what a restart costs only the scheduler can measure.
    """
    numbers = [math.nan] * len(Estimate)
    if theta is not None:
        numbers[:THETA] = theta
    if noise is not None and noise.known:
        numbers[Estimate.SQR], numbers[Estimate.VAR] = noise.sqr, noise.var
    if timings.most_gpus:
        numbers[Estimate.PROFILED_GPUS] = float(timings.most_gpus)
    page.set_goodput(numbers)
