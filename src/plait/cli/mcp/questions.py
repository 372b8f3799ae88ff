"""Tools that change nothing: jobs, the queue, why and when, what if."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from plait.cli.mcp.arguments import MOST_WAIT_S, Job, Limit, Offset, State, User
from plait.cli.mcp.service import Asking, fields
from plait.live.client.client import FINAL

#: Seconds between two looks at a job that is waited for.
LOOK_S = 1.0
#: Fields of an explanation about times; the rest are reasons.
_WHEN = ("id", "state", "summary", "position", "waiting", "left_s", "forecast")


@dataclass(frozen=True)
class Questions:
    """Tools that only read. Points in time are seconds of the service's clock, `now_s`; other seconds are durations."""

    asking: Asking

    def cluster_status(self) -> dict[str, Any]:
        """Show the cluster: policy, GPUs held and free, counts of jobs and nodes by state, and troubles.

        Also shows whose token is used: `me.role` is admin, user (own jobs) or viewer (reads only).
        """
        with self.asking.service() as service:
            return {**fields(service.status()), "me": fields(service.me())}

    def list_nodes(self) -> dict[str, Any]:
        """List the nodes: state, GPUs, their kind, what they run, and when they last reported."""
        with self.asking.service() as service:
            return {"nodes": [fields(node) for node in service.nodes()]}

    def list_jobs(
        self, state: State = None, user: User = None, limit: Limit = 20, offset: Offset = 0
    ) -> dict[str, Any]:
        """List jobs, newest first: state, GPUs, progress, age, where they run, and the reason why they wait."""
        with self.asking.service() as service:
            jobs = service.jobs(state=state, user=user, limit=limit, offset=offset)
            return {"jobs": [fields(one) for one in jobs]}

    def list_queue(self, limit: Limit = 20, offset: Offset = 0) -> dict[str, Any]:
        """List jobs that run or wait in the order of the policy's last decision, with the numbers behind that order."""
        with self.asking.service() as service:
            return fields(service.queue(limit, offset))

    def show_job(self, job: Job) -> dict[str, Any]:
        """Show everything about a job: request, state, progress, places, checkpoint, and each attempt with its end.

        `would_lose` states what a stop would lose now, which requeue_job and update_job refuse without may_lose_work.
        """
        with self.asking.service() as service:
            return {**fields(service.job(job)), "would_lose": service.losses(jobs=[job]).text}

    def explain_job(self, job: Job) -> dict[str, Any]:
        """Explain why a job waits, or how it runs: jobs ahead of it, what would start it now, sharers of its GPUs.

        Of a job that has ended, how it ended. `summary` is the one sentence to tell a user.
        """
        with self.asking.service() as service:
            return fields(service.explain(job))

    def forecast_job(self, job: Job) -> dict[str, Any]:
        """Forecast when a job will start and end.

        `forecast.start` (null once it runs) and `forecast.end` are in seconds from now: `middle_s`, the interval
        `half_s` that holds in one of two cases, and `wide_s` that holds in four of five; null for never. `forecast` is
        null for a job that has ended, and where no forecast is possible; `summary` has the reason.
        """
        with self.asking.service() as service:
            found = fields(service.explain(job))
        return {"forecast": None} | {name: found[name] for name in _WHEN if name in found}

    def job_usage(self, job: Job) -> dict[str, Any]:
        """Show what a job uses over time: GPU, CPU, memory, disk, stages of an iteration, goodput and batch size."""
        with self.asking.service() as service:
            return fields(service.usage(job, points=60))

    def job_events(self, job: Job, limit: Limit = 50) -> dict[str, Any]:
        """List the newest entries of the event log about a job, oldest first: events, requests and decisions."""
        with self.asking.service() as service:
            return {"events": service.job_events(job, newest=limit)}

    def what_if_queue(
        self,
        policy: Annotated[
            str | None,
            Field(description="Another policy, with options: srsf, muri-l:quantum_s=60. Default: the current one."),
        ] = None,
        nodes: Annotated[
            str | None, Field(description="Additional nodes as +NODESxGPUS[:KIND], e.g. +2x8 or +1x8:a100.")
        ] = None,
        without: Annotated[list[str] | None, Field(description="Names of nodes that would not be there.")] = None,
        priority: Annotated[
            dict[str, float] | None, Field(description='Other priorities by job, higher first: {"j-3": 10}.')
        ] = None,
    ) -> dict[str, Any]:
        """Compare the queue with what another choice would make of it: who gains and who loses, in hours.

        Nothing is changed. All arguments together are one choice; give at least one. `hours` are five quantiles
        (10, 25, 50, 75, 90 %) of the change of the end of a job; less than 0 is sooner.
        """
        with self.asking.service() as service:
            return fields(service.what_if_queue(policy=policy, nodes=nodes, without=without or (), priority=priority))

    def wait_for_job(
        self,
        job: Job,
        timeout_s: Annotated[float, Field(description="Seconds to wait at most.", gt=0, le=MOST_WAIT_S)] = 60.0,
    ) -> dict[str, Any]:
        """Wait until a job has ended, or for `timeout_s` seconds: {id, state, ended, reason, exit_code}.

        `ended` false means that it still waits or runs: call again, or ask explain_job why.
        """
        until = time.monotonic() + timeout_s
        with self.asking.service() as service:
            while (found := service.job(job)).state not in FINAL and time.monotonic() < until:
                time.sleep(min(LOOK_S, max(0.0, until - time.monotonic())))
        ended = found.state in FINAL
        return {"ended": ended} | {name: getattr(found, name) for name in ("id", "state", "reason", "exit_code")}
