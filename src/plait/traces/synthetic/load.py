"""Shared parts of generators: a random stream a part of the trace, and submissions stretched to a load."""

from __future__ import annotations

import numpy as np

from plait.traces.offered_load import stretch_factor
from plait.traces.table import TraceTable
from plait.traces.validate import checked_table


def stream(seed: int, name: str) -> np.random.Generator:
    """The random stream of one part of the trace."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, *name.encode()])))


def target_load(table: TraceTable, gpus: int, load: float) -> TraceTable:
    """The same jobs with submissions stretched so that their load on `gpus` GPUs is `load`.

    Load is that of `plait.traces.offered_load`. Only submissions change, in whole milliseconds, never durations. Above
    1 the cluster falls behind and averages grow with the length of the trace. Raises `InputError` for a load that these
    jobs cannot have.
    """
    submit_s = table["submit_s"]
    factor = stretch_factor(submit_s, table["gpus"], table["duration_s"], gpus, load)
    first = submit_s.min()
    submit_s = np.round((first + (submit_s - first) * factor) * 1000) / 1000
    filters = [*table.meta.get("filters", []), f"submissions stretched to load {load:g} on {gpus} GPUs"]
    meta = {**table.meta, "filters": filters}
    observed = {"observed_start_s", "observed_end_s", "observed_queue_s"}  # no longer true of this trace
    columns = {name: values for name, values in table.columns.items() if name not in observed}
    return checked_table({**columns, "submit_s": submit_s}, meta=meta, nodes=table.nodes)
