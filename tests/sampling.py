"""How much is tried: a sample by default, so that `make test` stays short, and everything with PLAIT_SLOW=1."""

import os
from typing import TypeVar

T = TypeVar("T")

THOROUGH = bool(os.environ.get("PLAIT_SLOW"))


def sample(few: T, all_: T) -> T:
    """The sample, or everything."""
    return all_ if THOROUGH else few


def examples(most: int) -> int:
    """How many examples Hypothesis draws: a third by default."""
    return most if THOROUGH else max(10, most // 3)
