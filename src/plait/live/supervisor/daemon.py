"""Common parts of keepers: a process of its own, one of a name in a home, that checks and repairs every second.

The keeper `keeper` of a home has its log, its lock and its identity under that name in the home folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import IO

from plait.core.errors import InputError, PlaitError
from plait.core.files import is_at_its_path
from plait.live.backends.host import DetachedProcess
from plait.live.layout import Layout
from plait.live.supervisor.services import process_of
from plait.live.system import modules, procs
from plait.live.system.procs import Process

#: The keeper of a home's first service and of its nodes.
KEEPER = "keeper"
LOOK_S = 1.0
#: The pause after trouble, seconds; twice as long each time, up to the longest.
FIRST_S, MOST_S = 1.0, 60.0
#: Seconds that another process may be at work on a home: longer than a service and its nodes get to come up.
ALONE_S = 90.0
_RETRY_S = 0.02


@contextlib.contextmanager
def exclusive(layout: Layout, patience_s: float = ALONE_S) -> Iterator[None]:
    """No other process starts or ends services of this home meanwhile: `plait up`, `plait down` and keepers take turns.

    The second process checks the state again. Raises `InputError` if the other one does not come to an end. Each
    machine has a lock of its own, since what another one keeps is left alone anyway: a process that died at work may
    hold its lock for ever, where the home is on NFS.
    """
    with open(layout.home / f"up-{socket.gethostname()}.lock", "w") as lock:
        until = time.monotonic() + patience_s
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise InputError(
                        f"another plait up or plait down has been running in {layout.home} for {patience_s:g} s; end "
                        "that one, then try again"
                    ) from None
            time.sleep(_RETRY_S)
        yield


def spawn(layout: Layout, name: str, module: str, *words: str) -> None:
    """Start keeper `name`, which runs `module`, in its own session so that it outlives this terminal, unless it runs.

    It is known from now on, so that `plait down` finds it, however early that comes.
    """
    if running(layout, name) is not None:
        return
    command = [sys.executable, "-m", module, "--home", str(layout.home), *words]
    with open(layout.home / f"{name}.log", "ab") as log:
        child = DetachedProcess(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    _record(layout, name, child.pid)


def _record(layout: Layout, name: str, pid: int) -> None:
    """Write who the keeper is; on a full disk it is found by its command line."""
    process = Process.of(pid)
    if process is not None:
        with contextlib.suppress(OSError):
            procs.write_json(layout.home / f"{name}.json", {**vars(process), "host": socket.gethostname()})


class KeeperClaim:
    """A keeper's lock; true if this process is the keeper of that name."""

    def __init__(self, layout: Layout, name: str, lock: IO[str] | None) -> None:
        self._layout, self._name, self._lock = layout, name, lock

    def __bool__(self) -> bool:
        return self._lock is not None

    def holds(self) -> bool:
        """Whether the lock is still that of the home; a record that is lost, as on a full disk, is written again."""
        if self._lock is None or not is_at_its_path(self._lock):
            return False
        if not (self._layout.home / f"{self._name}.json").exists():
            _record(self._layout, self._name, os.getpid())
        return True


@contextlib.contextmanager
def only_one(layout: Layout, name: str) -> Iterator[KeeperClaim]:
    """Claim to be the keeper of that name; the claim is false if another process is."""
    with open(layout.home / f"{name}.lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield KeeperClaim(layout, name, None)
            return
        _record(layout, name, os.getpid())
        claim = KeeperClaim(layout, name, lock)
        yield claim
        if is_at_its_path(lock):
            (layout.home / f"{name}.json").unlink(missing_ok=True)


def watch(look: Callable[[], Sequence[str]], until: Callable[[], bool] = lambda: False) -> None:
    """Look every second and log actions; after an error pause, then look again: nothing else repairs a keeper."""
    pause_s = FIRST_S
    while not until():
        try:
            done = look()
        except Exception as error:
            log_line(f"{error if isinstance(error, PlaitError) else traceback.format_exc()}; next try in {pause_s:g} s")
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, MOST_S)
            continue
        pause_s = FIRST_S
        for line in done:
            log_line(line)
        time.sleep(LOOK_S)


def log_line(line: str) -> None:
    """A line of a keeper's log, in one piece; a full disk loses the line, never the keeper."""
    with contextlib.suppress(OSError):
        print(f"{time.strftime('%FT%T')} {line}\n", end="", flush=True)


def running(layout: Layout, name: str) -> Process | None:
    """The keeper of that name, if it lives on this machine, also where its record was lost."""
    recorded = process_of(procs.read_json(layout.home / f"{name}.json") or {})
    return recorded or _unrecorded(layout).get(name)


def _unrecorded(layout: Layout) -> dict[str, Process]:
    """Keepers of a home by name, as their command lines show them."""
    first = [(KEEPER, process) for process in modules.of_home(layout.home, modules.KEEPER)]
    standbys = {
        f"{KEEPER}-{modules.option(modules.command_line(process.pid), 'name')}": process
        for process in modules.of_home(layout.home, modules.STANDBY)
    }
    return standbys | dict(first)


def stop(layout: Layout, name: str) -> bool:
    """End a keeper of this machine, so that it does not start again what is about to be stopped; whether it ran."""
    ended = False
    while (process := running(layout, name)) is not None:
        process.send(signal.SIGKILL)  # it has nothing to put in order
        while process.alive:
            time.sleep(0.01)
        (layout.home / f"{name}.json").unlink(missing_ok=True)
        ended = True
    return ended


def stop_all(layout: Layout) -> bool:
    """End all keepers of a home on this machine; whether there were any."""
    names = {path.stem for path in layout.home.glob("keeper*.json")} | _unrecorded(layout).keys()
    ended = [stop(layout, name) for name in sorted(names)]
    return any(ended)
