"""Helios logs (S-Lab-System-Group/HeliosData, SenseTime 2020): CSV, local stamps without zone (taken as
UTC+8).
"""

from __future__ import annotations

from pathlib import Path

from plait.traces.files import RULES, Pathish, Rules
from plait.traces.formats.reader import Format, Head
from plait.traces.formats.slurmlike import Log, read_log
from plait.traces.table import TraceTable
from plait.traces.times import CHINA, zone_named

HEADER = (
    "job_id",
    "user",
    "vc",
    "gpu_num",
    "cpu_num",
    "node_num",
    "state",
    "submit_time",
    "start_time",
    "end_time",
)
CLUSTERS = ("venus", "earth", "saturn", "uranus")


def read(
    path: Pathish, *, cluster: str | None = None, time_zone: str | None = None, rules: Rules = RULES
) -> TraceTable:
    """Reads `cluster_log.csv` of one cluster.

    cluster: prefix of the job ids, which are unique per cluster only; default: the cluster named in the path,
    else `helios`. CPU-only jobs are kept with `gpus` 0; the virtual cluster is the project. `time_zone`: of the
    stamps; default: UTC+8.
    """
    parts = [part.lower() for part in Path(path).parts]
    name = cluster or next((c for c in CLUSTERS if any(c in part for part in parts)), "helios")
    log = Log(
        FORMAT,
        HEADER,
        CHINA if time_zone is None else zone_named(time_zone),
        time_zone or "UTC+8 (assumed)",
        lambda row: {"project": row.maybe_text("vc")},
        prefix=f"{name}-",
    )
    return read_log(log, path, rules=rules)


def _matches(head: Head) -> bool:
    return head.has("vc", "gpu_num", "submit_time", "state")


FORMAT = Format(
    "helios",
    read,
    _matches,
    units="local stamps, seconds",
    source="S-Lab-System-Group/HeliosData",
    licence="CC-BY-4.0",
    citation="Hu et al., SC'21",
)
