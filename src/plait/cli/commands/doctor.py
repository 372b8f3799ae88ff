"""`plait doctor`: whether this machine is set up to run jobs, and how to fix it."""

import contextlib
import importlib.util
import os
import pwd
import shutil
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import typer

from plait.cli.connection import HomeOption, JsonFlag
from plait.core.errors import PlaitError

OK, WARNING, BROKEN = "ok", "warning", "broken"

#: extra -> modules it brings; the first two are needed to run a cluster
EXTRAS = {
    "live": ("msgspec", "starlette", "uvicorn", "sqlalchemy", "httpx", "psutil", "yaml", "prometheus_client"),
    "torch": ("torch",),
    "sim": ("numba",),
}
LEAST_DISK_BYTES, LEAST_SHM_BYTES = 1e9, 64e6


@dataclass(frozen=True)
class Finding:
    """One check: what was checked, its state, and how to fix it."""

    what: str
    state: str
    found: str
    fix: str = ""


def doctor(home: HomeOption = None, as_json: JsonFlag = False) -> None:
    """Check the set-up and suggest repairs.

    The exit code is 1 if a cluster cannot run here.
    """
    findings = list(examine(home))
    if as_json:
        from plait.cli.connection import print_json

        print_json([vars(f) for f in findings])
    else:
        marks = {OK: "ok     ", WARNING: "warning", BROKEN: "BROKEN "}
        for f in findings:
            typer.echo(f"{marks[f.state]} {f.what}: {f.found}" + (f"\n        -> {f.fix}" if f.fix else ""))
        broken = sum(f.state == BROKEN for f in findings)
        typer.echo("a cluster can run here: plait up" if not broken else f"{broken} things to fix first")
    if any(f.state == BROKEN for f in findings):
        raise typer.Exit(1)


def examine(home: str | None) -> Iterator[Finding]:
    """Run all checks, from the interpreter to the service."""
    yield python()
    yield from extras()
    yield from folders(home)
    yield account(home)
    yield port()
    yield shared_memory()
    yield gpus()
    yield service(home)
    yield from switches(home)


def python() -> Finding:
    """The version and path of the Python interpreter that runs this command; always OK."""
    found = f"{sys.version.split()[0]} at {sys.executable}"
    return Finding("Python", OK, found)


def extras() -> Iterator[Finding]:
    """Whether the optional dependencies are installed, without importing them."""
    for extra, modules in EXTRAS.items():
        missing = [m for m in modules if importlib.util.find_spec(m) is None]
        install = f"pip install 'plait[{extra}]'"
        if not missing:
            yield Finding(f"extra [{extra}]", OK, "installed")
        elif extra == "live":
            yield Finding("extra [live]", BROKEN, f"without {', '.join(missing)}", install)
        else:
            why = {
                "torch": "jobs of this Python cannot train; other commands run, without stages",
                "sim": "decisions take five to ten times longer",
            }[extra]
            yield Finding(f"extra [{extra}]", WARNING, f"not installed: {why}", install)


def folders(home: str | None) -> Iterator[Finding]:
    """Whether the home folder is private and writable, and the disk has room."""
    from plait.live.layout import Layout

    folder = Layout.at(home).home
    there = next(p for p in (folder, *folder.parents) if p.exists())
    if not os.access(there, os.W_OK | os.X_OK):
        fix = "give another folder with --home, or set PLAIT_HOME"
        yield Finding("home folder", BROKEN, f"{there} is not writable", fix)
        return
    if folder.exists() and folder.stat().st_mode & 0o066:
        mode = oct(folder.stat().st_mode & 0o777)[2:]
        yield Finding("home folder", BROKEN, f"{folder} is open to others (mode {mode})", f"chmod 700 {folder}")
    else:
        yield Finding("home folder", OK, str(folder) + ("" if folder.exists() else " (made by plait up)"))
    free = shutil.disk_usage(there).free
    text = f"{free / 1e9:.1f} GB free for logs and checkpoints in {there}"
    if free < LEAST_DISK_BYTES:
        yield Finding("disk", WARNING, text, "make room, or give another folder with --home")
    else:
        yield Finding("disk", OK, text)


