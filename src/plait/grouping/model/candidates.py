"""The jobs to group, as columns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from plait.core.arrays import BoolArray, FloatArray, IntArray
from plait.core.errors import InputError


@dataclass(frozen=True, eq=False)
class Candidates:
    """The jobs to group, one a row, in priority order.

    `stage_s` (n, k) seconds of each stage alone; `iteration_s` (n,) of the whole iteration alone; `gpus` (n,);
    `memory_bytes` (n,) of GPU memory on each GPU, None = not limited; `shares` (n, k) the part of each resource that a
    stage needs, in (0, 1], None = all of it (see `interleave`). Raises `InputError` that names the row.
    """

    stage_s: FloatArray
    iteration_s: FloatArray
    gpus: IntArray
    memory_bytes: FloatArray | None = None
    shares: FloatArray | None = None

    def __post_init__(self) -> None:
        """Check that the columns can be profiles."""
        stage = np.ascontiguousarray(self.stage_s, dtype=np.float64)
        if stage.ndim != 2 or stage.shape[1] == 0:
            raise InputError(f"stage_s must have shape (jobs, resources), got {stage.shape}")
        gpus = np.asarray(self.gpus)
        columns = {
            "stage_s": stage,
            "iteration_s": np.asarray(self.iteration_s, dtype=np.float64),
            "gpus": gpus.astype(np.int64),
        }
        if self.memory_bytes is not None:
            columns["memory_bytes"] = np.asarray(self.memory_bytes, dtype=np.float64)
        if self.shares is not None:
            columns["shares"] = np.asarray(self.shares, dtype=np.float64)
        for name, column in columns.items():
            wanted = stage.shape if name in ("stage_s", "shares") else stage.shape[:1]
            if column.shape != wanted:
                raise InputError(f"{name} must have shape {wanted}, as for {len(stage)} jobs, got {column.shape}")
            object.__setattr__(self, name, column)
        self._check()

    def _check(self) -> None:
        stage, alone, memory, shares = self.stage_s, self.iteration_s, self.memory_bytes, self.shares
        total: FloatArray = stage.sum(axis=1)
        _need(
            (stage.min(axis=1) >= 0) & np.isfinite(total) & (total > 0),
            stage,
            "stage_s must be finite, >= 0 and not all 0 seconds",
        )
        _need((alone > 0) & np.isfinite(alone), alone, "iteration_s must be a positive number of seconds")
        _need(self.gpus >= 1, self.gpus, "gpus must be at least 1")
        if memory is not None:
            _need((memory >= 0) & np.isfinite(memory), memory, "memory_bytes must be finite and >= 0")
        if shares is not None:
            _need((shares.min(axis=1) > 0) & (shares.max(axis=1) <= 1), shares, "shares must be in (0, 1]")

    def __len__(self) -> int:
        return len(self.gpus)


def _need(fine: BoolArray, column: FloatArray | IntArray, rule: str) -> None:
    if not fine.all():
        row = int(np.argmin(fine))
        raise InputError(f"row {row}: {rule}, got {column[row].tolist()}")
