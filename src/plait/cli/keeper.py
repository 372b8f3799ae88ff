"""Keeps a cluster of this machine up: starts its service and its agents again when they die. `plait up` starts it.

Nothing depends on it: jobs, agents and the service go on without it, and the next `plait up` starts it again.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from plait.live.agent.procs import Process
    from plait.live.layout import Layout

LOOK_S = 1.0
#: A service that does not come up is tried again after so many seconds, twice as many each time, up to the second.
FIRST_S, MOST_S = 1.0, 60.0


def spawn(layout: Layout) -> None:
    """Start the keeper of a home in a session of its own; nothing happens if there is one."""
    command = [sys.executable, "-m", "plait.cli.keeper", "--home", str(layout.home)]
    with open(layout.home / "keeper.log", "ab") as log:
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)


def keeper_process(layout: Layout) -> Process | None:
    """The keeper of this home, if it lives."""
    from plait.live.agent import procs

    record = procs.read_json(layout.home / "keeper.json") or {}
    pid, start = record.get("pid"), record.get("start_time")
    process = procs.Process.of(pid) if isinstance(pid, int) else None
    return process if process is not None and process.start_time == start else None


def stop_keeper(layout: Layout) -> None:
    """End the keeper, so that it does not start again what is about to be stopped. It has nothing to put in order."""
    import signal

    process = keeper_process(layout)
    if process is not None and process.pid == os.getpid():
        return  # a start of its own that failed is being cleaned up
    if process is not None:
        process.send(signal.SIGKILL)
        while process.alive:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(process.pid, os.WNOHANG)
            time.sleep(0.01)
    (layout.home / "keeper.json").unlink(missing_ok=True)


def keep(layout: Layout, until: Callable[[], bool] = lambda: False) -> None:
    """Look every second, mend what is broken, say so; returns at once if the home has a keeper already."""
    from plait.cli.cluster import mend, remembered_backend
    from plait.core.errors import PlaitError
    from plait.live.agent import procs

    with open(layout.home / "keeper.lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        me = procs.Process.of(os.getpid())
        assert me is not None
        procs.write_json(layout.home / "keeper.json", {"pid": me.pid, "start_time": me.start_time})
        pause_s, backend = FIRST_S, remembered_backend(layout)
        while not until():
            time.sleep(LOOK_S)
            _reap()
            try:
                mended = mend(layout, backend)
            except PlaitError as error:
                print(f"{time.strftime('%FT%T')} {error}; next try in {pause_s:g} s", flush=True)
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, MOST_S)
                continue
            pause_s = FIRST_S
            if mended:
                print(f"{time.strftime('%FT%T')} mended: {'; '.join(mended)}", flush=True)


def _reap() -> None:
    """Take leave of children that died, or they would still look alive."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def main() -> None:
    """Keep one home."""
    from plait.live.layout import Layout

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--home", required=True)
    keep(Layout.at(parser.parse_args().home))


if __name__ == "__main__":
    main()
