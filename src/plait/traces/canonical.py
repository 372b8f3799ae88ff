"""Canonical traces as files: CSV or Parquet (needs the extra `parquet`) for the jobs, `<name>.nodes.*`
for the cluster, `<name>.meta.json`.

Reading, writing and reading again is the identity, nulls included.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

import numpy as np

from plait.core.errors import InputError, MissingExtra, TraceError
from plait.traces.delimited import read_rows, with_point
from plait.traces.files import RULES, Pathish, Rules, Source, Unreadable, open_for_writing, writing
from plait.traces.formats.reader import Format, readable_table
from plait.traces.schema import JOBS, NODES, Array, Column, extra_column
from plait.traces.table import TraceTable, column_of, new_meta
from plait.traces.validate import checked_nodes

ROWS_A_GROUP = 1 << 16


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtra("pyarrow", "parquet", "reading and writing Parquet traces") from error
    return pyarrow, pyarrow.parquet


def read_parquet(
    source: Source, names: Callable[[Sequence[str]], list[str]], known: Mapping[str, Column]
) -> tuple[dict[str, Array], Array]:
    """The columns of a file and their row numbers from 1; `names` maps the names found to canonical ones."""
    pyarrow, parquet = _pyarrow()
    chunks: list[dict[str, Array]] = []
    try:
        with parquet.ParquetFile(source.path) as file:
            called = names(file.schema_arrow.names)
            columns = [
                _column(source, pyarrow, n, f.type, known) for n, f in zip(called, file.schema_arrow, strict=True)
            ]
            chunks.extend(
                {c.name: _values(pyarrow, c, p) for c, p in zip(columns, batch.columns, strict=True)}
                for batch in file.iter_batches(ROWS_A_GROUP)
            )
    except (pyarrow.ArrowException, OSError, ValueError, NotImplementedError) as error:
        problem = (str(error).splitlines() or [type(error).__name__])[0]
        raise source.error(f"not readable as Parquet: {problem}", hint="fetch it again") from error
    missing = [c.name for c in known.values() if not c.nullable and c.default is None and c.name not in called]
    if missing:
        raise source.error("a required column is missing", column=missing[0])
    found = {c.name: np.concatenate([k[c.name] for k in chunks] or [c.nulls(0)]) for c in columns}
    return found, np.arange(1, len(found[called[0]]) + 1)


def _column(source: Source, pyarrow: Any, name: str, kind: Any, known: Mapping[str, Column]) -> Column:
    """The declaration of a column, if the file's type suits it."""
    types = pyarrow.types
    text = types.is_string(kind) or types.is_large_string(kind)
    numeric = types.is_integer(kind) or types.is_floating(kind)
    column = known.get(name) or extra_column(name, "float" if numeric else "string")
    if not (types.is_null(kind) or (text if column.kind == "string" else numeric)):
        raise source.error(f"holds {kind}, not {column.kind}", column=name)
    return column


def _values(pyarrow: Any, column: Column, part: Any) -> Array:
    if pyarrow.types.is_null(part.type):
        return column.nulls(len(part))
    if column.kind == "string":
        return np.array(part.to_pylist(), dtype=object)
    numbers: Array = part.cast(pyarrow.float64(), safe=False).to_numpy(zero_copy_only=False)
    return numbers.astype(np.float64)


def write_parquet(path: Path, columns: Mapping[str, Array], known: Mapping[str, Column]) -> None:
    """Write `columns` to `path` in their declared types (`known`, by name), nulls as nulls."""
    pyarrow, parquet = _pyarrow()
    types = {
        "string": pyarrow.string(),
        "float": pyarrow.float64(),
        "int32": pyarrow.int32(),
        "int64": pyarrow.int64(),
    }
    arrays = {}
    for name, values in columns.items():
        column = column_of(name, values, known)
        null = np.isnan(values) if values.dtype.kind == "f" else None
        if column.is_integer and null is not None:
            values = np.where(null, 0, values).astype(np.int64)
        arrays[name] = pyarrow.array(values, type=types[column.kind], mask=null)
    parquet.write_table(pyarrow.table(arrays), path)


