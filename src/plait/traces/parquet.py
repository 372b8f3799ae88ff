"""Canonical tables as Parquet; needs the extra `parquet` (pyarrow)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from plait.core.errors import MissingExtra
from plait.traces.files import Source
from plait.traces.schema import Array, Column, extra_column
from plait.traces.table import column_of

CHUNK_ROWS = 1 << 16


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
                for batch in file.iter_batches(CHUNK_ROWS)
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
