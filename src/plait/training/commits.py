"""A folder of checkpoints of which each is there entirely or not at all.

    checkpoints/
      tmp-0000000120-e3/          being written
      step-0000000100-e3/         complete once its marker is there
        rank0.pt rank1.pt
        COMMITTED                 {"step", "epoch", "world", "files": {name: bytes}}, written last

A name has the step and the epoch of the attempt that wrote it. Files are flushed to the disk, then the folder is
renamed, then the marker is written; whatever has no marker does not count. Before the marker the writer compares its
epoch with the file EPOCH beside the folder: an attempt that was given up, but whose process lives on, commits nothing.
No torch here: adapters use it for the checkpoints of other libraries.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from plait.core.errors import PlaitError

MARKER = "COMMITTED"
NAME = re.compile(r"step-(\d+)-e(\d+)")
POLL_S = 0.01


class StaleEpoch(PlaitError):
    """A later attempt of the job has begun; what this one computes no longer counts."""


@dataclass(frozen=True)
class Commit:
    """A complete checkpoint."""

    path: Path
    step: int
    epoch: int
    world: int


class Commits:
    """The checkpoints of a job as one attempt sees them."""

    def __init__(self, folder: Path, *, epoch: int = 0, epoch_file: Path | None = None, keep: int = 2) -> None:
        """`folder` need not exist. `keep` >= 1 complete checkpoints stay."""
        self.folder, self.epoch, self.epoch_file, self.keep = folder, epoch, epoch_file, max(keep, 1)

    def check_epoch(self) -> None:
        """Raise `StaleEpoch` if a later attempt has begun; without an EPOCH file there is only one."""
        try:
            allowed = int(self.epoch_file.read_text()) if self.epoch_file else self.epoch
        except FileNotFoundError:
            return
        except ValueError as error:
            raise StaleEpoch(f"{self.epoch_file}: not a number, so nothing is committed: {error}") from None
        if allowed > self.epoch:
            raise StaleEpoch(f"attempt {self.epoch} was replaced by attempt {allowed}: its checkpoints no longer count")

    def begin(self, step: int) -> Path:
        """The folder to write the checkpoint of `step` into; the same for all ranks."""
        making = self.folder / f"tmp-{step:010d}-e{self.epoch}"
        making.mkdir(parents=True, exist_ok=True, mode=0o700)
        return making

    def commit(self, making: Path, step: int, *, world: int = 1) -> Commit:
        """Make what lies in `making` the newest checkpoint; raises `StaleEpoch` or `OSError`."""
        final = self.folder / f"step-{step:010d}-e{self.epoch}"
        self.check_epoch()
        if final.exists():  # the same step of the same attempt, saved again
            (final / MARKER).unlink(missing_ok=True)
            shutil.rmtree(final)
        files = {
            str(file.relative_to(making)): file.stat().st_size for file in sorted(making.rglob("*")) if file.is_file()
        }
        _flush_folders(making)
        making.rename(final)
        flush(self.folder)
        marker = {"step": step, "epoch": self.epoch, "world": world, "files": files}
        try:
            self.check_epoch()  # as late as can be
            write_whole(final / MARKER, json.dumps(marker))
        except (OSError, StaleEpoch):
            shutil.rmtree(final, ignore_errors=True)
            raise
        self.prune()
        return Commit(final, step, self.epoch, world)

    def complete(self) -> list[Commit]:
        """Marked checkpoints whose files are all there, newest first: by attempt, then by step."""
        found = []
        for path in self._folders():
            name = NAME.fullmatch(path.name)
            if name and (commit := _read(path, int(name[1]), int(name[2]))):
                found.append(commit)
        return sorted(found, key=lambda c: (c.epoch, c.step), reverse=True)

    def choose(self, *, rank: int = 0, world: int = 1, timeout_s: float = 120.0) -> list[Commit]:
        """What this attempt resumes from, best first; all ranks get the same.

        Rank 0 looks and writes its list down; the others read it, since a stale attempt may commit between two looks.
        Raises `PlaitError` if rank 0 says nothing for `timeout_s`.
        """
        agreed = self.folder / f"resume-e{self.epoch}.json"
        if rank == 0:
            self.sweep(self.epoch)
            found = self.complete()
            if world > 1:
                self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
                write_whole(agreed, json.dumps({"names": [c.path.name for c in found]}))
            return found
        end_s = time.monotonic() + timeout_s
        while not agreed.exists():
            if time.monotonic() > end_s:
                raise PlaitError(f"{agreed}: rank 0 has not said within {timeout_s:.0f} s where to resume")
            time.sleep(POLL_S)
        names = json.loads(agreed.read_text())["names"]
        known = {c.path.name: c for c in self.complete()}
        return [known[name] for name in names if name in known]

    def prune(self) -> None:
        """Remove all but the newest complete checkpoints; errors do not matter."""
        for commit in self.complete()[self.keep :]:
            (commit.path / MARKER).unlink(missing_ok=True)  # first, so that half a folder is never a checkpoint
            shutil.rmtree(commit.path, ignore_errors=True)

    def sweep(self, newest_epoch: int) -> None:
        """Remove what attempts up to this one left unfinished. For rank 0.

        What other ranks of this attempt write may be among it, so only before they begin to.
        """
        for path in self._folders():
            unmarked = NAME.fullmatch(path.name) and not (path / MARKER).exists()
            epoch = path.name.rpartition("-e")[2]
            if (path.name.startswith("tmp-") or unmarked) and epoch.isdigit() and int(epoch) <= newest_epoch:
                shutil.rmtree(path, ignore_errors=True)

    def _folders(self) -> list[Path]:
        try:
            return sorted(path for path in self.folder.iterdir() if path.is_dir())
        except OSError:
            return []


def write_whole(path: Path, text: str) -> None:
    """Write a file so that it is there entirely or not at all, also after a power cut."""
    making = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with making.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        making.replace(path)
    except OSError:
        making.unlink(missing_ok=True)
        raise
    flush(path.parent)


def flush(path: Path) -> None:
    """Flush a folder's entries (or a file) to the disk."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _flush_folders(folder: Path) -> None:
    """Flush everything below: writers of other libraries do not."""
    for path in folder.rglob("*"):
        flush(path)
    flush(folder)


def _read(path: Path, step: int, epoch: int) -> Commit | None:
    """The checkpoint in `path`; None if it is not complete."""
    try:
        marker = json.loads((path / MARKER).read_text())
        whole = all((path / name).stat().st_size == size for name, size in marker["files"].items())
        return Commit(path, step, epoch, int(marker["world"])) if whole and marker["files"] else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
