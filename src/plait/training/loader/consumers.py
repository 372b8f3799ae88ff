"""Find the `enumerate` and `cycle` objects that draw from a loader or a loop, so that they can go on after a resume.

A loop counts its batches by `enumerate(loader)`, often with a progress bar or a generator between the two. Its counter
is an object of the interpreter that no checkpoint contains; so the checkpoint of the loader contains its number, and
the first batch after a resume sets it. Nothing is replaced or wrapped: the objects are found among those that the
garbage collector tracks, when a checkpoint is made and at a resume (50 ms for a million objects).
"""

from __future__ import annotations

import ctypes
import dis
import gc
import itertools
import operator
import sys
import warnings
import weakref
from collections.abc import Callable, Generator, Iterator
from functools import cache
from types import FrameType, GeneratorType
from typing import Any

from plait.training.advice import of_library

#: More objects between a counter and the loader than any loop has.
MOST_OBJECTS = 1000
#: Module of `job.steps` and `job.epochs`: they run while they save, and not while their body draws batches.
_LOOPS = "plait.training.attached_job"
_COUNTING = (itertools.count, type(iter(range(0))))


class LoopCounters:
    """The `enumerate` objects that draw from a running loop of the job, as in `enumerate(job.steps(n))`."""

    def __init__(self) -> None:
        self._loop: weakref.ref[Any] | None = None
        self._begun = False
        self._counters: list[Any] = []
        self._at: list[int] = []

    def restore(self, at: list[int]) -> None:
        """Let the counters of the next loop go on at `at`, the `numbers` of a checkpoint."""
        self._at = at

    def around(self, loop: Generator[int, None, None]) -> Generator[int, None, None]:
        """Note that `loop` runs from now on; returns it."""
        self._loop, self._begun, self._counters = weakref.ref(loop), False, []
        return loop

    def begin(self) -> str:
        """Before the loop yields a number: find what counts it, once, and let it go on.

        Returns how the script counts the loop in a way that no resume can continue; "" if it does not.
        """
        loop = self._loop() if self._loop is not None else None
        if self._begun or loop is None:
            return ""
        self._begun = True
        self._counters = _counters(loop)
        at, self._at = self._at, []
        return "enumerate()" if at and not count_on(loop, at) else counted_beside(loop, None)

    def numbers(self) -> list[int]:
        """The number that each counter gives to the present step, or between two steps to the next one."""
        loop: Any = self._loop() if self._loop is not None else None
        if loop is None or loop.gi_frame is None:
            return []
        return [_number(counter) - (not loop.gi_running) for counter in self._counters]


def numbers(batches: Any) -> list[int]:
    """The next number of each `enumerate` that draws from `batches`, the innermost first."""
    return [_number(counter) for counter in _counters(batches)]


def count_on(batches: Any, at: list[int]) -> bool:
    """Set the next numbers of the `enumerate` objects that draw from `batches`; False if there is none, or no way.

    `at`: the result of `numbers` at the checkpoint. Call it before the first batch is handed out.
    """
    counters = _counters(batches) if at and _settable() else []
    for counter, number in zip(counters, at, strict=False):
        _place(counter).value = number
    return bool(counters)


def counted_beside(batches: Any, consumer: FrameType | None) -> str:
    """How the loop of `consumer` counts the batches of the iterator `batches` in a way that no resume can continue.

    "" if it does not. Call it while the first batch is being handed out.
    """
    stack = _stack()
    for pair in _tracked(zip):
        parts = pair.__reduce__()[1]
        if any(isinstance(part, _COUNTING) for part in parts) and _distance(pair, batches, stack) is not None:
            return "zip() with a counter"
    if consumer is None or of_library(consumer.f_code.co_filename):
        return ""
    if {"next", "range", "len"} <= set(consumer.f_code.co_names):
        return "range(len(loader)) and next()" if asks_for_one(consumer) else ""
    return ""


def asks_for_one(consumer: FrameType | None) -> bool:
    """True if this frame, which draws an item now, does so by a call such as `next`, not by a loop."""
    if consumer is None:
        return False
    return dis.opname[consumer.f_code.co_code[consumer.f_lasti]].startswith(("CALL", "PRECALL"))


def cycled(batches: Any, first: Any) -> int | None:
    """Batches that an `itertools.cycle` has given after the whole pass; 0 during the pass, None without a cycle.

    `batches`: the iterator of the pass, None once it is over; `first`: `part_of` the first batch of the pass.
    """
    for cycle in _tracked(itertools.cycle):
        inside = gc.get_referents(cycle)
        if batches is not None and any(part is batches for part in inside):
            return 0
        kept = next((part for part in inside if isinstance(part, list) and part), None)
        if batches is None and first is not None and kept and part_of(kept[0]) is first:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                rest = cycle.__reduce__()[1][0]
            return len(kept) - operator.length_hint(rest) - _taken_early(cycle)
    return None


