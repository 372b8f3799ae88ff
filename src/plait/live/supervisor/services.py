"""The services of a home as processes of this machine: found, started, ended."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from plait.core.errors import InputError
from plait.core.options import words
from plait.live import tls
from plait.live.backends.host import DetachedProcess
from plait.live.client.client import Client, read_service_file, service_url
from plait.live.discovery import STORE_VARIABLE, file_of, record_file, records
from plait.live.layout import FIRST, Layout, is_locked
from plait.live.service.http.limits import HEALTH
from plait.live.service.options import SERVICE_OPTIONS, ServiceOptions
from plait.live.system import modules, procs
from plait.live.system.procs import Patience, Process, boot_id

#: Seconds of sleep, in all, after which a starting process is stuck; seconds for a service to stop before it is killed.
IDLE_S, STOP_S = 30.0, 10.0
LOOK_S = 0.02
#: Seconds for an answer to a request whether a service is healthy.
_HEALTH_S = 2.0


def process_of(record: dict[str, Any]) -> Process | None:
    """The process that names itself in a file, if it lives on this machine; not a later one of the same number."""
    pid = record.get("pid")
    process = Process.of(pid) if isinstance(pid, int) and record.get("boot") in (None, boot_id()) else None
    if process is None or record.get("start_time") not in (None, process.start_time):
        return None
    return process


def elsewhere(layout: Layout, name: str = FIRST) -> dict[Path, str]:
    """Files that place this service, or its keeper, on another machine, with the name of that machine.

    A restarted machine has another boot and the same name: what it ran before is dead.
    """
    files = [record_file(layout, name), layout.home / ("keeper.json" if name == FIRST else f"keeper-{name}.json")]
    if name == FIRST and not records(layout):
        files.append(layout.service_file)
    said = {path: procs.read_json(path) or {} for path in files}
    here = (None, socket.gethostname())
    return {p: str(r["host"]) for p, r in said.items() if r.get("host") not in here and r.get("boot") != boot_id()}


def refuse_elsewhere(layout: Layout, name: str = FIRST) -> None:
    """`InputError` for a service on another machine: from here its state is invisible."""
    found = elsewhere(layout, name)
    if found:
        what = f"the cluster of {layout.home}" if name == FIRST else f"service {name} of {layout.home}"
        raise InputError(
            f"{what} is kept on {', '.join(sorted(set(found.values())))}: run plait up and plait down there; if that "
            f"machine is gone for good, run here: rm {' '.join(map(str, found))}"
        )


def processes(layout: Layout) -> dict[str, Process]:
    """The services of this home that stand ready, or lead, on this machine, by name."""
    found = {name: process_of(record) for name, record in records(layout).items()}
    return {name: process for name, process in found.items() if process is not None}


def service_process(layout: Layout) -> Process | None:
    """The first service of this home, if it lives; whether it leads or stands by, where there are several."""
    ready = records(layout)
    data = ready.get(FIRST) if ready else read_service_file(layout)
    return None if data is None else process_of(data)


def any_service_process(layout: Layout) -> Process | None:
    """The same, or a service that is still starting, or a service whose files were removed."""
    return service_process(layout) or next(iter(unnamed_processes(layout, FIRST)), None)


def unnamed_processes(layout: Layout, name: str | None = None) -> list[Process]:
    """Services of this home on this machine, of one name or all, by lock and command line, whatever files contain."""
    if name is None:
        return modules.of_home(layout.home, modules.SERVICE)
    mine = modules.services(layout.home, name)
    path = file_of(layout, name, "lock")
    if not mine and is_locked(path):
        with contextlib.suppress(OSError, ValueError):
            holder = Process.of(int(path.read_text(encoding="ascii")[:20]))
            return [] if holder is None else [holder]
    return mine


def answers(layout: Layout, process: Process) -> bool:
    """Whether a service answers users and agents, whatever it answers."""
    said = [*records(layout).values(), read_service_file(layout) or {}]
    record = next((one for one in said if one.get("pid") == process.pid and "url" in one), {})
    urls = [str(record[name]) for name in ("url", "agents") if name in record]
    return bool(urls) and all(_answers_at(layout, url) for url in urls)


def _answers_at(layout: Layout, url: str) -> bool:
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    options: dict[str, Any] = {"context": tls.context(layout, url)} if parts.scheme == "https" else {}
    with contextlib.closing(kind(parts.hostname or "", parts.port, timeout=_HEALTH_S, **options)) as link:
        try:
            link.request("GET", HEALTH)
            link.getresponse()
        except (OSError, http.client.HTTPException):
            return False
    return True


def own_client(layout: Layout) -> Client:
    """The service of this home, as its administrator, whatever cluster the environment names (PLAIT_URL)."""
    url = service_url(layout)
    return Client.at(str(layout.home), url=url, token=layout.token_file.read_text(encoding="ascii").strip())


def others_ready(layout: Layout) -> bool:
    """Whether other services than the first are to lead when it does not."""
    return any(name != FIRST for name in records(layout))


def start_service(layout: Layout, options: dict[str, Any]) -> subprocess.Popen[bytes]:
    """The only service of a home, once it answers; `InputError` with its last words if it does not."""
    log = file_of(layout, FIRST, "log")
    process = _spawn(layout, options, log)
    _await(process, lambda: _answers(layout, process.pid), "the service", log)
    return process


def _await(process: subprocess.Popen[bytes], ready: Callable[[], bool], what: str, log: Path) -> None:
    """Wait until a service is ready, as long as it works; one that is stuck, or no longer wanted, is ended."""
    patience = Patience(round(IDLE_S / LOOK_S))
    try:
        while not ready():
            if process.poll() is not None:
                raise InputError(
                    f"{what} did not start: {procs.last_line(log, 'it printed nothing')}; all of it: {log}"
                )
            if patience.over([process.pid]):
                raise InputError(f"{what} does not answer and has done nothing for {IDLE_S:g} s; look at {log}")
            time.sleep(LOOK_S)
    except BaseException:
        end_child(process)
        raise


def _answers(layout: Layout, pid: int) -> bool:
    """Whether this process leads. Data of another one in service.json is not ours to remove."""
    said = read_service_file(layout) or {}
    return said.get("pid") == pid and process_of(said) is not None


def end_child(process: subprocess.Popen[bytes]) -> None:
    """End a service that we have just started."""
    found = Process.of(process.pid)
    if found is not None:
        end(found)


def start_standby(layout: Layout, options: dict[str, Any], name: str) -> str:
    """Start a standby service; returns its address once it answers.

    `options`: of the service, by flag; `name`: of the standby.
    """
    log = file_of(layout, name, "log")
    process = _spawn(layout, {**options, "standby": True, "name": name}, log)
    _await(process, lambda: records(layout).get(name, {}).get("pid") == process.pid, f"service {name}", log)
    return str(records(layout)[name]["url"])


def _spawn(layout: Layout, options: dict[str, Any], log_file: Path) -> subprocess.Popen[bytes]:
    """A service in a session of its own, so that it outlives this terminal.

    Where its store is may hold a password, and everybody sees the words of commands, so that goes by the environment.
    """
    said = words(ServiceOptions, {k: v for k, v in options.items() if k in SERVICE_OPTIONS and k != "db"})
    command = [sys.executable, "-m", "plait.live.service", "--home", str(layout.home), *said]
    environment = {name: value for name, value in os.environ.items() if name != STORE_VARIABLE}
    if "db" in options:
        environment[STORE_VARIABLE] = str(options["db"])
    with open(log_file, "ab", opener=lambda name, flags: os.open(name, flags, 0o600)) as log:
        return DetachedProcess(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd=layout.home,
            env=environment,
        )  # fmt: skip


def refuse_taken_port(port: int | None, host: str | None) -> None:
    """`InputError` for a port that is in use."""
    if not port:
        return
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host or "127.0.0.1", port))
        except OSError as error:
            raise InputError(f"cannot listen on port {port}: {error.strerror}; give another --port, or none") from None


def end(process: Process) -> None:
    """End a service; kill it if it does not end."""
    process.send(signal.SIGCONT)
    process.send(signal.SIGTERM)
    until = time.monotonic() + STOP_S
    while process.alive:
        if time.monotonic() > until:
            process.send(signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(process.pid, os.WNOHANG)
        time.sleep(LOOK_S)
