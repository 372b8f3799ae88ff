"""Files of the home folder by which agents and clients find services.

`service.json` names the leader. If there are several services, each also has its own file, `service-<name>.json`, from
its start to its orderly end. A killed service leaves its file; its keeper checks the process itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from pathlib import Path
from typing import Any

from plait.core.files import replace_file
from plait.live.layout import FIRST, Layout
from plait.live.system import procs

#: Where the store is, for a service that was started without --db.
STORE_VARIABLE = "PLAIT_DB"


def file_of(layout: Layout, name: str, kind: str) -> Path:
    """Where a service of this name has its log or lock.

    >>> file_of(Layout(Path("/h")), "1", "log"), file_of(Layout(Path("/h")), "b", "log")
    (PosixPath('/h/service.log'), PosixPath('/h/service-b.log'))
    """
    return layout.home / (f"service.{kind}" if name == FIRST else f"service-{name}.{kind}")


def record_file(layout: Layout, name: str) -> Path:
    """The file in which a service of this name announces itself."""
    return layout.home / f"service-{name}.json"


def records(layout: Layout) -> dict[str, dict[str, Any]]:
    """Announcements of ready services, by name."""
    found = {}
    for path in sorted(layout.home.glob("service-*.json")):
        record = procs.read_json(path)
        if record is not None:
            found[path.stem.removeprefix("service-")] = record
    return found


def own_process() -> dict[str, Any]:
    """Identity of the calling process and its machine."""
    process = procs.Process.of(os.getpid())
    return {} if process is None else {**vars(process), "host": socket.gethostname()}


def is_mine(path: Path) -> bool:
    """Whether a file was written by this process."""
    record = procs.read_json(path) or {}
    return all(record.get(key) == value for key, value in own_process().items())


def write(path: Path, said: dict[str, Any]) -> None:
    """Replace a file at once."""
    replace_file(path, json.dumps(said, indent=1) + "\n")


def forget(layout: Layout, name: str) -> None:
    """A service has ended as it should. Where others are ready, the leader's file stays until one of them writes it."""
    with contextlib.suppress(OSError):
        record_file(layout, name).unlink()
    if is_mine(layout.service_file) and not records(layout):
        layout.service_file.unlink(missing_ok=True)
