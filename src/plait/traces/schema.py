"""The columns of the canonical trace: one declarative list a table, read by every reader, check and
writer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
"""A column: float64 (null is NaN), int32 or int64 (never null), or object (strings; null is None)."""

SCHEMA_VERSION = 1

DURATION_KINDS = ("exact", "right_censored", "lower_bound", "derived", "unknown")
STATES = ("completed", "failed", "cancelled", "timeout", "node_fail", "running", "pending", "unknown")
MODEL_SOURCES = ("trace", "assigned", "none")
BATCH_SCOPES = ("per_gpu", "total")
JOB_CLASSES = ("guaranteed", "opportunistic", "auto")
CHECKPOINTS = ("never", "periodic", "on_stop")

STAGES = ("storage_s", "cpu_s", "gpu_s", "network_s")
"""Stage columns, in the order of one iteration."""

MAX_INTEGER = 2**53
"""Nullable integers live in float64 columns; beyond this a float no longer tells neighbours apart."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its type, what it may hold, and what it means.

    `minimum` and `maximum` are inclusive unless `positive` is set, which requires more than zero. A nullable integer
    column is stored as float64 with NaN for null and holds whole numbers only.
    """

    name: str
    kind: Literal["string", "float", "int32", "int64"]
    doc: str
    nullable: bool = True
    enum: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    positive: bool = False
    default: str | None = None

    @property
    def is_integer(self) -> bool:
        """Whether the values are whole numbers."""
        return self.kind in ("int32", "int64")

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the array in memory."""
        if self.kind == "string":
            return np.dtype(object)
        if self.kind == "float" or self.nullable:
            return np.dtype(np.float64)
        return np.dtype(self.kind)

    def nulls(self, size: int) -> Array:
        """A column of `size` nulls (or defaults, where null is not allowed)."""
        if self.kind == "string":
            return np.full(size, self.default, dtype=object)
        return np.full(size, np.nan if self.nullable or self.kind == "float" else 0, dtype=self.dtype)


def _s(name: str, doc: str, **more: Any) -> Column:
    return Column(name, "float", doc, **more)


def _text(name: str, doc: str, **more: Any) -> Column:
    return Column(name, "string", doc, **more)


def _count(name: str, doc: str, kind: Literal["int32", "int64"] = "int32", **more: Any) -> Column:
    return Column(name, kind, doc, minimum=more.pop("minimum", 0), **more)


JOB_COLUMNS: tuple[Column, ...] = (
    _text("job_id", "unique in the file", nullable=False),
    _s("submit_s", "seconds since trace origin", nullable=False, minimum=0),
    _count("gpus", "gang size; 0 = CPU-only job", nullable=False),
    _count("gpu_milli", "thousandths of one GPU; only with gpus = 1; null = 1000", minimum=1, maximum=1000),
    _s("duration_s", "seconds of run time alone at the requested size (work, not waiting)", positive=True),
    _text("duration_kind", "how duration_s was observed", nullable=False, enum=DURATION_KINDS, default="unknown"),
    _text("state", "at the end of observation", nullable=False, enum=STATES, default="unknown"),
    _s("observed_start_s", "first start in the source cluster, seconds since trace origin"),
    _s("observed_end_s", "last end in the source cluster, seconds since trace origin"),
    _s("observed_queue_s", "seconds waited in the source cluster", minimum=0),
    _text("user", "who submitted it"),
    _text("project", "virtual cluster, organisation or application"),
    _text("script", "what it runs, without arguments: equal for runs of the same program"),
    _text("arguments", "arguments of the script, without seeds, dates and output folders"),
    _text("model", "name of the trained model"),
    _text("model_source", "where the model comes from", enum=MODEL_SOURCES),
    _count("batch_size", "examples", "int64", minimum=1),
    _text("batch_scope", "whether batch_size is per GPU or of the whole job", enum=BATCH_SCOPES),
    _count("iterations", "training iterations", "int64", minimum=1),
    _s("iteration_s", "seconds per iteration alone at `gpus`", positive=True),
    _s("storage_s", "seconds per iteration reading from storage", minimum=0),
    _s("cpu_s", "seconds per iteration on the CPU", minimum=0),
    _s("gpu_s", "seconds per iteration on the GPU", minimum=0),
    _s("network_s", "seconds per iteration on the network", minimum=0),
    _s("gradient_bytes", "bytes of gradients that each worker exchanges in an iteration", minimum=0),
    _count("servers", "parameter servers, ranks without GPUs; null = none"),
    _text("gpu_kinds", "allowed kinds, A|B; null = any"),
    _count("cpu_milli", "thousandths of a CPU core, whole job", "int64"),
    _count("memory_bytes", "host memory, whole job", "int64"),
    _count("gpu_memory_bytes", "memory of one GPU", "int64"),
    _count("nodes", "requested nodes", minimum=0),
    _count("min_gpus", "smallest size of an elastic job", minimum=1),
    _count("max_gpus", "largest size of an elastic job", minimum=1),
    _text("scaling", "measured seconds of an iteration by GPUs of an elastic job, e.g. 1:0.52 2:0.29 4:0.17"),
    _count(
        "parameters", "of the model, of a job that chooses an execution plan for its batch_size", "int64", minimum=1
    ),
    _count("example_bytes", "activations of an example on a GPU; with parameters", "int64"),
    _count("zero_stage", "the only ZeRO stage of its plans: 0, 2 or 3; null = any", maximum=3),
    _text("job_class", "how the scheduler may treat it", enum=JOB_CLASSES),
    _text("checkpoints", "what of its work outlives a stop; null = on_stop", enum=CHECKPOINTS),
    _text("ina", "what it asks of in-network aggregation, e.g. require:memory=2048; null = auto"),
    _s("priority", "larger is more important"),
    _s("weight", "share weight", minimum=0),
    _s("deadline_s", "seconds after submission", positive=True),
    _count("attempts", "starts recorded in the source"),
)

NODE_COLUMNS: tuple[Column, ...] = (
    _text("node_id", "unique in the file", nullable=False),
    _count("gpus", "GPUs of the node", nullable=False),
    _text("gpu_kind", "kind of its GPUs"),
    _count("gpu_memory_bytes", "memory of one GPU", "int64"),
    _count("cpu_milli", "thousandths of a CPU core", "int64"),
    _count("memory_bytes", "host memory", "int64"),
    _text("rack", "rack or switch"),
    _s("nic_bytes_per_s", "network bandwidth, bytes per second", minimum=0),
    _s("available_from_s", "joins the cluster, seconds since trace origin"),
    _s("available_to_s", "leaves the cluster, seconds since trace origin"),
)

JOBS = {column.name: column for column in JOB_COLUMNS}
NODES = {column.name: column for column in NODE_COLUMNS}


def extra_column(name: str, kind: Literal["string", "float"]) -> Column:
    """The column of an `x_` name: kept unchanged, never interpreted."""
    return Column(name, kind, "kept from the source")
