"""A fleet driven by a seed, with faults: its log is the same in every run, and it leads to the same rows when read."""

import hashlib
import json
import random
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from adapting_programs import Adapting, Model

from plait.control.controller import Controller
from plait.control.drive import drive
from plait.control.messages import Command, Event, JobFinished
from plait.core.cluster import Cluster
from plait.core.errors import InputError
from plait.core.goodput import BatchLimits, Estimate
from plait.core.jobs import JobBatch, JobSpec
from plait.live.protocol import wire
from plait.live.protocol.wire import NodeInfo
from plait.live.scheduler.options import Options
from plait.live.scheduler.records.event_words import stop_in_words
from plait.live.scheduler.records.notes import AttemptBegan, StopAsked
from plait.outlook.log_replay import replay, stored_rows
from plait.policies.catalog import make_policy
from plait.sim.backend import Simulator
from plait.sim.training import Training
from plait.sim.world import Overheads, SimulationSettings
from plait.testing.fleet import Disk, Fleet, MemoryDisk, Process, Program, SimulatedAgent

GPUS, NODES = 4, 3
POLICIES = ("fifo-backfill", "tiresias-l", "plait", "muri-l:quantum_s=5", "pollux", "antman", "las:quantum_s=5")
BATCH = {"initial": 32, "most": 128, "least_local": 8, "most_local": 64, "accumulation": True}
#: Hash of (seq, at_s, type, jobs) of all entries by seed, after `LENGTH_S` seconds: what happened, without its words.
LENGTH_S = 100.0
LOGS = {0: "7a8061bbd197", 2: "ed137b3d02bc"}


@dataclass(frozen=True)
class Measured(Program):
    """A program whose processes report all that pages can have, in the measure of `kind`, a number from the seed."""

    kind: int = 0

    def process(self, run: wire.Run, disk: Disk, pid: int, now_s: float) -> Process:
        return MeasuredProcess(run, self, disk, pid, now_s)


