"""The live queue, from the answer of `GET /v1/state`, played forward: the check of the intervals of `plait explain`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from plait.control.controller import Controller
from plait.control.snapshot import restore
from plait.core.errors import InputError
from plait.live.scheduler.live_policy import AGGREGATES, GUESTS_PER_GPU, KILLS
from plait.live.scheduler.records.track_record import TrackRecord
from plait.live.scheduler.state import State
from plait.outlook.eta import Forecast, KnownDurations, calibrated, forecast


def controller_of(state: Mapping[str, Any]) -> Callable[[], Controller]:
    """A function that makes controllers in this state: same jobs, same numbers, same policy with its quotas.

    Reports of agents since the last entry of the log (`paces`) are included. Raises `InputError` if no node is there.
    """
    known = State.from_json(state).controller
    if known is None:
        raise InputError("no node has joined yet, so there is no forecast; look at: plait nodes")
    policy = known.policy
    return lambda: _now(restore(state["controller"], policy, GUESTS_PER_GPU, KILLS, AGGREGATES), state)


def known_of(state: Mapping[str, Any]) -> KnownDurations:
    """The durations in an answer of `GET /v1/state`, by row; none if the service is older."""
    rows = {number: row for row, number in enumerate(state.get("job_numbers") or ())}

    def by_row(name: str) -> dict[int, Any]:
        found = {int(number): value for number, value in (state.get(name) or {}).items()}
        return {rows[number]: value for number, value in found.items() if number in rows}

    return KnownDurations(by_row("left_s"), by_row("left_from"))


@dataclass(frozen=True)
class Foreseen:
    """A forecast as simulated, and with intervals calibrated by earlier ones."""

    raw: Forecast
    honest: Forecast


def foresee(state: Mapping[str, Any], seed: int = 0) -> Foreseen | None:
    """The forecast of an answer of `GET /v1/state`, by the jobs' own numbers; None where no node is there.

    Raises what the policy's module raises where it cannot be imported.
    """
    if state.get("controller") is None:
        return None
    make = controller_of(state)
    starting = [int(job) for job, pace in state["paces"].items() if pace.get("starting")]
    record = TrackRecord.from_json(state.get("record") or {})
    raw = forecast(
        make, round_s=float(state.get("round_s") or 0.0), record=record, starting=starting, seed=seed,
        known=known_of(state),
    )  # fmt: skip
    if (numbers := state.get("job_numbers")) is not None:
        raw = replace(raw, etas={numbers[i]: eta for i, eta in raw.etas.items()})
    return Foreseen(raw, calibrated(raw, record))


def _now(controller: Controller, state: Mapping[str, Any]) -> Controller:
    columns = controller.job_store.columns
    asked_s = max(float(state["asked_s"]), controller.now_s)
    for name, pace in state["paces"].items():
        job = int(name)
        if pace.get("steps") is not None:
            columns["iterations_done"][job] = max(float(pace["steps"]), float(columns["iterations_done"][job]))
        if pace.get("total_steps") and math.isnan(columns["iterations"][job]):
            columns["iterations"][job] = pace["total_steps"]
        if pace.get("step_s") and math.isnan(columns["iteration_s"][job]):
            columns["iteration_s"][job] = pace["step_s"]
    controller.now_s, controller.changed = asked_s, True
    return controller