__all__ = ["FORMAT", "TraceTable", "read_canonical", "sidecar_path", "write_canonical"]

CHUNK_ROWS = 1 << 15
ENDINGS = (".parquet", ".csv.gz", ".csv")
NEAR = 0.8
"""Spelling similarity from which an unknown column counts as a typing error."""


def _stem(path: Path) -> tuple[str, str]:
    for ending in ENDINGS:
        if path.name.endswith(ending):
            return path.name[: -len(ending)], ending
    return path.name, ""


def sidecar_path(path: Pathish) -> Path:
    """Path of the sidecar of a canonical trace: `jobs.csv` -> `jobs.meta.json`."""
    return Path(path).with_name(_stem(Path(path))[0] + ".meta.json")


def nodes_path(path: Pathish) -> Path:
    """Path of the nodes of a canonical trace: `jobs.csv` -> `jobs.nodes.csv`."""
    stem, ending = _stem(Path(path))
    return Path(path).with_name(f"{stem}.nodes{ending or '.csv'}")


def read_canonical(path: Pathish, *, rules: Rules = RULES) -> TraceTable:
    """Reads a canonical trace from CSV (plain or gzip) or Parquet, with sidecar and nodes where they exist.

    Without a sidecar one is made; `duration_kind` and `state` may be absent and are then unknown.
    Rows that break a rule are left out, counted and reported, as far as `rules` allow; beyond, and for columns that are
    wrong, raises TraceError naming file, line and column.
    """
    meta = _read_sidecar(path)
    source = Source(path, rules)
    unreadable = Unreadable(rules)
    kinds = dict((meta or {}).get("extra_columns") or {})
    columns, lines = _read_columns(source, JOBS, kinds, unreadable)
    rows = len(lines) + unreadable.count
    unreadable.settle(rows)
    if meta is None:
        meta = new_meta(source=Path(path).name, format="canonical", rows_read=rows, rows_kept=rows)
        meta["input_sha256"] = source.sha256
    elif isinstance(meta.get("jobs"), int) and meta["jobs"] != rows:
        text = f"the sidecar counts {meta['jobs']} jobs, the file has {rows}"
        meta["warnings"] = list(dict.fromkeys([*meta["warnings"], text]))
    nodes = None
    if nodes_path(path).exists():
        near = Source(nodes_path(path))
        found, at = _read_columns(near, NODES, {}, None)
        nodes = checked_nodes(found, file=near.file, lines=at)
    columns, lines = _without_nothing(columns, lines, source, unreadable)
    return readable_table(columns, source, unreadable, rows, lines=lines, meta=meta, nodes=nodes)


def _without_nothing(
    columns: dict[str, Array], lines: Array, source: Source, unreadable: Unreadable
) -> tuple[dict[str, Array], Array]:
    """The rows but for jobs without GPUs that state no CPUs either: the 0 is a mistake."""
    gpus = np.asarray(columns["gpus"], dtype=np.float64)
    none = np.full(len(gpus), np.nan)
    cpus = np.asarray(columns.get("cpu_milli", none), dtype=np.float64)
    duration = np.asarray(columns.get("duration_s", none), dtype=np.float64)
    wrong = (gpus == 0) & np.isnan(cpus) & ~np.isnan(duration)
    if not wrong.any():
        return columns, lines
    hint = "give it at least one GPU, or declare with cpu_milli that it runs on CPUs alone"
    source.line = int(lines[int(np.argmax(wrong))])
    unreadable.add(source.error("a job without GPUs", column="gpus", value=0, hint=hint), int(wrong.sum()))
    source.line = None
    return {name: values[~wrong] for name, values in columns.items()}, lines[~wrong]