def account(home: str | None = None) -> Finding:
    """The account that jobs run as, which is that of the service without --as-owner; a warning if it is root."""
    from plait.live.layout import Layout
    from plait.live.system.procs import read_json

    if (read_json(Layout.at(home).options_file()) or {}).get("as-owner"):
        return Finding("account", OK, "jobs run as the accounts of their users")
    if (number := os.geteuid()) != 0:
        name = str(number)
        with contextlib.suppress(KeyError):  # an account without a name, as in containers
            name = pwd.getpwuid(number).pw_name
        return Finding("account", OK, f"jobs of all users run as {name}")
    why = "jobs of all users run as root, and may read and change everything on the nodes"
    fix = "plait up --as-owner --home /var/lib/plait, or start the service as an account of its own"
    return Finding("account", WARNING, why, fix)


def port() -> Finding:
    """Whether a service can listen on the loopback address."""
    try:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen()
    except OSError as error:
        return Finding("loopback", BROKEN, f"cannot listen on 127.0.0.1: {error.strerror}", "look at the firewall")
    return Finding("loopback", OK, "a service can listen on 127.0.0.1")


def shared_memory() -> Finding:
    """Whether shared memory, which interleaved jobs use for gates, is writable and large enough."""
    from plait.live.layout import SHARED_MEMORY

    if not (SHARED_MEMORY.is_dir() and os.access(SHARED_MEMORY, os.W_OK)):
        text = "not writable: gates are files in the home folder, and turns take longer"
        return Finding("/dev/shm", WARNING, text, "mount a tmpfs on /dev/shm")
    free = shutil.disk_usage(SHARED_MEMORY).free
    if free < LEAST_SHM_BYTES:
        fix = "mount -o remount,size=1G /dev/shm; in containers: --shm-size=1g"
        return Finding("/dev/shm", WARNING, f"{free / 1e6:.0f} MB free; data loaders of PyTorch need more", fix)
    return Finding("/dev/shm", OK, f"{free / 1e9:.1f} GB free")


def gpus() -> Finding:
    """The GPUs that the driver lists."""
    if not Path("/proc/driver/nvidia/gpus").is_dir():
        return Finding("GPUs", OK, "no NVIDIA driver: give CPU slots, plait up --nodes 2 --gpus-per-node 4")
    count = len(list(Path("/proc/driver/nvidia/gpus").iterdir()))
    if importlib.util.find_spec("pynvml") is None:
        fix = "pip install 'plait[nvidia]'"
        return Finding("GPUs", WARNING, f"{count} there, but their kind and memory cannot be read", fix)
    return Finding("GPUs", OK, f"{count}")


def service(home: str | None) -> Finding:
    """Whether the service answers; having none is OK."""
    from plait.live.client.client import Client, read_service_file
    from plait.live.layout import Layout

    layout = Layout.at(home)
    data = read_service_file(layout)
    if data is None and "PLAIT_URL" not in os.environ:
        return Finding("service", OK, "none runs; start one with: plait up")
    try:
        with Client.at(home) as client:
            found = client.status()
    except PlaitError as error:
        fix = f"plait down; plait up; its log is {layout.home / 'service.log'}"
        return Finding("service", WARNING, str(error), fix)
    return Finding("service", OK, f"answers at {client.url}, policy {found.policy}")


def switches(home: str | None) -> Iterator[Finding]:
    """Whether the switches of a running cluster work and its policy grants their memory; nothing without a network."""
    from plait.live.client.client import Client, read_service_file
    from plait.live.layout import Layout

    if read_service_file(Layout.at(home)) is None and "PLAIT_URL" not in os.environ:
        return
    try:
        with Client.at(home) as client:
            found = client.network()
    except PlaitError:
        return  # `service` has the reason
    if not found.switches:
        return
    lost = [one for one in found.switches if one.state != "up"]
    if lost:
        why = "; ".join(f"{one.switch} is {one.state}: {one.trouble or 'starting'}" for one in lost)
        yield Finding("switches", WARNING, why, "look at nodes/NAME/switch.log in the home folder")
    elif not found.grants:
        fix = "plait policy set plait:ina=inalloc"
        yield Finding("switches", WARNING, f"policy {found.policy} grants no memory of them", fix)
    else:
        yield Finding("switches", OK, f"{len(found.switches)} aggregate")
