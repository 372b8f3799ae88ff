"""Pollux as published: its genetic search for an allocation, seeded (Qiao et al., OSDI 2021, section 4.2)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from plait.core.policy import View
from plait.goodput.genetic import GENERATIONS, POPULATION, Search, evolve
from plait.policies.options import MOST_OF_SEARCH, MOST_SEED
from plait.policies.sizing.pools import Pool
from plait.policies.sizing.rounds import ByFitness, Sizes
from plait.policies.sizing.steps import every_speedup


@dataclass(frozen=True, kw_only=True)
class PolluxGa(ByFitness):
    """The same aim as `Pollux`, searched for by `generations` of `population` allocations; the reference for it.

    Each round starts from what runs. The published scheduler also keeps the non-dominated allocations of the round
    before; a policy here remembers nothing that is not in the view, so that the view and the seed
    reproduce a plan. `plait reproduce pollux` keeps them, as published. Waiting jobs that the search left out take free
    GPUs.
    """

    generations: int = GENERATIONS
    population: int = POPULATION
    seed: int = 0
    name: str = "pollux-ga"

    def __post_init__(self) -> None:
        super().__post_init__()
        most = MOST_OF_SEARCH
        for name, low, high in (("generations", 1, most), ("population", 2, most), ("seed", 0, MOST_SEED)):
            self._require(name, partial(_whole, low=low, high=high), f"a whole number from {low} to {high}")

    def allocate(self, pool: Pool, view: View) -> Sizes:
        """The best of the last generation."""
        configs, speedup = every_speedup(pool)
        search = Search(
            np.nan_to_num(speedup), configs, pool.held, pool.capacity, pool.kept, pool.most, pool.least,
            weights=pool.weights, p=self.p, floor=self.floor,
        )  # fmt: skip
        rng = np.random.default_rng((int(self.seed), round(view.now_s * 1000)))
        found = evolve(
            search, view.jobs.number[pool.rows], pool.nodes, rng,
            generations=int(self.generations), population=int(self.population),
        )  # fmt: skip
        return Sizes(
            found.gpus, f"the best of {self.generations} generations (genetic search, fitness {found.fitness:.3f})"
        )


def _whole(value: float, low: int, high: int) -> bool:
    return low <= value <= high and value == int(value)  # the bounds first: infinity and NaN are no integers
