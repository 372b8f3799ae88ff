"""Random rounds of an allocation policy for adaptive jobs: to compare optimisers with one another.

Jobs are of the six shipped models in the shares of the published workload, somewhere in their training, explored up to
different sizes, on an empty cluster.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from plait.core.arrays import FloatArray, IntArray
from plait.goodput.batch import goodput_table
from plait.goodput.fitness import column_of, every_size, ladder
from plait.goodput.genetic import Search
from plait.goodput.jobs import GoodputJobs
from plait.goodput.shipped import shipped
from plait.goodput.throughput import fair_share, speedup

#: Jobs of each model among 160 (Pollux, section 5.1, workload 6).
SHARES = {"cifar10": 67, "ncf": 54, "deepspeech2": 16, "bert": 15, "yolov3": 5, "imagenet": 3}

#: The most GPUs a job is given, as in the published simulator.
MOST_GPUS = 64


@dataclass(frozen=True)
class Round:
    """One round: the division of `nodes` x `gpus_per_node` GPUs among jobs.

    `speedup` (J, C) over `configs` (C, 2), every size; the same over the `steps` (C', 2) of the ladder is `on_ladder`.
    """

    jobs: GoodputJobs
    most: IntArray
    gpus_per_node: int
    nodes: int
    configs: IntArray
    speedup: FloatArray

    @property
    def gpus(self) -> int:
        """GPUs of the cluster."""
        return self.nodes * self.gpus_per_node

    @property
    def steps(self) -> IntArray:
        """The ladder, as far as jobs go."""
        return ladder(self.gpus_per_node, self.nodes, MOST_GPUS)

    @property
    def on_ladder(self) -> FloatArray:
        """The columns of `speedup` for `steps`."""
        steps = self.steps
        return self.speedup[:, column_of(self.configs, steps[:, 0], steps[:, 1])]

    def search(self, p: float = -1.0) -> Search:
        """The same for the genetic search, from an empty cluster."""
        count = len(self.jobs)
        empty, whole = np.zeros((count, self.nodes), dtype=np.int64), np.full(self.nodes, self.gpus_per_node)
        return Search(self.speedup, self.configs, empty, whole, np.ones(count), self.most, p=p)


def random_jobs(count: int, rng: np.random.Generator) -> GoodputJobs:
    """Jobs of the shipped models somewhere in their training."""
    models = shipped()
    names = rng.choice(list(SHARES), count, p=np.array(list(SHARES.values())) / sum(SHARES.values()))
    kinds = [models[name] for name in names]
    noise = np.array([kind.noise.first for kind in kinds])
    last = np.array([kind.noise.last for kind in kinds])
    noise = noise * (last / noise) ** rng.random(count)
    initial = np.array([kind.batch.initial for kind in kinds])
    return GoodputJobs(
        np.array([kind.theta for kind in kinds]).reshape(-1, 7),
        np.ones(count),
        noise / initial,
        initial,
        np.array([kind.batch.most for kind in kinds]),
        np.array([kind.batch.least_local for kind in kinds]),
        np.array([kind.batch.most_local for kind in kinds]),
        np.array([kind.batch.accumulation for kind in kinds], dtype=bool),
    )


def random_round(seed: int, jobs: int | None = None, nodes: int | None = None, gpus_per_node: int = 4) -> Round:
    """A round of `jobs` jobs on `nodes` nodes; if not given, 20 to 160 jobs and 16 to 64 nodes are drawn."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(20, 161)) if jobs is None else jobs
    size = int(rng.integers(16, 65)) if nodes is None else nodes
    made = random_jobs(count, rng)
    most = np.minimum(np.minimum(2 ** rng.integers(1, 8, count), made.most_gpus), MOST_GPUS)
    configs = every_size(gpus_per_node, size, MOST_GPUS)
    share = fair_share(size * gpus_per_node, count, gpus_per_node)
    base = goodput_table(made, [share])[:, 0]
    return Round(made, most, gpus_per_node, size, configs, speedup(goodput_table(made, configs, most_gpus=most), base))
