"""When the queue will be empty and jobs start and end: the live queue simulated forward, in a process of its own.

The process has lower priority and ends with its answer, so neither decisions nor other pages wait for it. Of a queue
that is too long for that, and until the first simulation has come, the quick forecasts of what-if and of `explain` are
shown. All times count from the moment at which a page is drawn, and no forecast is shown that is older than
`OLDEST_S`.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from plait.dashboard.api_client import Refused
from plait.dashboard.web import Viewer

#: Open jobs that are simulated whole at most, seconds after which a forecast is renewed, seconds after which none is
#: awaited, age in seconds up to which one is shown.
MOST_JOBS, KEPT_S, LIMIT_S, OLDEST_S = 1000, 30.0, 60.0, 90.0
#: Jobs whose quick forecast is requested for a page at most, and seconds that a page waits for it.
ROWS, QUICK_S = 12, 1.0


@dataclass(frozen=True)
class Outlook:
    """A forecast: `jobs` by number, each {start, end} of [early, middle, late] seconds after `now_s`; or why none.

    `age_s`: seconds since it was made; `quick`: it was not simulated.
    """

    now_s: float = 0.0
    jobs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    empty: list[float | None] | None = None
    assumptions: tuple[str, ...] = ()
    missing: str = ""
    age_s: float = 0.0
    quick: bool = False

    def at(self, now_s: float) -> Outlook:
        """The same forecast at a later moment: all times count from then.

        >>> found = Outlook(10.0, {"1": {"start": None, "end": [5.0, 20.0, None]}}, [30.0, 40.0, None]).at(20.0)
        >>> found.jobs["1"]["end"], found.empty, found.age_s
        ([0.0, 10.0, None], [20.0, 30.0, None], 10.0)
        """
        passed_s = max(now_s - self.now_s, 0.0)

        def later(three: list[float | None] | None) -> list[float | None] | None:
            return three and [None if s is None else max(s - passed_s, 0.0) for s in three]

        jobs = {job: {name: later(three) for name, three in eta.items()} for job, eta in self.jobs.items()}
        return replace(self, now_s=now_s, jobs=jobs, empty=later(self.empty), age_s=self.age_s + passed_s)

    def of(self, job: int) -> Mapping[str, Any] | None:
        """The forecast of one job, if there is one."""
        return self.jobs.get(str(job))


@dataclass
class Kept:
    """The newest simulation, and the running one, begun at `begun_s` of the monotonic clock."""

    newest: Outlook | None = None
    work: asyncio.Future[Outlook] | None = None
    begun_s: float = -math.inf

    def take(self, work: asyncio.Future[Outlook]) -> None:
        """Keep the result of a simulation that has ended, however late; a failed one leaves the former one."""
        if not work.cancelled() and work.exception() is None:
            self.newest = work.result()


async def outlook(viewer: Viewer, status: Mapping[str, Any], rows: Sequence[int] = ()) -> Outlook | None:
    """The newest forecast; None while the first one is being made. Starts a new one when it is old.

    `rows`: numbers of the jobs that the page shows, for which there is a quick forecast until then.
    """
    open_jobs = sum(n for state, n in status["jobs"].items() if state not in ("finished", "failed", "cancelled"))
    if not open_jobs:
        return Outlook(missing="no job waits or runs")
    kept: Kept = viewer.web.outlook.setdefault("kept", Kept())
    if (kept.work is None or kept.work.done()) and time.monotonic() - kept.begun_s > KEPT_S:
        make = _list_scheduled(viewer, status) if open_jobs > MOST_JOBS else _foresee(viewer)
        kept.begun_s, kept.work = time.monotonic(), asyncio.ensure_future(make)
        kept.work.add_done_callback(kept.take)
        await asyncio.sleep(0)
    found, now_s = kept.newest, float(status["now_s"])
    if found is not None and (found.missing or now_s - found.now_s <= OLDEST_S):
        return found.at(now_s)
    return await _quick(viewer, status, sorted(rows)[:ROWS])


async def _quick(viewer: Viewer, status: Mapping[str, Any], rows: Sequence[int]) -> Outlook | None:
    """The quick forecast of the queue and of some jobs; None if it takes longer than a page waits."""

    async def end_of(job: int) -> tuple[str, Mapping[str, Any]] | None:
        try:
            soon = (await viewer.get(1.0, f"/v1/jobs/j-{job}/explain")).get("forecast")
        except Refused:  # of another user, or over
            return None
        return (str(job), {name: _three(soon.get(name)) for name in ("start", "end")}) if soon else None

    async def make() -> Outlook:
        whole, ends = await asyncio.gather(
            _list_scheduled(viewer, status), asyncio.gather(*(end_of(job) for job in rows))
        )
        made: Outlook = replace(whole, jobs=dict(one for one in ends if one), quick=True)
        return made

    key = ("long", "quick outlook", viewer.session.role, viewer.session.user, *rows)
    work = asyncio.ensure_future(viewer.web.answers.share(key, KEPT_S, make))
    work.add_done_callback(lambda one: None if one.cancelled() else one.exception())
    await asyncio.wait({work}, timeout=QUICK_S)
    if not work.done() or work.exception():
        return None
    quick: Outlook = work.result()
    return quick.at(float(status["now_s"]))


def _three(times: Mapping[str, Any] | None) -> list[float | None] | None:
    """Early, middle and late seconds of a forecast of `explain`; None if it has none."""
    return None if times is None else [times["wide_s"][0], times["middle_s"], times["wide_s"][1]]


async def _list_scheduled(viewer: Viewer, status: Mapping[str, Any]) -> Outlook:
    """When the queue will be empty, as what-if knows it in its present order; of no single job."""
    now_s = float(status["now_s"])
    try:
        found = await viewer.api.ask("POST", "/v1/what-if/queue", body={"policy": str(status["policy"])})
    except Refused as error:
        return Outlook(now_s, missing=str(error))
    hours = (found["totals"]["empty_hours"] or {}).get("now")
    if hours is None:
        return Outlook(now_s, missing="no forecast")
    early, _, middle, _, late = (None if h is None else 3600 * h for h in hours)
    return Outlook(now_s, empty=[early, middle, late], assumptions=tuple(found["assumptions"]), quick=True)


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
    made: Outlook = Outlook(**{**found, "assumptions": tuple(found.get("assumptions", ()))})
    return made


def _politely() -> None:
    """In the new process: let everything else go first."""
    os.nice(10)
