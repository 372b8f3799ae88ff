"""The six models of the Pollux paper as plait ships them: fitted throughput, batch limits, work, gradient noise.

The file is `goodput/data/models.json`, its provenance `goodput/data/README.md`. The noise curves are synthetic.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Any

import numpy as np

from plait.core.arrays import FloatArray
from plait.core.errors import InputError
from plait.core.goodput import BatchLimits
from plait.goodput.batch import best_batch
from plait.goodput.jobs import GoodputJobs


@dataclass(frozen=True, slots=True)
class ShippedNoise:
    """A curve of the gradient noise scale, in examples: from `first` to `last`, straight in its logarithm for bend 1.

    A `bend` below 1 rises early in training, as most of the published curves do.
    """

    first: float
    last: float
    bend: float

    def by_epoch(self, epochs: int) -> FloatArray:
        """The noise scale during each of so many epochs."""
        part = np.linspace(0.0, 1.0, epochs) if epochs > 1 else np.zeros(1)
        curve: FloatArray = self.first * (self.last / self.first) ** (part**self.bend)
        return curve


@dataclass(frozen=True, slots=True)
class ShippedModel:
    """One model; `iterations` are steps at the initial batch, of all epochs together."""

    name: str
    theta: tuple[float, ...]
    batch: BatchLimits
    epochs: int
    iterations: float
    noise: ShippedNoise

    @property
    def epoch_ends(self) -> FloatArray:
        """Iterations done at the end of each epoch; epochs are equally long."""
        ends: FloatArray = self.iterations * np.arange(1, self.epochs + 1) / self.epochs
        return ends

    def iteration_s(self, nodes: int, gpus: int) -> float:
        """Mean seconds of an iteration over the whole training on these GPUs, the best batch chosen every epoch.

        Raises `InputError` if so many GPUs would have to take more than the largest batch.
        """
        limits, noise = self.batch, self.noise.by_epoch(self.epochs)
        jobs = GoodputJobs(
            np.tile(self.theta, (self.epochs, 1)),
            np.ones(self.epochs),
            noise / limits.initial,
            initial=np.full(self.epochs, limits.initial),
            most=np.full(self.epochs, limits.most),
            least_local=np.full(self.epochs, limits.least_local),
            most_local=np.full(self.epochs, limits.most_local),
            accumulates=np.full(self.epochs, limits.accumulation),
        )
        useful = best_batch(jobs, [nodes], [gpus]).goodput[:, 0]
        if not useful.all():
            raise InputError(f"model {self.name} cannot run on {gpus} GPUs; at most {self.most_gpus} have work")
        return float((limits.initial / useful).mean())

    @property
    def most_gpus(self) -> int:
        """The largest number of GPUs that leaves each its smallest batch."""
        return self.batch.most // self.batch.least_local


@cache
def shipped() -> Mapping[str, ShippedModel]:
    """The models by name."""
    return MappingProxyType(
        {
            row["name"]: ShippedModel(
                row["name"],
                tuple(row["theta"]),
                BatchLimits(**row["batch"]),
                row["epochs"],
                row["iterations"],
                ShippedNoise(**row["noise"]),
            )
            for row in _file()["models"]
        }
    )


@cache
def measured_node() -> int:
    """GPUs of each node on which the models were measured."""
    return int(_file()["gpus_per_node"])


@cache
def _file() -> dict[str, Any]:
    text = (resources.files("plait.goodput") / "data" / "models.json").read_text(encoding="utf-8")
    data: dict[str, Any] = json.loads(text)
    return data