class MeasuredProcess(Process):
    def said(self, now_s: float) -> dict[str, Any]:
        program = self.program
        assert isinstance(program, Measured)
        out, steps = super().said(now_s), self.steps(now_s) - self.first
        if program.plain or steps <= 0:
            return out
        pace_s, kind = program.pace_s, program.kind
        stage_s = [pace_s * share for share in (0.1, 0.2 + 0.1 * (kind % 3), 0.3, 0.05)]
        out.update(stage_s=stage_s, skew=0.5 + 0.01 * (steps // 40), memory=wire.Memory(2e9, 1e9 + 1e6 * kind, 0.0))
        if steps > 20:
            out["profile"] = wire.Profile(stage_s, pace_s * (1 + 0.3 * (steps > 60)), 25)
        if kind % 4 == 1:
            theta = [0.02, 0.004, 0.2, 0.005, 0.03, 0.002, 1.5]
            estimate = [*theta, 1.0 + steps // 30, 2.0, 4.0, None]
            out["adaptive"] = wire.Adaptive(
                steps * 1.5, 400.0, 32.0 * self.run.world, estimate, list(map(int, BATCH.values()))
            )
        if kind % 7 == 3 and self.run.rank == 0 and steps > 30:
            out["sharing"] = wire.Sharing(guest=True, share=0.2, leaves="no room for it" * (steps > 50))
        if kind % 11 == 5:  # what no process can report
            out.update(step_s=-1.0, skew=float("nan"), stage_s=[1e308] * 4, gate="\x1b[31m")
        return out


class Story:
    """A fleet and what happens to it, drawn from a seed."""

    def __init__(self, home: Path, seed: int) -> None:
        self.draw, self.programs = random.Random(seed), dict[int, Measured]()
        self.assignments, self.told = hashlib.sha256(), dict[str, list[wire.Run]]()
        disk = MemoryDisk()
        nodes = [wire.NodeInfo(f"n{i}", GPUS, rack=i % 2) for i in range(NODES)]
        agents = [SimulatedAgent(node, self.program, disk) for node in nodes]
        options = Options(
            round_s=2.0, lost_s=12.0, lease_s=9.0, progress_s=5.0, usage_s=5.0, estimate_s=8.0, overlap_s=4.0
        )
        self.fleet = Fleet(home, agents, policy=POLICIES[seed % len(POLICIES)], options=options, disk=disk)
        self.fleet.deliver = self.deliver
        for agent in agents:
            agent.observe = self.with_usage(agent)  # type: ignore[method-assign]

    def program(self, run: wire.Run) -> Measured:
        """The program of a job, the same for all of its processes and attempts."""
        if run.job not in self.programs:
            draw = random.Random(run.job * 7919 + 13)
            plain = draw.random() < 0.15
            self.programs[run.job] = Measured(
                steps=draw.choice([20, 60, 150, 400]), pace_s=draw.choice([0.1, 0.25, 0.5]),
                exit_code=draw.choice([0, 0, 0, 0, 1, 75]), every=0 if plain else draw.choice([0, 10]),
                stop_s=draw.choice([0.0, 1.0]), stubborn=draw.random() < 0.1, plain=plain,
                boot_s=draw.choice([0.0, 1.0]), kind=run.job,
            )  # fmt: skip
        return self.programs[run.job]

    def with_usage(self, agent: SimulatedAgent) -> Any:
        observe = agent.observe

        def observed(now_s: float, wait_s: float = 0.0) -> wire.Observed:
            means = [wire.GpuMean(0.1 * (int(now_s) // 20 % 10), 1e9 * i) for i in range(agent.node.gpus)]
            successors = [[run.job, run.epoch, run.rank] for run in self.told.get(agent.node.id, [])]
            return replace(observe(now_s, wait_s), usage=wire.Usage(0.5, 1e9, means=means), successors=successors)

        return observed

    def deliver(self, agent: SimulatedAgent, answer: Any) -> list[Any]:
        self.told[agent.node.id] = answer.successors
        self.assignments.update(json.dumps([agent.node.id, wire.to_json(answer)], sort_keys=True).encode())
        return [answer]

    def happen(self) -> None:
        """One event, or none."""
        fleet, draw, now_s = self.fleet, self.draw, self.fleet.now_s
        engine, agent = fleet.engine, fleet.agents[f"n{draw.randrange(NODES)}"]
        number, kind = draw.randrange(max(engine.state.numbers, 1)), draw.randrange(40)
        if kind < 12 and engine.state.numbers < 60:
            requests = [self.request() for _ in range(draw.choice([1, 1, 1, 3]))]
            key = f"k{draw.randrange(50)}" if draw.random() < 0.1 else None
            engine.submit(requests, owner=draw.choice(["ann", "bo"]), now_s=now_s, key=key)
        elif kind == 12:
            engine.cancel(number, now_s, by="ann")
        elif kind == 13:
            engine.requeue(number, now_s, by="bo", may_lose_work=draw.random() < 0.5)
        elif kind == 14:
            fields = draw.choice(
                [{"priority": 2.0}, {"gpus": 2}, {"hold": True}, {"hold": False}, {"deadline_s": 50.0}]
            )
            engine.update(number, fields, now_s, by="ann", may_lose_work=True)
        elif kind == 15:
            engine.set_policy(draw.choice(POLICIES), now_s, may_lose_work=draw.random() < 0.5)
        elif kind == 16:
            engine.drain(agent.node.id, now_s, may_lose_work=True)
        elif kind == 17:
            engine.resume(agent.node.id, now_s)
        elif kind == 18:
            agent.kill()
        elif kind == 19:
            agent.crash(now_s)
        elif kind in (20, 21, 22, 23) and not agent.alive:
            agent.start()
        elif kind == 24:
            agent.frozen = not agent.frozen
        elif kind == 25 and draw.random() < 0.3:
            agent.leave(now_s, draw.choice([2.0, 10.0]))
        elif kind == 26:
            fleet.restart()
        elif kind == 27:
            engine.set_project("p", gpu_quota=draw.choice([None, 3, 6]), weight=2.0, now_s=now_s)
        elif kind == 28:
            engine.node_gone(agent.node.id, "no heartbeat", now_s, certain=draw.random() < 0.5)
        elif kind == 29:
            engine.forget_node(agent.node.id, now_s)
        elif kind == 30:
            engine.foreseen(number, [1.0, 2.0, None], [5.0, 9.0, None], now_s)
        elif kind == 31 and not agent.alive and not agent.running():
            agent.node = replace(agent.node, gpus=draw.choice([2, GPUS]))

    def request(self) -> dict[str, Any]:
        draw = self.draw
        out: dict[str, Any] = {"command": ["python", f"a{draw.randrange(3)}.py"], "gpus": draw.choice([1, 1, 2, 4])}
        for share, fields in (
            (0.5, {"iterations": 400.0}), (0.3, {"retries": 2}), (0.2, {"class": "opportunistic"}),
            (0.1, {"project": "p"}), (0.1, {"model": "vgg"}), (0.1, {"time_limit_s": 20.0, "signal_s": 3.0}),
            (0.05, {"begin_s": 10.0}), (0.15, {"min_gpus": 1, "max_gpus": 4, "gpus": 1, "batch": BATCH}),
            (0.05, {"processes_per_gpu": 2}),
        ):  # fmt: skip
            if draw.random() < share:
                out |= fields
        return out

    def run(self, seconds: float) -> None:
        while self.fleet.now_s < seconds:
            with suppress(InputError, LookupError):
                self.happen()
            with suppress(InputError):  # a node that came back with other GPUs while it still runs something
                self.fleet.pass_s(1.0, every_s=0.5)


def digest(what: Any) -> str:
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:12]


@pytest.mark.parametrize("seed", sorted(LOGS))
def test_a_seeded_fleet_leaves_the_log_it_always_left(seed: int, tmp_path: Path) -> None:
    story = Story(tmp_path, seed)
    story.run(LENGTH_S)
    happened = [(e.seq, e.at_s, e.type, list(e.jobs)) for e in story.fleet.store.entries()]
    assert digest(happened) == LOGS[seed]
    verified = replay(stored_rows(story.fleet.store))
    assert verified.difference is None, str(verified.difference)
    story.fleet.close()


# -- the service itself, with simulated agents, resizes jobs that adapt under `pollux`; the simulator foretells it ---


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
