"""The live queue, from the answer of `GET /v1/state`: played forward, and under another policy side by side.

The two policies decide about the same state. Then both are simulated forward, in pairs of runs with the same durations,
so a difference between them is one of the policies and not of what was drawn. New jobs are not foreseen.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from plait.control.controller import Controller
from plait.control.messages import ReplanDue
from plait.control.snapshot import restore
from plait.core.errors import InputError, PlaitError
from plait.core.jobs import Phase
from plait.core.words import counted
from plait.live.scheduler.live_policy import AGGREGATES, GUESTS_PER_GPU, KILLS, live_policy
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


#: Changes of a job by a decision, from the largest to none.
ACTIONS = ("start", "stop", "resize", "move", "regroup", "keep", "wait")
_QUIET = ("keep", "wait")


@dataclass(frozen=True)
class PlacedJob:
    """Where a job runs: its GPUs by number, who else is on them, and the same in words."""

    gpus: tuple[int, ...]
    beside: frozenset[int]
    words: str


@dataclass(frozen=True)
class Decision:
    """One decision of `policy`: for each job, by its own number, what happens to it, and where it is or why it waits.

    `error`: the decision failed, and there are no actions.
    """

    policy: str
    actions: Mapping[int, tuple[str, str]]
    error: str = ""

    @property
    def counts(self) -> dict[str, int]:
        """Jobs by action."""
        found = Counter(action for action, _ in self.actions.values())
        return {action: found[action] for action in ACTIONS if found[action]}


def under(state: Mapping[str, Any], policy: str) -> Callable[[], Controller]:
    """Like `controller_of`, with another policy under the same quotas; `InputError` if it cannot run there."""
    cluster = (state.get("controller") or {}).get("cluster") or {}
    live_policy(policy, network=cluster.get("network") is not None)
    return controller_of({**state, "policy": policy})


def decide(make: Callable[[], Controller], policy: str, numbers: Sequence[int]) -> Decision:
    """Let the controller of `make` decide once; `numbers` are the jobs' own numbers."""
    controller = make()
    before = _placed(controller)
    try:
        controller.handle(ReplanDue(controller.now_s))
    except Exception as error:  # the policy may be anybody's
        return Decision(policy, {}, str(error) if isinstance(error, PlaitError) else f"{type(error).__name__}: {error}")
    after = _placed(controller)
    actions = {}
    for job in sorted(set(controller.active.tolist()) | set(before)):
        was, now = before.get(job), after.get(job)
        words = now.words if now is not None else controller.waiting_reason(job) or ""
        actions[numbers[job]] = _action(was, now), words
    return Decision(policy, actions)


def _action(was: PlacedJob | None, now: PlacedJob | None) -> str:
    if now is None:
        return "wait" if was is None else "stop"
    if was is None:
        return "start"
    if len(was.gpus) != len(now.gpus):
        return "resize"
    if was.gpus != now.gpus:
        return "move"
    return "keep" if was.beside == now.beside else "regroup"


def _placed(controller: Controller) -> dict[int, PlacedJob]:
    """Where each job runs, from the groups of a controller."""
    cluster, phase = controller.cluster, controller.job_store.columns["phase"]
    on_gpu: dict[int, set[int]] = defaultdict(set)
    places: dict[int, tuple[int, ...]] = {}
    for group in controller.running:
        gpus = tuple(sorted(int(gpu) for gpu in group.gpus))
        for member in group.members:
            if phase[member.job] == int(Phase.RUNNING):
                places[member.job] = gpus
                for gpu in gpus:
                    on_gpu[gpu].add(member.job)
    found = {}
    for job, gpus in places.items():
        nodes = list(dict.fromkeys(cluster.nodes[cluster.gpu_node[gpu]].id for gpu in gpus))
        where = ", ".join(nodes[:4]) + (f" and {len(nodes) - 4} more" if len(nodes) > 4 else "")
        beside = frozenset().union(*(on_gpu[gpu] for gpu in gpus)) - {job}
        shared = f", shared with {counted(len(beside), 'job')}" if beside else ""
        found[job] = PlacedJob(gpus, beside, f"{counted(len(gpus), 'GPU')} on {where}{shared}")
    return found


def rows(now: Decision, other: Decision) -> list[dict[str, Any]]:
    """Jobs with which the two decisions do something, or not the same; the largest differences first."""
    found = []
    for job, (action, words) in now.actions.items():
        another, others = other.actions.get(job, ("wait", ""))
        if action not in _QUIET or another not in _QUIET or (action == another == "keep" and words != others):
            found.append({"job": job, "now": [action, words], "other": [another, others], "same": action == another})
    return sorted(found, key=lambda row: (row["same"], ACTIONS.index(row["other"][0]), row["job"]))


@dataclass(frozen=True)
class QueueRun:
    """One simulated end of the queue under a policy: seconds from now until each job ends, by its own number."""

    ends_s: Mapping[int, float]

    @property
    def mean_s(self) -> float:
        """Mean over the jobs that end; NaN if none does."""
        known = [s for s in self.ends_s.values() if math.isfinite(s)]
        return float(np.mean(known)) if known else math.nan

    @property
    def last_s(self) -> float:
        """When the last job ends; infinite if one never does."""
        return max(self.ends_s.values(), default=0.0)


def runs(
    state: Mapping[str, Any], now: Callable[[], Controller], other: Callable[[], Controller], most: int
) -> Iterator[tuple[QueueRun, QueueRun]]:
    """Pairs of runs under both policies, `most` of them, each pair with durations of its own."""
    record = TrackRecord.from_json(state.get("record") or {})
    starting = [int(job) for job, pace in state["paces"].items() if pace.get("starting")]
    round_s, numbers, known = float(state.get("round_s") or 0.0), state["job_numbers"], known_of(state)

    def one(make: Callable[[], Controller], seed: int) -> QueueRun:
        found = forecast(make, round_s=round_s, record=record, starting=starting, runs=1, seed=seed, known=known)
        return QueueRun({numbers[job]: max(eta.end.middle_s, 0.0) for job, eta in found.etas.items()})

    for seed in range(most):
        yield one(now, seed), one(other, seed)


def outcome(pairs: Sequence[tuple[QueueRun, QueueRun]], most: int = 10) -> dict[str, Any]:
    """Results of the runs: means and last ends of both, and the jobs that gain and lose most, medians over the runs.

    Raises `InputError` without runs.
    """
    if not pairs:
        raise InputError("no run of the simulation was finished in time")
    differences: dict[int, list[float]] = defaultdict(list)
    for now, other in pairs:
        for job, end_s in now.ends_s.items():
            if math.isfinite(end_s) and math.isfinite(other.ends_s.get(job, math.inf)):
                differences[job].append(other.ends_s[job] - end_s)
    change = sorted((float(np.median(values)), job) for job, values in differences.items())
    return {
        "runs": len(pairs), "jobs": len(differences),
        "sooner": sum(other.mean_s < now.mean_s for now, other in pairs),
        "mean_s": [_middle([pair[i].mean_s for pair in pairs]) for i in (0, 1)],
        "last_s": [_middle([pair[i].last_s for pair in pairs]) for i in (0, 1)],
        "gain": [[job, -s] for s, job in change[:most] if s < -1.0],
        "lose": [[job, s] for s, job in change[: -most - 1 : -1] if s > 1.0],
        "gaining": sum(s < -1.0 for s, _ in change), "losing": sum(s > 1.0 for s, _ in change),
    }  # fmt: skip


def _middle(values: Sequence[float]) -> float | None:
    found = float(np.median(values))
    return found if math.isfinite(found) else None
