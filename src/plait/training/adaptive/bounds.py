"""The bounds of a job's batch: what the script says, or what was said when the job was submitted."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping

from plait.core.errors import InputError
from plait.core.goodput import BatchLimits

#: Where the agent says what was given by `plait submit --batch-size` or a job file: `BatchLimits` as JSON.
VARIABLE = "PLAIT_BATCH"


def bounds(
    batch_size: int | None,
    most: int | None = None,
    local: tuple[int, int | None] = (1, None),
    accumulation: bool = False,
    environ: Mapping[str, str] = os.environ,
) -> BatchLimits:
    """The script's bounds if it gives a batch size; else all of those that the job was submitted with.

    Raises `InputError` for bounds that cannot be, and where nobody gave any.
    """
    if batch_size is not None:
        most = batch_size if most is None else most
        least_local, most_local = local
        return BatchLimits(
            initial=batch_size,
            most=most,
            least_local=least_local,
            most_local=most if most_local is None else most_local,
            accumulation=accumulation,
        )
    if most is not None or local != (1, None) or accumulation:
        raise InputError("an adaptive loader with bounds and without batch_size: give that too, or none of them")
    try:
        return BatchLimits(**json.loads(environ[VARIABLE]))
    except KeyError:
        raise InputError(
            "an adaptive loader without a batch size: give AdaptiveDataLoader(dataset, batch_size), or submit the job "
            "with plait submit --batch-size"
        ) from None
    except (TypeError, ValueError) as error:
        raise InputError(f"{VARIABLE} is {environ[VARIABLE]!r}, which are no bounds of a batch: {error}") from None
