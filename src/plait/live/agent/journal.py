"""Facts that an agent must keep after its own death, one JSON line an entry, on the disk before it acts on them.

    {"what": "term", "term": 3}                          leaders below it are refused
    {"what": "start", "run": {...}}                      this process is about to be started
    {"what": "began", "key": [job, epoch, rank], "process": {"pid", "start_time", "boot"}, "at_boot_s": 12.5}
    {"what": "end", "key": [...], "exit_code": 0, "reason": null}   ... "merged": "unknown" of one that shared a process
    {"what": "forget", "key": [...]}                     the service has noted its end
    {"what": "refuse", ...}                              for people

Read at the start of an agent; rewritten then and when it has grown, without entries that no longer matter.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import Any

from plait.core.codec.values import Codec
from plait.core.files import OWNER_ONLY, replace_file
from plait.live.protocol.wire import Run, from_json, to_json
from plait.live.system.procs import Process

Key = tuple[int, int, int]
_REWRITE_BYTES = 4 << 20
_CODEC = Codec(closed=True)


@dataclass
class Remembered:
    """One process as the journal knows it."""

    run: Run
    process: Process | None = None
    began_boot_s: float = 0.0
    ended: bool = False
    exit_code: int | None = None
    reason: str | None = None
    merged: str = ""


@dataclass
class Memory:
    """Everything in a journal: the highest term, the highest epoch of each job, and processes not forgotten."""

    term: int = 0
    epochs: dict[int, int] = field(default_factory=dict)
    attempts: dict[Key, Remembered] = field(default_factory=dict)


class Journal:
    """The open journal of a node. `append` returns when the entries are on the disk."""

    def __init__(self, path: Path) -> None:
        """Read the file, rewrite it, and open it for appending; raises OSError if the disk refuses."""
        self.path = path
        self.memory = read(path)
        self._file: FileIO | None = None
        self._rewrite()

    def _rewrite(self) -> None:
        """Replace the file by one that holds only the present memory, and continue in that."""
        text = "".join(_line(entry) for entry in entries_of(self.memory))
        replace_file(self.path, text, mode=OWNER_ONLY, durable=True)
        old, self._file = self._file, open(self.path, "ab", buffering=0)  # noqa: SIM115
        if old is not None:
            old.close()
        self._rewrite_at = max(_REWRITE_BYTES, 4 * os.path.getsize(self.path))

    def append(self, *entries: dict[str, Any]) -> None:
        """Write entries and wait for the disk. A line cut short by a full disk is skipped when it is read."""
        if not entries:
            return
        assert self._file is not None
        data = b"\n" + "".join(_line(entry) for entry in entries).encode()
        if self._file.write(data) != len(data):  # a partial write raises no error
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), os.fspath(self.path))
        os.fsync(self._file.fileno())
        for entry in entries:
            _take(self.memory, entry)
        if self._file.tell() > self._rewrite_at:
            with contextlib.suppress(OSError):  # a full disk: later, then
                self._rewrite()

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            self._file.close()


def read(path: Path) -> Memory:
    """The memory in a journal; lines that are no entries (cut short by a crash) are passed over."""
    memory = Memory()
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = file.readlines()
    except FileNotFoundError:
        return memory
    for line in lines:
        try:
            entry = json.loads(line)
            if isinstance(entry, dict):
                _take(memory, entry)
        except (ValueError, KeyError, TypeError):  # WireError is a ValueError
            continue
    return memory


def _take(memory: Memory, entry: dict[str, Any]) -> None:
    what = entry.get("what")
    if what == "term":
        memory.term = max(memory.term, int(entry["term"]))
    elif what == "epochs":
        for job, epoch in entry["epochs"].items():
            memory.epochs[int(job)] = max(memory.epochs.get(int(job), 0), int(epoch))
    elif what == "start":
        run: Run = from_json(Run, entry["run"])
        memory.attempts[run.job, run.epoch, run.rank] = Remembered(run)
        memory.epochs[run.job] = max(memory.epochs.get(run.job, 0), run.epoch)
    elif what in ("began", "end", "forget"):
        job, epoch, rank = entry["key"]
        known = memory.attempts.get((job, epoch, rank))
        if known is None:
            return
        if what == "began":
            known.process = _CODEC.decode(Process, entry["process"])
            known.began_boot_s = float(entry.get("at_boot_s", 0.0))
        elif what == "end":
            known.ended, known.exit_code, known.reason = True, entry["exit_code"], entry["reason"]
            known.merged = str(entry.get("merged", ""))
        else:
            del memory.attempts[job, epoch, rank]


def entries_of(memory: Memory) -> list[dict[str, Any]]:
    """The shortest journal with the same content."""
    entries: list[dict[str, Any]] = [{"what": "term", "term": memory.term}]
    if memory.epochs:
        entries.append({"what": "epochs", "epochs": memory.epochs})
    for key, known in memory.attempts.items():
        entries.append(start(known.run))
        if known.process is not None:
            entries.append(began(key, known.process, known.began_boot_s))
        if known.ended:
            entries.append(end(key, known.exit_code, known.reason, known.merged))
    return entries


def start(run: Run) -> dict[str, Any]:
    """Entry: about to be started."""
    return {"what": "start", "run": to_json(run)}


def began(key: Key, process: Process, at_boot_s: float = 0.0) -> dict[str, Any]:
    """Entry: its runner is this process since then (CLOCK_BOOTTIME); 0: since the process started."""
    return {"what": "began", "key": list(key), "process": _CODEC.encode(process), "at_boot_s": at_boot_s}


def end(key: Key, exit_code: int | None, reason: str | None, merged: str = "") -> dict[str, Any]:
    """Entry: it has ended; `merged` as in `wire.Seen`."""
    entry = {"what": "end", "key": list(key), "exit_code": exit_code, "reason": reason}
    return entry | ({"merged": merged} if merged else {})


def forget(key: Key) -> dict[str, Any]:
    """Entry: its end is known to the service."""
    return {"what": "forget", "key": list(key)}


def _line(entry: dict[str, Any]) -> str:
    return json.dumps(entry, separators=(",", ":")) + "\n"
