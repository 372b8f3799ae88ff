"""Output files that appear all together, or not at all."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from plait.core.errors import InputError

STDOUT = "-"


@dataclass
class Outputs:
    """Files are written next to their targets and renamed by `commit`; leaving without it removes them."""

    staged: list[tuple[Path, Path]] = field(default_factory=list)
    made: list[Path] = field(default_factory=list)
    last: list[str] = field(default_factory=list)

    def path(self, target: str | Path) -> Path:
        """Where to write what will become `target`; refuses what cannot be written, before any work is done."""
        to = Path(target)
        if any(to == other for _, other in self.staged):
            raise InputError(f"two outputs would go to {to}; give each its own name")
        try:
            if to.is_dir():
                raise InputError(f"cannot write {to}: it is a directory")
            folder = to.parent
            missing = [f for f in (folder, *folder.parents) if not f.exists()]
            for one in reversed(missing):
                one.mkdir()
                self.made.append(one)
            beside = to.with_name(f".{os.getpid()}-{to.name}")  # the suffix stays: it decides the format
            with open(beside, "wb"):
                self.staged.append((beside, to))
        except OSError as error:
            raise InputError(f"cannot write {to}: {error.strerror}") from error
        return beside

    def print_later(self, writer: Callable[[Path], None]) -> None:
        """Let `writer` write what `commit` prints to standard output."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "out"
            writer(path)
            self.last.append(path.read_text(encoding="utf-8"))

    def fill(self, path: Path, writer: Callable[[Path], None]) -> None:
        """Let `writer` write to a path that `path` gave."""
        try:
            writer(path)
        except OSError as error:
            target = next((to for beside, to in self.staged if beside == path), path)
            raise InputError(f"cannot write {target}: {error.strerror or error}") from error

    def commit(self) -> list[Path]:
        """Show all files under their names, then print what goes to standard output."""
        done = []
        for beside, target in self.staged:
            try:
                os.replace(beside, target)
            except OSError as error:
                raise InputError(f"cannot write {target}: {error.strerror}") from error
            done.append(target)
        self.staged, self.made = [], []
        for text in self.last:
            sys.stdout.write(text)
        return done

    def __enter__(self) -> Outputs:
        return self

    def __exit__(self, *ended: object) -> None:
        for beside, _ in self.staged:
            for path in (beside, beside.with_name(beside.name + ".part")):
                with suppress(OSError):
                    path.unlink()
        for folder in reversed(self.made):
            with suppress(OSError):
                folder.rmdir()


#: Characters that the settings of a run may add to the name of its file: file systems allow 255 in all.
LONGEST_NAME = 200


def names_of_runs(path: Path, runs: list[tuple[str, ...]]) -> list[Path]:
    """One file a run: the name itself for a single run, otherwise with the distinguishing settings.

    >>> [p.name for p in names_of_runs(Path("log.json.gz"), [("srsf", "0"), ("fifo", "0")])]
    ['log-srsf.json.gz', 'log-fifo.json.gz']
    >>> [p.name for p in names_of_runs(Path("jobs.csv"), [("tiresias-l:thresholds=1/2",), ("fifo",)])]
    ['jobs-tiresias_l_thresholds=1_2.csv', 'jobs-fifo.csv']
    """
    if len(runs) == 1:
        return [path]
    varying = [i for i in range(len(runs[0])) if len({run[i] for run in runs}) > 1]
    stem, dot, suffixes = path.name.partition(".")
    words = [[Path(run[i]).name if os.path.exists(run[i]) else run[i] for i in varying] for run in runs]
    names = ["-".join([stem, *(re.sub(r"[^\w.=]+", "_", word) for word in some)]) for some in words]
    if len(set(names)) < len(names) or max(map(len, names)) > LONGEST_NAME:
        names = [f"{stem}-{i}" for i in range(len(runs))]
    return [path.with_name(name + dot + suffixes) for name in names]
