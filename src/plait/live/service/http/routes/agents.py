"""Agents send reports and receive assignments, at once or at the end of a long poll."""

from __future__ import annotations

from dataclasses import replace

from starlette.responses import Response

from plait.live.protocol.wire import Assignment, Observed, encode
from plait.live.scheduler.engine import Engine
from plait.live.service.http.api import Api, Call, Routes
from plait.live.service.http.auth import speaks_for
from plait.live.service.http.bodies import ASSIGNMENT, REPORT
from plait.live.store import NoRoom

#: Longest time that an agent's long poll is held.
LONG_POLL_S = 1.0

ROUTES = Routes("agents")


@ROUTES.post("/agent/v1/sync", ASSIGNMENT, body=REPORT, roles=("agent",))
async def sync(call: Call, observed: Observed) -> Response:
    """Take an agent's report and answer with its assignment; see `plait.live.protocol.wire`."""
    api, request = call.api, call.request
    node = observed.node.id
    speaks_for(call.token, node)
    address = request.client.host if request.client else "127.0.0.1"
    api.mailbox.take(node, observed.replies)

    def observe(engine: Engine, now_s: float) -> None:
        engine.observe(observed, now_s, address)

    def assigned(engine: Engine, _: None) -> Assignment:
        return engine.assignment(node, observed.agent)

    try:
        answer = await api.worker.call(observe, assigned)
    except NoRoom:
        return _json(_current_assignment(api, observed))
    asks = api.mailbox.due(node)
    wait_s = min(max(observed.wait_s, 0.0), LONG_POLL_S)
    if answer.version <= observed.reached and answer.term == observed.term and not asks and wait_s > 0:
        await api.mailbox.news(node, answer.version, wait_s)
        try:
            answer = await api.worker.call(lambda engine, now_s: None, assigned)
        except NoRoom:
            return _json(_current_assignment(api, observed))
        asks = api.mailbox.due(node)
    return _json(replace(answer, ask=asks))


def _json(answer: Assignment) -> Response:
    return Response(encode(answer), media_type="application/json")


def _current_assignment(api: Api, report: Observed) -> Assignment:
    """While nothing can be stored: jobs run on under their lease, nothing is begun, stopped or forgotten.

    The node is not lost meanwhile, as the service that waits is the only one, and counts from the start after it.
    """
    keep = [[one.job, one.epoch, one.rank] for one in report.attempts]
    asks = api.mailbox.due(report.node.id)  # logs can be read all the same
    return Assignment(report.term, -1, api.worker.engine.options.lease_s, keep=keep, ask=asks)
