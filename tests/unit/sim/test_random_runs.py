"""Random clusters, jobs, outages and crashes under random policies, every invariant after every event."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.control.controller import Controller
from plait.control.drive import drive
from plait.control.messages import Event, JobFinished, ProgressReported, ReplanDue
from plait.core.cluster import Cluster, Node
from plait.core.errors import InputError, SimulationError
from plait.core.jobs import JobBatch, JobSpec, Phase
from plait.goodput.shipped import shipped
from plait.policies.catalog import CATALOG, make_policy
from plait.sim.failures import NodeChange
from plait.sim.invariants import Invariants
from plait.sim.physics import StandardPhysics
from plait.sim.run import Simulation, simulate, simulator
from plait.sim.world import Overheads, World
from sampling import examples
from strategies import profiles

OPTIONS = [
    "las:quantum_s=60",
    "2d-las:quantum_s=60,placement=skew",
    "tiresias-l:thresholds=100/900,knob=2,floor_s=10",
    "tiresias-g:thresholds=100/900,every=2",
    "srsf:placement=random",
    "srtf:min_run_s=50",
    "fifo-backfill:reserve_after_s=30",
    "themis:lease_s=100",
]


@st.composite
def hardware(draw: st.DrawFn) -> Cluster:
    """Any nodes, as long as one node alone could take a job of four GPUs."""
    sizes = draw(st.lists(st.sampled_from([4, 4, 8]), min_size=1, max_size=4))
    kinds = draw(st.sampled_from([("gpu",), ("a", "b")]))
    return Cluster(
        tuple(
            Node(
                f"n{i}",
                size,
                draw(st.sampled_from(kinds)),
                cpus=draw(st.sampled_from([0.0, 4.0 * size])),
                memory_bytes=draw(st.sampled_from([0.0, 8e9 * size])),
                rack=draw(st.integers(0, 1)),
            )
            for i, size in enumerate(sizes)
        )
    )


@st.composite
def job_lists(draw: st.DrawFn) -> list[JobSpec]:
    rows = []
    for i in range(draw(st.integers(1, 9))):
        model = draw(st.sampled_from(["", "", "", "bert", "ncf"]))  # some adapt their batch, at their model's own speed
        profile = None if model else draw(st.none() | profiles())
        gpus = draw(st.integers(1, 4))
        seconds = draw(st.integers(1, 600_000)) / 1000
        iteration_s = profile.iteration_s if profile else draw(st.sampled_from([0.1, 1.0]))
        rows.append(
            JobSpec(
                id=f"j{i}",
                submit_s=draw(st.sampled_from([0.0, 60.0, 120.0]) | st.integers(0, 300_000).map(lambda ms: ms / 1000)),
                gpus=gpus,
                iterations=seconds / iteration_s,
                iteration_s=iteration_s,
                profile=profile,
                user=draw(st.sampled_from("xy")),
                cpus=draw(st.sampled_from([0.0, 1.0, 4.0])) * gpus,
                memory_bytes=draw(st.sampled_from([0.0, 8e9])) * gpus,
                skew=draw(st.none() | st.sampled_from([0.1, 0.9])),
                retries=draw(st.sampled_from([0, 3, 50])),
                model=model,
                batch=shipped()[model].batch if model else None,
            )
        )
    return sorted(rows, key=lambda spec: spec.submit_s)


@st.composite
def worlds(draw: st.DrawFn) -> World:
    cost = st.sampled_from([0.0, 0.5, 8.0])
    return World(
        "random",
        "",
        StandardPhysics(draw(st.sampled_from([1.0, 1.3])), kind_speed=draw(st.sampled_from([{}, {"b": 1.7}]))),
        Overheads.constant(draw(cost), draw(cost), draw(cost), draw(cost)),
        round_s=draw(st.sampled_from([0.0, 0.0, 30.0, 360.0])),
        checkpoint_every_s=draw(st.sampled_from([0.0, 20.0, 1800.0])),
        job_mtbf_s=draw(st.sampled_from([float("inf"), 2000.0])),
        profile_noise=draw(st.sampled_from([0.0, 0.0, 0.5])),
    )


@st.composite
def outages(draw: st.DrawFn, cluster: Cluster) -> list[NodeChange]:
    changes = []
    for node in cluster.nodes:
        at = 0.0
        for _ in range(draw(st.integers(0, 2))):
            down = at + draw(st.integers(1, 200_000)) / 1000
            at = down + draw(st.integers(1, 100_000)) / 1000
            changes += [NodeChange(down, node.id, False), NodeChange(at, node.id, True)]
    return sorted(changes)


def conserved(run: Simulation, cluster: Cluster) -> None:
    """What every run has in common at its end."""
    controller, backend = run.controller, run.backend
    columns, n = controller.job_store.columns, len(backend.truth)
    assert controller.job_store.count == n
    assert not len(controller.active)
    phases = columns["phase"][:n]
    assert ((phases == int(Phase.FINISHED)) | (phases == int(Phase.FAILED))).all(), "jobs in = finished + failed"
    done = phases == int(Phase.FINISHED)
    truth = backend.truth
    jct = columns["end_s"][:n] - truth.submit_s
    assert (jct[done] >= 0).all()
    assert np.allclose(backend.run_ms, backend.worked_ms + backend.overhead_ms), "held = work + overheads"
    assert np.allclose(backend.service_ms[done], (backend.run_ms * truth.gpus)[done]), "service = time x gang"
    assert np.allclose(columns["attained_gpu_s"][:n][done] * 1e3, backend.service_ms[done])
    last = columns["end_s"][:n].max()
    assert backend.service_ms.sum() / 1e3 <= cluster.gpus * 2 * max(last, 0.001) + 1e-6  # at most two share a GPU


#: a search that takes seconds a decision, made short
CHEAP = {"pollux-ga": "pollux-ga:generations=3,population=20"}


@settings(max_examples=examples(150))
@given(st.data(), st.sampled_from([*CATALOG, *OPTIONS]), hardware(), job_lists(), worlds(), st.integers(0, 99))
def test_anything_goes_and_nothing_breaks(
    data: st.DataObject, policy: str, cluster: Cluster, specs: list[JobSpec], world: World, seed: int
) -> None:
    changes = data.draw(outages(cluster))
    made = make_policy(CHEAP.get(policy, policy))
    run = simulate(JobBatch.of(specs), cluster, made, world, seed=seed, node_changes=changes, check=True)
    conserved(run, cluster)


@settings(max_examples=examples(40))
@given(st.sampled_from(["srsf", "2d-las", "tiresias-l", "gandiva"]), job_lists(), st.integers(0, 99))
def test_drawn_node_failures(policy: str, specs: list[JobSpec], seed: int) -> None:
    world = World("mtbf", "", node_mtbf_s=900.0, node_mttr_s=120.0, checkpoint_every_s=60.0)
    cluster = Cluster.parse("3x4")
    conserved(simulate(JobBatch.of(specs), cluster, make_policy(policy), world, seed=seed, check=True), cluster)


def test_overheads_are_charged_once_to_who_pays_them() -> None:
    """One preemption: launch twice, one save, one restore, and no millisecond more."""
    jobs = JobBatch.of(
        [
            JobSpec(id="long", gpus=2, iterations=100.0, iteration_s=1.0),
            JobSpec(id="short", submit_s=40.0, gpus=2, iterations=10.0, iteration_s=1.0),
        ]
    )
    world = World("costly", "", overheads=Overheads.constant(launch_s=5, checkpoint_s=3, restore_s=4, migrate_s=9))
    run = simulate(jobs, Cluster.parse("1x2"), make_policy("srtf"), world, check=True)
    # long: 0-5 launch, 5-40 work (35), 40-43 save, [short: 43-48 launch, 48-58 work], 58-62 restore, 62-127 work
    assert run.controller.job_store.columns["end_s"][:2].tolist() == [127.0, 58.0]
    assert run.backend.overhead_ms.tolist() == [12_000, 5_000]
    assert run.backend.service_ms.tolist() == [2 * 112_000, 2 * 15_000]


def test_rounds_delay_decisions_not_completions() -> None:
    jobs = JobBatch.of(
        JobSpec(id=n, submit_s=s, iterations=50.0, iteration_s=1.0) for n, s in (("a", 0.0), ("b", 10.0))
    )
    world = World("rounds", "", round_s=360.0)
    run = simulate(jobs, Cluster.parse("1x1"), make_policy("fifo"), world, check=True)
    assert run.controller.job_store.columns["end_s"][:2].tolist() == [50.0, 410.0]


def test_a_crash_loses_the_work_since_the_last_checkpoint() -> None:
    jobs = JobBatch.of([JobSpec(id="a", iterations=100.0, iteration_s=1.0)])
    world = World("checkpoints", "", checkpoint_every_s=30.0)
    changes = [NodeChange(70.0, "n0", False), NodeChange(200.0, "n0", True)]
    run = simulate(jobs, Cluster.parse("1x1"), make_policy("fifo"), world, node_changes=changes, check=True)
    assert run.controller.job_store.columns["end_s"][0] == 240.0  # 60 of 70 seconds were safe


def test_a_redundant_change_does_not_swallow_an_arrival() -> None:
    jobs = JobBatch.of([JobSpec(id="a", submit_s=100.0, iterations=5.0, iteration_s=1.0)])
    changes = [NodeChange(100.0, "n0", True)]
    world = World("redundant", "")
    run = simulate(jobs, Cluster.parse("1x1"), make_policy("fifo"), world, node_changes=changes)
    assert run.controller.job_store.columns["end_s"][0] == 105.0


def test_jobs_without_a_duration_cannot_be_simulated() -> None:
    jobs = JobBatch.of([JobSpec(id="a"), JobSpec(id="b", iterations=1.0, iteration_s=1.0)])
    with pytest.raises(InputError, match="job 'a' has no known duration"):
        simulate(jobs, Cluster.parse("1x1"), make_policy("fifo"), World("w", ""))


# -- the invariants themselves notice ----------------------------------------------------------------------------


class Saboteur:
    """Runs a healthy simulation and spoils one thing just before the invariants look."""

    def __init__(self, spoil: Any, when: type, at_s: float, changes: tuple[NodeChange, ...] = ()) -> None:
        jobs = JobBatch.of(
            JobSpec(id=f"j{i}", submit_s=10.0 * i, gpus=2, iterations=100.0, iteration_s=1.0) for i in range(3)
        )
        self.backend = simulator(jobs, Cluster.parse("2x2"), World("w", ""), node_changes=changes)
        self.controller = Controller(make_policy("srsf"), Cluster.parse("2x2"))
        self.invariants = Invariants(self.controller, self.backend)
        self.spoil, self.when, self.at_s = spoil, when, at_s

    def __call__(self, event: Event, commands: Any) -> None:
        if isinstance(event, self.when) and event.at_s >= self.at_s:  # type: ignore[attr-defined]
            event = self.spoil(self, event) or event
        self.invariants(event, commands)

    def run(self) -> None:
        drive(self.controller, self.backend, self)


def lose_a_job(s: Saboteur, event: Event) -> None:
    s.controller.active = s.controller.active[1:]


def use_a_gpu_twice(s: Saboteur, event: Event) -> None:
    s.controller.running.gpus = np.array([0, 1, 1, 2])


def run_on_a_dead_node(s: Saboteur, event: Event) -> None:
    s.controller.cluster = s.controller.cluster.without_node("n0")


def halve_a_gang(s: Saboteur, event: Event) -> None:
    s.controller.job_store.columns["min_gpus"][0] = 4


def starve_of_cpus(s: Saboteur, event: Event) -> None:
    s.controller.job_store.columns["cpus"][0] = 64.0
    nodes = tuple(replace(node, cpus=8.0) for node in s.controller.cluster.nodes)
    s.controller.cluster = Cluster(nodes)


def go_back(s: Saboteur, event: Event) -> Event:
    assert isinstance(event, ProgressReported)
    return replace(event, iterations_done=event.iterations_done * 0 - 1)


def do_too_much(s: Saboteur, event: Event) -> Event:
    assert isinstance(event, ProgressReported)
    return replace(event, iterations_done=event.iterations_done + 1000)


def charge_twice(s: Saboteur, event: Event) -> None:
    s.backend.overhead_ms += 5000.0


@pytest.mark.parametrize(
    ("spoil", "when", "at_s", "words"),
    [
        (lose_a_job, ReplanDue, 10.0, "job 'j0' .* is neither active nor ended"),
        (use_a_gpu_twice, ReplanDue, 10.0, "a GPU is used twice"),
        (run_on_a_dead_node, ReplanDue, 10.0, "a job runs on a node that is down"),
        (halve_a_gang, ReplanDue, 10.0, "job 'j0' .* does not have its whole gang"),
        (starve_of_cpus, ReplanDue, 10.0, "node n0 has too little cpus"),
        (go_back, ProgressReported, 20.0, "job 'j0' .* lost progress"),
        (do_too_much, ProgressReported, 20.0, "job 'j0' .* did too much"),
        (charge_twice, ReplanDue, 100.0, "job 'j0' .* held GPUs 100000.0 ms, used 105000.0 ms"),
    ],
)
def test_invariants_notice(spoil: Any, when: type, at_s: float, words: str) -> None:
    with pytest.raises(SimulationError, match=f"invariant broken after .* at .* s: .*{words}"):
        Saboteur(spoil, when, at_s).run()


OUTAGE = (NodeChange(12.0, "n1", False), NodeChange(15.0, "n1", True), NodeChange(500.0, "n1", False))


def test_a_healthy_run_breaks_no_invariant() -> None:
    Saboteur(lambda s, e: None, JobFinished, 0.0).run()
    Saboteur(lambda s, e: None, JobFinished, 0.0, OUTAGE).run()


def test_work_that_shrinks_is_noticed_where_nodes_fail_too() -> None:
    with pytest.raises(SimulationError, match=r"job 'j0' .* lost progress, and neither it nor its node failed"):
        Saboteur(go_back, ProgressReported, 20.0, OUTAGE).run()
