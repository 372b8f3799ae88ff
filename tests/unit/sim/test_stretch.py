"""Compiled stretches and the path message by message come to the same, bit for bit."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from plait.control.controller import Controller
from plait.control.drive import ENDS, STARTS, STOPS, Block
from plait.control.history import History
from plait.control.job_rows import RUNNING
from plait.core.arrays import FloatArray, IntArray
from plait.core.cluster import Cluster
from plait.core.errors import SimulationError
from plait.core.jobs import JobBatch, JobSpec, JobTable, keys
from plait.core.plan import Plan
from plait.core.policy import View
from plait.core.preemption import DEFAULT_RULE, FREELY, KeptJobs, PreemptionRule
from plait.placement import Scheme, SkewAware, kernels
from plait.policies.catalog import make_policy
from plait.policies.compose import Composed, OrderKey, Ranking, by_arrival
from plait.policies.tiresias import Queues
from plait.sim import run as runs
from plait.sim import stretch as stretching
from plait.sim import stretch_kernels
from plait.sim.failures import NodeChange
from plait.sim.invariants import Invariants
from plait.sim.run import Simulation, Step, simulate, simulator
from plait.sim.stretch import COMPARED, outside
from plait.sim.world import World, make_world

OF_BACKEND = (
    "state", "overhead_ms", "worked_ms", "safe_ms", "free_ms", "end_ms", "stop_ms", "solo", "is_running", "attempts",
    "last_node", "gpu_free_ms", "running", "instants", "ended", "arrived", "now", "wake_ms",
)  # fmt: skip
POLICIES = (
    "srsf", "srtf", "fifo", "fifo-backfill", "sjf", "smallest-first", "las:quantum_s=100", "2d-las:quantum_s=200",
    "srsf:placement=best-fit", "srtf:placement=random,seed=3", "fifo-backfill:placement=spread",
    "2d-las:quantum_s=150,placement=consolidated-first-fit", "sjf:placement=counting", "srsf:placement=first-fit",
    "tiresias-l:thresholds=100/900", "tiresias-l:thresholds=60,dimensions=1,within=submit,placement=consolidated",
    "srsf:placement=skew", "fifo:placement=skew",
)  # fmt: skip


def trace(seed: int, count: int = 60) -> JobBatch:
    """Jobs of all sizes, of which many arrive and end in the same millisecond."""
    draw = np.random.default_rng(seed)
    gap_s = draw.choice([0.0, 0.0, 1.0, 7.3, 60.0, 300.0], count)
    iteration_s = draw.choice([0.05, 0.1, 0.3, 1.0], count)
    seconds = draw.choice([5.0, 20.0, 20.0, 60.0, 333.3, 1200.0, 4000.0], count)
    return JobBatch(
        {
            "id": [f"j{i}" for i in range(count)],
            "submit_s": np.cumsum(gap_s),
            "gpus": draw.choice([1, 1, 1, 2, 2, 3, 4, 8], count),
            "iterations": np.maximum(np.rint(seconds / iteration_s), 1.0),
            "iteration_s": iteration_s,
            "model": draw.choice(["bert", "vgg19", "gpt2", ""], count).tolist(),
            "skew": draw.choice([0.1, 0.9, np.nan], count),
            "restart_s": draw.choice([np.nan, 0.0, 15.0, 200.0], count),
            "user": draw.choice(["a", "b", "c"], count).tolist(),
        }
    )


def played(
    jobs: JobBatch, cluster: str, policy: Any, world: World, monkeypatch: pytest.MonkeyPatch, why: str | None = None,
    **options: Any,
) -> tuple[Simulation, Any]:  # fmt: skip
    """A run and its timeline; `why`: message by message, for that reason."""
    histories: list[History] = []

    def observe(controller: Controller) -> Step:
        histories.append(History(controller))
        return histories[0]

    monkeypatch.setattr(stretching, "COMPILED", True)
    if why is not None:
        monkeypatch.setattr(runs, "outside", lambda *run: why)
    done = simulate(jobs, Cluster.parse(cluster), make_policy(policy), world, observe=observe, **options)
    monkeypatch.undo()
    return done, histories[0].timeline()


def differences(one: Simulation, other: Simulation, lines: Any, other_lines: Any) -> list[str]:
    """Names of what differs between two runs."""
    found = []

    def compare(name: str, a: Any, b: Any) -> None:
        kind = getattr(getattr(a, "dtype", None), "kind", "")
        same = np.array_equal(a, b, equal_nan=kind == "f") if kind else a == b
        if not same:
            found.append(name)

    n = one.controller.job_store.count
    stores = [run.controller.job_store for run in (one, other)]
    for name in COMPARED:
        compare(name, *(store.columns[name][:n] for store in stores))
    compare("departed", *(store.departed[: store.departures] for store in stores))
    for name in ("events", "competing", "now_s", "changed"):
        compare(name, getattr(one.controller, name), getattr(other.controller, name))
    for name in OF_BACKEND:
        compare(f"backend.{name}", getattr(one.backend, name), getattr(other.backend, name))
    for name in lines.__dataclass_fields__:
        if name != "cluster":
            compare(f"timeline.{name}", getattr(lines, name), getattr(other_lines, name))
    return found


def compared(
    jobs: JobBatch, cluster: str, policy: str, world: World, monkeypatch: pytest.MonkeyPatch, **options: Any
) -> list[str]:
    """Names of what differs between a stretched run and one message by message."""
    stretched, lines = played(jobs, cluster, policy, world, monkeypatch, **options)
    driven, other_lines = played(jobs, cluster, policy, world, monkeypatch, "compared", **options)
    return differences(stretched, driven, lines, other_lines)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_stretch_comes_to_the_same(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed, cluster, name in ((1, "1x8", "ideal"), (2, "2x8", "plait"), (3, "3x4:a,1x8:b", "plait")):
        assert compared(trace(seed), cluster, policy, make_world(name), monkeypatch) == [], (seed, cluster, name)


@pytest.mark.parametrize("policy", ["srsf", "las:quantum_s=100", "fifo"])
def test_a_stretch_in_rounds_comes_to_the_same(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    world = replace(make_world("plait"), round_s=60.0)
    assert compared(trace(4), "2x8", policy, world, monkeypatch) == []


def test_a_stretch_that_may_stop_all_jobs_comes_to_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    assert compared(trace(5), "2x8", "srsf", make_world("plait"), monkeypatch, rule=FREELY) == []


def test_a_stretch_sees_what_profiling_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    world = replace(make_world("plait"), profile_noise=0.3)
    assert compared(trace(6), "2x8", "srsf", world, monkeypatch, seed=2) == []


def test_jobs_that_are_kept_are_stretched_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under overload with short quanta the rule keeps running jobs, and shuts out jobs ahead of them."""
    jobs = trace(7, 120)
    jobs = jobs.replace(submit_s=jobs.submit_s / 4)
    assert compared(jobs, "2x8", "2d-las:quantum_s=30", make_world("plait"), monkeypatch) == []
    free, _ = played(jobs, "2x8", "2d-las:quantum_s=30", make_world("plait"), monkeypatch, rule=FREELY)
    kept, _ = played(jobs, "2x8", "2d-las:quantum_s=30", make_world("plait"), monkeypatch)
    starts = [int(run.controller.job_store.columns["starts"][: len(jobs)].sum()) for run in (free, kept)]
    assert starts[1] < 0.7 * starts[0], "the rule keeps jobs"


