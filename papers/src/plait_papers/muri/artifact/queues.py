"""The artifact's baselines that sort: SRTF and SRSF, and Tiresias with its queues."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from plait.core.arrays import BoolArray, FloatArray, IntArray
from plait_papers.muri.artifact.state import Rule, State
from plait_papers.muri.artifact.yarn import count_out, lay_out

LIMITS_GPU_S = np.array([3250.0, 7200.0, math.inf])
"""Attained service at which a job leaves each queue; nothing leaves the last."""


class Shortest(Rule):
    """Least remaining time first, or with `by_service` least remaining GPU time."""

    def __init__(self, jobs: int, *, by_service: bool) -> None:
        self.by_service = by_service
        self.own_group = np.arange(jobs, dtype=np.int64)

    def decide(self, state: State) -> None:
        """Sort the list and place from nothing."""
        trace, listed = state.trace, state.listed
        left = state.remaining[listed] * trace.iteration_s[listed]
        if self.by_service:
            left = left * trace.gpus[listed]
        state.listed = listed[np.argsort(left, kind="stable")]
        lay_out(state.listed, self.own_group, trace.gpus, state.running, state.where)


@dataclass(eq=False)
class Queues:
    """Three queues of rising attained service: `level` is the queue of a job, `ranked` all of them front to back."""

    level: IntArray
    ranked: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    def due_s(self, state: State) -> float:
        """When the next running job has attained what moves it to the next queue."""
        jobs = state.listed[state.running[state.listed]]
        return float((self._left_s(state, jobs) + state.now_s).min(initial=math.inf))

    def _left_s(self, state: State, jobs: IntArray) -> FloatArray:
        limit_s: FloatArray = np.ceil(LIMITS_GPU_S[self.level[jobs]] / state.trace.gpus[jobs])
        return limit_s - state.attained_s[jobs]

    def arrive(self, jobs: IntArray) -> None:
        """To the end of the first queue."""
        self.ranked = np.append(self.ranked, jobs)
        self._settle()

    def leave(self, jobs: IntArray) -> None:
        self.ranked = self.ranked[~np.isin(self.ranked, jobs)]

    def demote(self, state: State) -> None:
        """Every running job that has attained enough goes to the end of the next queue, in list order."""
        jobs = state.listed[state.running[state.listed]]
        enough = state.attained_s[jobs] * state.trace.gpus[jobs] >= LIMITS_GPU_S[self.level[jobs]]
        # A rest too short to move the clock would stay due without end.
        enough |= self._left_s(state, jobs) + state.now_s <= state.now_s
        moved = jobs[enough]
        if len(moved):
            self.level[moved] += 1
            self.ranked = np.append(self.ranked[~np.isin(self.ranked, moved)], moved)
            self._settle()

    def running_first(self, running: BoolArray) -> None:
        """Sort running jobs before waiting ones within each queue."""
        self._settle(running)

    def _settle(self, running: BoolArray | None = None) -> None:
        key = 2 * self.level[self.ranked]
        if running is not None:
            key = key + ~running[self.ranked]
        self.ranked = self.ranked[np.argsort(key, kind="stable")]


class Tiresias(Rule):
    """Discretised 2D-LAS that counts GPUs; who runs is not preempted by later jobs of the same queue."""

    bucket = 0.0

    def __init__(self, jobs: int) -> None:
        self.queues = Queues(np.zeros(jobs, dtype=np.int64))

    def due_s(self, state: State) -> float:
        """Time of the next demotion, seconds; inf if none is due."""
        return self.queues.due_s(state)

    def arrive(self, state: State, jobs: IntArray) -> None:
        """To the end of the first queue."""
        self.queues.arrive(jobs)

    def leave(self, state: State, jobs: IntArray) -> None:
        self.queues.leave(jobs)

    def advanced(self, state: State) -> None:
        """Demote the jobs that have used up the time of their queue."""
        self.queues.demote(state)

    def decide(self, state: State) -> None:
        """Queue by queue, while GPUs are free."""
        count_out(self.queues.ranked, state.trace.gpus, state.running)
        self.queues.running_first(state.running)
