"""Replay of a store: every decision is derived again from the log and compared with what was done."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from plait.control.messages import to_json
from plait.core.errors import PlaitError
from plait.live.engine import entry_from_json
from plait.live.state import State
from plait.live.store import Store


@dataclass(frozen=True)
class Verified:
    """How many entries and decisions agree, and the first that does not: (entry, recorded, derived)."""

    entries: int
    decisions: int
    difference: tuple[int, Any, Any] | None = None

    def __str__(self) -> str:
        """In a sentence."""
        if self.difference is None:
            return f"{self.entries} entries, {self.decisions} decisions: all derived again, all the same"
        seq, recorded, derived = self.difference
        return f"entry {seq}: the log says {recorded or 'nothing'}, derived is {derived or 'nothing'}"


def replay_verify(store: Store) -> Verified:
    """Go through the whole log from the beginning with a fresh controller; policy changes are entries too."""
    state, entries, decisions = State(), 0, 0
    for row in store.entries():
        recorded = json.loads(row.commands)
        if row.seq != state.seq + 1:
            return Verified(entries, decisions, (row.seq, f"entry {row.seq}", f"entry {state.seq + 1}"))
        try:
            derived = [to_json(c) for c in state.apply(entry_from_json(row.entry))]
        except (PlaitError, LookupError, AssertionError) as error:
            return Verified(entries, decisions, (row.seq, recorded, f"{type(error).__name__}: {error}"))
        state.touched.clear()
        derived = json.loads(json.dumps(derived))
        if derived != recorded:
            return Verified(entries, decisions, (row.seq, recorded, derived))
        entries += 1
        decisions += row.type == "ReplanDue"
    return Verified(entries, decisions)
