"""Queues over attained service whose bounds double: newcomers first, and no thresholds to fit."""

from dataclasses import dataclass

import numpy as np

from plait import Plan, View, place


@dataclass(frozen=True)
class DoublingQueues:
    first_gpu_s: float = 600.0

    def decide(self, view: View) -> Plan:
        jobs = view.jobs
        queue = np.floor(np.log2(1 + jobs.attained_gpu_s / self.first_gpu_s))
        order = np.argsort(queue, kind="stable")  # inside a queue by submission
        return place(view, order, valid_until_s=view.now_s + 600)
