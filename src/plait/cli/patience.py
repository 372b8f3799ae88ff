"""Waiting for a service that does not answer for a moment: jobs continue, and its keeper restarts it."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from plait.live.notes import note

if TYPE_CHECKING:
    from plait.live.api.jobs import WholeJob
    from plait.live.client.client import Client

T = TypeVar("T")
#: Seconds between two looks.
LOOK_S = 0.3
#: A keeper restarts a service within this many seconds.
STARTED_S = 60.0
#: After this many seconds without a failed request, the service must have answered in between.
AGAIN_S = 10.0


def patiently(service: Client, job: str) -> WholeJob:
    """The job; waits up to a minute for a service that does not answer, since jobs continue without it."""
    from plait.live.client.client import NotRunning

    until = time.monotonic() + STARTED_S
    while True:
        try:
            return service.job(job)
        except NotRunning:
            if time.monotonic() > until:
                raise
            time.sleep(1)


def while_it_is_started(home: str | None) -> Callable[[], bool]:
    """A function: whether to keep waiting for a silent service, up to a minute and while its keeper runs."""
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
    """The state of a job in the store of a stopped service; None if the store is not on this machine."""
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


def awaited(ask: Callable[[], T], waits: Callable[[], bool]) -> T:
    """The answer of `ask`; retries while the service does not answer and `waits` returns True."""
    from plait.live.client.client import NotRunning

    while True:
        try:
            return ask()
        except NotRunning:
            if not waits():
                raise
            time.sleep(LOOK_S)