def _outside(policy: Any, records: tuple[object, ...] = (), **changes: Any) -> str | None:
    jobs, node_changes = changes.pop("jobs", trace(1)), changes.pop("node_changes", None)
    rule = changes.pop("rule", DEFAULT_RULE)
    world = replace(make_world("plait"), **changes)
    backend = simulator(jobs, Cluster.parse("2x8"), world, node_changes=node_changes)
    made = make_policy(policy) if isinstance(policy, str) else policy
    return outside(Controller(made, backend.cluster, rule), backend, records)


def test_runs_outside_the_language_name_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stretching, "COMPILED", False)
    assert _outside("srsf") == "kernels are not compiled"
    monkeypatch.setattr(stretching, "COMPILED", True)
    assert _outside("srsf") is None
    assert _outside("tiresias-l") is None
    assert _outside("tiresias-l:knob=8") == "policy tiresias-l:knob=8: it promotes jobs"
    assert _outside("tiresias-g") == "policy tiresias-g: it orders jobs by an index"
    within = "tiresias-l:within=running_first"
    assert _outside(within) == f"policy {within}: it orders jobs by their last places"
    assert _outside("themis") == "policy themis is not an order by keys"
    assert _outside("muri-s") == "policy muri-s: its jobs share GPUs"
    assert _outside("srtf:min_run_s=50") == "policy srtf:min_run_s=50: it has a shortest run"
    assert _outside(Composed("mine", lambda view: view.jobs.gpus)) == "policy mine is not an order by keys"
    assert _outside("srsf", records=(lambda event, commands: None,)) == "a record takes single messages"
    assert _outside("srsf", job_mtbf_s=1e6) == "processes fail"
    assert _outside("srsf", plain=1.0) == "some cannot stop at any time"
    assert _outside("srsf", node_changes=[NodeChange(5.0, "n0", False)]) == "nodes are down or change"
    assert _outside("srsf", jobs=trace(1).replace(gpus=np.full(60, 17))) == "some are refused"
    assert _outside("srsf", jobs=trace(1).replace(priority=np.arange(60.0))) == "priorities differ"
    limited = trace(1).replace(time_limit_s=np.full(60, 2000.0))  # held GPUs may go to such jobs
    assert _outside("srsf", jobs=limited) == "some have a time limit"


