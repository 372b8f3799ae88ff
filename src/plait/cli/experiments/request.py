"""What `plait simulate` was asked for, as a value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Request:
    """The options of `plait simulate`, as given."""

    traces: Sequence[Path]
    policy: str
    cluster: str | None = None
    round_s: float | None = None
    world: str = "plait"
    seed: str = "0"
    placement: str | None = None
    trace_format: str = "auto"
    work: str | None = None
    nodes: Path | None = None
    data: Path | None = None
    assign_models: str | None = None
    censored: str = "as_is"
    overheads: str | None = None
    spread_slowdown: float | None = None
    gpu_speed: str | None = None
    failures: Path | None = None
    node_mtbf: float | None = None
    node_mttr: float | None = None
    job_mtbf: float | None = None
    profile_noise: float | None = None
    plain: float | None = None
    checkpoint_every: float | None = None
    preemption: str = "weighed"
    window: str | None = None
    jobs: int | None = None
    json: str | None = None
    csv: str | None = None
    jobs_csv: Path | None = None
    report: Path | None = None
    chrome_trace: Path | None = None
    log: Path | None = None
    check: bool = False
    processes: int = 1
    clusters: Sequence[str] = ()