def write_canonical(table: TraceTable, path: Pathish) -> None:
    """Writes jobs, nodes and sidecar, each whole or not at all; the ending of `path` chooses CSV or
    Parquet.
    """
    target = Path(path)
    ending = _stem(target)[1]
    if not ending:
        raise InputError(f"cannot tell the format to write from {str(path)!r}; use an ending of {', '.join(ENDINGS)}")
    write: Callable[[Path, Mapping[str, Array], Mapping[str, Column]], None]
    write = write_parquet if ending == ".parquet" else _write_zipped if ending == ".csv.gz" else _write_csv
    meta = {**new_meta(), **table.meta, "jobs": len(table)}
    with ExitStack() as stack:  # leaves in reverse order: the jobs take their place last
        write(stack.enter_context(writing(target)), table.columns, JOBS)
        text = json.dumps(meta, indent=2, ensure_ascii=False, default=_json_value, allow_nan=False)
        stack.enter_context(writing(sidecar_path(target))).write_text(text + "\n", encoding="utf-8")
        if table.nodes is not None:
            write(stack.enter_context(writing(nodes_path(target))), table.nodes, NODES)
    if table.nodes is None:
        nodes_path(target).unlink(missing_ok=True)


def _json_value(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"cannot write {type(value).__name__} into the sidecar")


def _read_sidecar(path: Pathish) -> dict[str, Any] | None:
    where = sidecar_path(path)
    if not where.exists():
        return None
    source = Source(where)
    with source.open() as text:
        try:
            meta = json.load(text)
        except (ValueError, RecursionError) as error:
            raise TraceError(f"the sidecar is not JSON: {error}", file=str(where), hint="delete or mend it") from error
    if not isinstance(meta, dict):
        raise TraceError("the sidecar is not a JSON object", file=str(where))
    fresh = new_meta()
    for key, value in meta.items():
        if isinstance(fresh.get(key), dict | list) and not isinstance(value, type(fresh[key])):
            raise TraceError("unexpected type in the sidecar", file=str(where), column=key, value=value)
    return {**fresh, **meta}


# reading


def _read_columns(
    source: Source, known: Mapping[str, Column], kinds: Mapping[str, str], unreadable: Unreadable | None
) -> tuple[dict[str, Array], Array]:
    if is_parquet(source.path):
        return read_parquet(source, lambda header: canonical_names(source, header, known), known)
    names: list[str] = []
    chunks: list[dict[str, Array]] = []
    lines: list[Array] = []
    required = [c.name for c in known.values() if not c.nullable and c.default is None]
    for at, rows in _csv_chunks(source, required, names, unreadable):
        if not chunks:
            names[:] = canonical_names(source, names, known)
        bad: dict[int, TraceError] = {}
        cells = zip(*rows, strict=True)
        chunk = {n: _parse(source, _declared(n, known, kinds), c, at, bad) for n, c in zip(names, cells, strict=True)}
        for error in bad.values():
            if unreadable is None:
                raise error
            unreadable.add(error)
        good = np.setdiff1d(np.arange(len(at)), list(bad))
        chunks.append({n: values[good] for n, values in chunk.items()} if bad else chunk)
        lines.append(np.array(at, dtype=np.int64)[good])
    if not chunks:
        names[:] = canonical_names(source, names, known)
        return {n: _declared(n, known, kinds).nulls(0) for n in names}, np.empty(0, dtype=np.int64)
    columns = {name: np.concatenate([chunk[name] for chunk in chunks]) for name in names}
    undeclared = [n for n in names if n not in known and n not in kinds]
    return columns | {n: _as_numbers(columns[n]) for n in undeclared}, np.concatenate(lines)


def _csv_chunks(
    source: Source, required: Sequence[str], names: list[str], unreadable: Unreadable | None
) -> Iterator[tuple[list[int], list[Sequence[str]]]]:
    rows: list[Sequence[str]] = []
    at: list[int] = []
    bad = None if unreadable is None else unreadable.add
    for row in read_rows(source, required=required, seen=names.extend, bad=bad):
        rows.append([with_point(c) for c in row.cells] if row.decimal_comma else row.cells)
        at.append(row.line)
        if len(rows) >= CHUNK_ROWS:
            yield at, rows
            rows, at = [], []
    if rows:
        yield at, rows


