"""When the queue will be empty and jobs start and end: the live queue simulated forward, in a process of its own.

The process has lower priority and ends with its answer, so neither decisions nor other pages wait for it. Of a queue
that is too long for that, what-if says when it will be empty.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from plait.dashboard.api_client import Refused
from plait.dashboard.web import Viewer

#: Open jobs that are simulated whole at most, seconds that a forecast is shown, seconds after which none is awaited.
MOST_JOBS, KEPT_S, LIMIT_S = 1000, 30.0, 60.0


@dataclass(frozen=True)
class Outlook:
    """A forecast: `jobs` by number, each {start, end} of [early, middle, late] seconds after `now_s`; or why none."""

    now_s: float = 0.0
    jobs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    empty: list[float | None] | None = None
    assumptions: tuple[str, ...] = ()
    missing: str = ""

    def of(self, job: int) -> Mapping[str, Any] | None:
        """The forecast of one job, if there is one."""
        return self.jobs.get(str(job))


async def outlook(viewer: Viewer, status: Mapping[str, Any]) -> Outlook | None:
    """The newest forecast; None while the first one is being made. Asks for a new one when it is old."""
    open_jobs = sum(n for state, n in status["jobs"].items() if state not in ("finished", "failed", "cancelled"))
    if not open_jobs:
        return Outlook(missing="no job waits or runs")
    web = viewer.web
    many = open_jobs > MOST_JOBS
    make = (lambda: _list_scheduled(viewer, str(status["policy"]))) if many else (lambda: _foresee(viewer))
    work = asyncio.ensure_future(web.answers.share(("long", f"outlook, {many}"), KEPT_S, make))
    work.add_done_callback(lambda one: None if one.cancelled() else one.exception())
    await asyncio.wait({work}, timeout=0.0)
    if work.done() and not work.exception():
        web.outlook["newest"] = work.result()
    found: Outlook | None = web.outlook.get("newest")
    return found


async def _list_scheduled(viewer: Viewer, policy: str) -> Outlook:
    """When a long queue will be empty, as what-if knows it in its present order; of no single job."""
    try:
        found = await viewer.api.ask("POST", "/v1/what-if/queue", body={"policy": policy})
    except Refused as error:
        return Outlook(missing=str(error))
    early, _, middle, _, late = (None if h is None else 3600 * h for h in found["totals"]["empty_hours"]["now"])
    return Outlook(empty=[early, middle, late], assumptions=tuple(found["assumptions"]))


async def _foresee(viewer: Viewer) -> Outlook:
    state = await viewer.api.get("/v1/state")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "plait.dashboard.foresee", stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, preexec_fn=_politely,
    )  # fmt: skip
    try:
        out, _ = await asyncio.wait_for(process.communicate(json.dumps(state).encode()), LIMIT_S)
        found = json.loads(out)
    except TimeoutError:
        return Outlook(missing=f"the simulation took longer than {LIMIT_S:g} s")
    except ValueError:
        return Outlook(missing=f"the simulation ended with exit code {process.returncode}")
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return Outlook(**{**found, "assumptions": tuple(found.get("assumptions", ()))})


def _politely() -> None:
    """In the new process: let everything else go first."""
    os.nice(10)
