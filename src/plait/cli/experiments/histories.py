"""Where `plait advise` takes a history from: a trace, a log of plait, or the service that runs."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plait.core.errors import InputError
from plait.core.words import counted

if TYPE_CHECKING:
    from plait.outlook.past import Past

#: Name of the log of a service in errors.
SERVICE = "the log of the service"


def past_of_file(
    path: Path, cluster: str | None, trace_format: str, seed: int, allowed: Sequence[str], **reading: Any
) -> Past:
    """The past in a file: a log of plait, simulated or of a service, else a trace, with options of `read_trace`.

    Raises `InputError` naming file, line and field of what is wrong.
    """
    from plait.cli.hardware import read_cluster
    from plait.outlook.past import past_of, past_of_log
    from plait.policies.catalog import make_policy
    from plait.traces.formats.registry import read_trace

    kind = kind_of_log(path)
    if kind and cluster is not None:
        raise InputError(f"{path}: a log of plait has its cluster in it; leave out --cluster")
    if kind == "simulated":
        return past_of_log(path, make_policy)
    if kind == "live":
        return past_of_rows(_saved(path), str(path), allowed, None)
    return past_of(
        read_trace(path, trace_format, **reading), None if cluster is None else read_cluster(cluster), seed=seed
    )


def past_of_service(home: str | None, allowed: Sequence[str]) -> Past:
    """The past of the service that runs; raises `InputError` if none does, or nothing has finished."""
    from plait.cli.connection import client
    from plait.live.layout import Layout
    from plait.live.supervisor.options import remembered

    with client(home) as service:
        return past_of_rows(service.all_events(), SERVICE, allowed, remembered(Layout.at(home)))


def past_of_rows(
    rows: Iterable[Mapping[str, Any]], where: str, allowed: Sequence[str], options: Mapping[str, Any] | None
) -> Past:
    """The past in rows of `GET /v1/events`; `where` names it in errors, `allowed` are modules of policies.

    Work is the observed run time of jobs. Nodes are the ones that are up at the end.
    """
    from dataclasses import replace

    from plait.cli.policy_modules import only_allowed
    from plait.control.messages import NodeLost
    from plait.core.cluster import Cluster
    from plait.outlook.log_replay import LoggedEntry, read_rows, replay
    from plait.outlook.past import past_of_controller

    policies: list[str] = []
    lost = 0

    def note(state: Any, row: LoggedEntry) -> None:
        nonlocal lost
        lost += isinstance(row.event, NodeLost)
        if state.policy_text not in policies[-1:]:
            policies.append(state.policy_text)

    state = replay(read_rows(only_allowed(rows, allowed, options)), compare=False, observe=note).state
    controller = state.controller
    if controller is None:
        raise InputError(f"{where}: no node ever joined this cluster; start one with: plait up")
    cluster = controller.cluster
    up = tuple(node for node, is_up in zip(cluster.nodes, cluster.node_up.tolist(), strict=True) if is_up)
    remarks = [f"cluster of the log: {counted(len(up or cluster.nodes), 'node')}"]
    gaps = []
    if len(up) not in (0, len(cluster.nodes)):
        remarks.append(f"{counted(len(cluster.nodes) - len(up), 'node')} left out: not up at the end of the log")
    if lost:
        gaps.append(f"nodes that were lost: {lost} times")
    if len(policies) > 1:
        gaps.append(f"policies that changed: {', '.join(policies)}; the last is taken as used")
    past = past_of_controller(controller, Cluster(up or cluster.nodes), state.policy_text, measured=True)
    return replace(past, remarks=(*remarks, *past.remarks), gaps=(*past.gaps, *gaps))


def kind_of_log(path: Path) -> str:
    """`simulated` for a log of `plait simulate`, `live` for saved events of a service, "" for neither."""
    try:
        with open(path, "rb") as file:
            start = file.read(2)
        with gzip.open(path, "rb") if start == b"\x1f\x8b" else open(path, "rb") as file:
            head = file.read(4096)
    except (OSError, EOFError):
        return ""  # the reader of traces raises the error
    if head.startswith(b'{"plait_log":'):
        return "simulated"
    return "live" if head.lstrip()[:1] == b"[" and b'"seq"' in head and b'"event"' in head else ""


def _saved(path: Path) -> list[Mapping[str, Any]]:
    """The rows of saved events."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read the log {path}: {error}; is the file cut short?") from error
    for i, row in enumerate(data, start=1):
        if not isinstance(row, dict) or not {"seq", "event"} <= row.keys():
            raise InputError(f"{path}: entry {i} has no seq and event, as the events of a service have")
    rows: list[Mapping[str, Any]] = data
    return rows
