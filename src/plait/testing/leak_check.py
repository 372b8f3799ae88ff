"""Checks for what a stopped cluster should not leave behind."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from plait.live.layout import Layout
from plait.live.system import procs


def leaks(layout: Layout) -> list[str]:
    """Remaining processes, gates, sockets and files of running processes of a home folder, as sentences.

    Processes are known by the mark of their attempt or by the folder in their command line; a port is left only with a
    process that has it. The store, logs, checkpoints and attempts' folders are meant to stay.
    """
    found = []
    home = str(layout.home)
    mark = f"{procs.MARK}={hashlib.sha256(home.encode()).hexdigest()[:12]}:".encode()
    for pid in procs.pids():
        if pid == os.getpid():
            continue
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if (home.encode() in command or any(word.startswith(mark) for word in environment)) and procs.start_time(pid):
            found.append(f"process {pid}: {b' '.join(command).decode(errors='replace').strip()}")
    if layout.gates.is_dir():
        found += [f"gate {path}" for path in layout.gates.iterdir()]
    if layout.gates.parent != layout.home and layout.gates.parent.exists():
        found.append(f"folder {layout.gates.parent}")
    running = [layout.service_file, *layout.home.glob("nodes/*/agent.json"), *layout.home.glob("nodes/*/stop.json")]
    found += [f"file {path}" for path in running if path.exists()]
    found += [f"socket {path}" for path in layout.home.rglob("*") if path.is_socket()]
    return found
