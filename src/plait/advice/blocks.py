"""Parts of a past that are simulated instead of all of it: blocks of time that begin as the cluster was then."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from plait.advice.past import Past
from plait.core.arrays import BoolArray, FloatArray, IntArray
from plait.core.jobs import JobBatch

#: A block has at least so many jobs, and a past at most so many blocks.
LEAST_JOBS, MOST_BLOCKS = 800, 6
#: Part of the jobs of an incomplete block that does not count, from the end: later jobs are missing.
COOL_DOWN = 0.15


@dataclass(frozen=True, eq=False)
class Block:
    """Jobs to simulate, and their place in the past: `rows` (jobs,), `counts` (jobs,) marks the ones compared.

    The first jobs are the ones that ran or waited when the block begins, with their recorded remaining time.
    """

    jobs: JobBatch
    rows: IntArray
    counts: BoolArray


def blocks(past: Past, jobs: int) -> list[Block]:
    """Blocks of the past with about so many `jobs` together, evenly over it; all of it in one if it has no more."""
    n = len(past.jobs)
    if jobs >= n:
        return [Block(past.jobs, np.arange(n), past.judged)]
    count = max(1, min(MOST_BLOCKS, jobs // LEAST_JOBS))
    size = jobs // count
    firsts = [round((i + 0.5) * n / count - size / 2) for i in range(count)]
    return [_block(past, first, first + size) for first in firsts]


def _block(past: Past, first: int, stop: int) -> Block:
    """The jobs `first` to `stop` in order of submission, and what was there when the first of them came."""
    submit_s = past.jobs.submit_s
    begin_s = float(submit_s[first])
    before = np.flatnonzero(~(past.end_s[:first] <= begin_s) & ~np.isnan(past.start_s[:first]))
    ran = past.start_s[before] <= begin_s
    before = np.concatenate([before[ran], before[~ran]])  # running ones come first, and start at once
    rows = np.concatenate([before, np.arange(first, stop)])
    jobs = past.jobs[rows]
    left = np.ones(len(rows))
    left[: int(ran.sum())] = _left(past, before[: int(ran.sum())], begin_s)
    jobs = jobs.replace(submit_s=np.maximum(submit_s[rows], begin_s), iterations=jobs.iterations * left)
    counts = past.judged[rows] & (rows >= first) & (rows < stop - int(COOL_DOWN * (stop - first)))
    return Block(jobs, rows, counts)


def _left(past: Past, rows: IntArray, at_s: float) -> FloatArray:
    """The part of the work of running jobs that is left at a time; all of it for an unseen end."""
    whole = past.end_s[rows] - past.start_s[rows]
    part = np.where(whole > 0, (past.end_s[rows] - at_s) / np.where(whole > 0, whole, 1.0), 1.0)
    result: FloatArray = np.clip(np.nan_to_num(part, nan=1.0), 1e-6, 1.0)
    return result


def counted_rows(parts: Sequence[Block]) -> IntArray:
    """The jobs of the past that count in these blocks, in order of the blocks."""
    return np.concatenate([part.rows[part.counts] for part in parts])
