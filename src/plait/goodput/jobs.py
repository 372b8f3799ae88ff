"""Adaptive jobs as columns: all that the models of goodput know about them."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from plait.core.arrays import BoolArray, FloatArray, IntArray
from plait.core.errors import InputError
from plait.core.goodput import LEAST_S, MOST_GAMMA, MOST_NOISE, MOST_S, THETA, BatchLimits, BoundNames, Estimate
from plait.goodput.execution_plans import PlanSpace

if TYPE_CHECKING:
    from plait.core.jobs import JobTable

    Rows = slice | list[int] | IntArray | BoolArray


@dataclass(frozen=True, slots=True, eq=False)
class GoodputJobs:
    """Fits, gradient noise and batch limits of J jobs, a row each.

    A row of `theta` that holds a NaN means: no fit yet. `(sqr, var) = (0, 1)` means: no gradient noise known yet, or
    a job whose every example counts in full (a fixed batch), so that the efficiency is 1.
    """

    theta: FloatArray
    """(J, 7): alpha and beta of compute, of synchronising between nodes, and inside a node, in s; gamma."""
    sqr: FloatArray
    """(J,): squared norm of the pre-conditioned gradient."""
    var: FloatArray
    """(J,): variance of that gradient at the user's batch size."""
    initial: IntArray
    """(J,): M0, the user's batch size, in examples."""
    most: IntArray
    """(J,): M_max, largest total batch, in examples."""
    least_local: IntArray
    """(J,): m_min, smallest batch of a GPU in one pass, in examples."""
    most_local: IntArray
    """(J,): m_max, largest batch of a GPU in one pass, in examples."""
    accumulates: BoolArray
    """(J,): whether gradients may be accumulated over several passes."""
    plans: PlanSpace | None = None
    """The plans that jobs choose from; None if none does."""

    def __post_init__(self) -> None:
        theta = np.asarray(self.theta, dtype=np.float64)
        if theta.ndim != 2:
            raise InputError(f"theta of goodput jobs has shape {theta.shape}; it takes a row for each job")
        object.__setattr__(self, "theta", theta)
        kinds = {"sqr": np.float64, "var": np.float64, "accumulates": np.bool_}
        for name in COLUMNS[1:]:
            column: Any = np.asarray(getattr(self, name), dtype=kinds.get(name, np.int64))
            if column.shape != theta.shape[:1]:
                raise InputError(
                    f"{name} of goodput jobs has shape {column.shape}; {len(theta)} jobs take ({len(theta)},)"
                )
            object.__setattr__(self, name, column)
        rising = np.stack([self.initial, self.most, self.most_local])
        below = np.stack([np.ones_like(self.initial), self.initial, self.least_local])
        wrong = np.logical_or.reduce([*(rising < below), self.least_local < 1])
        if wrong.any():
            row = int(np.argmax(wrong))
            raise InputError(
                f"goodput job {row} has batch sizes M0={self.initial[row]}, M_max={self.most[row]}, "
                f"m_min={self.least_local[row]}, m_max={self.most_local[row]}; "
                "they need 1 <= M0 <= M_max and 1 <= m_min <= m_max"
            )
        known = theta[self.fitted]
        if not (np.isfinite(known) & (known >= 0)).all():
            raise InputError("theta of goodput jobs holds a number below 0 or an infinite one; NaN is for no fit")
        if not all((np.isfinite(column) & (column >= 0)).all() for column in (self.sqr, self.var)):
            raise InputError("sqr and var of goodput jobs need finite numbers >= 0; (0, 1) is for what is not known")

    @classmethod
    def of(cls, table: JobTable) -> GoodputJobs:
        """The columns of adaptive jobs; choose the rows with a `batch_size` first.

        Values that no fit can produce, or that sums cannot hold, count as unknown, so the numbers of one job never stop
        the policy of the others. Raises `InputError` for a job that does not adapt its batch.
        """
        fixed = np.flatnonzero(np.asarray(table.batch_size) <= 0)
        if len(fixed):
            raise InputError(
                f"job {int(table.number[fixed[0]])} does not adapt its batch, so it has no goodput; take "
                "plait.policies.sizing.pools.goodput_jobs(view.jobs), which counts such jobs by their GPUs"
            )
        theta, noise = table.goodput[:, :THETA], table.goodput[:, [Estimate.SQR, Estimate.VAR]]
        real = _between(theta[:, : Estimate.GAMMA], LEAST_S, MOST_S) & _between(
            theta[:, [Estimate.GAMMA]], 1, MOST_GAMMA
        )
        measured = _between(noise, 0.0, MOST_NOISE)
        theta = np.where(real[:, None], theta, np.nan)
        sqr, var = np.where(measured[:, None], noise, (0.0, 1.0)).T
        limits = (table.batch_size, table.max_batch_size, table.min_local_batch, table.max_local_batch)
        return cls(theta, sqr, var, *limits, table.accumulates != 0, PlanSpace.of(partial(getattr, table)))

    @classmethod
    def one(
        cls, limits: BatchLimits, theta: npt.ArrayLike, sqr: float, var: float, memory_bytes: float = np.inf
    ) -> GoodputJobs:
        """A job with these bounds and this fit, `theta` (7,), on GPUs of so much memory."""
        space = PlanSpace.of(lambda name: np.array([getattr(limits, name)]), memory_bytes)
        values = (theta, sqr, var, *(getattr(limits, name) for name in BoundNames._fields))
        columns: dict[str, Any] = {name: np.array([value]) for name, value in zip(COLUMNS, values, strict=True)}
        return cls(**columns, plans=space)

    @classmethod
    def without_fit(cls, most: IntArray) -> GoodputJobs:
        """Jobs that do not adapt their batch: one example a GPU, on up to `most` GPUs (J,), and nothing known."""
        jobs, one = object.__new__(cls), np.ones(len(most), dtype=np.int64)
        columns = (np.full((len(most), THETA), np.nan), np.zeros(len(most)), np.ones(len(most)), one, most, one, one)
        for name, column in zip(COLUMNS, (*columns, one == 1), strict=True):
            object.__setattr__(jobs, name, column)
        object.__setattr__(jobs, "plans", None)
        return jobs

    def __len__(self) -> int:
        return len(self.theta)

    def __getitem__(self, rows: Rows | SupportsIndex) -> GoodputJobs:
        """The jobs of some rows, in that order; a single number gives a table of one job."""
        some = rows if isinstance(rows, (slice, list, np.ndarray)) else [int(rows)]
        chosen = object.__new__(GoodputJobs)  # the columns have been checked, and this is called often
        for name in COLUMNS:
            object.__setattr__(chosen, name, getattr(self, name)[some])
        object.__setattr__(chosen, "plans", None if self.plans is None else self.plans[some])
        return chosen

    def on(self, memory_bytes: npt.ArrayLike) -> GoodputJobs:
        """The same jobs on GPUs of `memory_bytes`, (J,) or one for all; only plans depend on it."""
        if self.plans is None:
            return self
        memory = np.broadcast_to(np.asarray(memory_bytes, dtype=np.float64), len(self))
        return replace(self, plans=replace(self.plans, memory_bytes=memory))

    @property
    def fitted(self) -> BoolArray:
        """(J,): whether there is a fit."""
        known: BoolArray = ~np.isnan(self.theta.sum(axis=1))
        return known

    @property
    def most_gpus(self) -> IntArray:
        """(J,): the largest K that leaves each GPU its smallest batch, floor(M_max / m_min)."""
        gpus: IntArray = self.most // self.least_local
        return gpus


def _between(rows: FloatArray, least: float, most: float) -> BoolArray:
    """(J,): whether all numbers of a row are, which NaN is not."""
    inside: BoolArray = np.logical_and.reduce((rows >= least) & (rows <= most), axis=1)
    return inside


COLUMNS = tuple(field.name for field in fields(GoodputJobs) if field.name != "plans")
