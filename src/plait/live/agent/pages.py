"""Reports of a job's process, read from its page; nothing in it is trusted to be finite or to make sense."""

from __future__ import annotations

import contextlib
import math
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from plait.core.resources import Resource
from plait.live.protocol.wire import Adaptive, Memory, Profile
from plait.live.system import procs
from plait.runtime.page import GATES, JobState, Page, PageError, ProfileSource, Saves
from plait.sharing.directive import StepStats

#: Stage seconds are means over at least so many iterations, if there were as many.
_WINDOW_STEPS = 20
_SAVES = {int(one): one.name.lower() for one in Saves if one}


@dataclass(frozen=True)
class PageProgress:
    """The fields of a `wire.Seen` that come from a page; `*_boot_s` are times of CLOCK_BOOTTIME."""

    steps: float = 0.0
    step_s: float | None = None
    stage_s: list[float] | None = None
    total_steps: float | None = None
    gate: str = "none"
    checkpoint_steps: float | None = None
    checkpoint_age_s: float | None = None
    profile: Profile | None = None
    skew: float | None = None
    first_step_boot_s: float | None = None
    last_step_boot_s: float | None = None
    adaptive: Adaptive | None = None
    saves: str = ""
    memory: Memory | None = None


class PageReader:
    """The agent's end of one page: reads progress, writes the words that are the agent's."""

    def __init__(self, path: Path) -> None:
        """Open the page; without one (damaged by the job, disk gone, of a far version) progress stays unknown."""
        self._page: Page | None = None
        #: Why there is none.
        self.trouble = ""
        try:
            self._page = Page.open(path, mapped=False)
        except (PageError, OSError) as error:
            self.trouble = str(error)
        self._samples: deque[tuple[float, tuple[float, ...]]] = deque()
        self._steps: deque[StepStats] = deque(maxlen=_WINDOW_STEPS)
        self._last = PageProgress()
        #: The newest `stage_since` that was looked at, and for how long the process had been frozen then.
        self._open_stage = (0.0, 0.0)

    def stop(self, flag: int) -> None:
        """Send the process a request to stop (1 after a checkpoint, 2 now)."""
        self._write("stop", flag)

    def control(self, version: int) -> None:
        """Announce a new control.json."""
        self._write("control_version", version)

    def _write(self, name: str, value: int) -> None:
        if self._page is not None:
            with contextlib.suppress(OSError):
                setattr(self._page, name, value)

    def read(self) -> PageProgress:
        """The newest progress; the last one known once the page is closed."""
        page = self._page
        if page is None:
            return self._last
        steps = _above_zero(page.number("steps")) or 0.0
        at = _above_zero(page.number("checkpoint_time"))
        self._steps.extend(page.new_steps(self._steps[-1].step if self._steps else -1))
        gate, measured = page.gate, page.profile
        profile = None
        if measured is not None:
            outside = page.profile_source in (ProfileSource.NONE, ProfileSource.BESIDE)
            profile = Profile(list(measured.stage_s), measured.iteration_s, measured.samples, outside)
        self._last = PageProgress(
            steps=steps,
            step_s=self._paced_s(page) or _above_zero(page.number("step_s")),
            stage_s=self._stage_s(steps, page.seconds("busy_s")),
            total_steps=_above_zero(page.number("total_iterations")),
            gate=GATES[gate] if 0 <= gate < len(GATES) else GATES[0],
            checkpoint_steps=page.number("checkpoint_steps") if at else None,
            checkpoint_age_s=max(0.0, time.time() - at) if at else None,
            profile=profile,
            skew=page.number("skew"),
            first_step_boot_s=_boot_s(page.number("first_step_monotonic")),
            last_step_boot_s=_boot_s(page.number("last_step_monotonic")),
            adaptive=_adaptive(page),
            saves=_SAVES.get(page.saves, ""),
            memory=self._memory(),
        )
        return self._last

    @property
    def ended(self) -> bool:
        """Whether the library has reported that the training is complete, or that an exception has ended it."""
        return self._page is not None and self._page.state in (JobState.FINISHED, JobState.FAILED)

    @property
    def gpu_busy_s(self) -> float | None:
        """Seconds of GPU work that the process has marked so far; None if it marks none."""
        page = self._page
        return None if page is None else page.seconds("busy_s")[Resource.GPU] or None

    @property
    def last_step_s(self) -> float:
        """When the last step ended, monotonic seconds; 0 before the first one."""
        return 0.0 if self._page is None else _above_zero(self._page.number("last_step_monotonic")) or 0.0

    @property
    def peak_bytes(self) -> float | None:
        """Most device memory of the newest steps; None if none was reported."""
        return None if self._last.memory is None else self._last.memory.peak_bytes

    def _paced_s(self, page: Page) -> float | None:
        """Mean seconds of the newest steps of a guest, from end to end: by itself a job leaves out its waits."""
        steps = [step.step_s for step in self._steps if not step.left_out] if page.number("share_until") else []
        return sum(steps) / len(steps) if steps else None

    def _memory(self) -> Memory | None:
        """Device memory by the newest steps; None if none was reported."""
        if not any(step.device_peak_bytes for step in self._steps):
            return None
        last = self._steps[-1]
        peak = max(step.device_peak_bytes for step in self._steps)
        return Memory(float(peak), float(last.device_persistent_bytes), float(last.host_spill_bytes))

    def place(self) -> str:
        """The stage in which its process is, and for how long, such as `41 s in its cpu stage`."""
        page = self._page
        since = None if page is None else _above_zero(page.number("stage_since"))
        if page is None or since is None or not 0 < (stage := page.in_stage) <= len(Resource):
            return "between two stages"
        return f"{max(time.monotonic() - since, 0.0):.0f} s in its {Resource(stage - 1).name.lower()} stage"

    def stuck(self, least_s: float) -> str | None:
        """The stage in which its job hangs: open for ten iterations and at least so many seconds.

        Seconds in which its runner had frozen it do not count. Before the second iteration the usual duration is
        unknown (models are compiled in the first).
        """
        page = self._page
        if page is None or page.state != JobState.RUNNING:
            return None
        stage, since, step_s = page.in_stage, _above_zero(page.number("stage_since")), page.number("step_s")
        step_s = _above_zero(step_s)
        if since is None or step_s is None or not 0 < stage <= len(Resource):
            return None
        frozen_s = page.number("frozen_s") or 0.0
        if self._open_stage[0] != since:
            self._open_stage = since, frozen_s
        open_s = time.monotonic() - since - (frozen_s - self._open_stage[1])
        limit_s = max(least_s, 10 * step_s)
        if open_s <= limit_s or page.number("stage_since") != since:
            return None
        return (
            f"hung: {open_s:.0f} s in its {Resource(stage - 1).name.lower()} stage, where {limit_s:.3g} s are allowed "
            "(ten iterations, and at least PLAIT_HANG_S); the stacks of its threads are in the log"
        )

    def _stage_s(self, steps: float, busy_s: tuple[float, ...]) -> list[float] | None:
        """Mean busy seconds of an iteration by resource over the last iterations; None if nothing was measured."""
        samples = self._samples
        if samples and steps < samples[-1][0]:
            samples.clear()
        if not samples or steps > samples[-1][0]:
            samples.append((steps, busy_s))
        while len(samples) > 2 and steps - samples[1][0] >= _WINDOW_STEPS:
            samples.popleft()
        if len(samples) < 2 or not any(busy_s):
            return None
        (first, before), (last, after) = samples[0], samples[-1]
        return [max(0.0, b - a) / (last - first) for a, b in zip(before, after, strict=True)]

    def close(self) -> None:
        """Read a last time and let go of the file."""
        if self._page is not None:
            self.read()
            self._page.close()
            self._page = None


def _adaptive(page: Page) -> Adaptive | None:
    """The report of a job whose batch adapts; None for others, and before its first report."""
    progress, batch_size = _above_zero(page.number("progress")), _above_zero(page.number("batch_size"))
    goodput, limits = page.goodput, page.limits
    if progress is None and batch_size is None and goodput is None and limits is None:
        return None
    return Adaptive(
        progress=progress or 0.0,
        total=_above_zero(page.number("total_progress")),
        batch_size=batch_size,
        estimate=None if goodput is None else [None if math.isnan(x) else x for x in goodput],
        limits=None if limits is None else list(limits),
        not_finite=_above_zero(page.number("not_finite")) or 0.0,
    )


def _above_zero(value: float | None) -> float | None:
    return value if value is not None and value > 0 else None


def _boot_s(monotonic_s: float | None) -> float | None:
    """A time of CLOCK_MONOTONIC by the clock that also counts sleep; None for one that never was."""
    known = monotonic_s is not None and 0 < monotonic_s <= time.monotonic()
    return procs.boot_s() - time.monotonic() + monotonic_s if known and monotonic_s is not None else None
