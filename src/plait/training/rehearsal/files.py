"""Keep what a rehearsed script overwrites, so that its files are the same after the rehearsal as before.

A hook of Python's auditing sees every `open` for writing, every rename and removal; the first time that a file is
touched it is copied. torch writes its files from C++, past that hook, so `torch.save` reports by itself.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from plait.training.rehearsal.order import Order

JOURNAL = "files.jsonl"
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_LEFT = ("/dev/", "/proc/", "/sys/", tempfile.gettempdir() + os.sep)


class FileGuard:
    """Copies files of this process before they change."""

    def __init__(self, folder: str) -> None:
        """Copy into `folder`."""
        self._folder = folder
        self._cwd = os.getcwd() + os.sep
        self._seen = restored(Path(folder), written=None)  # of earlier attempts; what came first is put back
        self._busy = threading.local()

    def hook(self, event: str, args: tuple[Any, ...]) -> None:
        """For `sys.addaudithook`."""
        if event == "open" and isinstance(args[0], str | bytes | os.PathLike) and _writes(args[1], args[2]):
            self.keep(args[0])
        elif event in ("os.rename", "os.remove", "os.truncate"):
            for path in args[:2]:
                if isinstance(path, str | bytes | os.PathLike):
                    self.keep(path)

    def keep(self, given: Any) -> None:
        """Copy the file unless that was done, or note that it does not exist yet."""
        path = os.path.realpath(os.fsdecode(given))
        local = path.startswith(self._cwd)
        if path in self._seen or getattr(self._busy, "now", False) or "__pycache__" in path:
            return
        if path.startswith(self._folder) or (path.startswith(_LEFT) and not local):
            return
        self._seen.add(path)
        self._busy.now = True
        try:
            journal = os.path.join(self._folder, JOURNAL)
            if os.path.isfile(path):
                descriptor, copy = tempfile.mkstemp(dir=self._folder, prefix="kept-")
                os.close(descriptor)
                shutil.copy2(path, copy)
                _note(journal, path, copy)
            elif local and not os.path.exists(path):
                _note(journal, path, "")
        finally:
            self._busy.now = False


def guard_files() -> None:
    """Begin to keep files, if this process is rehearsed."""
    order = Order.of(os.environ)
    if order is None:
        return
    from plait.training.torch_watch import when_loaded

    guard = FileGuard(os.path.realpath(order.folder))
    sys.addaudithook(guard.hook)
    when_loaded("torch.serialization", "save", lambda module: _watch_save(module, guard))


def restored(folder: Path, *, written: list[str] | None) -> set[str]:
    """The files of the journal in `folder`; puts them back if `written` is a list, which receives their names."""
    journal = folder / JOURNAL
    lines = journal.read_text().splitlines() if journal.exists() else []
    paths: set[str] = set()
    for line in lines:
        path, copy = json.loads(line)
        if path in paths:
            continue
        paths.add(path)
        if written is None:
            continue
        written.append(path)
        if copy:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(copy, path)
        elif os.path.isfile(path):
            os.unlink(path)
    if written is not None:
        journal.unlink(missing_ok=True)
    return paths


def _note(journal: str, path: str, copy: str) -> None:
    with open(journal, "a", encoding="utf-8") as file:
        file.write(json.dumps([path, copy]) + "\n")


def _writes(mode: object, flags: object) -> bool:
    if isinstance(mode, str):
        return any(letter in mode for letter in "wax+")
    return isinstance(flags, int) and bool(flags & _WRITES)


def _watch_save(module: Any, guard: FileGuard) -> None:
    save = module.save

    def kept(what: Any, where: Any, *args: Any, **options: Any) -> Any:
        if isinstance(where, str | os.PathLike):
            guard.keep(where)
        return save(what, where, *args, **options)

    module.save = kept
