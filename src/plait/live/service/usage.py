"""Use of resources by jobs over time, kept by the service next to its event log: decisions never read it.

Every few seconds `UsageRecorder` takes the last reports of agents into bounded series (`JobSeries`: where memory is
full, two intervals become one), and writes them to the home folder (`UsageFiles`), so that a service that starts again
continues them.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import logging
import math
import threading
import zlib
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from plait.core.files import OWNER_ONLY, replace_file
from plait.core.words import duration
from plait.live.layout import job_name
from plait.live.scheduler.engine import Engine
from plait.live.scheduler.explain.resources import JobUsage, job_usages
from plait.live.service.worker import Worker

#: Points of a series at most; seconds of an interval at first.
MOST_POINTS, FIRST_INTERVAL_S = 720, 5.0


@dataclass(frozen=True)
class Declared:
    """A series: its unit, what it is, its chart, and whether an interval has the `peak` or else the mean."""

    unit: str
    text: str
    chart: str
    peak: bool = False


SERIES = {
    "gpu_utilisation": Declared("share", "mean of its GPUs", "GPU utilisation"),
    "gpu_least": Declared("share", "the least busy of its GPUs", "GPU utilisation"),
    "gpu_memory_bytes": Declared("bytes", "GPU memory in use", "GPU memory", peak=True),
    "cpus": Declared("cores", "CPU cores in use", "CPU"),
    "memory_bytes": Declared("bytes", "resident memory", "Memory", peak=True),
    "read_bytes_s": Declared("bytes/s", "read", "Disk"),
    "written_bytes_s": Declared("bytes/s", "written", "Disk"),
    "sent_bytes_s": Declared("bytes/s", "sent by sockets", "Network"),
    "received_bytes_s": Declared("bytes/s", "received by sockets", "Network"),
    "gradient_bytes_s": Declared("bytes/s", "gradients exchanged, sum of ranks", "Network"),
    "iterations_s": Declared("1/s", "iterations a second", "Iterations"),
    "stage_storage_s": Declared("s", "storage", "Stages of an iteration"),
    "stage_cpu_s": Declared("s", "CPU", "Stages of an iteration"),
    "stage_gpu_s": Declared("s", "GPU", "Stages of an iteration"),
    "stage_network_s": Declared("s", "network", "Stages of an iteration"),
    "goodput": Declared("examples/s", "goodput", "Goodput"),
    "throughput": Declared("examples/s", "throughput", "Goodput"),
    "batch_size": Declared("examples", "batch size, all ranks", "Batch size"),
}


@dataclass
class _Open:
    """The interval that is being filled: weighted sum and weight, or the most with weight 1."""

    total: float = 0.0
    weight: float = 0.0

    def add(self, value: float, weight: float, *, peak: bool) -> None:
        if peak:
            self.total, self.weight = max(value, self.total) if self.weight else value, 1.0
        else:
            self.total, self.weight = self.total + value * weight, self.weight + weight

    @property
    def value(self) -> float:
        return self.total / self.weight if self.weight else math.nan


@dataclass
class JobSeries:
    """Figures of one job; interval i lasts from `from_s` + i x `interval_s`, and figures without a measurement are NaN.

    All series have the same intervals, and one without measurements takes no memory.
    """

    from_s: float
    interval_s: float = FIRST_INTERVAL_S
    most: int = MOST_POINTS
    _columns: dict[str, array[float]] = field(default_factory=dict)
    _length: int = 0
    _open: dict[str, _Open] = field(default_factory=dict)

    def add(self, at_s: float, values: Mapping[str, float]) -> None:
        """Take what was measured at a time; one before the interval that is open counts as of that one."""
        index = int((at_s - self.from_s) // self.interval_s)
        while index >= self.most:
            self._halve()
            index = int((at_s - self.from_s) // self.interval_s)
        if index > self._length:
            self._close()
            for column in self._columns.values():
                column.extend([math.nan] * (index - self._length))
            self._length = index
        for name, value in values.items():
            if math.isfinite(value):
                self._open.setdefault(name, _Open()).add(value, 1.0, peak=SERIES[name].peak)

    def values(self) -> dict[str, list[float]]:
        """All series, the interval that is open included; NaN where nothing is known."""
        out = {name: list(column) for name, column in self._columns.items()}
        for name in self._open:
            out.setdefault(name, [math.nan] * self._length)
        if self._open:
            for name, column in out.items():
                column.append(self._open[name].value if name in self._open else math.nan)
        return {name: out[name] for name in SERIES if name in out}

    def thin(self, points: int) -> None:
        """At most so many intervals from now on."""
        self.most = points
        while self._length + bool(self._open) > points:
            self._halve()

    def _close(self) -> None:
        for name in self._open:
            if name not in self._columns:
                self._columns[name] = array("f", [math.nan]) * self._length
        for name, column in self._columns.items():
            column.append(self._open[name].value if name in self._open else math.nan)
        self._length += 1
        self._open = {}

    def _halve(self) -> None:
        """Merge pairs of intervals. A last one without a partner becomes part of the one that is open."""
        weight = max(self.interval_s / FIRST_INTERVAL_S, 1.0)
        if self._length % 2:
            self._length -= 1
            for name, column in self._columns.items():
                if math.isfinite(last := column.pop()):
                    self._open.setdefault(name, _Open()).add(last, weight, peak=SERIES[name].peak)
        for name, column in self._columns.items():
            # One value for every two of an even number, as far as known.
            peak = SERIES[name].peak
            values = np.frombuffer(column, np.float32).reshape(-1, 2)
            first, second = values[:, 0], values[:, 1]
            with np.errstate(invalid="ignore"):
                both = np.maximum(first, second) if peak else (first + second) / 2
            merged = np.where(np.isnan(first), second, np.where(np.isnan(second), first, both))
            self._columns[name] = array("f", merged.astype(np.float32).tobytes())
        self._length //= 2
        self.interval_s *= 2

    def to_json(self) -> dict[str, Any]:
        """All of it, the open interval as if it were over."""
        columns = {
            name: base64.b64encode(array("f", column).tobytes()).decode("ascii")
            for name, column in self.values().items()
        }
        return {"from_s": self.from_s, "interval_s": self.interval_s, "columns": columns}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> JobSeries:
        """Read the values of `to_json`; raises ValueError, KeyError or TypeError for anything else."""
        found = cls(float(data["from_s"]), float(data["interval_s"]))
        if not (math.isfinite(found.from_s) and found.interval_s >= FIRST_INTERVAL_S):
            raise ValueError(f"a series from {found.from_s} in intervals of {found.interval_s} s")
        for name, text in data["columns"].items():
            column = array("f")
            column.frombytes(base64.b64decode(text, validate=True))
            if name in SERIES:
                found._columns[name] = column
        lengths = {len(column) for column in found._columns.values()}
        if len(lengths) > 1 or max(lengths, default=0) > found.most:
            raise ValueError(f"columns of {sorted(lengths)} points")
        found._length = max(lengths, default=0)
        return found


# Where usage is stored: a small file a job, and one an hour of how long held GPUs were idle, and measured.

#: Jobs whose series are kept, and hours of all jobs: the oldest go first.
MOST_JOBS, MOST_HOURS = 2000, 24 * 31
#: Maximum unpacked size of a file, bytes: a larger one is not ours.
_LARGEST = 4 << 20
_HOUR = "idle-"


class Measured(NamedTuple):
    """GPU-seconds that a job held idle, and GPU-seconds for which that is known."""

    idle_gpu_s: float = 0.0
    known_gpu_s: float = 0.0

    def plus(self, idle_gpu_s: float, known_gpu_s: float) -> Measured:
        """With these GPU-seconds more."""
        return Measured(self.idle_gpu_s + idle_gpu_s, self.known_gpu_s + known_gpu_s)


class UsageFiles:
    """The folder `usage` of a home; a file that cannot be read counts as none. Writing raises `OSError`."""

    def __init__(self, home: Path) -> None:
        self.folder = home / "usage"

    def write_job(self, number: int, data: Mapping[str, Any]) -> None:
        self._write(job_name(number), data)

    def read_job(self, number: int) -> dict[str, Any] | None:
        """Stored figures of a job."""
        return self._read(job_name(number))

    def write_hour(self, hour: int, measured: Mapping[int, Measured]) -> None:
        """Replace the file of an hour: what was measured by job."""
        rows = {str(job): [round(one.idle_gpu_s, 3), round(one.known_gpu_s, 3)] for job, one in measured.items()}
        self._write(f"{_HOUR}{hour}", rows)

    def hours(self) -> dict[int, dict[int, Measured]]:
        """Measurements by hour and job, of the newest `MOST_HOURS` hours that have any."""
        found: dict[int, dict[int, Measured]] = {}
        for path in self.folder.glob(f"{_HOUR}*") if self.folder.is_dir() else ():
            hour, data = path.name.removeprefix(_HOUR), self._read(path.name)
            if data is not None and hour.isdigit():
                with contextlib.suppress(ValueError, TypeError):
                    found[int(hour)] = {int(job): Measured(*map(float, value)) for job, value in data.items()}
        return {hour: found[hour] for hour in sorted(found)[-MOST_HOURS:]}

    def tidy(self, most_jobs: int = MOST_JOBS, most_hours: int = MOST_HOURS) -> None:
        """Remove the oldest files where there are too many."""
        if not self.folder.is_dir():
            return
        jobs: list[Path] = []
        hours: list[Path] = []
        for path in self.folder.iterdir():
            (hours if path.name.startswith(_HOUR) else jobs).append(path)
        for paths, most in ((jobs, most_jobs), (hours, most_hours)):
            if len(paths) > most:
                for path in sorted(paths, key=_written_s)[: len(paths) - most]:
                    path.unlink(missing_ok=True)

    def _write(self, name: str, data: Mapping[str, Any]) -> None:
        self.folder.mkdir(mode=0o700, exist_ok=True)  # never the home: it may have been moved
        text = json.dumps(data, separators=(",", ":"), allow_nan=False)
        replace_file(self.folder / name, zlib.compress(text.encode(), 1), mode=OWNER_ONLY)

    def _read(self, name: str) -> dict[str, Any] | None:
        try:
            unpacked = zlib.decompressobj().decompress((self.folder / name).read_bytes(), _LARGEST)
            found = json.loads(unpacked)
        except (OSError, ValueError, zlib.error, RecursionError):
            return None
        return found if isinstance(found, dict) else None


def _written_s(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


# Takes what running jobs use into their series, every few seconds, and keeps them in files.

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
    #: Since when all of its GPUs have been measured and idle; None if they are not.
    idle_since_s: float | None = None
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
            gap_s = 0.0 if self._at_s is None else max(now_s - self._at_s, 0.0)
            passed_s = min(gap_s, LONGEST_S)
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
                if gap_s > LONGEST_S or job.now is None or job.now.epoch != one.epoch:
                    job.idle_since_s = None  # nobody knows of the gap, nor of a new attempt before this sample
                idle = one.held_gpus > 0 and one.known_gpus >= one.held_gpus and one.idle_gpus >= one.held_gpus
                job.idle_since_s = (job.idle_since_s or now_s) if idle and passed_s else None
                job.now = one
            here = {one.job for one in found}
            for number, job in self._jobs.items():
                if number not in here:
                    job.now = job.idle_since_s = None

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

    def idle_s(self, now_s: float) -> dict[int, float]:
        """Seconds for which all GPUs of a job have been idle, of those of which they are, since this service began."""
        with self._lock:
            since = {number: job.idle_since_s for number, job in self._jobs.items()}
            return {number: now_s - at_s for number, at_s in since.items() if at_s is not None}

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
        idle = self.usages.idle_s(now_s)
        if await self._worker.look(lambda engine, now_s: _too_idle(engine, idle)):
            await self._worker.call(lambda engine, now_s: _end_idle(engine, idle, now_s))

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


def _too_idle(engine: Engine, idle: Mapping[int, float]) -> dict[int, str]:
    """The jobs that the rule of their project ends, each with the reason."""
    found = {}
    for number, idle_s in idle.items():
        job = engine.state.jobs.get(number)
        most_s = None if job is None else engine.state.projects.get(job.project, {}).get("most_idle_s")
        if job is not None and job.live is not None and job.live.stop is None and most_s and idle_s >= most_s:
            found[number] = f"the rule of project {job.project} for GPUs that are idle for {duration(most_s)}"
    return found


def _end_idle(engine: Engine, idle: Mapping[int, float], now_s: float) -> None:
    for number, rule in _too_idle(engine, idle).items():
        engine.cancel(number, now_s, by=rule)
        _LOG.warning("a job was ended", extra={"facts": {"job": job_name(number), "by": rule}})


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
