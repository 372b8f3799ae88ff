"""A small process next to each runner that ends the job when the runner cannot: it was killed, or it stands still.

The process that the runner started dies with the runner (PR_SET_PDEATHSIG), its own children do not: a shell's program
would continue alone if the agent were dead too. The guardian is a fork of the runner, has a session of its own, and the
kernel signals it when the runner dies. It finds processes of the job by their mark, their control group and the session
of the job.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Collection
from typing import NoReturn

from plait.live.agent.lease import Deadman
from plait.live.system import cgroups, procs

_LOOK_S = 5.0


def fork(marks: Collection[str], session: int, clock: tuple[str, Deadman] | None) -> int:
    """Start one for the job with these marks and this session, and the lease at this path; its pid. Raises OSError."""
    runner = os.getpid()
    child = os.fork()
    if child == 0:
        try:
            _guard(runner, marks, session, clock)
        finally:
            os._exit(70)
    return child


def _guard(runner: int, marks: Collection[str], session: int, clock: tuple[str, Deadman] | None) -> NoReturn:
    os.setsid()
    signal.set_wakeup_fd(-1)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    procs.prctl(procs.PR_SET_PDEATHSIG, signal.SIGTERM)
    procs.prctl(procs.PR_SET_CHILD_SUBREAPER, 0)
    os.closerange(3, os.sysconf("SC_OPEN_MAX") if os.sysconf("SC_OPEN_MAX") < 1 << 16 else 1 << 16)
    deadman = Deadman(clock[0], clock[1].lease, kills=False) if clock is not None else None
    while os.getppid() == runner:
        wait_s = _LOOK_S
        if deadman is not None:
            lease = deadman.look()
            wait_s = min(lease.look_s, lease.until_s - procs.boot_s())
            if wait_s <= 0:
                break
        if signal.sigtimedwait({signal.SIGTERM}, wait_s) is not None and os.getppid() != runner:
            break
    procs.kill_until_none(
        lambda: {p for m in marks for p in procs.marked(m)} | procs.in_session(session), lambda: None, 30.0
    )
    for mark in marks:
        cgroups.remove(mark)
    os._exit(0)
