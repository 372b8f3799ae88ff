"""Seconds of an iteration of jobs that compute, then exchange gradients over links they share. Start at `iterations`.

An iteration takes `compute_s + max(0, exchange_s - overlap * compute_s)`, or longer where gradients are exchanged layer
by layer (`exposed_s`). How long an exchange takes depends on who else exchanges meanwhile, and how often they do
depends on their own iterations: a fixed point. Our design, with the phases of jobs as

    together      whenever a job exchanges, so do all others: their iterations are in step
    interleaved   jobs exchange one after the other wherever there is time: their iterations are fitted together
    random        phases are independent: between alone and together, in proportion to the part of the time in which
                  the other jobs on the bottleneck exchange, and never faster than interleaved. A job that begins to
                  exchange meets the others as they would be without it (the arrival theorem of closed queues, which
                  holds for links that all share equally, whatever the distribution of times): exact for two equal jobs
                  on one link, and at most 2.4 % too slow for three to eight

Members of one group that take turns at a barrier never exchange at the same time, whatever the phases.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from plait.core.arrays import FloatArray, IntArray
from plait.core.errors import SimulationError
from plait.network.fluid.exchanges import Adders, Prepared
from plait.network.fluid.memory import SteadyRates, steady_rates
from plait.network.topology.paths import Graph

PHASES = ("random", "together", "interleaved")
#: Of some jobs, by their places, that exchange at once all the time, and what the law of memory says of all jobs: the
#: rates that they really have, over those. All ones where the law holds.
Corrected = Callable[[Sequence[int], SteadyRates], FloatArray]
#: The fixed point is found when no part of the time would change by more.
NEAR, MOST_STEPS = 1e-5, 300
#: After so many steps this is near enough: where a link is full by a hair, rates jump between two values.
LOOSE = 1e-2
#: Parts of the time below this count as this: a weight is never zero.
LEAST_BUSY = 1e-6


@dataclass(frozen=True)
class IterationTimes:
    """What `iterations` finds, one value a job.

    `iteration_s` and, of it, `exchange_s`; `busy`: the part of the time in which it exchanges; `aggregated`: share of
    sequence numbers that leaves add up in full.
    """

    iteration_s: FloatArray
    exchange_s: FloatArray
    busy: FloatArray
    aggregated: FloatArray


def exposed_s(compute_s: FloatArray, exchange_s: FloatArray, overlap: FloatArray) -> FloatArray:
    """Seconds of an iteration: compute, and the part of the exchange that it does not hide.

    `overlap`, shape (buckets, 2, 1 or jobs): the part of the exchange that is left when a bucket of gradients can be
    sent, that of the bucket included, and the part of the computation that is left then. Buckets go one after the
    other, so an exchange ends when the bucket that is latest, and all behind it, have been sent. `beside` makes it.
    """
    late = np.zeros_like(exchange_s)
    for left, rest in overlap:
        late = np.maximum(late, left * exchange_s - rest * compute_s)
    total: FloatArray = compute_s + late
    return total


def beside(part: float) -> FloatArray:
    """The overlap of exchanges that may begin as soon as this part of the computation is left."""
    return np.array([[[1.0], [part]]])


def iterations(
    graph: Graph,
    parts: Sequence[Prepared],
    bits: FloatArray,
    compute_s: FloatArray,
    *,
    overlap: float | FloatArray = 0.0,
    phases: str = "random",
    turns: IntArray | None = None,
    corrected: Corrected | None = None,
) -> IterationTimes:
    """Iteration times of jobs that all run.

    `parts`: their exchanges, each with at least one channel; `bits` > 0: of one gradient; `compute_s` > 0: seconds of
    an iteration without the exchange; `overlap`, 0 to 1: the part of the computation that an exchange may go beside,
    or as for `exposed_s`;
    `turns`, shape (2, jobs): how many members take turns at the barrier of each job, 1 without, and its place among
    them; `corrected`: what is right where the law of memory is not. Raises `SimulationError` if the fixed point is not
    found.
    """
    count = len(parts)
    assert count
    assert phases in PHASES
    turns = np.tile([[1], [0]], count) if turns is None else turns
    overlap = overlap if isinstance(overlap, np.ndarray) else beside(overlap)
    work = _Work(bits, compute_s, overlap, 1.0 / turns[0])
    rates_at = _rates(graph, Adders.of(parts), work, phases, turns, corrected or (lambda rows, _: np.ones(len(rows))))
    busy = np.full(count, 0.5)
    step, last = 0.5, np.zeros(count)
    for step_number in range(1, MOST_STEPS + 1):
        found = rates_at(busy)
        exchange_s = bits / found.bits_per_s
        iteration_s = exposed_s(compute_s, exchange_s, overlap)
        wanted = work.busy(exchange_s)
        change = float(np.abs(wanted - busy).max())
        if change <= (LOOSE if step_number == MOST_STEPS else NEAR):
            return IterationTimes(iteration_s, exchange_s, wanted, found.aggregated)
        if float((wanted - busy) @ last) < 0:  # it swings: smaller steps
            step *= 0.7
        last = wanted - busy
        busy = busy + step * last
    raise SimulationError(f"iteration times of {count} jobs on a shared network still change by {change:g}")


@dataclass(frozen=True)
class _Work:
    """What jobs do in an iteration, as for `iterations`; `one`: the part of the time that a job's turn may take."""

    bits: FloatArray
    compute_s: FloatArray
    overlap: FloatArray
    one: FloatArray

    def busy(self, exchange_s: FloatArray) -> FloatArray:
        """The part of the time in which jobs exchange for so many seconds an iteration; the last axis is of jobs."""
        found: FloatArray = np.clip(exchange_s / exposed_s(self.compute_s, exchange_s, self.overlap), LEAST_BUSY, 1.0)
        return found


