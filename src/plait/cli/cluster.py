"""`plait up` and `plait down`: a cluster on this machine, in the background."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from plait.cli.keeper import spawn, stop_keeper
from plait.cli.live import HomeOption, duration, note

if TYPE_CHECKING:
    from plait.live.agent.procs import Process
    from plait.live.backends.base import Backend
    from plait.live.client import Client
    from plait.live.layout import Layout

#: `plait up` gives up after so many seconds; a service that was told to stop is killed after so many.
PATIENCE_S, STOP_S = 30.0, 10.0
LOOK_S = 0.02
#: How this home was started last, so that `plait up` alone starts the same again.
OPTIONS_FILE = "up.json"
#: Those of them that are the service's own.
SERVICE_OPTIONS = (
    "policy", "round", "port", "db", "user-jobs", "project-jobs", "host", "tls-cert", "tls-key", "insecure", "lost",
    "lease", "backend", "standby", "name",
)  # fmt: skip


def up(
    nodes: Annotated[int | None, typer.Option(min=1, help="Nodes to make of this machine; default: 1.")] = None,
    gpus_per_node: Annotated[
        int | None, typer.Option(min=1, help="GPUs of each, or CPU slots where there are no GPUs.")
    ] = None,
    policy: Annotated[str | None, typer.Option("--policy", "-p", help="A policy of `plait policies`.")] = None,
    round_s: Annotated[float | None, typer.Option("--round", min=0.01, help="Least seconds between decisions.")] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="Port on 127.0.0.1; default: a free one.")] = None,
    fake: Annotated[bool, typer.Option("--fake", help="CPU slots even where there are GPUs.")] = False,
    db: Annotated[str | None, typer.Option(help="postgresql://host/name; default: SQLite in the home folder.")] = None,
    user_jobs: Annotated[int | None, typer.Option(min=0, help="Jobs a user may have open; default: 10000.")] = None,
    project_jobs: Annotated[int | None, typer.Option(min=0, help="... and a project; default: 50000.")] = None,
    backend: Annotated[str | None, typer.Option(help="Who starts the nodes: local (default), ray, slurm.")] = None,
    address: Annotated[str | None, typer.Option(help="Of the Ray cluster's head: host:port.")] = None,
    option: Annotated[
        list[str] | None, typer.Option("--option", "-o", help="NAME=VALUE for the backend; may be repeated.")
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on; default: 127.0.0.1.")] = None,
    tls_cert: Annotated[
        str | None, typer.Option(help="Certificate file; with --tls-key the service has HTTPS.")
    ] = None,
    tls_key: Annotated[str | None, typer.Option(help="Key file.")] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Listen beyond this machine without TLS.")] = False,
    lost: Annotated[float | None, typer.Option(min=0.1, help="A node silent for so many seconds is lost: 15.")] = None,
    lease: Annotated[float | None, typer.Option(min=1, help="Seconds that agents work without a service: 600.")] = None,
    standby: Annotated[
        bool, typer.Option("--standby", help="Start another service, that takes over when the first one dies.")
    ] = False,
    name: Annotated[str | None, typer.Option(help="With --standby: what to call it; default: 2.")] = None,
    foreground: Annotated[bool, typer.Option("--foreground", help="Stay here until Ctrl-C, then stop.")] = False,
    home: HomeOption = None,
) -> None:
    """Start the service and its nodes, on this machine or on a cluster; jobs of an earlier run go on.

    \b
    plait up
    plait up --nodes 2 --gpus-per-node 4 --policy muri-l
    plait up --backend ray --address 10.0.0.1:6379
    plait up --backend slurm -o partition=gpu -o max-nodes=8
    """
    from plait.live.layout import Layout

    layout = Layout.at(home)
    given: dict[str, Any] = {
        "nodes": nodes, "gpus-per-node": gpus_per_node, "policy": policy, "round": round_s, "port": port,
        "fake": fake or None, "db": db, "user-jobs": user_jobs, "project-jobs": project_jobs, "backend": backend,
        "address": address, "host": host, "tls-cert": tls_cert, "tls-key": tls_key, "insecure": insecure or None,
        "lost": lost, "lease": lease, **_pairs(option or []),
    }  # fmt: skip
    given = {key: value for key, value in given.items() if value is not None}
    if standby:
        _stand_by(layout, given, name)
        return
    began = time.monotonic()
    with start(layout, given) as service:
        spawn(layout)
        for line in welcome(service, layout, home, time.monotonic() - began):
            typer.echo(line)
    if foreground:
        _stay(layout)


def _stand_by(layout: Layout, given: dict[str, Any], name: str | None) -> None:
    from plait.cli import standby

    url = standby.start(layout, {**remembered(layout), **given}, name or standby.SECOND)
    typer.echo(f"a service stands by at {url}; it takes over when the one that leads dies")


def _pairs(words: list[str]) -> dict[str, str]:
    """Options for the backend, which knows what they mean; `InputError` for what is no NAME=VALUE."""
    from plait.core.errors import InputError

    pairs = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name or name in SERVICE_OPTIONS:
            raise InputError(f"--option {word!r} is no NAME=VALUE for a backend; write for example: -o partition=gpu")
        pairs[name] = value
    return pairs


def start(layout: Layout, given: dict[str, Any]) -> Client:
    """Start a cluster and wait until all its nodes work; options that are not given are those of the last time.

    Raises `InputError` if one runs already or the service does not come up, with the end of its log.
    """
    from plait.core.errors import MissingExtra
    from plait.live.layout import make_private

    missing = [
        m for m in ("fastapi", "uvicorn", "sqlalchemy", "alembic", "httpx") if importlib.util.find_spec(m) is None
    ]
    if missing:
        raise MissingExtra(", ".join(missing), "live", "running a cluster")
    from plait.live.backends.base import open_backend
    from plait.live.client import Client

    running = service_process(layout)
    if running is not None:
        return _mended(layout, given, running.pid)
    if "policy" in given:
        from plait.cli.runs import import_from_here
        from plait.policies.catalog import make_policy

        import_from_here()
        make_policy(given["policy"])  # a typing mistake is found here, with a suggestion
    _refuse_taken_port(given.get("port"), given.get("host"))
    make_private(layout.home)
    options = {**remembered(layout), **given}
    backend = open_backend(layout, options)
    if _others_ready(layout):
        return _rejoin(layout, options, backend)
    layout.service_file.unlink(missing_ok=True)  # of a service that died
    process = spawn_service(layout, options, layout.home / "service.log")
    try:
        _await_service(layout, process)
        backend.start()
        _remember(layout, options)
        service = Client.at(str(layout.home), url=_url(layout), token=layout.token_file.read_text().strip())
        _await_nodes(service, layout, process, backend.expected())
    except BaseException:
        stop(layout, stop_jobs=False)
        raise
    return service


def remembered_backend(layout: Layout, stop_grace_s: float = STOP_S) -> Backend:
    """The backend by which this home's nodes were started last."""
    from plait.live.backends.base import open_backend

    return open_backend(layout, remembered(layout), stop_grace_s)


