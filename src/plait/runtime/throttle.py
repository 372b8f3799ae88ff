"""What an agent may ask of a job between two iterations: to hold, to keep to a part of the GPU, to a limit of memory.

pause           the job stays at its boundary, leaves its gate to others, and goes on when the word is 0 again
share           the part of the time in which the job may compute: 0.5 waits as long as an iteration took
memory limit    torch's allocator on this GPU raises OutOfMemoryError beyond it; no meaning on the CPU, where the
runner beside the process watches its memory
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from plait.runtime.page import Page

#: A part of an iteration shorter than this is not worth a pause for pacing.
LEAST_PAUSE_S = 0.001
#: No single pause for pacing is longer: a job that is slow anyway still looks at its page.
LONGEST_PAUSE_S = 1.0
LOOK_EVERY_S = 0.005


class Throttle:
    """Keeps to the agent's words on a page."""

    def __init__(self, page: Page, *, limits_memory: bool = True) -> None:
        """Of this rank; one that shares its process cannot limit its memory."""
        self._page, self._memory_limit, self._limits = page, 0.0, limits_memory

    def hold(self, wants_stop: Callable[[], int]) -> float:
        """Stay here while the page says so, at most until the job is asked to stop; the seconds it took."""
        begin_s = time.monotonic()
        while self._page.pause and not wants_stop():
            time.sleep(LOOK_EVERY_S)
        return time.monotonic() - begin_s

    def keep(self, step_s: float) -> float:
        """Wait and limit memory as the page says, after an iteration of so many seconds; the seconds it took."""
        share, took_s = self._page.share, 0.0
        if 0 < share < 1:
            took_s = min(step_s * (1 / share - 1), LONGEST_PAUSE_S)
            took_s = took_s if took_s > LEAST_PAUSE_S else 0.0
            time.sleep(took_s)
        limit = self._page.memory_limit_bytes
        if self._limits and limit != self._memory_limit and _limit_memory(limit):
            self._memory_limit = limit
        return took_s


def _limit_memory(limit_bytes: float) -> bool:
    """Make torch's allocator on the current GPU keep to a limit, 0 takes it away; whether there is a GPU in use."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return False
    total = cuda.get_device_properties(cuda.current_device()).total_memory
    cuda.empty_cache()
    cuda.set_per_process_memory_fraction(min(limit_bytes / total, 1.0) if limit_bytes > 0 else 1.0)
    return True
