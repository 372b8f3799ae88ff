"""Worth of the groups of a bucket, computed once for each kind of group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from plait.grouping.model.bucket import Model, Node


class Worth(NamedTuple):
    """One kind of group, as `model.Values` has it."""

    iteration_s: float
    turn_row: int
    value: float
    speedup: float


class Known:
    """Results of `model` for groups; valid for every model with the same key, so it can be cached."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._worth: dict[Node, Worth] = {}
        self._arranged: dict[Node, tuple[tuple[int, ...], float]] = {}

    def worth(self, nodes: Sequence[Node]) -> list[Worth]:
        """Value of each of some groups; new ones are computed together."""
        known = self._worth
        unknown = [node for node in dict.fromkeys(nodes) if node not in known]
        if unknown:
            found = self._model.values(unknown)
            columns = (found.iteration_s, found.turn_row, found.value, found.speedup)
            known.update(zip(unknown, map(Worth, *(column.tolist() for column in columns)), strict=True))
        return [known[node] for node in nodes]

    def arranged(self, classes: Node) -> tuple[tuple[int, ...], float]:
        """Turns and efficiency of a group whose members have these classes, best priority first, which has turn 0."""
        found = self._arranged.get(classes)
        if found is None:
            found = self._arranged[classes] = self._arrange(classes)
        return found

    def _arrange(self, classes: Node) -> tuple[tuple[int, ...], float]:
        k = self._model.resources
        by_class = sorted(range(len(classes)), key=lambda i: (classes[i], i))
        node = tuple(classes[i] for i in by_class)
        (worth,) = self.worth([node])
        turn_of = dict(zip(by_class, self._model.turns(node, worth.turn_row), strict=True))
        busy = float(np.ascontiguousarray(self._model.rows[list(classes), :k]).sum()) / (k * worth.iteration_s)
        return tuple((turn_of[i] - turn_of[0]) % k for i in range(len(classes))), min(busy, 1.0)
