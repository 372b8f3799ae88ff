"""The service itself, with simulated agents, resizes jobs that adapt under `pollux`; the simulator foretells it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from adapting_programs import Adapting, Model

from plait.control.controller import Controller
from plait.control.drive import drive
from plait.control.messages import Command, Event, JobFinished
from plait.core.cluster import Cluster
from plait.core.goodput import BatchLimits, Estimate
from plait.core.jobs import JobBatch, JobSpec
from plait.live.protocol.wire import NodeInfo
from plait.live.scheduler.options import Options
from plait.live.scheduler.records.event_words import stop_in_words
from plait.live.scheduler.records.notes import AttemptBegan, StopAsked
from plait.outlook.log_replay import replay, stored_rows
from plait.policies.catalog import make_policy
from plait.sim.backend import Simulator
from plait.sim.training import Training
from plait.sim.world import Overheads, SimulationSettings
from plait.testing.fleet import Fleet, Program, SimulatedAgent

SLOTS, INTERVAL_S, START_S, STOP_S = 8, 30.0, 15.0, 3.0
LIMITS = BatchLimits(initial=32, most=512, least_local=8, most_local=128, accumulation=True)
THETA = (0.02, 0.004, 0.2, 0.005, 0.03, 0.002, 1.5)
#: Adaptive jobs: submission, iterations at batch 32, gradient noise scale in examples.
ADAPTIVE = ((0.0, 24_000.0, 2000.0), (120.0, 16_000.0, 600.0), (300.0, 20_000.0, 4000.0))
#: Fixed ones: submission, GPUs, iterations of a second.
FIXED = ((60.0, 2, 1000.0), (200.0, 2, 600.0))


def specs() -> list[tuple[JobSpec, float | None]]:
    """Three jobs that adapt, with their noise, and two that do not, by submission."""
    out: list[tuple[JobSpec, float | None]] = []
    for i, (at, work, noise) in enumerate(ADAPTIVE):
        out.append(
            (
                JobSpec(
                    id=f"a{i}", submit_s=at, gpus=2, min_gpus=1, max_gpus=SLOTS, iterations=work, iteration_s=0.15,
                    batch=LIMITS,
                ),
                noise,
            )
        )  # fmt: skip
    for i, (at, gpus, work) in enumerate(FIXED):
        out.append((JobSpec(id=f"f{i}", submit_s=at, gpus=gpus, iterations=work, iteration_s=1.0), None))
    return sorted(out, key=lambda pair: pair[0].submit_s)


def training(jobs: Sequence[tuple[JobSpec, float | None]]) -> Training:
    none = np.zeros(0)
    return Training(
        np.array([[np.nan] * len(THETA) if noise is None else THETA for _, noise in jobs]),
        tuple(none if noise is None else np.array([spec.iterations]) for spec, noise in jobs),
        tuple(none if noise is None else np.array([noise]) for _, noise in jobs),
    )


def request(spec: JobSpec) -> dict[str, Any]:
    """A submission; a script that adapts is its own judge of how long it takes."""
    if spec.batch is None:
        return {"command": ["train"], "gpus": spec.gpus, "iterations": spec.iterations}
    sizes = {"gpus": spec.gpus, "min_gpus": spec.min_gpus, "max_gpus": spec.max_gpus}
    return {
        "command": ["train", spec.id],
        **sizes,
        "batch": asdict(spec.batch),
    }  # a fit is shared by jobs of one command


class Served:
    """All jobs through the service, to their end."""

    def __init__(self, home: Path, policy: str) -> None:
        home.mkdir()
        jobs = specs()
        self.models: dict[int, Model] = {}
        programs: Mapping[int, Program] = {i: self._program(i, *pair) for i, pair in enumerate(jobs)}
        agents = [SimulatedAgent(NodeInfo("n0", SLOTS), lambda run: programs[run.job])]
        self.fleet = fleet = Fleet(home, agents, policy=policy, options=Options(estimate_s=INTERVAL_S))
        fleet.sync()
        left = [spec for spec, _ in jobs]
        while left or not all(fleet.engine.state.phase(j) > 1 for j in fleet.engine.state.jobs.values()):
            assert fleet.now_s < 10_000.0
            while left and left[0].submit_s <= fleet.now_s:
                fleet.engine.submit([request(left.pop(0))], owner="ann", now_s=fleet.now_s)
            fleet.pass_s(2.0, 1.0)
        rows = [fleet.store.job(i) for i in range(len(jobs))]
        self.jct_s = np.array([row.row.ended_s - row.row.created_s for row in rows if row is not None])
        self.states = [row.row.state for row in rows if row is not None]

    def _program(self, number: int, spec: JobSpec, noise: float | None) -> Program:
        if noise is None:
            assert spec.iterations is not None
            return Program(spec.iterations, 1.0, stop_s=STOP_S)
        self.models[number] = Model(spec, training([(spec, noise)]), INTERVAL_S)
        return Adapting(model=self.models[number], start_s=START_S, stop_s=STOP_S)

    @property
    def estimates(self) -> Any:
        """What the job store knows at the end, by `Estimate`."""
        assert self.fleet.engine.state.controller is not None
        return self.fleet.engine.state.controller.job_store.columns["goodput"][sorted(self.models)]


def simulated(policy: str) -> Any:
    """Completion times in the simulator, seconds."""
    jobs = specs()
    overheads = Overheads.constant(launch_s=START_S, checkpoint_s=STOP_S, restore_s=START_S)
    settings = SimulationSettings(overheads=overheads, training=training(jobs))
    cluster = Cluster.parse(f"1x{SLOTS}")
    backend = Simulator(JobBatch.of([spec for spec, _ in jobs]), cluster, settings)
    jct_s = np.full(len(jobs), np.nan)

    def record(event: Event, commands: Sequence[Command]) -> None:
        if isinstance(event, JobFinished):
            jct_s[event.jobs] = event.end_s - np.array([spec.submit_s for spec, _ in jobs])[event.jobs]

    drive(Controller(make_policy(policy), cluster), backend, record)
    return jct_s


@pytest.fixture(scope="module")
def pollux(tmp_path_factory: pytest.TempPathFactory) -> Any:
    served = Served(tmp_path_factory.mktemp("fleet") / "home", "pollux")
    yield served
    served.fleet.close()


def test_sizes_change_as_jobs_come_and_go(pollux: Served) -> None:
    assert set(pollux.states) == {"finished"}
    assert pollux.fleet.engine.state.policy_error == ""
    for model in pollux.models.values():
        assert model.progress == model.spec.iterations
        assert len(set(model.sizes)) >= 3
        assert model.sizes[0] == 1  # nobody knows yet what more would bring
    assert any(b < a for m in pollux.models.values() for a, b in zip(m.sizes, m.sizes[1:], strict=False))


def test_what_jobs_know_of_themselves_is_in_the_books(pollux: Served) -> None:
    known = pollux.estimates
    assert not np.isnan(known).any()
    most = [max(model.sizes) for model in pollux.models.values()]
    assert (known[:, Estimate.PROFILED_GPUS] <= most).all()
    noise = known[:, Estimate.VAR] / known[:, Estimate.SQR] * LIMITS.initial
    np.testing.assert_allclose(noise, [2000.0, 600.0, 4000.0], rtol=0.06)
    # From the stop to the first step: checkpoint, start-up, and what the next report and the first step take.
    assert (known[:, Estimate.RESTART_S] >= START_S + STOP_S).all()
    assert (known[:, Estimate.RESTART_S] <= START_S + STOP_S + 3.0).all()


def test_the_log_says_the_same_again(pollux: Served) -> None:
    assert replay(stored_rows(pollux.fleet.store)).difference is None


def test_the_simulator_foretells_it(pollux: Served) -> None:
    foretold = simulated("pollux")
    np.testing.assert_allclose(foretold.mean(), pollux.jct_s.mean(), rtol=0.05)
    np.testing.assert_allclose(foretold, pollux.jct_s, rtol=0.15)


def test_jobs_end_sooner_than_at_the_sizes_they_asked_for(pollux: Served, tmp_path: Path) -> None:
    """The same submissions under Tiresias; the jobs adapt their batch there too."""
    other = Served(tmp_path / "home", "tiresias-l")
    other.fleet.close()
    assert pollux.jct_s.mean() < 0.97 * other.jct_s.mean()


def test_a_job_of_another_size_is_grown_or_shrunk_not_moved(pollux: Served) -> None:
    sizes: dict[int, int] = {}
    stops: dict[int, str] = {}
    seen = set()
    for row in stored_rows(pollux.fleet.store):
        event = row.entry
        if isinstance(event, StopAsked):
            stops[event.job] = stop_in_words(event.why, event.reason)
        elif isinstance(event, AttemptBegan):
            job, now = event.job, len(event.gpus)
            words = stops.pop(job, "")
            if words and job in sizes and now != sizes[job]:
                verb = "grown" if now > sizes[job] else "shrunk"
                assert words.startswith(f"{verb} from {sizes[job]} GPU"), words
                seen.add(verb)
            sizes[job] = now
    assert seen == {"grown", "shrunk"}
