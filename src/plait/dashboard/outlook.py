"""When the queue will be empty and jobs start and end: the forecasts of `plait what-if` and `plait explain` on pages.

All times count from the moment at which a page is drawn. Forecasts are made once for the pages of half a minute; a page
waits for one for a second, and is drawn without if it takes longer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from plait.dashboard.api_client import Refused
from plait.dashboard.web import Viewer

#: Seconds for which a forecast is shown, and that a page waits for it; jobs that are forecast for a page at most.
KEPT_S, WAIT_S, ROWS = 30.0, 1.0, 12


@dataclass(frozen=True)
class PageOutlook:
    """A forecast: `jobs` by number, each {start, end} of [early, middle, late] seconds after `now_s`; or why none."""

    now_s: float = 0.0
    jobs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    empty: list[float | None] | None = None
    missing: str = ""

    def at(self, now_s: float) -> PageOutlook:
        """The same forecast at a later moment: all times count from then.

        >>> found = PageOutlook(10.0, {"1": {"start": None, "end": [5.0, 20.0, None]}}, [30.0, 40.0, None]).at(20.0)
        >>> found.jobs["1"]["end"], found.empty
        ([0.0, 10.0, None], [20.0, 30.0, None])
        """
        passed_s = max(now_s - self.now_s, 0.0)

        def later(three: list[float | None] | None) -> list[float | None] | None:
            return three and [None if s is None else max(s - passed_s, 0.0) for s in three]

        jobs = {job: {name: later(three) for name, three in eta.items()} for job, eta in self.jobs.items()}
        return replace(self, now_s=now_s, jobs=jobs, empty=later(self.empty))

    def of(self, job: int) -> Mapping[str, Any] | None:
        return self.jobs.get(str(job))


async def outlook(viewer: Viewer, status: Mapping[str, Any], rows: Sequence[int]) -> PageOutlook | None:
    """The forecast of the queue and of the jobs with these numbers; None if it takes longer than a page waits."""
    if not sum(n for state, n in status["jobs"].items() if state not in ("finished", "failed", "cancelled")):
        return PageOutlook(missing="no job waits or runs")
    now_s, jobs = float(status["now_s"]), sorted(rows)[:ROWS]

    async def end_of(job: int) -> tuple[str, Mapping[str, Any]] | None:
        try:
            soon = (await viewer.get(1.0, f"/v1/jobs/j-{job}/explain")).get("forecast")
        except Refused:  # of another user, or over
            return None
        return (str(job), {name: _three(soon.get(name)) for name in ("start", "end")}) if soon else None

    async def make() -> PageOutlook:
        whole, ends = await asyncio.gather(_whole(viewer, status), asyncio.gather(*map(end_of, jobs)))
        made: PageOutlook = replace(whole, jobs=dict(one for one in ends if one))
        return made

    key = ("long", "outlook", viewer.session.role, viewer.session.user, *jobs)
    work = asyncio.ensure_future(viewer.web.answers.share(key, KEPT_S, make))
    work.add_done_callback(lambda one: None if one.cancelled() else one.exception())
    await asyncio.wait({work}, timeout=WAIT_S)
    if not work.done() or work.exception():
        return None
    made: PageOutlook = work.result()
    return made.at(now_s)


def _three(times: Mapping[str, Any] | None) -> list[float | None] | None:
    """Early, middle and late seconds of a forecast of `explain`; None if it has none."""
    return None if times is None else [times["wide_s"][0], times["middle_s"], times["wide_s"][1]]


async def _whole(viewer: Viewer, status: Mapping[str, Any]) -> PageOutlook:
    """When the queue will be empty, as what-if knows it under the present policy; of no single job."""
    now_s = float(status["now_s"])
    try:
        found = await viewer.api.ask("POST", "/v1/what-if/queue", body={"policy": str(status["policy"])})
    except Refused as error:
        return PageOutlook(now_s, missing=str(error))
    hours = (found["totals"]["empty_hours"] or {}).get("now")
    if hours is None:
        return PageOutlook(now_s, missing="no forecast")
    early, _, middle, _, late = (None if h is None else 3600 * h for h in hours)
    return PageOutlook(now_s, empty=[early, middle, late])
