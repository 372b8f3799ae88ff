"""The bounds of a job's batch: those of the script, or those of the submission."""

from __future__ import annotations

import json
import math
import operator
import os
import warnings
from collections.abc import Mapping
from numbers import Real
from typing import Any

from plait.core.codec.values import Codec
from plait.core.errors import InputError
from plait.core.goodput import BatchLimits, BoundNames, check_bounds

#: Environment variable with the bounds of the submission: `BatchLimits` as JSON.
VARIABLE = "PLAIT_BATCH"
#: Names of the loader's arguments.
ARGUMENTS = BoundNames(
    "batch_size", "max_batch_size", "least of local_batch", "most of local_batch", "accumulation=True"
)


def bounds(
    batch_size: int | None,
    most: int | None = None,
    local: tuple[int, int | None] = (1, None),
    accumulation: bool = False,
    environ: Mapping[str, str] = os.environ,
) -> BatchLimits:
    """The script's bounds if it gives `batch_size`, else all bounds of the submission, from `environ`.

    `most`: largest batch of a step; `local`: (least, most) examples of one rank in a pass; `accumulation`: whether
    several passes may make a step. Raises `InputError` for contradictory bounds, and if neither gives any.
    """
    if batch_size is not None:
        initial = _whole("batch_size", batch_size)
        most = initial if most is None else _whole("max_batch_size", most)
        least_local, most_local = _local(local)
        most_local = most if most_local is None else most_local
        check_bounds(initial, most, least_local, most_local, accumulation, ARGUMENTS)
        return BatchLimits(
            initial=initial, most=most, least_local=least_local, most_local=most_local, accumulation=accumulation
        )
    if most is not None or local != (1, None) or accumulation:
        raise InputError("an adaptive loader with bounds and without batch_size: give that too, or none of them")
    try:
        return Codec(closed=True).decode(BatchLimits, json.loads(environ[VARIABLE]))
    except KeyError:
        raise InputError(
            "an adaptive loader without a batch size: give AdaptiveDataLoader(dataset, batch_size), or submit the job "
            "with plait submit --batch-size"
        ) from None
    except (TypeError, ValueError) as error:
        raise InputError(
            f"{VARIABLE} is {environ[VARIABLE]!r}, which is not a valid set of batch bounds: {error}"
        ) from None


def warn_alone(limits: BatchLimits) -> None:
    """Warn if `limits` let the batch grow but no `Adaptive` measures what that would bring."""
    if limits.most > limits.initial:
        warnings.warn(
            f"plait: this loader may grow its batch from {limits.initial} to {limits.most}, but no Adaptive measures "
            f"what that would bring, so it stays {limits.initial}; make Adaptive(job, model, optimizer, loader) before "
            "the loop, or leave max_batch_size out",
            RuntimeWarning,
            stacklevel=3,
        )


def interval(interval_s: Any) -> float:
    """Seconds between two checks for a better batch; `InputError` for anything but a finite number above 0."""
    real = isinstance(interval_s, Real) and not isinstance(interval_s, bool)
    if not (real and math.isfinite(interval_s) and interval_s > 0):
        raise InputError(
            f"interval_s is {interval_s!r}; give a finite number of seconds > 0, such as interval_s=30 "
            "(1e-3 looks after every step or so)"
        )
    return float(interval_s)


def _whole(name: str, value: Any) -> int:
    """The value as an int; raises `InputError` for anything else."""
    try:
        return operator.index(value)
    except TypeError:
        raise InputError(f"{name} is {value!r}; give a whole number of examples, such as {name}=128") from None


def _local(local: Any) -> tuple[int, int | None]:
    """Least and most examples of one rank; `InputError` for anything but two numbers."""
    try:
        if isinstance(local, str):
            raise TypeError
        least, most = local
        return operator.index(least), None if most is None else operator.index(most)
    except (TypeError, ValueError):
        raise InputError(
            f"local_batch is {local!r}; give the least and the most examples of one rank as two whole numbers, such as "
            "local_batch=(16, 64), or (16, None) without a most"
        ) from None
