"""Epochs on disk: before a new attempt of a job begins, older ones are made unable to commit a checkpoint.

A job's folder has a file `EPOCH`, the highest attempt whose checkpoints count. It is written, and forced to disk,
after an attempt is in the log and before any agent hears of it.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from plait.live.attempts import JobRecord
from plait.live.layout import Layout, make_private

#: Make attempts of a job (its number) before this epoch unable to commit; `OSError`: later, perhaps.
Fence = Callable[[int, int], None]


class Fences:
    """The epoch files of a home folder."""

    def __init__(self, layout: Layout) -> None:
        """Nothing is read or written yet."""
        self._layout = layout

    def next_epoch(self, job: JobRecord) -> int:
        """Above every one that the job's folder has seen, which may be more than a store knows that was put back.

        A job that never ran has no folder: what is there is of another one of its number, and is put aside.
        """
        reached = self._on_disk(job.number)
        if reached and not job.epoch:
            folder = self._layout.job(job.number)
            aside = make_private(folder / f"before-{reached}")
            for path in [p for p in folder.iterdir() if p.name != "EPOCH" and not p.name.startswith("before-")]:
                path.replace(aside / path.name)
        return max(reached, job.epoch) + 1

    def _on_disk(self, number: int) -> int:
        try:
            return int(self._layout.epoch_file(number).read_text(encoding="ascii"))
        except (OSError, ValueError):
            return 0

    def write(self, number: int, epoch: int) -> None:
        """Only attempts of a job from this epoch on may commit; raises `OSError` where that cannot be written."""
        path = self._layout.epoch_file(number)
        make_private(path.parent)
        if self._on_disk(number) >= epoch:
            return
        part = path.with_name(path.name + ".part")
        with open(part, "w", encoding="ascii") as file:
            file.write(f"{epoch}\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
