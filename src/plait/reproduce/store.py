"""A folder that keeps finished runs, so that an interrupted command resumes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from plait.core.codec.values import Codec
from plait.core.errors import InputError
from plait.core.files import replace_file

D = TypeVar("D")
_CODEC = Codec(closed=True)


class Keyed(Protocol):
    """A run that is named by what decides its result."""

    def key(self) -> str:
        """Its name in the store."""


class RunStore(Generic[D]):
    """Finished runs, one small file each, written whole or not at all; `D` is a data class."""

    def __init__(self, folder: Path, kind: type[D], whole: Callable[[D], bool], *, fresh: bool = False) -> None:
        """Use this folder, created if necessary; `fresh` ignores existing runs.

        `whole` checks that a stored run is complete.
        """
        self.folder, self._kind, self._whole, self._fresh = folder, kind, whole, fresh
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"cannot keep runs in {folder}: {error.strerror}; give another folder") from error

    def get(self, case: Keyed) -> D | None:
        """The run if it is there and whole."""
        if self._fresh:
            return None
        try:
            done = _CODEC.decode(self._kind, json.loads(self._path(case).read_text(encoding="utf-8")))
            return done if self._whole(done) else None
        except (OSError, ValueError, TypeError):
            return None

    def put(self, case: Keyed, done: D) -> None:
        """Write a run into the folder; raises `InputError` if that cannot be written to."""
        text = json.dumps(_CODEC.encode(done))
        try:
            replace_file(self._path(case), text)
        except OSError as error:
            raise InputError(f"cannot keep runs in {self.folder}: {error.strerror}; give another folder") from error

    def _path(self, case: Keyed) -> Path:
        return self.folder / f"{case.key()}.json"


def folder_of(paper: str) -> Path:
    """The default folder of runs of a paper's evaluation, in the user's cache."""
    cache_home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache_home) / "plait" / f"reproduce-{paper}"
