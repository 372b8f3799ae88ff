"""Where usage is stored: a small file a job, and one an hour of GPUs that were held but idle."""

from __future__ import annotations

import contextlib
import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from plait.core.files import OWNER_ONLY, replace_file
from plait.live.layout import job_name, make_private

#: Jobs whose series are kept, and hours of idle GPUs: the oldest go first.
MOST_JOBS, MOST_HOURS = 2000, 24 * 31
#: What a file can unpack to, bytes: more is not ours.
_LARGEST = 4 << 20
_HOUR = "idle-"


class UsageFiles:
    """The folder `usage` of a home; a file that cannot be read counts as none. Writing raises `OSError`."""

    def __init__(self, home: Path) -> None:
        """Nothing is read or made yet."""
        self.folder = home / "usage"

    def write_job(self, number: int, data: Mapping[str, Any]) -> None:
        """Replace the file of a job."""
        self._write(job_name(number), data)

    def read_job(self, number: int) -> dict[str, Any] | None:
        """What is known of a job."""
        return self._read(job_name(number))

    def write_hour(self, hour: int, idle: Mapping[int, float]) -> None:
        """Replace the file of an hour: idle GPU-seconds by job."""
        self._write(f"{_HOUR}{hour}", {str(job): round(seconds, 3) for job, seconds in idle.items()})

    def hours(self) -> dict[int, dict[int, float]]:
        """Idle GPU-seconds by hour and job, of the newest `MOST_HOURS` hours that have any."""
        found: dict[int, dict[int, float]] = {}
        for path in self.folder.glob(f"{_HOUR}*") if self.folder.is_dir() else ():
            hour, data = path.name.removeprefix(_HOUR), self._read(path.name)
            if data is not None and hour.isdigit():
                with contextlib.suppress(ValueError, TypeError):
                    found[int(hour)] = {int(job): float(seconds) for job, seconds in data.items()}
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
        make_private(self.folder)
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
