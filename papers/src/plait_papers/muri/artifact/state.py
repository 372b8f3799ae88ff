"""Jobs of the artifact's world between two events: columns that a rule may change, progress, the first completion.

Sums are made in the artifact's order, because ties between jobs depend on the last bit.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from plait.core.arrays import BoolArray, FloatArray, IntArray
from plait.core.jit import kernel
from plait_papers.muri.artifact.speeds import SLOTS
from plait_papers.muri.artifact.trace import ArtifactTrace


@dataclass(eq=False)
class State:
    """Columns over all jobs of the trace, and `listed`, the jobs submitted and not ended, in their present order.

    `last_s` is when progress was last counted, `remaining` is in iterations, `attained_s` is wall time run with
    overheads. A rule writes `listed`, `running`, `where` (nodes as bits), `current_s` (seconds of an iteration
    from now on), `charge_s` (overhead) and `mates` (jobs of its group, ascending, -1 beyond).
    """

    trace: ArtifactTrace
    now_s: float
    listed: IntArray
    remaining: FloatArray
    attained_s: FloatArray
    last_s: FloatArray
    running: BoolArray
    has_run: BoolArray
    where: IntArray
    current_s: FloatArray
    charge_s: FloatArray
    mates: IntArray

    @classmethod
    def before(cls, trace: ArtifactTrace) -> State:
        """No job has been submitted."""
        n = len(trace)
        return cls(
            trace=trace,
            now_s=0.0,
            listed=np.zeros(0, dtype=np.int64),
            remaining=trace.iterations.copy(),
            attained_s=np.zeros(n),
            last_s=trace.submit_s.copy(),
            running=np.zeros(n, dtype=np.bool_),
            has_run=np.zeros(n, dtype=np.bool_),
            where=np.zeros(n, dtype=np.int64),
            current_s=trace.iteration_s.copy(),
            charge_s=trace.overhead_s,
            mates=np.full((n, SLOTS), -1, dtype=np.int64),
        )


class Rule(ABC):
    """A policy of the artifact with the tolerances of its event loop.

    Completions whose times differ by a part `bucket` are one event; so are completions within `near_s`. An arrival and
    a completion are one event if they differ by at most a part `joint` of the later or `joint_s`.
    """

    bucket = 1e-9
    near_s = 0.0
    joint = 0.0
    joint_s = 0.0

    def due_s(self, state: State) -> float:
        """When the rule wants an event of its own; never, by default."""
        return math.inf

    def arrive(self, state: State, jobs: IntArray) -> None:  # noqa: B027 - most rules have nothing to do
        """Jobs have been submitted and are on the list."""

    def leave(self, state: State, jobs: IntArray) -> None:  # noqa: B027 - most rules have nothing to do
        """Jobs have ended and left the list; `running` still marks them as running."""

    def advanced(self, state: State) -> None:  # noqa: B027 - most rules have nothing to do
        """Progress has been counted up to now, before the decision."""

    @abstractmethod
    def decide(self, state: State) -> None:
        """Decide which jobs run from now on, where and how fast."""


@kernel
def advance(
    now_s: float,
    listed: IntArray,
    running: BoolArray,
    last_s: FloatArray,
    debt_s: FloatArray,
    current_s: FloatArray,
    remaining: FloatArray,
    attained_s: FloatArray,
) -> None:
    """Run the listed jobs up to `now_s`; each pays its debt of overhead first."""
    for job in listed:
        if running[job]:
            spent = now_s - last_s[job]
            worked = spent - debt_s[job]
            debt_s[job] = max(-worked, 0.0)
            if worked > 0:
                remaining[job] -= worked / current_s[job]
            attained_s[job] = attained_s[job] + now_s - last_s[job]
        last_s[job] = now_s


@kernel
def ends(
    now_s: float,
    listed: IntArray,
    running: BoolArray,
    wait_s: FloatArray,
    current_s: FloatArray,
    remaining: FloatArray,
) -> tuple[IntArray, FloatArray]:
    """The running jobs, in list order, and when each would end, seconds; `wait_s` is what they pay before."""
    jobs, at_s = np.zeros(len(listed), dtype=np.int64), np.zeros(len(listed))
    count = 0
    for job in listed:
        if running[job]:
            jobs[count] = job
            at_s[count] = now_s + wait_s[job] + remaining[job] * current_s[job]
            count += 1
    return jobs[:count], at_s[:count]


@kernel
def same(a: float, b: float, relative: float, absolute: float) -> bool:
    """Whether `a` and `b` are equal within the part `relative` of the larger, or within `absolute` seconds."""
    return abs(a - b) <= max(relative * max(abs(a), abs(b)), absolute)


@kernel
def first_to_end(at_s: FloatArray, relative: float, near_s: float) -> tuple[float, IntArray]:
    """The time of the first completions and which of `at_s` they are, in the order they are handled.

    Times are gathered in buckets: each joins the first bucket within `relative` of it or opens one. The
    earliest bucket ends, and with `near_s` every other within that of it.
    """
    n = len(at_s)
    heads, bucket = np.zeros(n), np.zeros(n, dtype=np.int64)
    buckets = 0
    for i in range(n):
        found = -1
        for b in range(buckets):
            if same(at_s[i], heads[b], relative, 0.0):
                found = b
                break
        if found < 0:
            found = buckets
            heads[found] = at_s[i]
            buckets += 1
        bucket[i] = found
    if n == 0:
        return np.inf, bucket
    by_time = np.argsort(heads[:buckets], kind="mergesort")
    first_s = heads[by_time[0]]
    out = np.zeros(n, dtype=np.int64)
    count = 0
    for b in by_time:
        if heads[b] != first_s and not (near_s > 0.0 and same(heads[b], first_s, 1e-9, near_s)):
            break
        for i in range(n):
            if bucket[i] == b:
                out[count] = i
                count += 1
    return first_s, out[:count]


@kernel
def waiting(
    now_s: float,
    listed: IntArray,
    running: BoolArray,
    submit_s: FloatArray,
    attained_s: FloatArray,
    remaining: FloatArray,
    iteration_s: FloatArray,
) -> tuple[int, float]:
    """How many `listed` jobs wait at `now_s`, and the mean over them of time waited / remaining solo run time.

    The other arguments are columns by job.
    """
    count, ratios = 0, 0.0
    for job in listed:
        if not running[job]:
            count += 1
            left_s = remaining[job] * iteration_s[job]
            if left_s > 0:
                ratios += (now_s - submit_s[job] - attained_s[job]) / left_s
    return count, ratios / max(count, 1)
