"""What starting, stopping and moving a job costs, by model and gang size; charged once, to that job."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import numpy as np

from plait.core.arrays import FloatArray
from plait.core.errors import TraceError
from plait.core.jobs import JobBatch

FIELDS = ("launch_s", "checkpoint_s", "restore_s", "migrate_s")
LAUNCH, CHECKPOINT, RESTORE, MIGRATE = range(4)


@dataclass(frozen=True)
class Overheads:
    """Seconds by (model, GPUs): rows of (gpus, launch, checkpoint, restore, migrate), sizes ascending.

    Model `*` stands for every model without rows of its own; without such rows they cost nothing.
    """

    rows: tuple[tuple[str, tuple[tuple[float, ...], ...]], ...] = ()

    @classmethod
    def measured(cls) -> Overheads:
        """The table that ships with plait; its provenance is in `sim/data/README.md`."""
        with resources.as_file(resources.files("plait.sim") / "data" / "overheads.csv") as path:
            return cls.read(path)

    @classmethod
    def constant(
        cls, launch_s: float = 0, checkpoint_s: float = 0, restore_s: float = 0, migrate_s: float = 0
    ) -> Overheads:
        """The same costs for every job."""
        return cls((("*", ((1.0, launch_s, checkpoint_s, restore_s, migrate_s),)),))

    @property
    def label(self) -> str:
        """In words: `none`, the same for every job, or a table."""
        if not self.rows:
            return "none"
        if [model for model, _ in self.rows] == ["*"] and len(self.rows[0][1]) == 1:
            costs = zip(("launch", "checkpoint", "restore", "migrate"), self.rows[0][1][0][1:], strict=True)
            return ", ".join(f"{name} {seconds:g} s" for name, seconds in costs if seconds) or "none"
        return "measured"

    @classmethod
    def read(cls, path: str | Path) -> Overheads:
        """Read a CSV with the columns model, gpus, launch_s, checkpoint_s, restore_s, migrate_s.

        Raises `TraceError` naming file, line and column.
        """
        table: dict[str, list[tuple[float, ...]]] = {}
        try:
            with open(path, newline="", encoding="utf-8-sig") as file:
                reader = csv.DictReader(file)
                wanted = ("model", "gpus", *FIELDS)
                missing = [c for c in wanted if c not in (reader.fieldnames or ())]
                if missing:
                    raise TraceError(
                        "missing column",
                        file=str(path),
                        line=1,
                        column=missing[0],
                        hint=f"needs {', '.join(wanted)}",
                    )
                for row in reader:
                    values = [_number(row[c], str(path), reader.line_num, c) for c in wanted[1:]]
                    table.setdefault(str(row["model"]), []).append(tuple(values))
        except OSError as error:
            raise TraceError(f"cannot read overheads: {error.strerror}", file=str(path)) from error
        return cls(tuple((model, tuple(sorted(rows))) for model, rows in sorted(table.items())))

    def for_jobs(self, models: Sequence[str], gpus: Sequence[int]) -> FloatArray:
        """Costs in seconds, shape (jobs, 4) in the order of `FIELDS`."""
        tables = dict(self.rows)
        known: dict[tuple[str, int], tuple[float, ...]] = {}
        out = np.zeros((len(gpus), len(FIELDS)))
        if not tables:
            return out
        for i, key in enumerate(zip(models, gpus, strict=True)):
            if key not in known:
                rows = tables.get(key[0]) or tables.get("*") or ((1.0, 0.0, 0.0, 0.0, 0.0),)
                row = next((r for r in rows if r[0] >= key[1]), rows[-1])
                known[key] = row[1:]
            out[i] = known[key]
        return out

    def for_batch(self, jobs: JobBatch) -> FloatArray:
        """Costs of these jobs at the size they ask for, seconds, shape (jobs, 4)."""
        return self.for_jobs(jobs.column("model").tolist(), jobs.gpus.tolist())


def _number(text: str | None, file: str, line: int, column: str) -> float:
    try:
        value = float(text or "")
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise TraceError("not a number of seconds >= 0", file=file, line=line, column=column, value=text)
    return value
