"""Shared parts of generators: a random stream a part of the trace, and submissions stretched to a load."""

from __future__ import annotations

import numpy as np

from plait.core.errors import InputError
from plait.traces.table import TraceTable
from plait.traces.validate import checked_table


def stream(seed: int, name: str) -> np.random.Generator:
    """The random stream of one part of the trace."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, *name.encode()])))


def target_load(table: TraceTable, gpus: int, load: float) -> TraceTable:
    """The same jobs with submissions stretched so that the offered load on `gpus` GPUs is `load`.

    Load = GPU-seconds / (GPUs x submit span); only submissions change, in whole milliseconds, never
    durations. Above 1 the cluster falls behind and averages grow with the length of the trace.
    """
    if not 0 < load < float("inf"):
        raise InputError(f"load must be more than 0 (got {load})")
    if table.span_s <= 0:
        return table
    if not table.gpu_s > 0:
        raise InputError("no job of this trace has a duration, so it has no load to stretch; leave load out")
    first = table["submit_s"].min()
    scale = table.load(gpus) / load
    submit_s = np.round((first + (table["submit_s"] - first) * scale) * 1000) / 1000
    filters = [*table.meta.get("filters", []), f"submissions stretched to load {load:g} on {gpus} GPUs"]
    meta = {**table.meta, "filters": filters}
    observed = {"observed_start_s", "observed_end_s", "observed_queue_s"}  # no longer true of this trace
    columns = {name: values for name, values in table.columns.items() if name not in observed}
    return checked_table({**columns, "submit_s": submit_s}, meta=meta, nodes=table.nodes)