def mend(layout: Layout, backend: Backend) -> list[str]:
    """Start again what has died of a cluster that was up: the service, agents. Returns what was done.

    Keep the backend between calls: it knows agents that are still being born.
    """
    from plait.live.client import Client

    if service_process(layout) is None:
        start(layout, {}).close()
        return ["the service was started again"]
    with Client.at(str(layout.home)) as service:
        return backend.tend(service)


def _mended(layout: Layout, given: dict[str, Any], pid: int) -> Client:
    """The service that runs, with agents that have died started again; `InputError` if nothing is to be done."""
    from plait.core.errors import InputError
    from plait.live.client import Client

    backend = remembered_backend(layout)
    # Nodes are remembered once a cluster is up: until then another `plait up` is at work on it.
    started = [] if given or not (layout.home / OPTIONS_FILE).exists() else backend.start()
    if not started:
        raise InputError(
            f"a service runs in {layout.home} already (process {pid}); look at it with: plait status, "
            "stop it with: plait down"
        )
    note(f"the service runs; started again the agents of {', '.join(started)}")
    return Client.at(str(layout.home))


def _others_ready(layout: Layout) -> bool:
    """Whether other services than the first are to lead when it does not."""
    from plait.live.service.facts import FIRST, records

    return any(name != FIRST for name in records(layout))


def _rejoin(layout: Layout, options: dict[str, Any], backend: Backend) -> Client:
    """Where others stand ready one of them leads by now: the first service comes back to stand by for that one."""
    from plait.cli import standby
    from plait.live.client import Client
    from plait.live.service.facts import FIRST

    standby.spawn(layout, options, FIRST)
    backend.start()
    service = Client.at(str(layout.home))
    service.status()
    return service


