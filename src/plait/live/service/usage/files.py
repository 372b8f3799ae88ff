"""Where usage is stored: a small file a job, and one an hour of how long held GPUs were idle, and measured."""

from __future__ import annotations

import contextlib
import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from plait.core.files import OWNER_ONLY, replace_file
from plait.live.layout import job_name

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
        """Nothing is read or made yet."""
        self.folder = home / "usage"

    def write_job(self, number: int, data: Mapping[str, Any]) -> None:
        """Replace the file of a job."""
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
                    found[int(hour)] = {int(job): _measured(value) for job, value in data.items()}
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


def _measured(value: Any) -> Measured:
    """A value of an hour's file; older ones had only the idle seconds, of which no more is known than that."""
    idle, known = value if isinstance(value, list) else (value, value)
    return Measured(float(idle), float(known))


def _written_s(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
