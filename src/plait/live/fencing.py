"""Epochs on disk: before a new attempt of a job begins, older ones are made unable to commit a checkpoint.

A job's folder has a file `EPOCH`, the highest attempt whose checkpoints count. It is written, and forced to disk, after
an attempt is in the log and before any agent receives it. A former leader may still come here, late: the file it finds
is of its successor then, and stays.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from plait.core.files import replace_file
from plait.live.layout import Layout, make_private, read_epoch
from plait.live.system.accounts import in_name_of
from plait.live.system.procs import open_to_append

#: Errors that a job can cause by what it puts into its folder.
_OF_A_FOLDER = (
    errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENXIO,
)  # fmt: skip


class Fences:
    """The epoch files of a home folder."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout

    def next_epoch(self, number: int, epoch: int) -> int:
        """The epoch of a job's next attempt, its last one being `epoch`; raises `OSError` for an error that may pass.

        Higher than any epoch in the job's folder, which may be more than a restored store knows. A folder that cannot
        be made accessible counts as empty, because `write` raises an error for it.
        """
        try:
            with in_name_of(self.layout.job(number)):
                _mend(self.layout.job(number))
            return max(self._on_disk(number), epoch) + 1
        except OSError as error:
            if self.may_pass(number, error):
                raise
            return epoch + 1

    def may_pass(self, number: int, error: OSError) -> bool:
        """Whether an error is not due to the job's own folder: of the disk, the machine, or the folder of all jobs."""
        return error.errno not in _OF_A_FOLDER or not os.access(self.layout.job(number).parent, os.W_OK | os.X_OK)

    def _on_disk(self, number: int) -> int:
        return read_epoch(self.layout.epoch_file(number))

    def write(self, number: int, epoch: int, first: int) -> None:
        """Only attempts of a job from this epoch on may commit; raises `OSError` where that cannot be written.

        Contents of the folder from before the `first` attempt are of another job of its number, and are put aside.
        """
        with in_name_of(self.layout.job(number)):
            _mend(self.layout.job(number))
        if self._on_disk(number) >= epoch:  # nothing to do, whichever process has the lock, perhaps stopped
            return
        make_private(self.layout.job(number))
        with in_name_of(self.layout.job(number)), self._alone(number):
            reached = self._on_disk(number)
            if reached >= epoch:
                return
            if 0 < reached < first:
                folder = self.layout.job(number)
                aside = make_private(folder / f"before-{reached}")
                for path in [p for p in folder.iterdir() if not p.name.startswith(("EPOCH", "before-"))]:
                    path.replace(aside / path.name)
            self._replace(number, epoch)

    @contextmanager
    def _alone(self, number: int) -> Iterator[None]:
        """Between looking and writing no other process writes; waiting is left to the caller, who comes again."""
        path = self.layout.epoch_file(number).with_name("EPOCH.lock")
        _plain(path)
        with os.fdopen(open_to_append(path), "ab") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                why = "locked by another service, which may be stopped in the middle"
                raise BlockingIOError(errno.EAGAIN, why, str(path)) from None
            yield

    def _replace(self, number: int, epoch: int) -> None:
        path = self.layout.epoch_file(number)
        _plain(path)
        replace_file(path, f"{epoch}\n", durable=True)


def _mend(folder: Path) -> None:
    """Put aside what a job has put in the place of its folder, and make the folder accessible again."""
    if not os.path.lexists(folder):
        return
    if not folder.is_dir():  # also a link to nowhere, next to which no folder can be made
        folder.rename(folder.with_name(f"{folder.name}.odd-{time.time_ns()}"))
    elif not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        folder.chmod(0o700)


def _plain(path: Path) -> None:
    """Put aside anything but a plain file: jobs can write there, and a pipe would hold up its reader."""
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISREG(path.lstat().st_mode):
            path.rename(path.with_name(f"{path.name}.odd-{time.time_ns()}"))
