"""A bounded cache of results of grouping; a cached result equals the recomputed one."""

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
        self._results: OrderedDict[Hashable, Any] = OrderedDict()

    def __len__(self) -> int:
        """How many results are kept."""
        return len(self._results)

    def remember(self, key: Hashable, make: Callable[[], R]) -> R:
        """The result for `key`, computed by `make` if it is not cached; callers must not modify it."""
        if key in self._results:
            self._results.move_to_end(key)
            found: R = self._results[key]
            return found
        made = make()
        self._results[key] = made
        if len(self._results) > self.limit:
            self._results.popitem(last=False)
        return made
