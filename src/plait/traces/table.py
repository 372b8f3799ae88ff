"""A trace in memory: the canonical jobs as columns, the cluster's nodes if known, and where it all came from.

Offered load: how busy the jobs of a trace keep a cluster while they are submitted.

    load = sum over jobs of GPUs x |[submit, submit + duration] in W| / (GPUs of the cluster x |W|)

W, the busy period, runs from the 5th percentile of the submissions to the last one: before it the cluster fills up,
after it the cluster empties. The numerator is the work that is due in W if no job waits. For a stream without end this
is the utilisation factor of queueing theory, arrival rate x mean work / servers. A cluster at load L is therefore about
min(1, L) busy during W, if the policy finds GPUs for the jobs that wait; above 1 the queue grows until the last
submission.

GPU-seconds of all jobs over the span of submissions count work that is due only after the last submission. In traces
with heavy tails this is most of the work, and a cluster at load 1 by that measure has no queue.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from plait.core.errors import InputError, suggest
from plait.core.version import __version__
from plait.traces.schema import JOBS, SCHEMA_VERSION, Array, Column, extra_column

#: Percentile of the submissions at which the busy period begins.
WARM_UP = 5.0
#: Halvings of the interval of the stretch factor: more than the bits of a float.
HALVINGS = 64


def busy_period(submit_s: Array) -> tuple[float, float]:
    """First and last second of the busy period; equal if (nearly) all jobs are submitted at one time."""
    return float(np.percentile(submit_s, WARM_UP)), float(np.max(submit_s))


def offered_load(submit_s: Array, gpus: Array, duration_s: Array, cluster_gpus: int) -> float:
    """Load of these jobs on `cluster_gpus` GPUs, as this module defines it; infinite without a busy period.

    `submit_s`, `duration_s`: seconds (n,), NaN durations count as 0; `gpus`: GPUs of each job (n,).

    >>> import numpy as np
    >>> offered_load(np.arange(100.0), np.ones(100), np.full(100, 4.0), 4)
    1.0
    """
    if cluster_gpus < 1:
        raise InputError(f"a cluster needs at least one GPU (got {cluster_gpus})")
    if not len(submit_s):
        return 0.0
    first, last = busy_period(submit_s)
    if not last > first:
        return float("inf")
    end_s = np.minimum(submit_s + np.nan_to_num(duration_s), last)
    inside_s = np.maximum(end_s - np.maximum(submit_s, first), 0.0)
    return float((gpus * inside_s).sum() / (cluster_gpus * (last - first)))


def stretch_factor(submit_s: Array, gpus: Array, duration_s: Array, cluster_gpus: int, load: float) -> float:
    """Factor by which submissions after the first are stretched for the offered load to be `load`.

    Arguments as for `offered_load`. Raises `InputError` if no factor does: the load has an upper bound, which it has
    when every job runs from its submission to the end of the busy period.
    """
    if not 0 < load < float("inf"):
        raise InputError(f"load must be more than 0 (got {load})")
    if not np.nansum(gpus * duration_s) > 0:
        raise InputError("no job of this trace has a duration, so it has no load to stretch; leave load out")
    after_s = submit_s - submit_s.min()
    endless = np.where(duration_s > 0, np.inf, 0.0)
    most = offered_load(after_s, gpus, endless, cluster_gpus)
    if most == float("inf"):
        raise InputError(
            "the jobs of this trace are submitted at one time, which has no load to stretch; leave load out"
        )
    if not load < most:
        raise InputError(
            f"load {load:g} needs more jobs: these {len(after_s):,} reach at most {most:.2g} on {cluster_gpus} GPUs"
        )
    # The load falls with the factor: each job's part of a longer period is at most as large.
    low, high = np.log(1e-9), np.log(1e9)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if offered_load(after_s * np.exp(middle), gpus, duration_s, cluster_gpus) > load:
            low = middle
        else:
            high = middle
    return float(np.exp((low + high) / 2))


Columns = Mapping[str, Array]

META_FIELDS: dict[str, Any] = {
    "schema_version": SCHEMA_VERSION,
    "source": None,
    "citation": None,
    "licence": None,
    "origin_utc": None,
    "time_zone": None,
    "rows_read": 0,
    "rows_kept": 0,
    "rows_dropped": {},
    "filters": [],
    "options": {},
    "assignments": [],
    "warnings": [],
    "extra_columns": {},
    "input_sha256": None,
    "plait_version": None,
}


def new_meta(**known: Any) -> dict[str, Any]:
    """A sidecar with every field present and the given ones filled in.

    >>> new_meta(source="invented", rows_read=3, rows_kept=3)["rows_dropped"]
    {}
    """
    fresh = {key: value.copy() if isinstance(value, dict | list) else value for key, value in META_FIELDS.items()}
    return {**fresh, "plait_version": __version__, **known}


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class TraceTable:
    """The canonical jobs table: one array a column, sorted by submission, then by natural job id.

    `columns` holds the columns that have a value somewhere; an absent nullable column reads as all null.
    Nulls are NaN in numeric columns (nullable whole numbers are kept in float64) and None in strings.
    `nodes` is the cluster of the trace, in the same layout. `meta` is the sidecar: source, units,
    rows read, kept and dropped by reason, options, warnings.

    Build one with `plait.traces.validate.checked_table`; the constructor itself checks nothing.
    """

    columns: dict[str, Array]
    meta: dict[str, Any] = field(default_factory=new_meta)
    nodes: dict[str, Array] | None = None

    def __repr__(self) -> str:
        return f"TraceTable({len(self)} jobs: {', '.join(self.columns)})"

    def __len__(self) -> int:
        return len(self.columns["job_id"])

    def __contains__(self, name: object) -> bool:
        return name in self.columns

    def __getitem__(self, name: str) -> Array:
        """The column; all null when the trace does not have it."""
        if name in self.columns:
            return self.columns[name]
        if name not in JOBS:
            raise InputError(f"no column {name!r} in this trace; {suggest(name, [*JOBS, *self.columns])}")
        return JOBS[name].nulls(len(self))

    def row(self, index: int) -> dict[str, Any]:
        """One job as plain Python values, None for null; only columns the trace has."""
        return {name: plain(column_of(name, values), values[index]) for name, values in self.columns.items()}

    def rows(self) -> Iterator[dict[str, Any]]:
        """Every job, as `row` gives it."""
        return (self.row(i) for i in range(len(self)))

    def select(self, which: Array) -> TraceTable:
        """The jobs a boolean mask or an index array picks; order, nodes and sidecar stay."""
        return TraceTable({name: values[which] for name, values in self.columns.items()}, self.meta, self.nodes)

    def equals(self, other: TraceTable) -> bool:
        """Same jobs and same nodes, nulls equal to nulls; the sidecars are not compared."""
        return same_columns(self.columns, other.columns) and same_columns(self.nodes or {}, other.nodes or {})

    @property
    def span_s(self) -> float:
        """Seconds from the first to the last submission."""
        submit = self["submit_s"]
        return float(submit.max() - submit.min()) if len(self) else 0.0

    @property
    def gpu_s(self) -> float:
        """GPU-seconds of work with a known duration; a job that requests part of a GPU counts that part."""
        share = np.nan_to_num(self["gpu_milli"] / 1000.0, nan=1.0)
        return float(np.nansum(self["gpus"] * share * self["duration_s"]))

    def load(self, cluster_gpus: int) -> float:
        """Offered load on `cluster_gpus` GPUs, as `plait.traces.table` defines it.

        A job that requests part of a GPU counts a whole one, which simulations give it.
        """
        return offered_load(self["submit_s"], self["gpus"], self["duration_s"], cluster_gpus)


def column_of(name: str, values: Array, known: Mapping[str, Column] = JOBS) -> Column:
    """The declaration of the column `name`: from `known`, or by the type of `values` for an extra one."""
    return known.get(name) or extra_column(name, "string" if values.dtype == object else "float")


def plain(column: Column, value: Any) -> Any:
    """A cell as a plain Python value, None for null."""
    if column.kind == "string":
        return value
    if value != value:  # NaN
        return None
    return int(value) if column.is_integer else float(value)


def same_columns(left: Columns, right: Columns) -> bool:
    """Equal names, types and values, where null equals null."""
    if left.keys() != right.keys():
        return False
    for name, values in left.items():
        other = right[name]
        if values.dtype != other.dtype or len(values) != len(other):
            return False
        if values.dtype == object:
            if values.tolist() != other.tolist():
                return False
        elif not np.array_equal(values, other, equal_nan=values.dtype.kind == "f"):
            return False
    return True


_DIGITS = re.compile(r"(\d+)")


def natural_key(text: str) -> tuple[Any, ...]:
    """Orders ids as people do: numbers by value, so "2" comes before "10"; equal only for equal text.

    >>> sorted(["job-10", "job-9", "10", "2"], key=natural_key)
    ['2', '10', 'job-9', 'job-10']
    """
    pieces = _DIGITS.split(text)
    # Digits compare as numbers do, of any length: by how many there are without zeros in front, then by themselves.
    return (tuple((p, 0, "") if i % 2 == 0 else ("", len(d := p.lstrip("0")), d) for i, p in enumerate(pieces)), text)


def submit_order(submit_s: Array, job_ids: Array) -> Array:
    """Row indices by submission time, ties by natural job id: the same for any order of the rows."""
    order = np.argsort(submit_s, kind="stable")
    times = submit_s[order]
    starts = np.flatnonzero(np.concatenate(([True], times[1:] != times[:-1]))) if len(times) else np.empty(0, int)
    ends = np.append(starts[1:], len(times))
    for first, last in zip(starts[ends - starts > 1], ends[ends - starts > 1], strict=True):
        tied = order[first:last].tolist()
        order[first:last] = sorted(tied, key=lambda i: natural_key(str(job_ids[i])))
    return order


def size_counts(table: TraceTable) -> dict[int, int]:
    """Jobs by gang size, ascending."""
    sizes, counts = np.unique(table["gpus"], return_counts=True)
    return dict(zip(sizes.tolist(), counts.tolist(), strict=True))


def summary(table: TraceTable, cluster_gpus: int | None = None) -> list[tuple[str, str]]:
    """Names and printed values: jobs, sizes, span, GPU-hours, durations, load, censoring, dropped rows,
    warnings.
    """
    lines = [
        ("format", str(table.meta.get("format") or "canonical")),
        ("jobs", f"{len(table):,}"),
        ("GPUs: jobs", ", ".join(f"{size}: {count:,}" for size, count in size_counts(table).items())),
        ("submit span", f"{table.span_s / 3600:,.1f} h"),
        ("GPU-hours", f"{table.gpu_s / 3600:,.0f}"),
    ]
    durations = table["duration_s"][~np.isnan(table["duration_s"])]
    if len(durations):
        numbers = f"{np.median(durations):,.1f} / {durations.mean():,.1f} / {durations.max():,.1f} s"
        lines.append(("duration median / mean / max", numbers))
    if len(durations) < len(table):
        lines.append(("jobs without a duration", f"{len(table) - len(durations):,}"))
    if cluster_gpus is not None:
        lines.append((f"load on {cluster_gpus} GPUs", f"{table.load(cluster_gpus):.3f}"))
    for name in ("duration_kind", "state", "model"):
        if name in table:
            values, counts = np.unique([str(v or "-") for v in table[name]], return_counts=True)
            if len(values) <= 12:
                lines.append((name, ", ".join(f"{v}: {c:,}" for v, c in zip(values, counts, strict=True))))
    if table.nodes is not None:
        lines.append(("nodes", f"{len(table.nodes['node_id']):,} with {int(table.nodes['gpus'].sum()):,} GPUs"))
    lines.append(("rows read / kept", f"{table.meta['rows_read']:,} / {table.meta['rows_kept']:,}"))
    lines += [(f"dropped: {reason}", f"{count:,}") for reason, count in table.meta["rows_dropped"].items()]
    return lines + [("warning", text) for text in table.meta["warnings"]]