def _rates(
    graph: Graph, adders: Adders, work: _Work, phases: str, turns: IntArray, corrected: Corrected
) -> Callable[[FloatArray], SteadyRates]:
    """Rates while exchanging, as a function of the part of the time in which each job does.

    A job that others meet part of the time is as far from the law as that part lies between alone and together; of
    members that take turns one is there at a time, the first of each group, then the second of each, and so on.
    """
    last: SteadyRates | None = None
    settles, count = True, len(adders.parts)
    together, alone = steady_rates(graph, adders, work.one), steady_rates(graph, adders, apart=True)
    met_factor = np.ones(count)
    for place in range(int(turns[0].max())):
        there = (place - turns[1]) % turns[0] == 0
        same = there.all() or not len(adders.switch)
        law = together if same else steady_rates(graph, adders, np.where(there, 1.0, LEAST_BUSY))
        met_factor[there] = corrected(np.flatnonzero(there).tolist(), law)
    own_factor = np.concatenate([corrected([j], alone) for j in range(count)])
    by_law, together = together, replace(together, bits_per_s=together.bits_per_s * met_factor)
    alone = replace(alone, bits_per_s=alone.bits_per_s * own_factor)

    def interleaved(busy: FloatArray) -> SteadyRates:
        nonlocal last, settles
        try:
            start = None if last is None else last.share
            last = steady_rates(graph, adders, np.minimum(busy, work.one), start=start) if settles else last
        except SimulationError:  # where the law does not hold, it may not settle, either
            if (met_factor == 1.0).all():
                raise
            settles, last = False, last or by_law
        assert last is not None
        return replace(last, bits_per_s=last.bits_per_s * (own_factor + busy * (met_factor - own_factor)))

    if phases == "interleaved":
        return interleaved
    if phases == "together":
        return lambda busy: together
    met = _met(adders, work, alone, together)
    rate = 1 / ((1 - met) / alone.bits_per_s + met / together.bits_per_s)
    aggregated = (1 - met) * alone.aggregated + met * together.aggregated
    # In memory or on links, jobs may be slower even if they never met.
    slower = bool(len(adders.switch) or (met > 0).any())

    def random(busy: FloatArray) -> SteadyRates:
        least = np.minimum(rate, interleaved(busy).bits_per_s) if slower else rate
        return replace(together, bits_per_s=least, aggregated=aggregated)

    return random


def _met(adders: Adders, work: _Work, alone: SteadyRates, together: SteadyRates) -> FloatArray:
    """The part of the time in which the other jobs on its bottleneck exchange when a job does; 0 if there are none.

    Row j of `busy` is the part of the time in which each of the others exchanges without job j; of these, each meets
    the others as in the mean.
    """
    weight = _weights(adders, together)
    count = len(weight)
    if not weight.any():
        return np.zeros(count)
    others = ~np.eye(count, dtype=np.bool_)
    busy = np.where(others, 0.5, 0.0)
    for _ in range(MOST_STEPS):
        met = np.clip(busy @ weight.T, 0.0, 1.0)
        exchange_s = work.bits * ((1 - met) / alone.bits_per_s + met / together.bits_per_s)
        wanted = np.where(others, np.minimum(work.busy(exchange_s), work.one), 0.0)
        change = float(np.abs(wanted - busy).max())
        busy = busy + 0.7 * (wanted - busy)
        if change <= NEAR:
            break
    found: FloatArray = np.clip((busy * weight).sum(axis=1), 0.0, 1.0)
    return found


def _weights(adders: Adders, together: SteadyRates) -> FloatArray:
    """Of what the other jobs use of each job's bottleneck, the part of each, shape (jobs, jobs); zeros without any."""
    uses = adders.uses_at(adders.sent(together.share))
    count = len(uses)
    jobs = np.repeat(np.arange(count), np.diff(uses.first))
    found = np.zeros((count, count))
    for j, channel in enumerate(together.channel.tolist()):
        there = (uses.resource == channel) & (jobs != j)
        total = float(uses.amount[there].sum()) if channel >= 0 else 0.0
        if total > 1e-9:
            found[j, jobs[there]] = uses.amount[there] / total
    return found