def _taken_early(iterator: Any) -> bool:
    """True if a `zip` has already taken an item of the iterator for the tuple that it is making now."""
    stack = _stack()
    for pair in _tracked(zip):
        parts = list(pair.__reduce__()[1])
        later = parts[parts.index(iterator) + 1 :] if any(part is iterator for part in parts) else []
        if any(_running(part, stack) or _distance(part, None, stack) is not None for part in later):
            return True
    return False


def part_of(batch: Any) -> Any:
    """An object of the batch that a weak reference can point to; None without one."""
    while isinstance(batch, (list, tuple, dict)) and batch:
        batch = next(iter(batch.values())) if isinstance(batch, dict) else batch[0]
    return batch if getattr(type(batch), "__weakrefoffset__", 0) else None


def _number(counter: Any) -> int:
    """The next number of an `enumerate` object."""
    return int(counter.__reduce__()[1][1])


def _counters(batches: Any) -> list[Any]:
    stack = _stack()
    found = [(_distance(counter, batches, stack), counter) for counter in _tracked(enumerate)]
    near = sorted(((d, i) for i, (d, _) in enumerate(found) if d is not None))
    return [found[i][1] for _, i in near]


def _tracked(kind: type) -> list[Any]:
    return [value for value in gc.get_objects() if type(value) is kind]


def _stack() -> dict[int, int]:
    """The distance of each running frame of this thread by its id."""
    frame: FrameType | None = sys._getframe(1)
    found: dict[int, int] = {}
    while frame is not None:
        if frame.f_globals.get("__name__") != _LOOPS:
            found[id(frame)] = len(found)
        frame = frame.f_back
    return found


def _distance(outer: Any, batches: Any, stack: dict[int, int]) -> tuple[int, int] | None:
    """How far `outer` is from the iterator that it draws from: frames, objects; None if it does not.

    A running generator shows none of its variables; but what it is asked for now, it draws from what runs inside it.
    """
    seen, level, depth = {id(outer)}, [outer], 0
    while level and len(seen) < MOST_OBJECTS:
        depth += 1
        inside = [part for value in level for part in gc.get_referents(value)]
        level = []
        for part in inside:
            if batches is not None and part is batches and batches.gi_frame is not None:
                return (0, depth)
            if _running(part, stack):
                return (stack[id(part.gi_frame)], depth)
            if id(part) not in seen and _may_hold(part):
                seen.add(id(part))
                level.append(part)
    return None


def _may_hold(part: Any) -> bool:
    """Whether an iterator may be inside: in another one, or in a container that is not data."""
    return hasattr(type(part), "__next__") or (type(part) in (tuple, list, dict) and len(part) <= MOST_OBJECTS)


def _running(part: Any, stack: dict[int, int]) -> bool:
    return isinstance(part, GeneratorType) and part.gi_running and id(part.gi_frame) in stack


def _place(counter: Any) -> Any:
    """The number of an `enumerate` object in memory: the first field after the head of every object."""
    return ctypes.c_ssize_t.from_address(id(counter) + object.__basicsize__)


@cache
def _settable() -> bool:
    """True if the number of an `enumerate` object is where it is expected, which an object made for it shows."""
    if sys.implementation.name != "cpython":
        return False
    probe: Iterator[tuple[int, None]] = enumerate((None,), 7_340_033)
    if _place(probe).value != 7_340_033:
        return False
    _place(probe).value = 11
    return next(probe) == (11, None)


# Loaders that a script makes again in each epoch: a resumed process finds the position of the one in use.
#
# A new process makes its first loader in the epoch that it resumes, so neither the object nor how many were made before
# identifies it. Its number does: how many loaders of that epoch were used before it. An epoch that is resumed begins
# its body again, with the random numbers of its start, and makes the same loaders in the same order.

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
        return bool(self._used)

    def begin_epoch(self, epoch: int) -> None:
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
        self._lines: dict[str, tuple[str, int]] = {}  # that wrapped the loader, by its name

    def name(self, values: dict[str, Any], free: Callable[[str], str]) -> str:
        """A name for the loader that the script wraps now: that of the one it replaces, else a `free` one.

        It replaces one that the same line has wrapped and to which the script no longer refers. `values`: the
        registered values by name.
        """
        # The line of the script that runs now.
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and str(frame.f_globals.get("__name__")).startswith(_OWN):
            frame = frame.f_back
        line = ("", 0) if frame is None else (frame.f_code.co_filename, frame.f_lineno)
        for name, wrapped_by in self._lines.items():
            if wrapped_by == line and name in values and _dropped(values, name):
                return name
        name = free("loader")
        self._lines[name] = line
        return name


def _dropped(values: dict[str, Any], name: str) -> bool:
    """True if nothing refers to a value except `values`."""
    return sys.implementation.name == "cpython" and sys.getrefcount(values[name]) <= 2
