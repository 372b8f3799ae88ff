"""Widest gang first among those that wait; after a day a job goes ahead of wider ones."""

from dataclasses import dataclass

import numpy as np

from plait import Plan, View, place


@dataclass(frozen=True)
class WidestFirst:
    patience_s: float = 86_400.0

    def decide(self, view: View) -> Plan:
        jobs = view.jobs
        overdue = jobs.waiting_s >= self.patience_s
        # Running jobs keep their GPUs, then those that waited too long, then the widest; ties by submission.
        order = np.lexsort((-jobs.gpus, ~overdue, ~jobs.running))
        return place(view, order)
