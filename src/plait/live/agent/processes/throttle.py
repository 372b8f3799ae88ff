"""Throttle a guest that does not pace itself: freeze its processes for all of the time but its share.

A guest paces itself while its training library checks its share (`Page.paced_monotonic`) and acknowledges new ones. A
program without plait, one in which no optimizer steps, and a job that has not come to its first step do not; their
runner freezes and thaws them, by a token bucket: it fills at the rate of the share, runs empty while they run, and they
run when it holds a quantum.

    balance   grows by share * dt, and shrinks by dt while the processes run
    freeze    at a balance of 0, but for no less than `LEAST_FROZEN_S`
    thaw      at QUANTUM_S * (1 - share), so that they run for QUANTUM_S

A guest on a GPU is left alone until one of its processes opens the device: it may load modules and data meanwhile.

The runner outlives the agent, and nothing renews `Page.share_until` then: the share counts as 0, and hosts run free.
A job can write into its page; so `share_until` of 0, which a host has, counts only where control.json says the same.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path

from plait.core.errors import InputError
from plait.live.system.freezer import Freezer
from plait.runtime.guest_gate import neighbours_of
from plait.runtime.page import Page, PageError, Throttled

#: For so many seconds the processes run before they may be frozen: a host that comes back waits no longer.
QUANTUM_S = 0.005
#: The same where they get signals, which cost more.
SIGNALLED_QUANTUM_S = 0.02
#: A shorter time is not worth freezing for; the processes run on, and are frozen for longer later.
LEAST_FROZEN_S = 0.001
#: A guest that has not checked its share for so many seconds does not pace itself.
PACED_S = 3.0
#: Seconds between two looks at the page: while the processes are throttled, and while the guest paces itself.
LOOK_S, PACED_LOOK_S = 0.05, 0.5
#: The same until it opens the GPU.
DEVICE_LOOK_S = 0.2
#: Device files of GPUs of NVIDIA and AMD.
GPU_FILES = ("/dev/nvidia", "/dev/kfd", "/dev/dri/render")
#: A runner that got no CPU wakes up late. Processes that ran too long make up for so many seconds at most; processes
#: that were frozen too long, for so many quanta.
MOST_OWED_S, MOST_SAVED_QUANTA = 1.0, 4
_ROUNDING_S = 1e-6
#: Over so many seconds the duty cycle is measured, of which it is published every so many.
WINDOW_S, PUBLISH_S = 10.0, 1.0


class Throttle:
    """Of the processes of one guest; `turn` does what is due. Times are seconds of CLOCK_MONOTONIC."""

    def __init__(
        self,
        page: Path,
        freezer: Freezer,
        clock: Callable[[], float] = time.monotonic,
        *,
        uses_gpu: Callable[[], bool] = lambda: True,
    ) -> None:
        """`page`: of the guest; an unreadable one, or one that was cut short, counts as a share of 0.

        `uses_gpu`: whether its processes have opened the GPU; checked until they have.
        """
        self._uses_gpu, self._used_gpu = uses_gpu, False
        self._freezer, self._clock = freezer, clock
        self._control = page.parent / "control.json"
        self._number, self._number_s = 0, -PACED_S  # of the newest share, and since when
        self._page: Page | None = None
        with contextlib.suppress(PageError, OSError):
            self._page = Page.open(page, mapped=False)
        self._at_s = self._began_s = self._published_s = clock()
        self._balance_s, self._share, self._frozen = 0.0, 0.0, False
        self._ran_s = self._frozen_s = 0.0
        self._samples: deque[tuple[float, float]] = deque()
        self._over = False

    def turn(self) -> float | None:
        """Freeze or thaw if that is due; seconds until the next turn, None if there is none (see `release`)."""
        if self._over:
            return None
        now_s = self._clock()
        self._account(now_s)
        page = self._page
        share, paced = 0.0, False
        if page is not None and page.whole:  # words behind the end of a file read as 0, which is what a host's page has
            until_s, paced_s = page.share_until, page.paced_monotonic
            if until_s == 0.0 and self._promoted():
                self.release()
                return None
            share = page.share if now_s < until_s and 0.0 < page.share <= 1.0 else 0.0
            if page.share_number != self._number:
                self._number, self._number_s = page.share_number, now_s
            obeys = page.share_reached == self._number or now_s - self._number_s < PACED_S
            paced = obeys and now_s - PACED_S < paced_s <= now_s
        self._used_gpu = self._used_gpu or paced or self._uses_gpu()
        if paced or not self._used_gpu:
            self._set(frozen=False)
            self._balance_s = self._share = 0.0
            self._publish(now_s, throttled=False)
            return PACED_LOOK_S if paced else DEVICE_LOOK_S
        self._share = share
        wait_s = self._due(share)
        self._publish(now_s, throttled=True)
        return min(max(wait_s, LEAST_FROZEN_S), LOOK_S)

    def _promoted(self) -> bool:
        """Whether the job has become a host, which stays one."""
        try:
            found = neighbours_of(json.loads(self._control.read_text()))
        except (InputError, OSError, ValueError, AttributeError):
            return False
        return found is None or not found.guest

    def release(self) -> None:
        """Let the processes run for good; may be called twice."""
        if self._over:
            return
        self._over = True
        self._account(self._clock())
        self._freezer.close()
        self._publish(self._at_s, throttled=False)
        if self._page is not None:
            self._page.close()

    def _due(self, share: float) -> float:
        """Freeze or thaw; seconds until the balance allows the opposite."""
        if share <= 0.0:
            self._balance_s = min(self._balance_s, 0.0)
            self._set(frozen=True)
            return LOOK_S
        quantum_s = self._quantum_s
        full_s = quantum_s * (1.0 - share)
        missing_s = (full_s - self._balance_s) / share
        if self._frozen:
            if missing_s > _ROUNDING_S:
                return missing_s
            self._set(frozen=False)
        if self._balance_s <= _ROUNDING_S and missing_s >= LEAST_FROZEN_S - _ROUNDING_S:
            self._set(frozen=True)
            return missing_s
        lasts_s = self._balance_s - min(full_s - share * LEAST_FROZEN_S, 0.0)
        return lasts_s / (1.0 - share) if share < 1.0 else LOOK_S

    @property
    def _quantum_s(self) -> float:
        return QUANTUM_S if self._freezer.uses_group else SIGNALLED_QUANTUM_S

    def _account(self, now_s: float) -> None:
        passed_s, self._at_s = max(now_s - self._at_s, 0.0), now_s
        if self._frozen:
            self._frozen_s += passed_s
        else:
            self._ran_s += passed_s
        self._balance_s += passed_s * (self._share - (not self._frozen))
        self._balance_s = min(max(self._balance_s, -MOST_OWED_S), MOST_SAVED_QUANTA * self._quantum_s)

    def _set(self, *, frozen: bool) -> None:
        if frozen:
            self._freezer.freeze()  # also again: processes that it did not find yet run on
        elif self._frozen:
            self._freezer.thaw()
        self._frozen = frozen

    def _publish(self, now_s: float, *, throttled: bool) -> None:
        page, how = self._page, Throttled.NOT
        if throttled:
            how = Throttled.CGROUP if self._freezer.uses_group else Throttled.SIGNALS
        if page is None or (page.throttle == how and now_s - self._published_s < PUBLISH_S):
            return
        self._published_s = now_s
        if not throttled:
            self._samples.clear()
        self._samples.append((now_s, self._ran_s))
        while len(self._samples) > 2 and now_s - self._samples[1][0] >= WINDOW_S:
            self._samples.popleft()
        first_s, ran_s = self._samples[0]
        with contextlib.suppress(OSError):
            page.throttle_quantum_s = self._quantum_s if throttled else 0.0
            page.throttle_duty = (self._ran_s - ran_s) / (now_s - first_s) if now_s > first_s else 0.0
            page.frozen_s = self._frozen_s
            page.throttle = how


def opened(pids: Iterable[int], files: tuple[str, ...] = GPU_FILES) -> bool:
    """Whether one of these processes has a file open whose path begins so; also if that of a living one is secret."""
    for pid in pids:
        folder = f"/proc/{pid}/fd"
        try:
            names = os.listdir(folder)
        except FileNotFoundError:
            continue
        except OSError:
            return True
        for name in names:
            with contextlib.suppress(OSError):
                if os.readlink(f"{folder}/{name}").startswith(files):
                    return True
    return False