def canonical_names(source: Source, header: Sequence[str], known: Mapping[str, Column]) -> list[str]:
    """The `header` of `source` with names not in `known` prefixed by `x_`; a near miss of a known name is an error."""
    import difflib

    names = []
    source.line = 1
    for name in header:
        if name not in known and not name.startswith("x_"):
            near = difflib.get_close_matches(name.lower(), known, n=1, cutoff=NEAR)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise source.error("unknown column", column=name, hint=hint + "a column of your own starts with x_")
        if name in names:
            raise source.error("the column occurs twice in the header", column=name)
        names.append(name)
    source.line = None
    return names


def _declared(name: str, known: Mapping[str, Column], kinds: Mapping[str, str]) -> Column:
    kind: Literal["string", "float"] = "float" if kinds.get(name) == "float" else "string"
    return known.get(name) or extra_column(name, kind)


def _parse(source: Source, column: Column, cells: Sequence[str], lines: list[int], bad: dict[int, TraceError]) -> Array:
    """A column of text cells in its type; empty is null. Errors of cells go to `bad`, by row."""
    if column.kind == "string":
        known: dict[str, str] = {}
        values = [known.setdefault(c, c) if c else None for c in cells]
        return np.array(values, dtype=object)
    try:
        numbers = np.array([float(c) if c else np.nan for c in cells])
    except ValueError:
        numbers = np.array([float(c) if c and _finite(c) else np.nan for c in cells])
    empty = cells.count("")
    if np.isfinite(numbers).sum() != len(cells) - empty or any("_" in c for c in cells):
        for row in (i for i, c in enumerate(cells) if c and not _finite(c)):
            source.line = lines[row]
            problem, hint = "must be a finite number", "null is an empty cell"
            bad.setdefault(row, source.error(problem, column=column.name, value=cells[row], hint=hint))
        source.line = None
    return numbers


def _finite(cell: str) -> bool:
    try:
        return "_" not in cell and bool(np.isfinite(float(cell)))
    except ValueError:
        return False


def _as_numbers(values: Array) -> Array:
    """An extra column of unknown type: numbers if every value is one, else text."""
    cells = values.tolist()
    if all(c is None or _finite(c) for c in cells) and any(c is not None for c in cells):
        return np.array([np.nan if c is None else float(c) for c in cells])
    return values


# writing


def _write_zipped(path: Path, columns: Mapping[str, Array], known: Mapping[str, Column]) -> None:
    _write_csv(path, columns, known, zipped=True)


def _write_csv(path: Path, columns: Mapping[str, Array], known: Mapping[str, Column], *, zipped: bool = False) -> None:
    size = len(next(iter(columns.values())))
    declared = [column_of(name, values, known) for name, values in columns.items()]
    try:
        with open_for_writing(path, zipped=zipped) as text:
            # RFC 4180 line ends: csv only quotes the characters of its own line end, and "\r" must be quoted
            writer = csv.writer(text)
            writer.writerow(columns)
            for start in range(0, size, CHUNK_ROWS):
                parts = (values[start : start + CHUNK_ROWS] for values in columns.values())
                cells = [_written(column, part) for column, part in zip(declared, parts, strict=True)]
                writer.writerows(zip(*cells, strict=True))
    except UnicodeError as error:
        raise InputError(f"a text in the trace cannot be written as UTF-8: {error}") from error


def _written(column: Column, values: Array) -> list[Any]:
    """Cells as csv writes them: the shortest text that reads back as the same number."""
    if column.kind == "string":
        return list(values)
    if values.dtype.kind == "f":
        if column.is_integer:
            return ["" if v != v else int(v) for v in values.tolist()]
        return ["" if v != v else repr(v) for v in values.tolist()]
    return [str(v) for v in values.tolist()]


def is_parquet(path: Path) -> bool:
    """Whether the file begins as Parquet does."""
    try:
        with path.open("rb") as raw:
            return raw.read(4) == b"PAR1"
    except OSError:
        return False


FORMAT = Format(
    "canonical",
    read_canonical,
    lambda head: head.start[:4] == "PAR1" or head.has("job_id", "submit_s", "gpus"),
    units="in the column names: seconds, bytes, thousandths",
    source="plait",
    licence="that of its source",
)
