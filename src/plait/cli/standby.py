"""`plait up --standby`: a second service, here or on another machine, that takes over when the first one dies."""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from plait.live.agent.procs import Process
    from plait.live.layout import Layout

LOOK_S, PATIENCE_S = 0.05, 30.0
#: A standby that dies is started again after so many seconds.
AGAIN_S = 1.0
SECOND = "2"


def processes(layout: Layout) -> dict[str, Process]:
    """The services of this home that stand ready, or lead, on this machine, by name."""
    from plait.live.service.facts import records

    found = {name: process_of(record) for name, record in records(layout).items()}
    return {name: process for name, process in found.items() if process is not None}


def process_of(record: dict[str, Any]) -> Process | None:
    """The process that a service's file names, if it lives on this machine; not a later one of the same number."""
    from plait.live.agent.procs import Process, boot_id

    pid = record.get("pid")
    process = Process.of(pid) if isinstance(pid, int) and record.get("boot") in (None, boot_id()) else None
    if process is None or record.get("start_time") not in (None, process.start_time):
        return None
    return process


def start(layout: Layout, options: dict[str, Any], name: str = SECOND) -> str:
    """Start a service that stands by, and one that keeps it up; returns its address. `InputError` if it does not."""
    from plait.core.errors import InputError

    if not str(options.get("db", "")).startswith("postgres"):
        raise InputError(
            "--standby needs a store that several services can reach; start the first with: plait up --db "
            "postgresql://host/name"
        )
    running = processes(layout).get(name)
    if running is not None:
        raise InputError(f"service {name} of {layout.home} runs already (process {running.pid}); give another --name")
    url = spawn(layout, {key: value for key, value in options.items() if key != "port"}, name)
    command = [sys.executable, "-m", "plait.cli.standby", "--home", str(layout.home), "--name", name]
    with open(layout.home / f"keeper-{name}.log", "ab") as log:
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    return url


def spawn(layout: Layout, options: dict[str, Any], name: str) -> str:
    """One service that stands by, without a keeper; returns its address once it answers."""
    from plait.cli.cluster import spawn_service
    from plait.core.errors import InputError
    from plait.live.service.facts import file_of, records

    log = file_of(layout, name, "log")
    process = spawn_service(layout, {**options, "standby": True, "name": name}, log)
    until = time.monotonic() + PATIENCE_S
    while True:
        record = records(layout).get(name)
        if record is not None and record.get("pid") == process.pid:
            return str(record["url"])
        if process.poll() is not None or time.monotonic() > until:
            with contextlib.suppress(OSError):
                process.kill()
            raise InputError(f"service {name} did not start; look at {log}")
        time.sleep(LOOK_S)


def keep(layout: Layout, name: str) -> None:
    """Start a standby again when it dies, until it is told to end; returns at once if another process does that."""
    import os

    from plait.cli.cluster import remembered
    from plait.core.errors import PlaitError
    from plait.live.agent import procs
    from plait.live.service.facts import records

    with open(layout.home / f"keeper-{name}.lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        me = procs.Process.of(os.getpid())
        assert me is not None
        path = layout.home / f"keeper-{name}.json"
        procs.write_json(path, {"pid": me.pid, "start_time": me.start_time, "boot": me.boot})
        while (record := records(layout).get(name)) is not None:
            if process_of(record) is None:
                with contextlib.suppress(PlaitError):
                    options = {key: value for key, value in remembered(layout).items() if key != "port"}
                    url = spawn(layout, options, name)
                    print(f"{time.strftime('%FT%T')} service {name} was started again at {url}", flush=True)
            time.sleep(AGAIN_S)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(-1, os.WNOHANG)
        path.unlink(missing_ok=True)


def stop_keepers(layout: Layout) -> None:
    """End those of this machine, so that they do not start again what is about to be stopped."""
    import signal

    from plait.live.agent import procs

    for path in layout.home.glob("keeper-*.json"):
        process = process_of(procs.read_json(path) or {})
        if process is not None:
            process.send(signal.SIGKILL)
            path.unlink(missing_ok=True)


def main() -> None:
    """Keep one standby."""
    from plait.live.layout import Layout

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--home", required=True)
    parser.add_argument("--name", required=True)
    args = parser.parse_args()
    keep(Layout.at(args.home), args.name)


if __name__ == "__main__":
    main()
