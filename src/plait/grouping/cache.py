"""Answers that were computed before; bounded, and never different from computing them again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

R = TypeVar("R")


class GroupingCache:
    """The last `limit` results of matching, local search and exact grouping.

    Keep one between calls of `group`: a bucket with the same candidates as before, in whatever order, costs a
    look-up. Everything the result depends on is in the key, so a cache changes times only.
    """

    def __init__(self, limit: int = 1024) -> None:
        """Remember at most `limit` results; the one not used for longest goes first."""
        self.limit = limit
        self.hits = 0
        self.misses = 0
        self._results: OrderedDict[Hashable, Any] = OrderedDict()

    def __len__(self) -> int:
        """How many results are kept."""
        return len(self._results)

    def remember(self, key: Hashable, make: Callable[[], R]) -> R:
        """The result for `key`, made now if it is not known; do not change what you are given."""
        if key in self._results:
            self.hits += 1
            self._results.move_to_end(key)
            found: R = self._results[key]
            return found
        self.misses += 1
        made = make()
        self._results[key] = made
        if len(self._results) > self.limit:
            self._results.popitem(last=False)
        return made
