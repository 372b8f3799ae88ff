"""A synthetic trace of jobs that adapt their batch, with the mix of models of the Pollux paper (OSDI'21).

A job states its model and the GPUs that its user would have requested; its duration follows from its allocation.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from plait.goodput.model.shipped import measured_node, shipped
from plait.traces.adaptive import MOST_GPUS
from plait.traces.schema import Array
from plait.traces.synthetic.arrivals import MEAN_GAP_S, Arrivals
from plait.traces.synthetic.load import stream, target_load
from plait.traces.table import TraceTable, new_meta
from plait.traces.validate import checked_table

#: Share of each model in the submissions of the paper.
SHARES = {"imagenet": 0.02, "yolov3": 0.06, "deepspeech2": 0.10, "bert": 0.10, "cifar10": 0.36, "ncf": 0.36}

#: 160 jobs in eight hours.
GAP_S = 8 * 3600 / 160

#: Users request a power of two of GPUs that brings this part of a linear speed-up, as in the paper's evaluation.
WORTH = (0.5, 0.8)


@cache
def tuned_sizes(model: str) -> tuple[int, ...]:
    """GPUs that a user who knows the model may request; if none is in the range, the maximum worth it."""
    known = shipped()[model]
    most = min(MOST_GPUS, known.most_gpus)
    sizes = [1 << n for n in range(most.bit_length()) if 1 << n <= most]
    part = {k: known.iteration_s(1, 1) / known.iteration_s(-(-k // measured_node()), k) / k for k in sizes}
    low, high = WORTH
    return tuple(k for k in sizes if low <= part[k] <= high) or (max(k for k in sizes if part[k] >= low),)


def generate_pollux(jobs: int, gpus: int, load: float | None, seed: int, arrivals: Arrivals) -> TraceTable:
    """`jobs` jobs for a cluster of `gpus` GPUs; `load` counts each at its requested size."""
    names = np.array(list(SHARES), dtype=object)
    models = stream(seed, "models").choice(names, size=jobs, p=list(SHARES.values()))
    sizes, draw = np.zeros(jobs, dtype=np.int32), stream(seed, "sizes").random(jobs)
    durations: Array = np.zeros(jobs)
    for name in names:
        fitting = [k for k in tuned_sizes(name) if k <= gpus] or [1]
        rows = np.flatnonzero(models == name)
        sizes[rows] = np.array(fitting)[(draw[rows] * len(fitting)).astype(int)]
        for k in fitting:
            model = shipped()[name]
            durations[rows[sizes[rows] == k]] = model.iterations * model.iteration_s(-(-k // measured_node()), k)
    submit_s = arrivals(stream(seed, "arrivals"), jobs)[0] * (GAP_S / MEAN_GAP_S)
    columns = {
        "job_id": np.array([f"{model}-{row}" for row, model in enumerate(models)], dtype=object),
        "submit_s": np.round((submit_s - submit_s[0]) * 1000) / 1000,
        "gpus": sizes,
        "duration_s": durations,
        "model": models,
        "model_source": np.full(jobs, "assigned", dtype=object),
    }
    options = {"preset": "pollux", "jobs": jobs, "gpus": gpus, "load": load, "seed": seed}
    source = "synthetic: the mix of models of Pollux (Qiao et al., OSDI'21)"
    meta = new_meta(source=source, format="synthetic", rows_read=jobs, rows_kept=jobs, options=options)
    table = checked_table(columns, file="<pollux>", meta=meta)
    table = table if load is None else target_load(table, gpus, load)
    return TraceTable({n: c for n, c in table.columns.items() if not n.startswith("duration")}, table.meta)