def spawn_service(layout: Layout, options: dict[str, Any], log_file: Path) -> subprocess.Popen[bytes]:
    """A service in a session of its own, so that it outlives this terminal."""
    words = [word for name in SERVICE_OPTIONS if name in options for word in _words(name, options[name])]
    command = [sys.executable, "-m", "plait.live.service", "--home", str(layout.home), *words]
    with open(log_file, "ab") as log:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd=layout.home
        )


def _words(name: str, value: Any) -> list[str]:
    return [f"--{name}"] if value is True else [f"--{name}", str(value)]


def _url(layout: Layout) -> str:
    from plait.live.client import service_url

    return service_url(layout)


def _await_service(layout: Layout, process: subprocess.Popen[bytes]) -> None:
    from plait.core.errors import InputError

    until = time.monotonic() + PATIENCE_S
    while not layout.service_file.exists():
        if process.poll() is not None:
            raise InputError(
                f"the service did not start: {_last_line(layout)}; all of it: {layout.home / 'service.log'}"
            )
        if time.monotonic() > until:
            process.terminate()
            raise InputError(f"the service did not answer in {PATIENCE_S:g} s; look at {layout.home / 'service.log'}")
        time.sleep(LOOK_S)


def _await_nodes(service: Client, layout: Layout, process: subprocess.Popen[bytes], wanted: int) -> None:
    """Until as many nodes are ready as were started."""
    from plait.core.errors import InputError

    until = time.monotonic() + PATIENCE_S
    while True:
        there = sum(node["state"] in ("ready", "drained") for node in service.nodes())
        if there >= wanted:
            return
        if process.poll() is not None:
            raise InputError(f"the service stopped: {_last_line(layout)}; all of it: {layout.home / 'service.log'}")
        if time.monotonic() > until:
            logs = layout.home / "nodes" / "*" / "agent.log"
            raise InputError(f"{there} of {wanted} nodes joined in {PATIENCE_S:g} s; look at {logs}")
        time.sleep(LOOK_S)


def _last_line(layout: Layout) -> str:
    try:
        lines = (layout.home / "service.log").read_text(encoding="utf-8", errors="replace").strip().splitlines()
    except OSError:
        lines = []
    return lines[-1] if lines else "it said nothing"


def _refuse_taken_port(port: int | None, host: str | None) -> None:
    import socket

    from plait.core.errors import InputError

    if not port:
        return
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host or "127.0.0.1", port))
        except OSError as error:
            raise InputError(f"cannot listen on port {port}: {error.strerror}; give another --port, or none") from None


