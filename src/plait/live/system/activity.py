"""Whether processes get on with something, however little of a busy machine they get."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable


def thread_states(pid: int) -> tuple[bytes, int]:
    """States of a process's threads (proc(5): R, S, D, ...) and clock ticks of CPU time; nothing once it has ended."""
    states, ticks = b"", 0
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/stat", "rb") as file:
                text = file.read()
            fields = text[text.rindex(b")") + 2 :].split()
            states, ticks = states + fields[0], ticks + int(fields[11]) + int(fields[12])
    except (OSError, ValueError, IndexError):
        return states, ticks
    return states, ticks


def main_thread(pid: int) -> tuple[bytes, int]:
    """The same of a process's first thread alone."""
    try:
        with open(f"/proc/{pid}/task/{pid}/stat", "rb") as file:
            text = file.read()
    except OSError:
        return b"", 0
    fields = text[text.rindex(b")") + 2 :].split()
    return fields[0], int(fields[11]) + int(fields[12])


class Patience:
    """How long to wait for processes that come up: as long as one of them works.

    A process works if it has used CPU time since the last look, or waits for a CPU or a disk: what is slow then is the
    machine. Looks at which all slept are counted; time is not, so that a starved caller does not run out of patience.
    """

    def __init__(
        self, idle_looks: int, states: Callable[[int], tuple[bytes, int]] = thread_states, least_ticks: int = 1
    ) -> None:
        """Patience for `idle_looks` looks, in all, at which no process works: used `least_ticks` since the last."""
        self.left, self._states, self._least = idle_looks, states, least_ticks
        self._ticks: dict[int, int] = {}

    def over(self, pids: Iterable[int]) -> bool:
        """Look once; whether the patience is over."""
        found = {pid: self._states(pid) for pid in pids}
        works = any(
            b"R" in states or b"D" in states or ticks >= self._ticks.get(pid, -self._least) + self._least
            for pid, (states, ticks) in found.items()
            if states
        )
        self._ticks = {pid: ticks for pid, (_, ticks) in found.items()}
        self.left -= not works
        return self.left < 0
