"""Store checkpoints in a folder such that each is complete or does not count.

    checkpoints/
      tmp-0000000120-e3/          being written
      step-0000000100-e3/         complete once its marker is there
        rank0.pt rank1.pt         (rank0.pkl of a job without torch)
        COMMITTED                 {"step", "epoch", "world", "files": {name: [bytes, crc32]}, "crc32"}, written last

The name of a folder has the step and the epoch of its attempt. Files are flushed to the disk, then the folder is
renamed, then the marker is written; a folder without a marker does not count. If files differ from the checksums in the
marker, the checkpoint is never loaded: the marker is renamed to DAMAGED, and the previous checkpoint counts. Before it
writes the marker, an attempt compares its epoch with the file EPOCH beside the folder, so a replaced attempt whose
process still runs commits nothing. This module does not import torch: adapters use it for checkpoints of other
libraries.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import time
import warnings
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plait.core.errors import PlaitError
from plait.core.files import flush_to_disk, replace_file

# Checksums of checkpoints, by which damaged files are detected before they are loaded.
#
# The marker of a checkpoint holds the size and the CRC-32 of every file, and a CRC-32 of itself. A CRC detects every
# flipped bit and every burst of up to 32 bits. It does not protect against deliberate changes, which could change the
# marker, too. It costs about 0.7 s of one core per GB, in the thread that writes, and as much at a resume.

_CHUNK = 1 << 22
#: The marker's checksum of itself.
_OWN = "crc32"


class Damaged(PlaitError, ValueError):
    """A checkpoint, or its marker, is not what was written."""


def crc_of(path: Path) -> int:
    """The CRC-32 of a file; raises OSError."""
    crc, buffer = 0, memoryview(bytearray(_CHUNK))
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            crc = zlib.crc32(buffer[:count], crc)
    return crc


def marker_text(step: int, epoch: int, world_size: int, folder: Path) -> str:
    """The marker of a checkpoint whose files lie in `folder`; raises OSError."""
    files = {
        str(file.relative_to(folder)): [file.stat().st_size, crc_of(file)]
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }
    facts = {"step": step, "epoch": epoch, "world": world_size, "files": files}
    return json.dumps({**facts, _OWN: _own(facts)})


def read_marker(text: str) -> tuple[int, dict[str, tuple[int, int | None]]]:
    """World size, and size and CRC of each file; a CRC is None in the oldest markers. Raises `Damaged`.

    >>> read_marker('{"step": 5, "epoch": 0, "world": 1, "files": {"rank0.pt": 7}}')
    (1, {'rank0.pt': (7, None)})
    """
    try:
        facts = json.loads(text)
        own = facts.pop(_OWN, None)
        old = own is None and all(isinstance(said, int) for said in facts["files"].values())
        if not old and own != _own(facts):
            raise Damaged("the marker was changed after it was written: its checksum does not match")
        files = {name: (said, None) if old else (said[0], said[1]) for name, said in facts["files"].items()}
        return int(facts["world"]), files
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise Damaged(f"the marker cannot be read: {error}") from error


def check_file(path: Path, crc: int | None) -> None:
    """Raise `Damaged` if a file differs from its checksum or size, OSError if it cannot be read."""
    if crc is not None and (found := crc_of(path)) != crc:
        raise Damaged(f"{path} is not what was written: its CRC-32 is {found:08x}, not {crc:08x}")


def _own(facts: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(facts, sort_keys=True).encode())


MARKER, DAMAGED = "COMMITTED", "DAMAGED"
NAME = re.compile(r"step-(\d+)-e(\d+)")
POLL_S = 0.01


class StaleEpoch(PlaitError):
    """A later attempt of the job has begun; results of this one no longer count."""


@dataclass(frozen=True)
class Commit:
    """A complete checkpoint: its folder, step, attempt and number of ranks."""

    path: Path
    step: int
    epoch: int
    world_size: int


class CheckpointStore:
    """The checkpoints of a job, as seen by one attempt."""

    def __init__(
        self, folder: Path, *, epoch: int = 0, epoch_file: Path | None = None, keep: int = 2,
        source: Path | None = None,
    ) -> None:  # fmt: skip
        """`folder` need not exist. The newest `keep` >= 1 complete checkpoints stay.

        `epoch`: number of the attempt; `epoch_file`: file with the lowest epoch that may commit.
        `source`: checkpoints of an ended job, of which the newest counts as long as there is none in `folder`.
        """
        self.folder, self.epoch, self.epoch_file, self.keep = folder, epoch, epoch_file, max(keep, 1)
        self.source = source
        #: Files that were verified already.
        self._verified: set[Path] = set()

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

    def commit(self, making: Path, step: int, *, world_size: int = 1) -> Commit:
        """Commit the folder `making` as the newest checkpoint; raises `StaleEpoch` or `OSError`."""
        final = self.folder / f"step-{step:010d}-e{self.epoch}"
        self.check_epoch()
        if final.exists():  # the same step of the same attempt, saved again
            (final / MARKER).unlink(missing_ok=True)
            shutil.rmtree(final)
        marker = marker_text(step, self.epoch, world_size, making)
        _flush_folders(making)
        making.rename(final)
        flush_to_disk(self.folder)
        try:
            self.check_epoch()  # as late as possible
            replace_file(final / MARKER, marker, durable=True)
        except (OSError, StaleEpoch):
            shutil.rmtree(final, ignore_errors=True)
            raise
        self.prune()
        return Commit(final, step, self.epoch, world_size)

    def complete(self) -> list[Commit]:
        """Marked checkpoints whose files are all there, newest first: by attempt, then by step."""
        found = []
        for path in self._folders():
            name = NAME.fullmatch(path.name)
            try:
                if name and (commit := _read(path, int(name[1]), int(name[2]))):
                    found.append(commit)
            except Damaged:
                continue
        return sorted(found, key=lambda c: (c.epoch, c.step), reverse=True)

    def verify(self, commit: Commit, rank: int | None = None) -> None:
        """Compare files with their checksums: all, or those that one rank loads. Logs damage and raises `Damaged`.

        A damaged checkpoint no longer counts for any attempt; its files stay until the next attempt begins.
        """
        wanted = None if rank is None else ("rank0.", f"rank{rank}.")
        try:
            _, files = read_marker((commit.path / MARKER).read_text(encoding="utf-8"))
            for name, (_, crc) in files.items():
                file = commit.path / name
                if file not in self._verified and (wanted is None or name.startswith(wanted)):
                    check_file(file, crc)
                    self._verified.add(file)
        except Damaged as error:
            _retire(commit.path, str(error))
            raise
        except OSError as error:  # perhaps a temporary error, so it keeps its marker
            _tell(commit.path, str(error))
            raise Damaged(f"{commit.path} cannot be read: {error}") from error

    def _sound(self) -> list[Commit]:
        """Complete checkpoints from the newest undamaged one on; newer, damaged ones no longer count."""
        for path in self._folders():
            try:
                _read(path, 0, 0)
            except Damaged as error:
                _retire(path, str(error))
        found = self.complete()
        while found:
            try:
                self.verify(found[0])
                break
            except Damaged:
                found = found[1:]
        return found

    def choose(self, *, rank: int = 0, world_size: int = 1, timeout_s: float = 120.0) -> list[Commit]:
        """Checkpoints to resume from, best first, the same on all ranks.

        Rank 0 writes its list to a file and the others read it, since a stale attempt may commit meanwhile. Raises
        `PlaitError` if rank 0 writes nothing for `timeout_s` seconds, or if there is none in `source` either.
        """
        agreed = self.folder / f"resume-e{self.epoch}.json"
        if rank == 0:
            self.sweep(self.epoch)
            found = self._sound()
            if not found and self.source is not None:
                found = [self._link_from(self.source)]
            if world_size > 1:
                self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
                replace_file(agreed, json.dumps({"names": [c.path.name for c in found]}), durable=True)
            return found
        end_s = time.monotonic() + timeout_s
        while not agreed.exists():
            if time.monotonic() > end_s:
                raise PlaitError(f"{agreed}: rank 0 has not written within {timeout_s:.0f} s where to resume")
            time.sleep(POLL_S)
        names = json.loads(agreed.read_text())["names"]
        known = {c.path.name: c for c in self.complete()}
        return [known[name] for name in names if name in known]

    def _link_from(self, source: Path) -> Commit:
        """Link the newest undamaged checkpoint of `source` as one of attempt 0; raises `PlaitError`.

        Files never change once they are committed, so both folders may have the same ones, and each may remove its own.
        """
        sound = CheckpointStore(source)._sound()
        if not sound:
            raise PlaitError(f"{source} has no undamaged checkpoint, and this job was to start from one of them")
        newest, first = sound[0], CheckpointStore(self.folder)
        try:
            making, marker = first.begin(newest.step), (newest.path / MARKER).read_text(encoding="utf-8")
            for name in read_marker(marker)[1]:
                (making / name).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                os.link(newest.path / name, making / name)
            _flush_folders(making)
            final = making.rename(self.folder / f"step-{newest.step:010d}-e0")
            flush_to_disk(self.folder)
            replace_file(final / MARKER, marker, durable=True)
        except OSError as error:
            raise PlaitError(f"{newest.path}: this job cannot start from it: {error}") from error
        return Commit(final, newest.step, 0, newest.world_size)

    def prune(self) -> None:
        """Remove all but the newest complete checkpoints; ignores errors."""
        for commit in self.complete()[self.keep :]:
            (commit.path / MARKER).unlink(missing_ok=True)  # first, so that a partly removed folder does not count
            shutil.rmtree(commit.path, ignore_errors=True)

    def sweep(self, newest_epoch: int) -> None:
        """Remove unfinished checkpoints of attempts up to this one. For rank 0.

        Call it before other ranks of this attempt write, since their files would be removed, too.
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


