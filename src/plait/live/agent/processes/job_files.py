"""Files of a job's folder that an agent reads: the job can write there, too, so their contents are checked.

Impossible contents are left out, and never raise: a job that spoils its own files must not end the agent of all jobs.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from plait.live.layout import job_number
from plait.live.protocol.wire import sane_code, sane_text
from plait.live.system import procs
from plait.live.system.accounts import in_name_of, job_folder, owner_of, process_owner
from plait.live.system.procs import Process

#: The largest pid of Linux, and ticks since boot.
_MOST_PID, _MOST_TICKS = 1 << 22, 1 << 60


@dataclass(frozen=True)
class Claim:
    """A runner's claim of a folder: who it is, its child (0: not yet), and the mark of a process that jobs share."""

    process: Process
    child: int = 0
    shared_mark: str = ""


def read_claim(folder: Path) -> Claim | None:
    """Read runner.json; None if there is none, or an invalid one, as of a process of another account."""
    with in_name_of(job_folder(folder)):
        data = procs.read_json(folder / "runner.json") or {}
    pid, start_time, boot = (
        _whole(data.get("pid"), _MOST_PID),
        _whole(data.get("start_time"), _MOST_TICKS),
        data.get("boot"),
    )
    if pid < 2 or start_time < 0 or not isinstance(boot, str):
        return None
    owner = owner_of(job_folder(folder))
    if owner is not None and process_owner(pid) not in (None, owner.uid):
        return None  # the job would have it stopped in its place
    mark = data.get("mark")
    shared = mark if data.get("merged") and isinstance(mark, str) else ""
    if owner is not None and shared:  # all that bears this mark is killed when the runner ends
        job = (shared.split(":") + [""])[1]
        if job_number(job) is None or owner_of(folder.parents[3] / job) != owner:
            return None
    return Claim(Process(pid, start_time, boot[:100]), max(_whole(data.get("child"), _MOST_PID), 0), shared[:200])


@dataclass(frozen=True)
class End:
    """How a process ended; `boot_s`, when (of CLOCK_BOOTTIME), is None if that is not known or cannot be.

    `stopped`: it had got SIGTERM before its end, and did not ignore that signal.
    """

    exit_code: int | None
    reason: str | None
    merged: str = ""
    boot_s: float | None = None
    stopped: bool = False


def read_end(folder: Path, began_s: float) -> End | None:
    """Read the exit.json of a process that began then; None if there is none."""
    data = procs.read_json(folder / "exit.json")
    return None if data is None else end_of(data, began_s)


def end_of(data: dict[str, object], began_s: float) -> End:
    """The same of what was read."""
    code, reason, merged, at = (data.get(name) for name in ("exit_code", "reason", "merged", "ended_boot_s"))
    known = data.get("boot") == procs.boot_id() and isinstance(at, float) and began_s <= at <= procs.boot_s() + 1.0
    return End(
        sane_code(code) if isinstance(code, int) and not isinstance(code, bool) else None,
        sane_text(reason) if isinstance(reason, str) else None,
        merged[:20] if isinstance(merged, str) else "",
        at if known and isinstance(at, float) else None,
        data.get("stopped") is True,
    )


def _whole(value: object, most: int) -> int:
    """A whole number up to `most`; -1 for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most else -1
