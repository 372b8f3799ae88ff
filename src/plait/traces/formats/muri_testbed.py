"""Result logs of Muri's testbed runs: what happened to each job on the real cluster, in seconds.

A result, not a workload: compare it by `job_id` with a simulated run of the same trace.
"""

from __future__ import annotations

from plait.traces.delimited import TextRow
from plait.traces.files import RULES, Pathish, Rules, Source
from plait.traces.formats.reader import Format, Head, TableBuilder
from plait.traces.table import TraceTable

HEADER = (
    "job_id", "num_gpu", "submit_time", "start_time", "end_time", "executed_time", "real_executed_time",
    "JCT", "duration", "pending_time", "job_counter",
)  # fmt: skip


def read(path: Pathish, *, rules: Rules = RULES) -> TraceTable:
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

    builder.read_rows(add, required=HEADER)
    return builder.finish(FORMAT)


def _matches(head: Head) -> bool:
    return head.has("real_executed_time", "JCT", "job_counter")


FORMAT = Format(
    "muri_testbed",
    read,
    _matches,
    units="seconds",
    source="Rivendile/Muri, cluster_exp/results",
    licence="Apache-2.0",
    citation="Zhao et al., SIGCOMM'22",
)
