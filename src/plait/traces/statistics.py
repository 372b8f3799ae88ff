"""A summary of a trace in a few lines."""

from __future__ import annotations

import numpy as np

from plait.traces.table import TraceTable


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
