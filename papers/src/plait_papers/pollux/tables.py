"""The authors' measurements, as functions: step times by placement, gradient noise by batch and epoch.

The files are from the released simulator (`simulator/traces` of petuum/adaptdl, branch osdi21-artifact): for each model
`placements.csv`, `scalability.csv` and one `validation-<batch>.csv` for each batch size.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from plait.core.arrays import FloatArray
from plait.core.errors import InputError, MissingExtra, SimulationError, suggest
from plait.traces.delimited import TextRow, read_rows
from plait.traces.files import Source

NODES_AXIS = 16
"""More nodes than this count as this many where step times are interpolated over nodes, GPUs and batch."""

Placement = tuple[int, ...]
"""GPUs on each node of a job."""


def canonical(placement: Placement) -> Placement:
    """The smallest rotation of a ring of nodes; nodes without GPUs are left out.

    >>> canonical((4, 0, 2))
    (2, 4)
    """
    ring = tuple(gpus for gpus in placement if gpus)
    return min((ring[i:] + ring[:i] for i in range(len(ring))), default=ring)


class Measured:
    """The measurements of one model. Raises `InputError` naming file, line and field where they are not right."""

    def __init__(self, folder: Path, application: Application) -> None:
        """Read the files of `application` in `folder/<name>`."""
        self.application = application
        self.folder = folder / application.name
        if not self.folder.is_dir():
            raise InputError(
                f"no folder {self.folder} with the measurements of {application.name}; give --data the folder that has "
                f"{', '.join(APPLICATIONS)} (github.com/petuum/adaptdl, branch osdi21-artifact, simulator/traces)"
            )
        self._curves, self._means = self._read_placements()
        source = Source(self.folder / "scalability.csv")
        axes = ("num_nodes", "num_replicas", "local_bsz")
        self._scaling = [
            (*(_positive(row, name) for name in axes), *_times(row))
            for row in read_rows(source, required=(*axes, "step_time", "sync_time"))
        ]
        self._runs = [self._read_run(batch) for batch in application.batches]
        #: Progress at the end of each epoch (0: before the first), in iterations at the initial batch.
        self.progress = (0.0, *(min(run[0][epoch] for run in self._runs) for epoch in range(application.epochs)))
        self._steps: dict[tuple[Placement, int], tuple[float, float]] = {}
        self._noise: dict[tuple[int, int], tuple[float, float]] = {}

    # -- step times ----------------------------------------------------------------------------------------------

    def step(self, placement: Placement, local: int) -> tuple[float, float]:
        """Seconds of a synchronising step and of its synchronisation, with `local` examples on each GPU.

        A measured placement is interpolated over the batch; any other over (nodes, GPUs, batch) between all measured
        points. Raises `SimulationError` outside of what was measured.
        """
        key = placement, local
        found = self._steps.get(key)
        if found is None:
            found = self._steps[key] = self._interpolated(canonical(placement), local)
        return found

    def _interpolated(self, placement: Placement, local: int) -> tuple[float, float]:
        curve = self._curves.get(placement)
        nodes, gpus = len(placement), sum(placement)
        if curve is not None:
            sizes, step_s, sync_s = curve
            inside = sizes[0] <= local <= sizes[-1]
            found = (float(np.interp(local, sizes, step_s)), float(np.interp(local, sizes, sync_s)))
        else:
            values = self._space(min(nodes, NODES_AXIS), gpus, local)
            found = (float(values[0]), float(values[1]))
            inside = math.isfinite(found[0])
        if not inside:
            raise SimulationError(
                f"no step time of {self.application.name} for {local} examples on each of {gpus} GPUs on {nodes} nodes "
                f"({'+'.join(map(str, placement))}): outside of what {self.folder} has, and nothing is extrapolated"
            )
        return found

    @property
    def every_step(self) -> FloatArray:
        """(5, rows): nodes, GPUs, batch of a GPU, seconds of a step and of its synchronisation, of all files."""
        return np.array([*self._means, *self._scaling]).T

    def _space(self, *point: float) -> FloatArray:
        result: FloatArray = self._interpolator(point).reshape(2)
        return result

    @cached_property
    def _interpolator(self) -> Any:
        """Piecewise-linear over a Delaunay triangulation, axes as they are."""
        try:
            from scipy.interpolate import LinearNDInterpolator
        except ImportError as error:
            raise MissingExtra("SciPy", "sim", "the world pollux-artifact") from error
        return LinearNDInterpolator(self.every_step[:3].T, self.every_step[3:].T)

    # -- training runs -------------------------------------------------------------------------------------------

    def noise(self, batch: int, epoch: int) -> tuple[float, float]:
        """Squared norm of the gradient and its variance at the initial batch, in an epoch (from 0)."""
        key = batch, epoch
        found = self._noise.get(key)
        if found is None:
            sqr, var = (self._at(batch, [run[column][epoch] for run in self._runs]) for column in (2, 3))
            found = self._noise[key] = (sqr, var)
        return found

    def iterations(self, batch: int, epoch: int) -> float:
        """Optimiser steps until the end of an epoch (from 0)."""
        return self._at(batch, [run[1][epoch] for run in self._runs])

    def _at(self, batch: int, values: Sequence[float]) -> float:
        """Linear between the two measured batches around `batch`."""
        sizes = self.application.batches
        if not sizes[0] <= batch <= sizes[-1]:
            raise SimulationError(
                f"{self.application.name} was trained with batches of {sizes[0]} to {sizes[-1]}, not {batch}"
            )
        above = bisect_left(sizes, batch)
        if sizes[above] == batch:
            return values[above]
        low, high = sizes[above - 1], sizes[above]
        return values[above - 1] + (values[above] - values[above - 1]) * ((batch - low) / (high - low))

    # -- files ---------------------------------------------------------------------------------------------------

    def _read_placements(self) -> tuple[dict[Placement, tuple[FloatArray, ...]], list[tuple[float, ...]]]:
        source = Source(self.folder / "placements.csv")
        rows: dict[Placement, dict[float, tuple[float, float]]] = defaultdict(dict)
        groups: dict[tuple[int, int, float], list[tuple[float, float]]] = defaultdict(list)
        for row in read_rows(source, required=("placement", "local_bsz", "step_time", "sync_time")):
            digits = row.text("placement")
            if not (digits.isdecimal() and digits.isascii() and int(digits) > 0):
                raise row.error("must be one digit a node, the GPUs there, e.g. 24", column="placement")
            placement, local, times = canonical(tuple(map(int, digits))), _positive(row, "local_bsz"), _times(row)
            if local in rows[placement]:
                raise row.error("the placement has this batch twice", column="local_bsz")
            rows[placement][local] = times
            groups[len(placement), sum(placement), local].append(times)
        if not rows:
            raise source.error("the file has no rows")
        curves = {
            placement: (np.array(sizes), *(np.array([found[size][i] for size in sizes]) for i in (0, 1)))
            for placement, found in rows.items()
            if (sizes := sorted(found))
        }
        means = [(*key, *np.mean(groups[key], axis=0).tolist()) for key in sorted(groups)]
        return curves, means

    def _read_run(self, batch: int) -> tuple[list[float], ...]:
        """Progress, optimiser steps, squared norm and variance, an entry an epoch."""
        source = Source(self.folder / f"validation-{batch}.csv")
        names = ("progress", "iteration", "grad_sqr", "grad_var")
        columns: tuple[list[float], ...] = ([], [], [], [])
        for row in read_rows(source, required=names):
            for name, column in zip(names, columns, strict=True):
                value = row.number(name)
                if value < 0 or (name in ("progress", "iteration") and value <= (column[-1] if column else 0.0)):
                    raise row.error("must be more than in the row before, or 0 for gradients", column=name)
                column.append(value)
        if len(columns[0]) < self.application.epochs:
            raise source.error(
                f"{self.application.name} takes {self.application.epochs} epochs, the file has {len(columns[0])}"
            )
        return columns


def _positive(row: TextRow, name: str) -> float:
    value = row.number(name)
    if not value > 0:
        raise row.error("must be more than 0", column=name)
    return value


def _times(row: TextRow) -> tuple[float, float]:
    step_s, sync_s = _positive(row, "step_time"), row.number("sync_time")
    if not 0 <= sync_s < step_s:
        raise row.error("must be at least 0 and less than step_time", column="sync_time")
    return step_s, sync_s


@dataclass(frozen=True, slots=True)
class Application:
    """A model: `initial` and `most` examples of a whole batch, least and most of one GPU's pass, length in epochs.

    `fixed_batch` is the batch that Pollux always uses (0: it chooses); `most_gpus` is what it may have at most.
    """

    name: str
    initial: int
    most: int
    least_local: int
    most_local: int
    epochs: int
    fixed_batch: int = 0
    most_gpus: int = 64

    @property
    def batches(self) -> tuple[int, ...]:
        """Batch sizes with a measured training run: the initial one, doubled up to the largest."""
        found = [self.initial]
        while found[-1] < self.most:
            found.append(2 * found[-1])
        return tuple(found)


APPLICATIONS: Mapping[str, Application] = {
    a.name: a
    for a in (
        Application("bert", 12, 384, 4, 12, 2),
        Application("cifar10", 128, 4096, 32, 1024, 100),
        Application("deepspeech2", 20, 640, 10, 80, 80),
        Application("imagenet", 200, 12800, 20, 200, 90),
        Application("ncf", 256, 32768, 32, 32768, 10, fixed_batch=32768, most_gpus=1),
        Application("yolov3", 8, 512, 4, 8, 50),
    )
}


def application(name: str) -> Application:
    """The model of this name; raises `InputError` for one without measurements."""
    if name not in APPLICATIONS:
        raise InputError(f"unknown application {name!r}; {suggest(name, APPLICATIONS)}")
    return APPLICATIONS[name]