def _flush_folders(folder: Path) -> None:
    """Flush everything below: writers of other libraries do not."""
    for path in folder.rglob("*"):
        flush_to_disk(path)
    flush_to_disk(folder)


def _read(path: Path, step: int, epoch: int) -> Commit | None:
    """The checkpoint in `path`; None without a marker. Raises `Damaged` if files are missing or truncated."""
    try:
        text = (path / MARKER).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise Damaged(f"the marker cannot be read: {error}") from error
    except OSError:
        return None
    world_size, files = read_marker(text)
    for name, (size, _) in files.items():
        try:
            there = (path / name).stat().st_size
        except OSError as error:
            if not (path / MARKER).exists():  # it is being removed
                return None
            raise Damaged(f"{path / name} cannot be found: {error.strerror or error}") from error
        if there != size:
            raise Damaged(f"{path / name} has {there} bytes, not {size}")
    return Commit(path, step, epoch, world_size) if files else None


def _tell(path: Path, why: str) -> None:
    """Write to the job's log which checkpoint is not loaded, and why."""
    warnings.warn(
        f"plait: DAMAGED CHECKPOINT {path.name} is not loaded, an older one is: {why}. Look at the disk and the memory "
        "of this machine",
        RuntimeWarning,
        stacklevel=4,
    )


def _retire(path: Path, why: str) -> None:
    """Rename the marker, so that a damaged checkpoint no longer counts."""
    with contextlib.suppress(OSError):
        (path / MARKER).replace(path / DAMAGED)
    _tell(path, why)
