"""Outlooks: of a submission that is not made, and of the queue under another choice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from plait.core.jobs import JobSpec
from plait.core.policy import Policy
from plait.core.words import command_line
from plait.live.api.explain import ComparedQueues, SubmissionOutlook
from plait.live.protocol.arrays import members
from plait.live.scheduler.engine import Engine
from plait.live.scheduler.explain.choices import Choice
from plait.live.scheduler.explain.queue_copy import QueueCopy
from plait.live.scheduler.live_policy import live_policy
from plait.live.scheduler.requests.admission import check_project, project_of, take_in
from plait.live.service.http.api import Api, Call, Routes
from plait.live.service.http.bodies import JOB, ChoiceIn
from plait.live.service.http.routes.jobs import check_files, in_project
from plait.live.store import Token
from plait.policies.catalog import check_named

ROUTES = Routes("jobs")
T = TypeVar("T")


@ROUTES.post("/v1/what-if", SubmissionOutlook, body=JOB, roles=("admin", "user"))
async def what_if(call: Call, request: dict[str, Any]) -> SubmissionOutlook:
    """When a job like this would start and end, what blocks it, and what would be cheaper or sooner.

    The body is that of a submission; it is refused like one, and nothing is submitted.
    """
    api, token = call.api, call.token
    asked = in_project(next(members(request, 0)), token)  # of an array the first member alone
    await check_files(api, [asked])

    def look(engine: Engine, now_s: float) -> tuple[QueueCopy | None, JobSpec, list[str]]:
        ctx, project, now_s = engine.context, project_of(asked), engine.clock(now_s)
        if project != token.project:
            check_project(ctx, project)
        take_in(ctx, [asked], token.user, None, engine.store.states, engine.members)
        limited = ctx.state.with_time_limit(asked)
        spec = ctx.spec(ctx.state.numbers, limited, token.user, project, now_s)
        return api.what_if.queue(engine, now_s), spec, engine.remarks(asked)

    copy, spec, remarks = await api.worker.look(look)
    if copy is None:
        raise LookupError("no node has joined yet, so nothing can be forecast; look at: plait nodes")
    name = str(asked.get("name") or asked.get("model") or "")
    found = await _later(api, token, lambda: api.what_if.submission(copy, spec, name, command_line(asked["command"])))
    return msgspec.structs.replace(found, remarks=remarks or None)


@ROUTES.post("/v1/what-if/queue", ComparedQueues, body=ChoiceIn)
async def compare_queues(call: Call, said: ChoiceIn) -> ComparedQueues:
    """Who of the queue would end sooner and who later under another choice; nothing is changed."""
    api, token = call.api, call.token
    engine = api.worker.engine
    network = engine.state.network.declared is not None
    policy = None
    if said.policy is not None:
        policy = await asyncio.to_thread(
            _named, said.policy, engine.options.policy_modules, engine.layout.home, network
        )
    copy = await api.worker.look(api.what_if.queue)
    if copy is None:
        raise LookupError("no node has joined yet, so nothing can be forecast; look at: plait nodes")
    priority = {int(job[2:]): value for job, value in said.priority.items()}
    choice = Choice(said.policy or "", policy, said.nodes or "", tuple(said.without), priority)
    return await _later(api, token, lambda: api.what_if.choice(copy, choice))


def _named(text: str, modules: Collection[str], folder: Path, network: bool) -> Policy:
    """A policy that may be named over HTTP; `InputError` for others."""
    check_named(text, modules, folder)
    return live_policy(text, network)


async def _later(api: Api, token: Token, work: Callable[[], T]) -> T:
    return await asyncio.shield(asyncio.wrap_future(api.what_if.later(work, token.user)))