class LastFirst(OrderKey):
    def __call__(self, view: View) -> FloatArray:
        return -view.jobs.number.astype(float)


class LastQueueFirst(Queues):
    def __call__(self, view: View) -> Ranking:
        return Ranking((-view.jobs.number,))


class AllTogether(SkewAware):
    def __call__(self, view: View) -> IntArray:
        return np.full(len(view.jobs), int(Scheme.CONSOLIDATED))


class OneAtATime(Composed):
    def decide(self, view: View) -> Plan:
        return super().decide(view)


class KeepsAll(PreemptionRule):
    def kept(self, jobs: JobTable) -> KeptJobs:
        return super().kept(jobs)


def test_classes_derived_from_those_of_plait_are_called(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels would go by the keys, queues and schemes of the class that they know."""
    monkeypatch.setattr(stretching, "COMPILED", True)
    no_order = "policy mine is not an order by keys"
    assert _outside(Composed("mine", LastFirst(keys.ARRIVAL))) == no_order
    assert _outside(Composed("mine", LastQueueFirst(()))) == no_order
    assert _outside(OneAtATime("mine", by_arrival)) == no_order
    assert _outside(Composed("mine", by_arrival, AllTogether())) == "policy mine: its placement looks at the jobs"
    assert _outside("srsf", rule=KeepsAll()) == "preemption has a rule of its own"


@pytest.mark.parametrize("policy", ["srsf", "fifo"])
def test_jobs_that_never_start_are_named_with_their_reasons(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table that says that no number of nodes holds the gang stands for a placement that never finds room."""
    jobs = JobBatch.of(
        [JobSpec(id=f"wide-{k}", gpus=12, submit_s=10.0 * k, iterations=10, iteration_s=1.0) for k in range(3)]
    )
    monkeypatch.setattr(Cluster, "cap_prefix", property(lambda self: np.zeros((1, 2), dtype=np.int64)))
    texts = []
    for path in (None, "compared"):
        with monkeypatch.context() as patch:
            patch.setattr(stretching, "COMPILED", True)
            if path is not None:
                patch.setattr(runs, "outside", lambda *run: "compared")
            with pytest.raises(SimulationError) as raised:
                simulate(jobs, Cluster.parse("2x8"), make_policy(policy), make_world("ideal"))
        texts.append(str(raised.value))
    assert "job 'wide-0' (number 0): needs 12 GPUs together; enough are free" in texts[0]
    assert texts[0] == texts[1]


def test_the_blocks_of_a_long_run_are_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a block of few rows the kernel returns after every few instants, with the same result."""
    whole, lines = played(trace(8), "2x8", "srsf", make_world("plait"), monkeypatch)
    monkeypatch.setattr(stretching, "BLOCK", 8)
    short, short_lines = played(trace(8), "2x8", "srsf", make_world("plait"), monkeypatch)
    assert differences(whole, short, lines, short_lines) == []


def _last_number_first(a: int, b: int, stop_ms: Any) -> bool:
    return bool(stop_ms[a] < stop_ms[b] or (stop_ms[a] == stop_ms[b] and a > b))


def _after(part: Callable[..., Any], then: Callable[[Any], None]) -> Callable[..., Any]:
    def mutated(s: Any, *arguments: Any) -> Any:
        out = part(s, *arguments)
        then(s)
        return out

    return mutated


def _forget_wake(s: Any) -> None:
    if s.counts[stretch_kernels.SETTLED] == 1:
        s.at[stretch_kernels.WAKE] = np.inf


#: What is broken -> where, by its name there, and the broken part.
MUTATIONS: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "two jobs that end at once end by number": (stretch_kernels, "earlier", _last_number_first),
    "a wake-up is not withdrawn by a settled plan": (
        stretch_kernels,
        "follow",
        _after(stretch_kernels.follow, _forget_wake),
    ),
    "room is what is free on all nodes": (kernels, "total", lambda values: int(values.max())),
    "kept jobs stay": (stretch_kernels, "released_s", lambda s: np.inf),
    "GPUs of a job that is shut out stay free": (stretch_kernels, "hold_for_shut_out", lambda s: None),
    "only the head of a strict line may start": (
        stretch_kernels,
        "start_line",
        lambda s, new: stretch_kernels.start_new(s, new) or stretch_kernels.settle(s, False, np.inf),
    ),
    "a gang that is spread is slower": (stretch_kernels, "over_many_nodes", lambda *gang: False),
    "equal keys go by number": (
        stretch_kernels,
        "ahead",
        lambda a, b, preempt, runs, keys, next_keys: bool(keys[a] <= keys[b] and a != b),
    ),
}


CASES = (("2d-las:quantum_s=60", "plait"), ("srsf:placement=counting", "plait"), ("srsf", "ideal"), ("fifo", "ideal"))


@pytest.mark.parametrize("rule", [None, *MUTATIONS])
def test_a_checked_run_finds_a_part_that_is_left_out(rule: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    run_stretch = stretch_kernels.run_stretch
    monkeypatch.setattr(stretching, "COMPILED", True)
    monkeypatch.setattr(stretching, "run_stretch", getattr(run_stretch, "py_func", run_stretch))
    jobs, faults = trace(7, 80), []
    jobs = jobs.replace(submit_s=jobs.submit_s / 2)
    if rule is not None:
        monkeypatch.setattr(*MUTATIONS[rule])
    for policy, name in CASES:
        try:
            simulate(jobs, Cluster.parse("2x8"), make_policy(policy), make_world(name), check=True)
        except SimulationError as error:
            faults.append(str(error))
    named = [fault for fault in faults if fault.startswith("compiled instants come to another result than single ones")]
    assert bool(named) is (rule is not None), faults


@pytest.mark.parametrize(
    ("rows", "fault"),
    [
        ([(STARTS, 0, 0.0, [0, 1]), (STARTS, 1, 0.0, [1, 2])], "job 'j1' (number 1) cannot start at 0.0 s"),
        ([(STARTS, 0, 0.0, [0, 0])], "cannot start"),
        ([(STARTS, 0, 0.0, [0])], "cannot start"),
        ([(STARTS, 0, 0.0, [3, 4])], "cannot start"),
        ([(STARTS, 2, 5.0, [0, 1])], "cannot start"),
        ([(STARTS, 0, 3.0, [0, 1]), (STARTS, 0, 3.0, [2, 3])], "cannot start"),
        ([(STOPS, 0, 3.0, [])], "cannot stop"),
        ([(STARTS, 0, 3.0, [0, 1]), (STARTS, 1, 2.0, [2, 3])], "cannot start at 2.0 s"),
        ([(STARTS, 0, 3.0, [0, 1]), (ENDS, 0, 9.0, [])], "did 0.0 of 10000.0 ms"),
        ([(STARTS, 0, 3.0, [0, 1]), (STOPS, 0, 4.0, []), (STARTS, 0, 5.0, [1, 2])], None),
    ],
)
def test_rows_of_a_block_are_replayed(rows: list[tuple[int, int, float, list[int]]], fault: str | None) -> None:
    specs = [JobSpec(id=f"j{k}", gpus=2, submit_s=[0.0, 0.0, 9.0][k], iterations=10, iteration_s=1.0) for k in range(3)]
    backend = simulator(JobBatch.of(specs), Cluster.parse("1x4:a,1x4:b"), make_world("ideal"))
    controller = Controller(make_policy("srsf"), backend.cluster)
    controller.job_store.append(backend.reported, 0.0)
    kind, job, at_s, gpus = zip(*rows, strict=True)
    count = np.array([len(some) for one, some in zip(kind, gpus, strict=True) if one == STARTS], dtype=np.int64)
    block = Block(
        np.array(kind), np.array(job), np.array(at_s), np.zeros(len(count)), count,
        np.array([gpu for some in gpus for gpu in some], dtype=np.int64), 1, 9.0,
    )  # fmt: skip
    if fault is not None:
        with pytest.raises(SimulationError, match=re.escape(fault)):
            Invariants(controller, backend).take(block)
        return
    columns = controller.job_store.columns
    values: dict[str, float] = {"phase": RUNNING, "starts": 2, "first_start_s": 3, "last_start_s": 5}
    values |= {"pending_since_s": 4, "end_s": np.nan}
    for name, value in values.items():
        columns[name][0] = value
    Invariants(controller, backend).take(block)
    for name, value in values.items():
        columns[name][0] = np.nan_to_num(value, nan=8) + 1
        with pytest.raises(SimulationError, match=f"{name} of job 'j0' .* by its starts and stops"):
            Invariants(controller, backend).take(block)
        columns[name][0] = value


@pytest.mark.parametrize("rule", [None, *MUTATIONS])
def test_no_rule_of_a_stretch_can_be_left_out(rule: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part is broken once, in plain Python, and the comparison finds it; without a fault it finds nothing."""
    jobs, found = trace(7, 80), []
    jobs = jobs.replace(submit_s=jobs.submit_s / 2)
    for policy, name in CASES:
        world = make_world(name)
        driven, lines = played(jobs, "2x8", policy, world, monkeypatch, "compared")
        monkeypatch.setattr(
            stretching, "run_stretch", getattr(stretch_kernels.run_stretch, "py_func", stretch_kernels.run_stretch)
        )
        if rule is not None:
            monkeypatch.setattr(*MUTATIONS[rule])
        try:
            stretched, other_lines = played(jobs, "2x8", policy, world, monkeypatch)
            found += differences(driven, stretched, lines, other_lines)
        except SimulationError as error:  # jobs never end
            found.append(str(error))
        monkeypatch.undo()
    assert bool(found) == (rule is not None)
