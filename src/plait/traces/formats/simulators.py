"""Traces of research simulators, and result logs of one testbed.

Gavel traces and their relatives: tab-separated, no header, 7, 10 or 12 fields; and Gavel's throughput tables.

7: derived from Philly (`traces/msr`); 10: Gavel; 12: Shockwave. Arrivals are seconds. Commands hold shell
text: they are kept as text and never executed.

Muri traces (Rivendile/Muri, SIGCOMM'22): CSV, every time in milliseconds.

`resource_time_0` is storage reading and CPU preprocessing in one number; the option `split` divides it. The stage times
do not add up to `iteration_time` (stages overlap inside the job). `iterations` was floored (and re-drawn with noise in
cluster_trace), so iterations x iteration time is not the duration: the option `work` chooses.

Result logs of Muri's testbed runs: what happened to each job on the real cluster, in seconds.

A result, not a workload: compare it by `job_id` with a simulated run of the same trace.

Pollux and Sia workloads: CSV, seconds, elastic jobs. Durations are not given: they follow from measured tables.

Tiresias job files (SymbioticLab/Tiresias, NSDI'19): CSV, whole seconds; and its cluster files.
"""

from __future__ import annotations

import ast
import difflib
import json
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from plait.core.errors import InputError, suggest
from plait.goodput.shipped import shipped
from plait.traces.delimited import TABS, TextRow, read_rows
from plait.traces.files import RULES, Pathish, Rules, Source
from plait.traces.formats.reader import Format, TableBuilder, numbered, pick
from plait.traces.schema import Array
from plait.traces.table import TraceTable

LAYOUTS: dict[int, tuple[str, ...]] = {
    7: (
        "job_type", "command", "num_steps_arg", "needs_data_dir", "total_steps", "arrival_time",
        "scale_factor",
    ),
    10: (
        "job_type", "command", "working_directory", "num_steps_arg", "needs_data_dir", "total_steps",
        "scale_factor", "priority_weight", "SLO", "arrival_time",
    ),
    12: (
        "job_type", "command", "working_directory", "num_steps_arg", "needs_data_dir", "total_steps",
        "scale_factor", "mode", "priority_weight", "SLO", "duration", "arrival_time",
    ),
}  # fmt: skip
MODES = {"static": "static", "accordion": "accordion", "gns": "gns"}
TEXTS = {"x_job_type": "string", "x_command": "string", "x_mode": "string"}

Throughputs = Mapping[str, Mapping[tuple[str, int], float]]
"""Steps per second alone: kind of GPU -> (job type, GPUs) -> rate; 0 where it does not fit."""

_BATCHED = re.compile(r"(.+) \(batch size (\d+)\)")


def split_job_type(job_type: str) -> tuple[str, int | None]:
    """Model and batch size of a job type.

    >>> split_job_type("ResNet-18 (batch size 32)"), split_job_type("A3C")
    (('ResNet-18', 32), ('A3C', None))
    """
    match = _BATCHED.fullmatch(job_type)
    return (match[1], int(match[2])) if match else (job_type, None)


def read_gavel(
    path: Pathish,
    *,
    throughputs: Pathish | Throughputs | None = None,
    kind: str = "v100",
    rules: Rules = RULES,
) -> TraceTable:
    """Reads a trace of the Gavel family.

    `throughputs`: Gavel's table, or its file; with it `duration_s` = steps / rate alone on GPUs of `kind`
    (derived). Without it only the 12-field layout has durations. Jobs have no ids: they are numbered by
    arrival, then content.
    """
    table = _table(throughputs, kind)
    source = Source(path, rules)
    with source.open() as text:
        fields = len(text.readline().rstrip("\r\n").split("\t"))
    if fields not in LAYOUTS:
        source.line = 1
        raise source.error(f"expected 7, 10 or 12 tab-separated fields, found {fields}")
    rows = []

    def add(row: TextRow) -> None:
        job = _job(row, table)
        rows.append((job["submit_s"], tuple(row.cells), {"line": row.line, **job}))

    builder = TableBuilder(source, kinds=TEXTS)
    builder.read_rows(add, names=LAYOUTS[fields], native=TABS)
    for job in numbered(rows):
        builder.keep(job.pop("line"), **job)
    options = {"kind": kind if table is not None else None, "fields": fields}
    return builder.finish(GAVEL, options=options)


def _table(throughputs: Pathish | Throughputs | None, kind: str) -> Mapping[tuple[str, int], float] | None:
    if throughputs is None:
        return None
    known = throughputs if isinstance(throughputs, Mapping) else read_throughputs(throughputs)
    if kind not in known:
        raise InputError(f"no throughputs for GPU kind {kind!r}; {suggest(kind, known)}")
    return known[kind]