def remembered(layout: Layout) -> dict[str, Any]:
    """The options of the last `plait up`."""
    try:
        found = json.loads((layout.home / OPTIONS_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return {k: v for k, v in found.items() if k != "policy"}  # the store knows the policy, also one set later


def _remember(layout: Layout, options: dict[str, Any]) -> None:
    (layout.home / OPTIONS_FILE).write_text(json.dumps(options) + "\n", encoding="utf-8")


def welcome(service: Client, layout: Layout, home: str | None, took_s: float) -> list[str]:
    """What somebody needs who has just started a cluster: URL, token, the next command."""
    found = service.status()
    nodes, gpus = sum(found["nodes"].values()), found["gpus"]["total"]
    size = f"{nodes} node{'s' * (nodes != 1)}, {gpus} slot{'s' * (gpus != 1)}"
    with_home = "" if home is None else f" --home {home}"
    lines = [f"plait is up at {service.url} ({duration(took_s)}): {size}, policy {found['policy']}"]
    lines.append(f"token of the administrator: {layout.token_file}")
    here = {state: n for state, n in found["jobs"].items() if n and state not in ("finished", "failed", "cancelled")}
    active = ", ".join(f"{count} {state}" for state, count in here.items())
    if active:
        lines.append(f"jobs that were here go on: {active}")
    lines.append(f"next: plait submit{with_home} -- python train.py")
    lines.append(f"then: plait top{with_home}; at the end: plait down{with_home}")
    return lines


def _stay(layout: Layout) -> None:
    note("Ctrl-C stops it; jobs go on")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt):
        while service_process(layout) is not None:
            time.sleep(0.2)
    for line in stop(layout, stop_jobs=False):
        typer.echo(line)


def down(
    stop_jobs: Annotated[bool, typer.Option("--stop-jobs", help="Jobs too, after a checkpoint.")] = False,
    home: HomeOption = None,
) -> None:
    """Stop the service and its nodes. Jobs go on, and are taken back by the next `plait up`; or stop them too."""
    from plait.live.layout import Layout

    for line in stop(Layout.at(home), stop_jobs=stop_jobs):
        typer.echo(line)


def stop(layout: Layout, *, stop_jobs: bool, patience_s: float = STOP_S) -> list[str]:
    """End all processes of a cluster on this machine; returns what was done and what is left, for people.

    Jobs get `patience_s` for a checkpoint. The store, logs and checkpoints stay where they are.
    """
    from plait.cli import standby
    from plait.live.service.facts import record_file, records

    said = []
    stop_keeper(layout)
    standby.stop_keepers(layout)
    ready, process = standby.processes(layout), service_process(layout)
    # Those that follow end first, or they would take over.
    for name in sorted(ready, key=lambda name: records(layout).get(name, {}).get("role") == "leader"):
        _end(ready[name])
        record_file(layout, name).unlink(missing_ok=True)
    if process is not None and process.alive:
        _end(process)
    if ready or process is not None:
        said.append("the service is stopped" if len(ready) < 2 else f"{len(ready)} services are stopped")
    elsewhere = records(layout)
    if elsewhere:
        said.append(f"other services of this home go on: {', '.join(str(r['url']) for r in elsewhere.values())}")
    before = job_processes(layout)
    if (layout.home / "nodes").is_dir():
        remembered_backend(layout, patience_s).stop(jobs=stop_jobs)
    if not elsewhere:
        layout.service_file.unlink(missing_ok=True)
    if stop_jobs:
        kill_jobs(layout)
    left = job_processes(layout)
    if not left:
        _remove_gates(layout)
    if not said and not before:
        return [f"nothing runs in {layout.home}"]
    jobs = sorted({mark.split(":")[1] for mark in left.values()})
    if jobs:
        said.append(f"still running: {', '.join(jobs)}; plait up takes them back, plait down --stop-jobs ends them")
    elif before:
        count = len({mark.split(":")[1] for mark in before.values()})
        said.append(f"{count} job{'s' * (count != 1)} stopped; plait up goes on with {'them' if count != 1 else 'it'}")
    return said


def service_process(layout: Layout) -> Process | None:
    """The first service of this home, if it lives; whether it leads or stands by, where there are several."""
    from plait.cli.standby import process_of
    from plait.live.client import read_service_file
    from plait.live.service.facts import FIRST, records

    ready = records(layout)
    data = ready.get(FIRST) if ready else read_service_file(layout)
    return None if data is None else process_of(data)


def _end(process: Process) -> None:
    process.send(signal.SIGCONT)
    process.send(signal.SIGTERM)
    until = time.monotonic() + STOP_S
    while process.alive:
        if time.monotonic() > until:
            process.send(signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(process.pid, os.WNOHANG)
        time.sleep(LOOK_S)


def job_processes(layout: Layout) -> dict[int, str]:
    """Processes of jobs of this home: pid -> its attempt as `HASH:JOB:EPOCH:RANK`."""
    import hashlib

    from plait.live.agent import procs

    begin = f"{procs.MARK}={hashlib.sha256(str(layout.home).encode()).hexdigest()[:12]}:".encode()
    found = {}
    for pid in procs.pids():
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            continue
        mark = next((word for word in environment.split(b"\0") if word.startswith(begin)), None)
        if mark is not None and procs.start_time(pid) is not None:
            found[pid] = mark.partition(b"=")[2].decode()
    return found


def _remove_gates(layout: Layout) -> None:
    """Gates of a home without jobs are of no use, and shared memory is not to be left behind."""
    import shutil

    shutil.rmtree(layout.gates, ignore_errors=True)
    if layout.gates.parent != layout.home:
        with contextlib.suppress(OSError):
            layout.gates.parent.rmdir()


def kill_jobs(layout: Layout) -> None:
    """What an agent would have stopped, had there been one: jobs whose agent is dead."""
    from plait.live.agent import procs

    procs.kill_until_none(lambda: job_processes(layout), lambda: None)
