"""Checks of a canonical table: each error names file, line, column and value, and the remedy."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from plait.core.errors import InputError, TraceError, suggest
from plait.core.ina_request import InaRequest
from plait.traces.files import Unreadable
from plait.traces.schema import JOBS, MAX_INTEGER, NODES, STAGES, Array, Column
from plait.traces.table import TraceTable, column_of, new_meta, plain, submit_order

DAY_S = 86_400.0
YEAR_S = 365.25 * DAY_S
INT32_MAX = 2**31 - 1


#: A stage may be this much longer than its iteration: the two are measured in different runs, and in the published
#: profiles (Muri, vgg16 on one GPU) they differ by up to 9 %.
STAGE_ROOM = 1.10


class RowsError(TraceError):
    """Rows break a rule of the canonical form: `rows` is a mask of all of them, the message names the first."""

    def __init__(self, rows: Array, problem: str, **where: Any) -> None:
        """Remember which `rows` (rows,) bool; `where` as for `TraceError`."""
        super().__init__(problem, **where)
        self.rows = rows


class _Place:
    """Where a column came from, to point at the line that is wrong."""

    def __init__(self, file: str, lines: Array | None) -> None:
        self.file, self.lines = file, lines

    def line(self, row: int) -> int:
        return row + 1 if self.lines is None else int(self.lines[row])

    def error(self, problem: str, column: Column, values: Array, bad: Array, hint: str | None = None) -> RowsError:
        """The error of the rows where `bad` is true, of which there is one."""
        row = int(np.argmax(bad))
        value = values[row]
        return RowsError(
            bad,
            problem,
            file=self.file,
            line=self.line(row),
            column=column.name,
            value=value.item() if isinstance(value, np.generic) else value,
            hint=hint,
        )


def checked_table(
    columns: Mapping[str, Array],
    *,
    file: str = "<memory>",
    lines: Array | None = None,
    meta: dict[str, Any] | None = None,
    nodes: Mapping[str, Array] | None = None,
    strict: bool = False,
    unreadable: Unreadable | None = None,
) -> TraceTable:
    """A table from columns: types settled, every rule of the canonical form checked, rows sorted.

    `lines` gives the source line of each row for messages (default: the row number, from 1). Rows that break a rule
    are left out and counted in `unreadable`; without it they raise TraceError, as do columns that are wrong as a whole.
    With `strict`, warnings are errors too.
    """
    while True:
        place = _Place(file, lines)
        try:
            jobs, notes = _checked_jobs(columns, place)
            break
        except RowsError as error:
            if unreadable is None:
                raise
            unreadable.add(error, int(error.rows.sum()))
            columns = {name: np.asarray(values)[~error.rows] for name, values in columns.items()}
            lines = np.flatnonzero(~error.rows) + 1 if lines is None else lines[~error.rows]
    sidecar = new_meta() if meta is None else dict(meta)
    note_warnings(sidecar, [*notes, *suspicions(jobs, file)], strict=strict, file=file)
    order = submit_order(jobs["submit_s"], jobs["job_id"])
    if np.any(order[1:] < order[:-1]):
        for name in jobs:  # one column at a time, so that two whole tables never lie in memory
            jobs[name] = jobs[name][order]
        sidecar["filters"] = _with(sidecar.get("filters") or [], "sorted by submit_s, job_id")
    sidecar["extra_columns"] = {n: column_of(n, v).kind for n, v in jobs.items() if n not in JOBS}
    return TraceTable(jobs, sidecar, None if nodes is None else checked_nodes(nodes, file=file))


def _checked_jobs(columns: Mapping[str, Array], place: _Place) -> tuple[dict[str, Array], list[str]]:
    """Columns of jobs that keep every rule, and notes about changes."""
    columns, notes = settled_work(columns, place)
    jobs = _checked_columns(columns, JOBS, place)
    _check_unique(jobs["job_id"], JOBS["job_id"], place)
    _check_shares(jobs, place)
    _check_stages(jobs, place)
    if "min_gpus" in jobs and "max_gpus" in jobs:
        bad = jobs["min_gpus"] > jobs["max_gpus"]
        if bad.any():
            raise place.error("more than max_gpus", JOBS["min_gpus"], jobs["min_gpus"], bad)
    _check_ina(jobs, place)
    _check_work(jobs, place)
    return jobs, notes


def settled_work(columns: Mapping[str, Array], place: _Place) -> tuple[Mapping[str, Array], list[str]]:
    """Columns in which every job with stages has an iteration time and no duration is 0; and notes about changes.

    An iteration time that is missing is duration / iterations where the row has both, else the sum of the stages: no
    overlap is known of. A job with 0 s on a log's clock still did something: it becomes one iteration, of 1 s if its
    time is unknown. The checks that follow report wrong values.
    """
    if any(np.asarray(columns[n]).dtype.kind not in "iuf" for n in _WORK if n in columns):
        return columns, []
    if not any(n in columns for n in STAGES) and not np.any(np.asarray(columns.get("duration_s", 1)) == 0):
        return columns, []
    size = len(columns["job_id"]) if "job_id" in columns else 0
    work = {n: np.array(columns[n], dtype=np.float64) if n in columns else np.full(size, np.nan) for n in _WORK}
    if any(len(values) != size for values in work.values()):
        return columns, []
    notes = []
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        stage_sum = np.sum([work[name] for name in STAGES], axis=0)
        unit = np.where(work["iterations"] > 0, work["duration_s"] / work["iterations"], np.nan)
        missing = np.isnan(work["iteration_s"]) & (stage_sum > 0)
    if missing.any():
        work["iteration_s"] = np.where(missing, np.where(unit > 0, unit, stage_sum), work["iteration_s"])
    zero = work["duration_s"] == 0
    if zero.any():
        known = work["iteration_s"] > 0
        work["duration_s"] = np.where(zero, np.where(known, work["iteration_s"], 1.0), work["duration_s"])
        work["iterations"] = np.where(zero, 1.0, work["iterations"])
        count, first = int(zero.sum()), place.line(int(np.argmax(zero)))
        what = "1 job has a duration of 0 and counts" if count == 1 else f"{count} jobs have a duration of 0 and count"
        notes.append(f"{what} as one iteration (first on line {first})")
    if not (missing.any() or zero.any()):
        return columns, []
    names = ["iteration_s"] if not zero.any() else ["iteration_s", "duration_s", "iterations"]
    names = [n for n in names if n in columns or (n == "iteration_s" and missing.any())]
    made = {n: work[n] for n in names}
    if zero.any() and "duration_kind" in columns:
        kind = np.array(columns["duration_kind"], dtype=object)
        kind[zero & (kind == "exact")] = "derived"
        made["duration_kind"] = kind
    return {**columns, **made}, notes


_WORK = ("duration_s", "iterations", "iteration_s", *STAGES)


def checked_nodes(
    columns: Mapping[str, Array], *, file: str = "<memory>", lines: Array | None = None
) -> dict[str, Array]:
    """Check the `columns` of a nodes table like the columns of jobs; rows keep their order.

    `file` and the source line of each row (`lines`) are for messages.
    """
    place = _Place(file, lines)
    nodes = _checked_columns(columns, NODES, place)
    _check_unique(nodes["node_id"], NODES["node_id"], place)
    return nodes


def note_warnings(meta: dict[str, Any], warnings: list[str], *, strict: bool, file: str) -> None:
    """Adds warnings to the sidecar, each once; raises the first when `strict`."""
    known = list(meta.get("warnings") or [])
    if strict and (known or warnings):
        raise TraceError([*known, *warnings][0], file=file, hint="warnings are errors under strict")
    meta["warnings"] = _with(known, *warnings)


def _with(known: list[str], *more: str) -> list[str]:
    return list(dict.fromkeys([*known, *more]))


def _checked_columns(columns: Mapping[str, Array], known: Mapping[str, Column], place: _Place) -> dict[str, Array]:
    """Each column in its declared type, in the declared order; all-null optional columns are left out."""
    missing = [c.name for c in known.values() if not c.nullable and c.default is None and c.name not in columns]
    if missing:
        raise TraceError("a required column is missing", file=place.file, column=missing[0])
    sizes = {name: len(values) for name, values in columns.items()}
    if len(set(sizes.values())) > 1:
        raise TraceError(f"columns differ in length: {sizes}", file=place.file)
    size = next(iter(sizes.values()))
    result = {}
    extras = [name for name in columns if name not in known]
    for name in [*known, *sorted(extras)]:
        if name not in columns:
            if not known[name].nullable:
                result[name] = known[name].nulls(size)
            continue
        values = np.asarray(columns[name])
        column = column_of(name, values, known)
        if name not in known and not name.startswith("x_"):
            raise TraceError("unknown column", file=place.file, column=name, hint=suggest(name, known))
        settled = _settle(values, column, place)
        if not column.nullable or not _null_mask(settled).all():
            result[name] = settled
    return result


def _null_mask(values: Array) -> Array:
    if values.dtype == object:
        return np.fromiter((v is None for v in values), dtype=bool, count=len(values))
    return np.isnan(values) if values.dtype.kind == "f" else np.zeros(len(values), dtype=bool)


def _settle(values: Array, column: Column, place: _Place) -> Array:
    """The column in its declared type, or an error at the first row that breaks its declaration."""
    if column.kind == "string":
        return _settle_strings(values.astype(object, copy=False), column, place)
    if values.dtype.kind not in "iuf":
        raise TraceError("not numbers", file=place.file, column=column.name)
    values = values.astype(np.float64, copy=False) if column.nullable or values.dtype.kind == "f" else values
    null = np.isnan(values) if values.dtype.kind == "f" else np.zeros(len(values), dtype=bool)
    if not column.nullable and null.any():
        raise place.error("a value is needed here", column, values, null)
    _refuse(
        np.isinf(values) if values.dtype.kind == "f" else null & False,
        "must be finite",
        column,
        values,
        place,
    )
    if column.positive:
        _refuse(values <= 0, "must be more than 0", column, values, place)
    if column.minimum is not None:
        _refuse(values < column.minimum, f"must be at least {column.minimum:g}", column, values, place)
    top = column.maximum or (INT32_MAX if column.kind == "int32" else MAX_INTEGER if column.is_integer else None)
    if top is not None:
        _refuse(values > top, f"must be at most {top:g}", column, values, place)
    if column.is_integer and values.dtype.kind == "f":
        _refuse(~null & (values != np.floor(values)), "must be a whole number", column, values, place)
    settled: Array = values.astype(column.dtype, copy=False)
    if settled.dtype.kind == "f" and np.signbit(settled[settled == 0]).any():
        settled = settled + 0.0  # -0.0 and 0.0 are one value, also after a round trip through text
    return settled


def _refuse(bad: Array, problem: str, column: Column, values: Array, place: _Place) -> None:
    if bad.any():
        raise place.error(problem, column, values, bad, f"{column.name}: {column.doc}")


def _settle_strings(values: Array, column: Column, place: _Place) -> Array:
    distinct = set(values.tolist())
    if "" in distinct:
        values = np.array([v or None for v in values.tolist()], dtype=object)
        distinct = (distinct - {""}) | {None}
    if None in distinct and not column.nullable:
        raise place.error("a value is needed here", column, values, _equal(values, {None}))
    for value in distinct - {None}:
        wrong = not isinstance(value, str)
        if wrong or (column.enum and value not in column.enum):
            hint = None if wrong else suggest(str(value), column.enum)
            raise place.error(
                "must be text" if wrong else "unknown value", column, values, _equal(values, {value}), hint
            )
    return values


def _equal(values: Array, wanted: Collection[Any]) -> Array:
    """Where values (rows,) of any type are among the `wanted`, as a mask."""
    return np.fromiter((value in wanted for value in values.tolist()), dtype=bool, count=len(values))


def _check_unique(ids: Array, column: Column, place: _Place) -> None:
    if len(set(ids.tolist())) == len(ids):
        return
    seen: dict[str, int] = {}
    again = np.fromiter((seen.setdefault(v, i) != i for i, v in enumerate(ids.tolist())), dtype=bool, count=len(ids))
    first = place.line(seen[ids[int(np.argmax(again))]])
    raise place.error("duplicate id", column, ids, again, f"first seen on line {first}; ids are unique in a file")


def _check_shares(jobs: Mapping[str, Array], place: _Place) -> None:
    if "gpu_milli" in jobs:
        bad = ~np.isnan(jobs["gpu_milli"]) & (jobs["gpus"] != 1)
        if bad.any():
            raise place.error(
                "a share of a GPU only goes with gpus = 1",
                JOBS["gpu_milli"],
                jobs["gpu_milli"],
                bad,
            )


def _check_stages(jobs: Mapping[str, Array], place: _Place) -> None:
    present = [name for name in STAGES if name in jobs]
    if not present:
        return
    size = len(jobs["job_id"])
    stages = np.stack([jobs.get(name, np.full(size, np.nan)) for name in STAGES])
    known = ~np.isnan(stages)
    partial = known.any(axis=0) & ~known.all(axis=0)
    if partial.any():
        row = int(np.argmax(partial))
        name = STAGES[int(np.argmin(known[:, row]))]
        raise place.error("stage times are given all four or none", JOBS[name], stages[STAGES.index(name)], partial)
    idle = known.all(axis=0) & (np.nan_to_num(stages).sum(axis=0) <= 0)
    if idle.any():
        raise place.error("at least one stage must take time", JOBS["gpu_s"], stages[2], idle)
    if "iteration_s" in jobs:
        _refuse_long_stages(jobs["iteration_s"], stages, place)


def _refuse_long_stages(iteration_s: Array, stages: Array, place: _Place) -> None:
    """Stages of one iteration may overlap, so that their sum is longer than it; no single one can be."""
    long = stages > STAGE_ROOM * iteration_s
    if not long.any():
        return
    bad: Array = np.any(long, axis=0)
    row = int(np.argmax(bad))
    at = int(np.argmax(long[:, row]))
    raise place.error(
        f"a stage longer than its iteration of {iteration_s[row]:g} s",
        JOBS[STAGES[at]],
        stages[at],
        bad,
        "stages and iteration_s are seconds of one iteration alone; leave iteration_s empty to have it derived",
    )


def _check_ina(jobs: Mapping[str, Array], place: _Place) -> None:
    for text in set(jobs.get("ina", np.empty(0, dtype=object)).tolist()) - {None}:
        try:
            InaRequest.parse(text)
        except InputError as error:
            bad = _equal(jobs["ina"], {text})
            raise place.error(
                "not a request of in-network aggregation", JOBS["ina"], jobs["ina"], bad, str(error)
            ) from None


def _check_work(jobs: Mapping[str, Array], place: _Place) -> None:
    """Iterations x iteration time agree with an exact duration to 1 %."""
    if not {"duration_s", "iterations", "iteration_s"} <= jobs.keys():
        return
    product = jobs["iterations"] * jobs["iteration_s"]
    exact = np.fromiter((kind == "exact" for kind in jobs["duration_kind"]), dtype=bool, count=len(product))
    bad = exact & (np.abs(product - jobs["duration_s"]) > 0.01 * jobs["duration_s"])
    if bad.any():
        row = int(np.argmax(bad))
        hint = f"iterations x iteration_s is {product[row]:g}; set duration_kind to derived to keep both"
        raise place.error("disagrees with the iterations", JOBS["duration_s"], jobs["duration_s"], bad, hint)


def suspicions(jobs: Mapping[str, Array], file: str) -> list[str]:
    """Warnings about units. A median duration over ten years is certainly wrong and raises `TraceError`."""
    found = []
    durations = jobs.get("duration_s", np.empty(0))
    durations = durations[~np.isnan(durations)]
    if len(durations):
        median = float(np.median(durations))
        if median > 10 * YEAR_S:
            raise TraceError(
                "the median duration is over ten years",
                file=file,
                column="duration_s",
                value=plain(JOBS["duration_s"], median),
                hint="are these milliseconds? durations are in seconds",
            )
        if not 1.0 <= median <= 30 * DAY_S:
            found.append(f"the median duration is {median:g} s, outside 1 s to 30 days; are these milliseconds?")
    submit = jobs["submit_s"]
    if len(submit) > 100 and submit.max() - submit.min() < 60.0:
        span = float(submit.max() - submit.min())
        found.append(f"{len(submit)} jobs are submitted within {span:g} s; are the units right?")
    return found
