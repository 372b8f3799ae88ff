"""The distribution of what a job still needs, from jobs of its kind that ended and that have not ended yet.

Kinds, from the closest to the widest (`LEVELS`): what the user runs with these arguments on this size; the same script;
the model on this size; the user on this size; the user; this size; all. The distribution of a kind is a posterior whose
prior is that of the next wider kind, with jobs that have not ended as censored observations (Susarla and Van Ryzin,
JASA 71, 1976); for a kind without a prior it is that of Kaplan and Meier. Ends count less with each later end of their
kind.

Durations are seconds alone at the requested size, on a grid of equal steps of their logarithm.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from plait.core.arrays import FloatArray, IntArray
from plait.core.jit import kernel

LEVELS = (
    "user, script, arguments and size", "user and script", "model and size", "user and size", "user", "size",
    "all jobs",
)  # fmt: skip
#: Levels whose ends are runs of one script; at the others each script counts once.
OF_SCRIPT = 2
#: Strength of the wider kind in jobs, what an end leaves of those before, and the spread of an end, by level.
PRIOR = np.array([3.0, 2.0, 10.0, 4.0, 4.0, 2.0, 4.0])
KEEPS = (0.85, 0.90, 0.98, 0.98, 0.99, 0.98, 0.998)
SPREAD = (0.30, 0.40, 1.5, 1.5, 1.5, 0.40, 0.60)
#: Step of the grid in the logarithm of seconds, number of bins, and bins to each side over which an end is spread.
STEP, BINS, REACH = 0.1, 165, 36
#: What is assumed of jobs of which nothing is known: median in seconds and the standard deviation of the logarithm.
MEDIAN_S, SIGMA = 1800.0, 2.0
#: Where less than this part of a kind lasts as long, nothing is known of what is left.
LEAST = 1e-9

#: First second of each bin, and the end of the last one (BINS + 1,).
EDGES: FloatArray = np.concatenate([[0.0], np.exp(STEP * np.arange(1, BINS + 1))])


def bins(seconds: FloatArray) -> IntArray:
    """The bin of each duration.

    >>> bins(np.array([0.5, 600.0, 1e12])).tolist()
    [0, 63, 164]
    """
    at: IntArray = (np.log(np.maximum(seconds, 1.0)) / STEP).astype(np.int64)
    return np.minimum(at, BINS - 1)


def _kernels() -> FloatArray:
    away = np.arange(-REACH, REACH + 1) * STEP
    weights = np.exp(-0.5 * (away / np.array(SPREAD)[:, None]) ** 2)
    kernels: FloatArray = weights / weights.sum(axis=1, keepdims=True)
    return kernels


def _assumed() -> FloatArray:
    below = [0.5 * (1 + math.erf((math.log(edge / MEDIAN_S)) / SIGMA / math.sqrt(2))) for edge in EDGES[1:-1]]
    return np.diff(np.array([0.0, *below, 1.0]))


#: Weights of the bins around an end, by level (levels, 2 REACH + 1), and the prior of the widest kind (BINS,).
KERNELS, ASSUMED = _kernels(), _assumed()


@dataclass
class Kinds:
    """Ends by kind: a fold of the jobs that left, in the order in which they did.

    `ended` are departures that have been counted. A kind is a number, unequal for unequal kinds of any level; 0 is an
    unknown one.
    """

    ended: int = 0
    rows: dict[int, int] = field(default_factory=dict)
    #: Weighted ends by bin of each kind, 0 for row 0 (kinds, BINS); ends of each kind (kinds,).
    density: FloatArray = field(default_factory=lambda: np.zeros((64, BINS)))
    counts: FloatArray = field(default_factory=lambda: np.zeros(64))
    #: Kinds in ascending order, and 0 with the row of each.
    _sorted: tuple[IntArray, IntArray] = field(default=(np.zeros(0, np.int64), np.zeros(1, np.int64)), repr=False)

    def add(self, kinds: IntArray, seconds: FloatArray) -> None:
        """Count departed jobs of these kinds (jobs, levels - 1), which took so long (jobs,); 0 s: not an end."""
        at = bins(seconds)
        for kind, last, took_s in zip(kinds.tolist(), at.tolist(), seconds.tolist(), strict=True):
            self.ended += 1
            if not took_s > 0:
                continue
            script_runs = self.counts[self.rows.get(kind[1], 0)] if kind[1] else 0.0
            for level, one in enumerate((*kind, 1)):
                if one == 0:
                    continue
                row = self._row(one)
                weight = 1.0 if level < OF_SCRIPT else 1.0 / (1.0 + script_runs)
                around = self.density[row]
                around *= KEEPS[level] ** weight
                low, high = last - REACH, last + REACH + 1
                spread = weight * KERNELS[level]
                around[max(low, 0) : min(high, BINS)] += spread[max(-low, 0) : 2 * REACH + 1 - max(high - BINS, 0)]
                around[0] += spread[: max(-low, 0)].sum()
                around[-1] += spread[2 * REACH + 1 - max(high - BINS, 0) :].sum()
                self.counts[row] += 1

    def _row(self, kind: int) -> int:
        row = self.rows.setdefault(kind, len(self.rows) + 1)
        if row >= len(self.density):
            self.density = np.concatenate([self.density, np.zeros_like(self.density)])
            self.counts = np.concatenate([self.counts, np.zeros_like(self.counts)])
        return row

    def ends(self, kinds: IntArray) -> IntArray:
        """Ends of the closest kind that has any: its level and how many it had, for each job (jobs, 2)."""
        out = np.zeros((len(kinds), 2), dtype=np.int64)
        for i, kind in enumerate(kinds.tolist()):
            counts = [int(self.counts[self.rows.get(one, 0)]) if one else 0 for one in (*kind, 1)]
            level = next((level for level, count in enumerate(counts) if count), len(LEVELS) - 1)
            out[i] = level, counts[level]
        return out

    def lives(self, kinds: IntArray, done_s: FloatArray) -> Lives:
        """What each of these jobs still needs: all that have not ended, with `done_s` (jobs,) seconds of work done."""
        order = np.lexsort(kinds.T)  # by the widest kind first: neighbours share the posteriors of wide kinds
        ordered = kinds[order]
        new = np.concatenate([np.ones(min(len(kinds), 1), bool), (ordered[1:] != ordered[:-1]).any(axis=1)])
        chain = np.zeros(len(kinds), dtype=np.int64)
        chain[order] = np.cumsum(new) - 1
        chains = np.column_stack([ordered[new], np.ones(int(new.sum()), dtype=np.int64)])

        begun = np.flatnonzero(done_s > 0)
        runs = self.counts[self._rows_of(kinds[begun, 1])]
        weight = np.where(np.arange(len(LEVELS)) < OF_SCRIPT, 1.0, 1.0 / (1.0 + runs[:, None]))
        keys, row = np.unique(chains[chain[begun]], return_inverse=True)
        cells = row.ravel() * BINS + np.repeat(bins(done_s[begun]), len(LEVELS))
        counts = np.bincount(cells, weights=weight.ravel(), minlength=len(keys) * BINS).reshape(-1, BINS)
        alive: FloatArray = np.concatenate([np.zeros((1, BINS)), counts]).astype(np.float64, copy=False)
        going = _found(keys, chains)

        above, area = np.empty((len(chains), BINS + 1)), np.empty((len(chains), BINS + 1))
        _survival(chains, self._rows_of(chains), going, self.density, alive, above, area)
        return Lives(above, area, chain, done_s)

    def _rows_of(self, kinds: IntArray) -> IntArray:
        """Rows of these kinds; 0 for kinds without ends."""
        if len(self._sorted[0]) != len(self.rows):
            keys, rows = (np.fromiter(one, dtype=np.int64) for one in (self.rows.keys(), self.rows.values()))
            order = np.argsort(keys)
            self._sorted = keys[order], np.concatenate([[0], rows[order]])
        keys, rows = self._sorted
        return rows[_found(keys, kinds)]


def _found(keys: IntArray, values: IntArray) -> IntArray:
    """One more than the index of each value in the ascending keys; 0 where it is not among them."""
    if not len(keys):
        return np.zeros(values.shape, dtype=np.int64)
    at = np.minimum(np.searchsorted(keys, values), len(keys) - 1)
    return np.where(keys[at] == values, at + 1, 0)


@kernel
def posterior(prior: FloatArray, density: FloatArray, alive: FloatArray, strength: float, masses: FloatArray) -> None:
    """Fill the masses of the bins given `density`, weighted ends by bin, and `alive`, jobs by the bin of what they did.

    All are (BINS,); `prior` counts as `strength` jobs. Jobs alive in a bin are at risk only below it.
    """
    ended = going = left = 0.0
    for g in range(len(prior)):
        ended, going, left = ended + density[g], going + alive[g], left + prior[g]
    stays = 1.0
    for g in range(len(prior)):
        going -= alive[g]
        risk = ended + going + strength * left
        weight = density[g] + strength * prior[g]
        hazard = min(1.0, weight / risk) if risk > 0 else 1.0
        left -= prior[g]
        ended -= density[g]
        masses[g] = stays * hazard
        stays *= 1.0 - hazard
    masses[-1] += stays


@kernel
def _survival(
    chains: IntArray, ended: IntArray, going: IntArray, density: FloatArray, alive: FloatArray, above: FloatArray,
    area: FloatArray,
) -> None:  # fmt: skip
    """Fill P(S > edge) and its integral up to there at the edges of the grid, `above` and `area` (chains, BINS + 1).

    `chains` (chains, levels) are ordered by their widest kind first; `ended` and `going` their rows in `density` and
    `alive`.
    """
    levels = chains.shape[1]
    masses = np.empty((levels + 1, BINS))
    for g in range(BINS):
        masses[levels, g] = ASSUMED[g]
    for c in range(len(chains)):
        last = levels - 1
        while c > 0 and last >= 0 and chains[c, last] == chains[c - 1, last]:
            last -= 1
        for level in range(last, -1, -1):
            of, still = density[ended[c, level]], alive[going[c, level]]
            if chains[c, level] != 0 and (ended[c, level] or going[c, level]):
                posterior(masses[level + 1], of, still, PRIOR[level], masses[level])
            else:
                for g in range(BINS):
                    masses[level, g] = masses[level + 1, g]
        above[c, BINS] = 0.0
        for g in range(BINS - 1, -1, -1):
            above[c, g] = above[c, g + 1] + masses[0, g]
        area[c, 0] = 0.0
        for g in range(BINS):
            area[c, g + 1] = area[c, g] + (EDGES[g + 1] - EDGES[g]) * (above[c, g] + above[c, g + 1]) / 2


@kernel
def _least_ratio(above: FloatArray, area: FloatArray, chain: IntArray, at: IntArray) -> FloatArray:
    """Smallest mean time on a job for each that ends, over all times ahead, for each pair of chain and bin (pairs,)."""
    out = np.empty(len(chain))
    for i in range(len(chain)):
        out[i] = np.inf
        of, until, g = above[chain[i]], area[chain[i]], at[i]
        for j in range(g + 1, len(of)):
            ends = of[g] - of[j]
            if ends > 0:
                out[i] = min(out[i], (until[j] - until[g]) / ends)
    return out


class Lives:
    """Distributions of whole durations, seconds, each conditioned on what a job has done already.

    `above` and `area` (chains, BINS + 1): P(S > edge) and its integral up to there, at the edges of the grid; `chain`
    (jobs,) the chain of kinds of each job, `done_s` (jobs,).
    """

    def __init__(self, above: FloatArray, area: FloatArray, chain: IntArray, done_s: FloatArray) -> None:
        self.above, self.area, self.chain, self.done_s, self.at = above, area, chain, done_s, bins(done_s)

    def rank_s(self) -> FloatArray:
        """Gittins ranks, seconds: the smallest mean time on a job for each that ends, over all times ahead.

        The rank is 1 / sup over D of P(S - a <= D | S > a) / E[min(S - a, D) | S > a]; smaller ranks go first.
        """
        return self._between(lambda chain, at: _least_ratio(self.above, self.area, chain, at) * self.above[chain, at])

    def mean_s(self) -> FloatArray:
        """Mean seconds that are left."""
        return self._between(lambda chain, at: self.area[chain, -1] - self.area[chain, at])

    def quantile_s(self, share: float) -> FloatArray:
        """Seconds that are left with this chance at most; at the lower edge of the bin of what is done."""
        above = self.above[self.chain]
        now = above[np.arange(len(above)), self.at]
        target = (1.0 - share) * now
        g = np.minimum((above > target[:, None]).sum(axis=1) - 1, BINS - 1)
        rows = np.arange(len(above))
        high, low = above[rows, g], above[rows, g + 1]
        part = np.where(high > low, (high - target) / np.maximum(high - low, 1e-300), 0.0)
        found: FloatArray = EDGES[g] + part * (EDGES[g + 1] - EDGES[g]) - EDGES[self.at]
        return np.where(now < LEAST, np.maximum(EDGES[self.at], 1.0), found)

    def _between(self, figure: Callable[[IntArray, IntArray], FloatArray]) -> FloatArray:
        """What `figure` gives for a kind and a bin, over the survival there, linear between the edges of the bin."""
        values = []
        for g in (self.at, np.minimum(self.at + 1, BINS - 1)):
            pairs, where = np.unique(self.chain * BINS + g, return_inverse=True)
            chain, at = np.divmod(pairs, BINS)
            here = self.above[chain, at]
            of_pair = np.where(here < LEAST, np.maximum(EDGES[at], 1.0), figure(chain, at) / np.maximum(here, LEAST))
            values.append(of_pair[where])
        low, high = EDGES[self.at], EDGES[self.at + 1]
        part = np.clip((self.done_s - low) / (high - low), 0.0, 1.0)
        found: FloatArray = values[0] + part * (values[1] - values[0])
        return found

    def next_edge_s(self) -> FloatArray:
        """Seconds of work until a job is in the next bin."""
        found: FloatArray = np.maximum(EDGES[self.at + 1] - self.done_s, 0.0)
        return found