def _job(row: TextRow, table: Mapping[tuple[str, int], float] | None) -> dict[str, Any]:
    job_type, gpus, steps = row.text("job_type"), row.gang("scale_factor"), row.whole("total_steps")
    model, batch = split_job_type(job_type)
    job: dict[str, Any] = {
        "submit_s": row.number("arrival_time"),
        "gpus": gpus,
        "model": model,
        "model_source": "trace",
        "batch_size": batch,
        "iterations": steps,
        "weight": row.maybe_number("priority_weight"),
        "x_job_type": job_type,
        "x_command": row.text("command"),
    }
    duration_s = row.maybe_number("duration")
    if duration_s is not None:
        job |= {"duration_s": duration_s, "duration_kind": "exact"}
    elif table is not None:
        rate = table.get((job_type, gpus), 0.0)
        if rate <= 0:
            raise row.error(f"no throughput for this job type on {gpus} GPUs", column="job_type")
        duration_s = steps / rate
        job |= {"duration_s": duration_s, "duration_kind": "derived", "iteration_s": 1 / rate}
    slo = row.maybe_number("SLO")
    if slo is not None and slo > 0:
        job |= {"x_slo": slo, "deadline_s": None if duration_s is None else slo * duration_s}
    if row.maybe_text("mode"):
        job["x_mode"] = row.choice("mode", MODES)
    return job


def read_throughputs(path: Pathish) -> dict[str, dict[tuple[str, int], float]]:
    """Gavel's `simulation_throughputs.json`: steps per second of each job type alone, by kind of GPU.

    Kinds ending in `_unconsolidated` are spread placements. Entries of pairs that share GPUs are left out.
    """
    return {
        kind: {job: _rate(path, entry.get("null", 0.0)) for job, entry in jobs.items()}
        for kind, jobs in _throughput_entries(path).items()
    }


def _throughput_entries(path: Pathish) -> dict[str, dict[tuple[str, int], dict[str, Any]]]:
    source = Source(path)
    with source.open() as text:
        try:
            raw = json.load(text)
        except (ValueError, RecursionError) as error:
            raise source.error(f"not JSON: {error}") from error
    if not isinstance(raw, dict) or not all(isinstance(jobs, dict) for jobs in raw.values()):
        raise source.error("expected {kind: {job type and GPUs: rates}}")
    result = {}
    for kind, jobs in raw.items():
        if not all(isinstance(entry, dict) for entry in jobs.values()):
            raise source.error("expected {'null': rate, ...} for each job type", column=kind)
        result[kind] = {_job_key(path, key): entry for key, entry in jobs.items()}
    return result


def _job_key(path: Pathish, text: str) -> tuple[str, int]:
    try:
        key = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        key = None
    if not (isinstance(key, tuple) and len(key) == 2 and isinstance(key[0], str) and isinstance(key[1], int)):
        raise Source(path).error("expected ('job type', GPUs)", value=text)
    return key


