"""Loaders that a script makes again in each epoch: a resumed process finds the position of the one in use.

A new process makes its first loader in the epoch that it resumes, so neither the object nor how many were made before
identifies it. Its number does: how many loaders of that epoch were used before it. An epoch that is resumed begins its
body again, with the random numbers of its start, and makes the same loaders in the same order.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

#: Beginning of the names of the modules whose frames belong to plait.
_OWN = "plait.training."


class EpochLoaders:
    """The loaders that were wrapped in the body of `job.epochs`, in the order of their first use in this epoch."""

    def __init__(self, warn: Callable[[str], object]) -> None:
        """No loaders yet. `warn` is called with why the position of a checkpoint cannot be used."""
        self._warn = warn
        self._epoch = 0
        self._used: list[tuple[Any, tuple[str, int | None]]] = []  # passes of each loader, and its kind
        self._found: list[dict[str, Any]] = []  # of the checkpoint, for the epoch that is resumed

    @property
    def used(self) -> bool:
        """True if a loader of this kind was used in this epoch."""
        return bool(self._used)

    def begin_epoch(self, epoch: int) -> None:
        """Forget the loaders of the last epoch."""
        self._used, self._found, self._epoch = [], [], epoch

    def take(self, passes: Any) -> None:
        """Note that a loader is used; in a resumed epoch, restore its position before its first pass.

        `passes`: its counter of passes. A pass may have begun in an earlier epoch.
        """
        if any(used is passes for used, _ in self._used):
            return
        number, kind = len(self._used), _kind(passes.loader())
        self._used.append((passes, kind))
        if number >= len(self._found):
            return
        found = self._found[number]
        if tuple(found["kind"]) != kind:
            self._warn(
                f"loader {number + 1} of this epoch is a {_words(kind)}, and was a {_words(found['kind'])} when the "
                "checkpoint was made: its pass begins again at its first batch. Make its data in the epoch from the "
                "random streams, or register what they are made from"
            )
        elif found["state"] is None:
            passes.repeat(found["finished"])
        else:
            passes.loader().load_state_dict(found["state"])

    def trouble(self) -> str:
        """Why the position of a loader in use cannot be restored; "" if it can."""
        loaders = (passes.loader() for passes, _ in self._used if passes.active)
        tried = (loader.trouble() for loader in loaders if hasattr(type(loader), "trouble"))
        return next((why for why in tried if why), "")

    def state_dict(self) -> dict[str, Any]:
        """The position of each loader of this epoch; of one that the script has dropped, which passes it had."""
        loaders = [(passes, kind, passes.loader()) for passes, kind in self._used]
        return {
            "epoch": self._epoch,
            "loaders": [
                {
                    "kind": kind,
                    "finished": passes.finished,
                    "state": None if loader is None else loader.state_dict(),
                }
                for passes, kind, loader in loaders
            ],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore these positions when loaders are used again in the same epoch."""
        self._found = state["loaders"] if state["epoch"] == self._epoch else []


def _kind(loader: Any) -> tuple[str, int | None]:
    """The type of a loader, and its number of batches if known."""
    try:
        return type(loader).__name__, len(loader)
    except (TypeError, NotImplementedError):
        return type(loader).__name__, None


def _words(kind: tuple[str, int | None]) -> str:
    return f"{kind[0]} of {'an unknown number of' if kind[1] is None else kind[1]} batches"


class LoaderNames:
    """The names of loaders that are wrapped outside `job.epochs`."""

    def __init__(self) -> None:
        """No names."""
        self._lines: dict[str, tuple[str, int]] = {}  # that wrapped the loader, by its name

    def name(self, values: dict[str, Any], free: Callable[[str], str]) -> str:
        """A name for the loader that the script wraps now: that of the one it replaces, else a `free` one.

        It replaces one that the same line has wrapped and to which the script no longer refers. `values`: the
        registered values by name.
        """
        line = _calling_line(sys._getframe(1))
        for name, wrapped_by in self._lines.items():
            if wrapped_by == line and name in values and _dropped(values, name):
                return name
        name = free("loader")
        self._lines[name] = line
        return name


def _calling_line(frame: FrameType | None) -> tuple[str, int]:
    """The line of the script that runs now."""
    while frame is not None and str(frame.f_globals.get("__name__")).startswith(_OWN):
        frame = frame.f_back
    return ("", 0) if frame is None else (frame.f_code.co_filename, frame.f_lineno)


def _dropped(values: dict[str, Any], name: str) -> bool:
    """True if nothing refers to a value except `values`."""
    return sys.implementation.name == "cpython" and sys.getrefcount(values[name]) <= 2
