"""Tensor-size skew decides which jobs must be consolidated (Tiresias, section 3).

A tensor is one message: a huge one suffers from contention, small ones interleave. The paper's own formula
is not published; the default here is the share of the largest tensor, which separates the paper's sensitive
models (VGG, AlexNet: 0.61-0.77) from the insensitive ones (ResNet, Inception: 0.04-0.20). Shares of the models that
ship with plait: `traces/data/tensors.csv`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from plait.core.arrays import FloatArray, IntArray
from plait.core.errors import InputError
from plait.core.policy import View
from plait.placement.packing import Scheme

#: Most models named in a remark.
MOST_NAMES = 8


def unknown_models(models: Sequence[str], skew: FloatArray, gpus: IntArray) -> str:
    """A remark on gangs without known `skew` (J,) on several `gpus` (J,), each of `models` once; empty without any.

    >>> unknown_models(["mine", "mine", "vgg16"], np.array([np.nan, np.nan, 0.7]), np.array([2, 4, 2]))
    'tensor sizes of mine are unknown: placement=skew keeps these jobs together'
    """
    rows = np.flatnonzero(np.isnan(skew) & (gpus > 1)).tolist()
    names = sorted({models[i] for i in rows} - {""})
    shown = names if len(names) <= MOST_NAMES else [*names[:MOST_NAMES], f"{len(names) - MOST_NAMES} more models"]
    nameless = sum(models[i] == "" for i in rows)
    parts = [", ".join(shown)] if shown else []
    if nameless:
        parts.append(f"{'of ' * bool(shown)}{nameless} job{'s' * (nameless > 1)} without a model")
    return (
        f"tensor sizes of {' and '.join(parts)} are unknown: placement=skew keeps these jobs together" if parts else ""
    )


@dataclass(frozen=True)
class SkewAware:
    """Consolidate jobs whose skew exceeds `packlimit`, spread the rest.

    Unknown skew counts as sensitive. After `patience_s` of waiting a sensitive job accepts any GPUs. Raises
    `InputError` for invalid limits.
    """

    packlimit: float = 0.3
    patience_s: float = math.inf

    def __post_init__(self) -> None:
        if not 0 <= self.packlimit <= 1:
            raise InputError(f"packlimit is {self.packlimit}; it takes a share of all tensor bytes, from 0 to 1")
        if not self.patience_s >= 0:
            raise InputError(f"patience_s is {self.patience_s}; it takes seconds >= 0, or inf")

    def __call__(self, view: View) -> IntArray:
        jobs = view.jobs
        spread = jobs.skew <= self.packlimit  # NaN compares false: consolidated
        if math.isfinite(self.patience_s):
            spread = spread | (~jobs.running & (jobs.waiting_s >= self.patience_s))
        return np.where(spread, int(Scheme.SPREAD), int(Scheme.CONSOLIDATED))
