"""How long the quanta of a guest take on a free GPU, by what the guest can see of them.

A device serves kernels in the order of their launch, so a quantum that begins during the GPU stage of a host waits for
the kernels of that stage, and its own time begins when the stage ends. Where that cannot be seen, the least of recent
quanta at the same place of a step counts, or the time until a host entered its stage, if that is more: a quantum that
is longer than the gaps of a host always meets it. Once a few are longer than any before, all others are forgotten.
"""

from __future__ import annotations

from collections import deque

#: Recent quanta that the least is taken of, at first and at most. Of 16 all wait once in 65,536 times next to a host
#: that half fills the GPU; but where a step of the guest fits a gap of the host, one place waits many times on end.
RECENT, LATE = 16, 64
#: Quanta have become longer, and those before are forgotten, where so many of the last few are so many times as long as
#: the longest before: no host makes them wait as long.
LONGER, OF_LAST, TIMES = 3, 8, 1.25
#: Where all of the last LATE quanta, of whatever place, were so many times the least of theirs, all have grown by that.
#: The least of 64 steps alone lags by a quarter of an hour at a small share; no host makes all places wait.
GROWN = 1.1
#: Where no host was met but other guests are there, it pauses for at most so many times the least: it may have waited.
MOST_LEAST = 1.5
#: The first quantum of a place counts as at most so many seconds: it compiles. No guest pauses for more after a sudden
#: long quantum, in which its process may have slept.
FIRST_S = 1.0
#: How many places of a step are kept apart.
_PLACES = 256


class Quanta:
    """See the module."""

    def __init__(self) -> None:
        self._place = 0  # of the quantum in its step
        self._at: dict[int, deque[float]] = {}
        self._any: deque[float] = deque(maxlen=LATE)
        self._times: deque[float] = deque(maxlen=LATE)  # the least of its place that each of these took

    def step(self) -> None:
        """The next quantum is the first of a step."""
        self._place = 0

    def ended(
        self, whole_s: float, behind_s: float = 0.0, *, alone: bool, before_s: float = 0.0, crowded: bool = True
    ) -> tuple[float, float]:
        """Seconds of a quantum that has ended: what it took on a free GPU, and what it counts as among the longest.

        whole_s   from its beginning to its end
        behind_s  of these until the stage ended that a host was in when it began; 0: none was, or it goes on
        alone     no host can have been on the GPU
        before_s  from its beginning until a host entered its stage, in which it ended; 0: none did
        crowded   other guests may be on the GPU

        The second is 0 where too few quanta were seen. It goes by those of all places until its own has enough.
        """
        place, self._place = min(self._place, _PLACES), self._place + 1
        here = self._at.setdefault(place, deque(maxlen=LATE))
        if behind_s > 0.0:  # no sample of the least: on a device that slices time, part of it ran before
            own_s = min(whole_s - behind_s, FIRST_S)
            return (max(own_s, min(min(here), whole_s)) if here else own_s), own_s
        if len(self._any) == LATE:
            late = [*self._any, whole_s]
            if sum(one > TIMES * max(late[:-OF_LAST]) for one in late[-OF_LAST:]) >= LONGER:
                self._at.clear()
                self._any.clear()
                here = self._at.setdefault(place, deque(maxlen=LATE))
        first = not here
        # A quantum may take no time by the clock: that tells nothing of growth.
        self._times.append(whole_s / min(here) if here and min(here) > 0.0 else 1.0)
        here.append(whole_s)
        self._any.append(whole_s)
        if alone:
            most_s = 0.0 if first else MOST_LEAST * min(here)
            took_s = min(whole_s, max(most_s, FIRST_S if first or not crowded else 0.0))
            return took_s, took_s if first else whole_s
        known = here if len(here) >= RECENT else self._any
        grown = min(self._times) if len(self._times) == LATE else 1.0
        took_s = min(min(known) * (grown if grown > GROWN else 1.0), FIRST_S)
        before_s = min(before_s, FIRST_S)
        counts_s = max(took_s if len(known) >= RECENT else 0.0, before_s)
        return took_s if crowded else max(took_s, before_s), counts_s
