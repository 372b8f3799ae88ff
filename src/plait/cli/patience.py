"""Commands wait for a service that is away for a moment: jobs go on without it, and its keeper starts it again."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from plait.live.notes import note

#: Seconds between two looks.
LOOK_S = 0.3
#: A keeper starts a service again within so many seconds.
STARTED_S = 60.0
#: One that is asked for after so many seconds without a question has answered in between.
AGAIN_S = 10.0


def patiently(service: Any, job: str) -> dict[str, Any]:
    """The job; a service that is away for less than a minute is waited for: jobs go on without it."""
    from plait.live.client.client import NotRunning

    until = time.monotonic() + STARTED_S
    while True:
        try:
            found: dict[str, Any] = service.job(job)
            return found
        except NotRunning:
            if time.monotonic() > until:
                raise
            time.sleep(1)


def while_it_is_started(home: str | None) -> Callable[[], bool]:
    """Whether to wait on for a service that does not answer: for a minute, while its keeper is there to start it."""
    from plait.live.layout import Layout
    from plait.live.supervisor import daemon

    until = asked = -math.inf

    def waits() -> bool:
        nonlocal until, asked
        if daemon.running(Layout.at(home), daemon.KEEPER) is None:
            return False
        now = time.monotonic()
        if now > asked + AGAIN_S:  # it answered in between
            until = now + STARTED_S
            note("the service does not answer; its keeper starts it again, and the log goes on then")
        asked = now
        return now < until

    return waits


def last_state(job: str, home: str | None) -> str | None:
    """The state of a job in the store of a service that was stopped; None where that is not on this machine."""
    import contextlib
    import sqlite3

    from plait.live.layout import Layout, job_number

    path = Layout.at(home).database
    if os.environ.get("PLAIT_URL") or not path.exists():
        return None
    try:
        with contextlib.closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
            found = database.execute("SELECT state FROM jobs WHERE number = ?", (job_number(job),)).fetchone()
    except sqlite3.Error:
        return None
    return None if found is None else str(found[0])


def awaited(ask: Callable[[], Mapping[str, Any]], waits: Callable[[], bool]) -> Mapping[str, Any]:
    """The answer, waiting for the service as long as `waits` says."""
    from plait.live.client.client import NotRunning

    while True:
        try:
            return ask()
        except NotRunning:
            if not waits():
                raise
            time.sleep(LOOK_S)