def _rate(path: Pathish, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise Source(path).error("expected steps per second", value=value)
    return float(value)


GAVEL = Format(
    "gavel",
    read_gavel,
    lambda head: len(head.tab) in LAYOUTS,
    units="seconds; steps",
    source="stanford-futuredata/gavel (7 and 10 fields), uw-mad-dash/shockwave (12 fields)",
    licence="MIT; the 7-field traces derive from the Philly traces (CC-BY-4.0)",
    citation="Narayanan et al., OSDI'20; Zheng et al., NSDI'23",
)


MURI_HEADER = (
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


def read_muri(path: Pathish, *, work: str = "duration", split: str = "by_model", rules: Rules = RULES) -> TraceTable:
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
        builder.keep(
            row.line,
            **job | {"duration_s": product_s, "x_duration_trace_s": duration_s} if work == "iterations" else job,
            **_stages(row, split, builder),
        )

    builder.read_rows(add, required=MURI_HEADER, optional=("interval",))
    return builder.finish(MURI, options={"work": work, "split": split})


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


MURI = Format(
    "muri",
    read_muri,
    lambda head: head.has("num_gpu", "iteration_time", "resource_time_0"),
    units="milliseconds",
    source="Rivendile/Muri",
    licence="Apache-2.0; arrivals, sizes and durations derive from the Philly traces (CC-BY-4.0)",
    citation="Zhao et al., SIGCOMM'22; Jeon et al., ATC'19",
)


TESTBED_HEADER = (
    "job_id", "num_gpu", "submit_time", "start_time", "end_time", "executed_time", "real_executed_time",
    "JCT", "duration", "pending_time", "job_counter",
)  # fmt: skip


def read_testbed(path: Pathish, *, rules: Rules = RULES) -> TraceTable:
    """Reads a result log into the observed columns of a trace.

    `duration_s` is the trace's value; `x_jct_s` is completion minus submission; `x_run_s` the seconds really
    running; `observed_queue_s` the seconds waiting, before the first start and after preemptions; `attempts`
    the starts.
    """
    source = Source(path, rules)
    builder = TableBuilder(source)

    def add(row: TextRow) -> None:
        jct_s, run_s, queue_s = (row.number(name) for name in ("JCT", "real_executed_time", "pending_time"))
        submit_s, end_s = row.number("submit_time"), row.number("end_time")
        if abs(end_s - submit_s - jct_s) > 1e-3 or abs(run_s + queue_s - jct_s) > 1e-3:
            builder.warn("JCT is neither end - submit nor run + pending")
        builder.keep(
            row.line,
            job_id=row.text("job_id"),
            submit_s=submit_s,
            gpus=row.gang("num_gpu"),
            duration_s=row.number("duration"),
            duration_kind="exact",
            state="completed",
            observed_start_s=row.number("start_time"),
            observed_end_s=end_s,
            observed_queue_s=queue_s,
            attempts=row.whole("job_counter"),
            x_jct_s=jct_s,
            x_run_s=run_s,
        )

    builder.read_rows(add, required=TESTBED_HEADER)
    return builder.finish(TESTBED)


TESTBED = Format(
    "muri_testbed",
    read_testbed,
    lambda head: head.has("real_executed_time", "JCT", "job_counter"),
    units="seconds",
    source="Rivendile/Muri, cluster_exp/results",
    licence="Apache-2.0",
    citation="Zhao et al., SIGCOMM'22",
)


POLLUX_HEADER = ("name", "time", "application", "num_replicas", "batch_size")


def read_pollux(path: Pathish, *, rules: Rules = RULES) -> TraceTable:
    """Reads a workload; `gpus` and `batch_size` (total) are from the tuned configuration, durations are null.

    An application with nearly the name of a known one is a `TraceError`: a typing mistake would lose the job.
    """
    source = Source(path, rules)
    builder = TableBuilder(source)

    def add(row: TextRow) -> None:
        # Raise for a name that is close to that of a shipped model; other names are jobs of unknown length
        name, known = row.text("application"), shipped()
        near = [] if name in known else difflib.get_close_matches(name.lower(), known, 1)
        if near:
            raise row.error("unknown value", column="application", hint=f"did you mean {near[0]!r}?")
        builder.keep(
            row.line,
            job_id=row.text("name"),
            submit_s=row.number("time"),
            gpus=row.gang("num_replicas"),
            model=row.text("application"),
            model_source="trace",
            batch_size=row.whole("batch_size"),
            batch_scope="total",
        )

    builder.read_rows(add, required=POLLUX_HEADER, optional=())
    return builder.finish(POLLUX)


POLLUX = Format(
    "pollux",
    read_pollux,
    lambda head: head.has(*POLLUX_HEADER),
    units="seconds; batch sizes of the whole job",
    source="petuum/adaptdl, branch osdi21-artifact",
    licence="none stated for the data: do not redistribute",
    citation="Qiao et al., OSDI'21",
)
TIRESIAS_HEADER = ("job_id", "num_gpu", "submit_time", "iterations", "model_name", "duration")


def read_tiresias(path: Pathish, *, nodes: Pathish | None = None, rules: Rules = RULES) -> TraceTable:
    """Reads a Tiresias job file; `nodes` is its cluster file.

    Model names are kept as they are; iteration times are not in the file.
    """
    source = Source(path, rules)
    cluster = None if nodes is None else read_cluster(nodes)
    builder = TableBuilder(source)

    def add(row: TextRow) -> None:
        builder.keep(
            row.line,
            job_id=row.text("job_id"),
            submit_s=row.number("submit_time"),
            gpus=row.gang("num_gpu"),
            duration_s=row.number("duration"),
            duration_kind="exact",
            model=row.text("model_name"),
            model_source="trace",
            iterations=row.whole("iterations"),
        )

    builder.read_rows(add, required=TIRESIAS_HEADER, optional=("interval", "model_scale"))
    return builder.finish(TIRESIAS, nodes=cluster)


def read_cluster(path: Pathish) -> dict[str, Array]:
    """A cluster file as a nodes table: one row of switches, nodes per switch, GPUs and CPUs per node, memory in GB."""
    source = Source(path)
    names = ("num_switch", "num_node_p_switch", "num_gpu_p_node", "num_cpu_p_node", "mem_p_node")
    for row in read_rows(source, required=names):
        switches, nodes, gpus, cpus = (row.whole(name) for name in names[:4])
        count = switches * nodes
        if min(switches, nodes) < 1 or count > 1_000_000:
            raise row.error("not a number of nodes", column="num_node_p_switch")
        return {
            "node_id": np.array([f"n{i}" for i in range(count)], dtype=object),
            "gpus": np.full(count, gpus),
            "cpu_milli": np.full(count, cpus * 1000.0),
            "memory_bytes": np.full(count, row.number("mem_p_node") * 1e9),
            "rack": np.array([f"s{i // nodes}" for i in range(count)], dtype=object),
        }
    raise source.error("the file has no cluster row")


TIRESIAS = Format(
    "tiresias",
    read_tiresias,
    lambda head: head.has(*TIRESIAS_HEADER) and not head.has("iteration_time") and not head.has("batch_size"),
    units="whole seconds",
    source="SymbioticLab/Tiresias",
    licence="Apache-2.0",
    citation="Gu et al., NSDI'19",
)
