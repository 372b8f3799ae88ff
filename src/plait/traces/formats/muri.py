"""Muri traces (Rivendile/Muri, SIGCOMM'22): CSV, every time in milliseconds.

`resource_time_0` is storage reading and CPU preprocessing in one number; the option `split` divides it. The stage times
do not add up to `iteration_time` (stages overlap inside the job). `iterations` was floored (and re-drawn with noise in
cluster_trace), so iterations x iteration time is not the duration: the option `work` chooses.
"""

from __future__ import annotations

from typing import Any

from plait.core.errors import suggest
from plait.traces.delimited import TextRow
from plait.traces.files import RULES, Pathish, Rules, Source
from plait.traces.formats.reader import Format, Head, TableBuilder, pick
from plait.traces.table import TraceTable

HEADER = (
    "job_id", "num_gpu", "submit_time", "iterations", "model_name", "batch_size", "duration",
    "iteration_time", "resource_time_0", "resource_time_1", "resource_time_2", "priority",
)  # fmt: skip
STORAGE_BOUND = ("shufflenet_v2_x1_0", "resnet18", "vgg16", "vgg19", "bert", "gpt2")
CPU_BOUND = ("a2c", "dqn")
CLASSES = {"0": "guaranteed", "1": "opportunistic"}
TYPO = ("resnet18", 32, 0.103, 0.017, 0.013)
"""The stage seconds of resnet18 on 32 GPUs in cluster_trace, almost surely a typing error."""


def storage_share(model: str, split: str) -> float:
    """The part of data time that is storage reading, the rest being CPU, under the option `split`.

    `by_model`: all for the models that read from disk, none for models that simulate; `storage`: all; `cpu`: none.

    >>> storage_share("vgg16", "by_model"), storage_share("dqn", "by_model"), storage_share("any", "storage")
    (1.0, 0.0, 1.0)
    """
    if split != "by_model":
        return 1.0 if split == "storage" else 0.0
    if model in STORAGE_BOUND:
        return 1.0
    if model in CPU_BOUND:
        return 0.0
    raise KeyError(model)


def read(path: Pathish, *, work: str = "duration", split: str = "by_model", rules: Rules = RULES) -> TraceTable:
    """Reads a Muri trace.

    work: `duration` takes `duration_s` from the trace; `iterations` makes it iterations x iteration time and keeps the
    trace's in `x_duration_trace_s`. Either way `iterations` and `iteration_s` are the file's; where they disagree with
    `duration_s` by more than 1 %, `duration_kind` is derived. split: `by_model`, `storage` or `cpu`, where
    `resource_time_0` goes.
    """
    pick("work", work, ("duration", "iterations"))
    pick("split", split, ("by_model", "storage", "cpu"))
    source = Source(path, rules)
    builder = TableBuilder(source)

    def add(row: TextRow) -> None:
        builder.keep(row.line, **_times(row, work), **_stages(row, split, builder))

    builder.read_rows(add, required=HEADER, optional=("interval",))
    return builder.finish(FORMAT, options={"work": work, "split": split})


def _times(row: TextRow, work: str) -> dict[str, Any]:
    duration_s = row.number("duration") / 1000
    iterations, iteration_s = row.whole("iterations"), row.number("iteration_time") / 1000
    product_s = iterations * row.number("iteration_time") / 1000
    agrees = abs(product_s - duration_s) <= 0.01 * duration_s
    job: dict[str, Any] = {
        "job_id": row.text("job_id"),
        "submit_s": row.number("submit_time") / 1000,
        "gpus": row.gang("num_gpu"),
        "duration_s": duration_s,
        "duration_kind": "exact" if agrees and work == "duration" else "derived",
        "iterations": iterations,
        "iteration_s": iteration_s,
    }
    return job | {"duration_s": product_s, "x_duration_trace_s": duration_s} if work == "iterations" else job


def _stages(row: TextRow, split: str, builder: TableBuilder) -> dict[str, Any]:
    model = row.text("model_name")
    try:
        share = storage_share(model, split)
    except KeyError:
        hint = suggest(model, [*STORAGE_BOUND, *CPU_BOUND], "give split=storage or split=cpu")
        raise row.error("unknown model, cannot split its data time", column="model_name", hint=hint) from None
    data_s, gpu_s, network_s = (row.number(f"resource_time_{k}") / 1000 for k in range(3))
    if (model, row.gang("num_gpu"), data_s, gpu_s, network_s) == TYPO:
        builder.warn("resnet18 on 32 GPUs with stages 103/17/13 ms: probably a typing error, kept unchanged")
    return {
        "model": model,
        "model_source": "trace",
        "batch_size": row.whole("batch_size"),
        "batch_scope": "per_gpu",
        "storage_s": data_s * share,
        "cpu_s": data_s * (1 - share),
        "gpu_s": gpu_s,
        "network_s": network_s,
        "job_class": row.choice("priority", CLASSES),
    }


def _matches(head: Head) -> bool:
    return head.has("num_gpu", "iteration_time", "resource_time_0")


FORMAT = Format(
    "muri",
    read,
    _matches,
    units="milliseconds",
    source="Rivendile/Muri",
    licence="Apache-2.0; arrivals, sizes and durations derive from the Philly traces (CC-BY-4.0)",
    citation="Zhao et al., SIGCOMM'22; Jeon et al., ATC'19",
)
