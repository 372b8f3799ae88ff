"""Read from the pages of the guaranteed jobs on a GPU whether they are in their GPU stage."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from plait.core.resources import Resource
from plait.runtime.page import JobState, Page, PageError

#: Seconds between two checks of whether a host that stays in its GPU stage still lives.
ALIVE_EVERY_S = 0.2
#: Seconds outside its GPU stage after which a host counts as outside: it may be between two pieces of it.
LINGER_S = 0.001
_IN_GPU_STAGE = Resource.GPU + 1
_GONE = frozenset((JobState.PREEMPTED, JobState.FINISHED, JobState.FAILED))


class HostStages:
    """The hosts of a guest. A host without stages or page, or an ended one, is never in its GPU stage.

    Nor is a host that waits in its stage for memory: the guest must reach its boundary to give memory back.
    """

    def __init__(self, paths: Iterable[Path], *, clock: Callable[[], float] = time.monotonic) -> None:
        """`paths`: page files of the hosts. They are read, not mapped: truncating a mapped file kills its readers."""
        self._pages: list[Page] = []
        self._clock, self._checked_s = clock, clock()
        for path in paths:
            with contextlib.suppress(PageError, OSError):
                self._pages.append(Page.open(path, mapped=False))

    @property
    def busy(self) -> bool:
        """True if a host is in its GPU stage now, or has just left it."""
        now_s = self._clock()
        found = [
            page
            for page in self._pages
            if (page.in_stage == _IN_GPU_STAGE or 0.0 <= now_s - page.gpu_left_monotonic < LINGER_S)
            and not page.refused_bytes > 0
        ]
        if not found:
            self._checked_s = now_s
            return False
        if now_s - self._checked_s >= ALIVE_EVERY_S:
            self._checked_s = now_s
            for page in found:
                if _has_ended(page):
                    self._pages.remove(page)
                    page.close()
            return any(page in self._pages for page in found)
        return True

    @property
    def marked(self) -> bool:
        """Whether there are hosts, and all of them have marked a GPU stage."""
        return bool(self._pages) and all(marks_gpu_stages(page) for page in self._pages)

    @property
    def left_s(self) -> float:
        """When a host last left its GPU stage, on its monotonic clock; 0: none has."""
        return max((page.gpu_left_monotonic for page in self._pages), default=0.0)

    @property
    def entered_s(self) -> float:
        """When the first host that is in its GPU stage now has entered it, on its monotonic clock; 0: none, or unknown.

        It is not known of a host that gives way to a group of its own, which begins its stage again each time.
        """
        found = [page.stage_since for page in self._pages if page.in_stage == _IN_GPU_STAGE and not page.gate]
        return min((since_s for since_s in found if since_s > 0.0), default=0.0)

    def close(self) -> None:
        """Close the pages; may be called twice."""
        while self._pages:
            self._pages.pop().close()


def marks_gpu_stages(page: Page) -> bool:
    """Whether a process has left a GPU stage at least once."""
    return page.gpu_left_monotonic > 0.0


def _has_ended(page: Page) -> bool:
    """True if the process of a page has ended: while it lives, it holds a lock next to its page."""
    if page.state in _GONE:
        return True
    try:
        fd = os.open(page.path.parent / "speaker.lock", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False  # unknown
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True
