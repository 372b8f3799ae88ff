"""Published results on the artifact's own workload, from the released simulator and files."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from plait.core.errors import InputError

WORKLOAD = "d6517c4d57c72e4f362f9e99f285e4f7fee0348913287033f11f02f5cb88f074"
"""SHA-256 of the workload that the values are for; they apply to no other."""

METRICS: Mapping[str, str] = {
    "avg_jct_s": "mean JCT",
    "p50_jct_s": "median JCT",
    "p99_jct_s": "p99 JCT",
    "last_completion_s": "last completion",
    "avg_jct_s_bert": "mean JCT, bert",
    "avg_jct_s_cifar10": "mean JCT, cifar10",
    "avg_jct_s_deepspeech2": "mean JCT, deepspeech2",
    "avg_jct_s_imagenet": "mean JCT, imagenet",
    "avg_jct_s_ncf": "mean JCT, ncf",
    "avg_jct_s_yolov3": "mean JCT, yolov3",
    "avg_restarts": "restarts a job",
}
"""Figures of a run that are compared, and what they are called."""

_COLUMNS = tuple(METRICS)[:10]
_RUNS: Mapping[str, tuple[float, ...]] = {
    "tiresias": (3469.69375, 1247.5, 46335.52, 78609, 3761.0, 2470.418, 5521.625, 49761.0, 357.0, 15262.2),
    "optimus": (5301.875, 2494, 44771.26, 66299, 9375.0, 3375.806, 13261.75, 48640.667, 105.889, 23533.6),
    "pollux": (2446.13125, 981, 36393.89, 58642, 2890.3, 1269.9, 4857.3, 38835.7, 110.3, 12551.8),
}

INTERVALS: Mapping[int, float] = {30: 2463.9, 60: 2446.1, 120: 2510.9, 240: 2693.2, 480: 3126.9}
"""Mean JCT in seconds by the seconds between decisions."""

SLOWDOWNS: Mapping[float, float] = {0.0: 2442.0, 0.25: 2808.4, 0.5: 3457.0}
"""Mean JCT in seconds without avoiding interference, by what it costs."""

AUTHORS = "the authors' run of the released simulator"


def is_published(workload: Path) -> bool:
    """Whether this is the workload that the published values are for."""
    try:
        return hashlib.sha256(workload.read_bytes()).hexdigest() == WORKLOAD
    except OSError as error:
        raise InputError(f"cannot read {workload}: {error.strerror}; give --workload a file that is there") from error


def reference(policy: str, metric: str) -> float | None:
    """The published value of a policy (pollux: of its genetic search) on that workload; None if there is none."""
    if policy not in _RUNS or metric not in _COLUMNS:
        return None
    return _RUNS[policy][_COLUMNS.index(metric)]
