"""Takes what running jobs use into their series, every few seconds, and keeps them in files."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from plait.live.scheduler.explain.resources import JobUsage, job_usages
from plait.live.service.usage.files import MOST_HOURS, Measured, UsageFiles
from plait.live.service.usage.series import JobSeries

if TYPE_CHECKING:
    from pathlib import Path

    from plait.live.service.worker import Worker

#: Seconds between two samples. Idle GPUs and new series are written at least every `HOUR_FILE_S` and `JOB_FILE_S`
#: seconds: so much is lost at most if the service is killed.
SAMPLE_S, HOUR_FILE_S, JOB_FILE_S = 5.0, 60.0, 300.0
#: A sample stands for so many seconds at most: a longer gap is unknown.
LONGEST_S = 3 * SAMPLE_S
HOUR_S = 3600
_LOG = logging.getLogger("plait.service")


@dataclass
class Recorded:
    """A job: its series, GPU-seconds that it held, that are known to be busy or idle, and that were idle.

    `now`: the last sample, None if it does not run. `saved_s`: when it was written last.
    """

    series: JobSeries
    held_gpu_s: float = 0.0
    known_gpu_s: float = 0.0
    idle_gpu_s: float = 0.0
    now: JobUsage | None = None
    saved_s: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Stored form."""
        times = {name: round(getattr(self, name), 3) for name in ("held_gpu_s", "known_gpu_s", "idle_gpu_s")}
        return {"version": 1, **times, **self.series.to_json()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Recorded:
        """Read the values of `to_json`; raises ValueError, KeyError or TypeError for anything else."""
        held, known, idle = (float(data[name]) for name in ("held_gpu_s", "known_gpu_s", "idle_gpu_s"))
        return cls(JobSeries.from_json(data), held, known, idle)


@dataclass
class Usages:
    """Series of the jobs that run, and what was measured by hour and job. Thread-safe."""

    files: UsageFiles
    _jobs: dict[int, Recorded] = field(default_factory=dict)
    _hours: dict[int, dict[int, Measured]] | None = None
    _unsaved: set[int] = field(default_factory=set)
    _at_s: float | None = None
    _hour_saved_s: float = 0.0
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def take(self, now_s: float, found: Sequence[JobUsage]) -> None:
        """One sample of all jobs that run, at a time of the service's clock."""
        with self._lock:
            passed_s = 0.0 if self._at_s is None else min(max(now_s - self._at_s, 0.0), LONGEST_S)
            self._at_s = now_s
            number = int(now_s // HOUR_S)
            hour = self._of_hours().setdefault(number, {})
            self._unsaved.add(number)
            for one in found:
                job = self._job(one.job, now_s)
                values = dict(one.values)
                if (rate := _exchange_rate(job.now, one, passed_s)) is not None:
                    values["gradient_bytes_s"] = rate
                job.series.add(now_s, values)
                job.held_gpu_s += one.held_gpus * passed_s
                job.known_gpu_s += one.known_gpus * passed_s
                job.idle_gpu_s += one.idle_gpus * passed_s
                if one.known_gpus and passed_s:
                    before = hour.get(one.job, Measured())
                    hour[one.job] = before.plus(one.idle_gpus * passed_s, one.known_gpus * passed_s)
                job.now = one
            here = {one.job for one in found}
            for number, job in self._jobs.items():
                if number not in here:
                    job.now = None

    def recorded(self, number: int) -> Recorded | None:
        """A copy of what is known of a job, whether it runs or not; None if nothing was ever measured."""
        with self._lock:
            job = self._jobs.get(number)
            data = self.files.read_job(number) if job is None else job.to_json()
            found = _read(data)
            if found is not None and job is not None:
                found.now = job.now
            return found

    def measured(self, from_s: float) -> dict[int, Measured]:
        """Measurements of GPUs that jobs held since the hour of this time began; nothing of other jobs."""
        with self._lock:
            total: dict[int, Measured] = {}
            for hour, jobs in self._of_hours().items():
                for number, one in jobs.items() if hour >= from_s // HOUR_S else ():
                    total[number] = total.get(number, Measured()).plus(*one)
            return total

    def idle_now(self) -> float:
        """GPUs that are held and idle by the last sample."""
        with self._lock:
            return sum(job.now.idle_gpus for job in self._jobs.values() if job.now is not None)

    def save(self, now_s: float, *, everything: bool = False) -> None:
        """Write what is due, and forget jobs that do not run any more. Raises `OSError`."""
        with self._lock:
            due = {
                number: (job.now is not None, job.to_json())
                for number, job in self._jobs.items()
                if everything or job.now is None or now_s - job.saved_s >= JOB_FILE_S
            }
            hours: dict[int, dict[int, Measured]] = {}
            if everything or now_s - self._hour_saved_s >= HOUR_FILE_S:
                known = self._of_hours()
                hours = {hour: dict(known[hour]) for hour in self._unsaved if known.get(hour)}
                self._unsaved, self._hour_saved_s = set(), now_s
        for number, (runs, data) in due.items():
            self.files.write_job(number, data)
            with self._lock:
                self._jobs[number].saved_s = now_s
                if not runs and self._jobs[number].now is None:
                    del self._jobs[number]
        for hour, measured in hours.items():
            self.files.write_hour(hour, measured)
        if due or hours:
            self.files.tidy()

    def _job(self, number: int, now_s: float) -> Recorded:
        job = self._jobs.get(number)
        if job is None:
            job = _read(self.files.read_job(number)) or Recorded(JobSeries(now_s))
            # Not all at once: jobs that began together would be written together for ever.
            job.saved_s = now_s - JOB_FILE_S * (number % 60) / 60
            self._jobs[number] = job
        return job

    def _of_hours(self) -> dict[int, dict[int, Measured]]:
        if self._hours is None:
            self._hours = self.files.hours()
        while len(self._hours) > MOST_HOURS:
            del self._hours[min(self._hours)]
        return self._hours


class UsageRecorder:
    """Samples the engine of a worker; `run` in its event loop."""

    def __init__(self, worker: Worker, home: Path) -> None:
        self._worker, self.usages = worker, Usages(UsageFiles(home))
        self._trouble = ""

    async def sample(self) -> None:
        """Take one sample; none while reports of agents cannot be taken, because the disk is full."""
        if self._worker.trouble:
            return
        now_s, found = await self._worker.look(lambda engine, now_s: (now_s, job_usages(engine.context)))
        await asyncio.to_thread(self.usages.take, now_s, found)

    async def run(self, ending: asyncio.Event) -> None:
        """Sample until the service ends."""
        while not ending.is_set():
            try:
                await self.sample()
                await asyncio.to_thread(self.save)
            except Exception as error:  # charts have gaps then; the service continues
                if str(error) != self._trouble and not ending.is_set():
                    self._trouble = str(error)
                    _LOG.warning("usage of jobs was not recorded", exc_info=error)
            try:
                await asyncio.wait_for(ending.wait(), SAMPLE_S)
            except TimeoutError:
                continue

    def save(self, *, everything: bool = False) -> None:
        """Write what is due; a full disk loses charts and nothing else."""
        try:
            self.usages.save(self._worker.clock(), everything=everything)
            self._trouble = ""
        except OSError as error:
            if str(error) != self._trouble:
                self._trouble = str(error)
                _LOG.warning("usage of jobs is not written", extra={"facts": {"why": str(error)}})


def _read(data: Mapping[str, Any] | None) -> Recorded | None:
    try:
        return None if data is None else Recorded.from_json(data)
    except (ValueError, KeyError, TypeError):
        return None


def _exchange_rate(before: JobUsage | None, now: JobUsage, passed_s: float) -> float | None:
    """Bytes of gradients a second; None before two samples of an attempt."""
    if before is None or before.epoch != now.epoch or before.exchanged_bytes is None or now.exchanged_bytes is None:
        return None
    return max(now.exchanged_bytes - before.exchanged_bytes, 0.0) / passed_s if passed_s > 0 else None
