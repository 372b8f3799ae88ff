"""Policies in rounds are not asked while nothing can change, and decide what they would if asked in each round."""

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from adaptive_cases import fixed

from plait.control.controller import Controller
from plait.control.messages import Adjust, Command, Event, JobSubmitted, Launch, ReplanDue, Stop, to_json
from plait.core.cluster import Cluster
from plait.core.highs import HAVE_HIGHS
from plait.core.jobs import Checkpoints, JobBatch, JobClass, JobSpec
from plait.core.preemption import RULES, PreemptionRule
from plait.goodput import ilp as programs_of
from plait.goodput import kinds, knapsack
from plait.goodput.shipped import shipped
from plait.policies.catalog import make_policy
from plait.policies.sizing import rounds
from plait.sim.failures import NodeChange
from plait.sim.run import simulate
from plait.sim.world import make_world
from plait.traces.load import load_jobs
from plait.traces.synthetic import generate

needs_solver = pytest.mark.skipif(not HAVE_HIGHS, reason="needs highspy: the extra sim")
SLOW = bool(os.environ.get("PLAIT_SLOW"))
MORE = ["pollux", "pollux:group=interleave", "sia:patience_s=700,restart_s=200,interval_s=45"] if SLOW else []
POLICIES = [
    "pollux:patience_s=400,interval_s=50",
    "pollux:p=1,restart_s=200",
    pytest.param("sia", marks=needs_solver),
    pytest.param("sia:p=0.5,patience_s=300", marks=needs_solver),
    *MORE,
]
CLUSTERS = ["1x4", "2x4", "3x8", "2x4,1x8", "2x6", "2x4:v100,1x4:a100"]
SEEDS = range(100 if SLOW else 2)


class Watch:
    """What was commanded, and how often the policy was asked."""

    def __init__(self) -> None:
        self.commands: list[Any] = []
        self.asked = 0

    def __call__(self, controller: Controller) -> Any:
        def step(event: Event, commands: Sequence[Command]) -> None:
            self.asked += isinstance(event, ReplanDue)
            for command in commands:
                if isinstance(command, (Launch, Adjust, Stop)):
                    said = {key: value for key, value in to_json(command).items() if key != "event"}
                    self.commands.append((round(event.at_s, 6), said))

        return step


def run(policy: str, case: dict[str, Any]) -> Watch:
    watch = Watch()
    case = dict(case)
    simulate(case.pop("jobs"), case.pop("cluster"), make_policy(policy), case.pop("world"), observe=watch, **case)
    return watch


def asked_each_round(policy: str, case: dict[str, Any], patched: pytest.MonkeyPatch) -> Watch:
    with patched.context() as patch:
        patch.setattr(rounds.InRounds, "_last_round", lambda self, view, allocations, now, *rest: now)
        return run(policy, case)


def drawn(seed: int) -> dict[str, Any]:
    """Jobs, a cluster, a world and a rule; many arrive at instants at which rounds begin."""
    rng = np.random.default_rng(seed)
    cluster = Cluster.parse(str(rng.choice(CLUSTERS)))
    specs, at_s = [], 0.0
    some_adapt = rng.random() < 0.2
    for i in range(int(rng.integers(4, 18))):
        at_s += float(rng.choice([0.0, 60.0, 45.0, rng.integers(1, 400_000) / 1000]))
        gpus = int(rng.choice([1, 1, 1, 2, 3, 4, 8]))
        more = {
            "weight": float(rng.choice([1.0, 1.0, 1.0, 2.0, 0.0])),
            "job_class": JobClass.OPPORTUNISTIC if rng.random() < 0.08 else JobClass.GUARANTEED,
            "retries": 3,
        }
        if some_adapt and rng.random() < 0.3:
            batch = shipped()["bert"].batch
            specs.append(
                JobSpec(
                    id=f"j{i}", submit_s=at_s, iterations=800.0, iteration_s=0.3, model="bert", batch=batch, max_gpus=8
                )
            )
            continue
        seconds = float(np.exp(rng.uniform(np.log(20), np.log(2500))))
        specs.append(replace(fixed(f"j{i}", gpus, at_s, **more), iterations=seconds, iteration_s=1.0))
    world = make_world(str(rng.choice(["plait", "ideal", "pollux"])))
    crash = 30_000.0 if rng.random() < 0.4 else np.inf
    world = replace(world, job_mtbf_s=crash, plain=float(rng.choice([0.0, 0.0, 0.4])))
    changes: list[NodeChange] = []
    if rng.random() < 0.4:
        node = cluster.nodes[0].id
        times = np.cumsum(rng.choice([60.0, 600.0, 333.3, 1800.0], 6)).tolist()
        changes = [NodeChange(at, node, i % 2 == 1) for i, at in enumerate(times)]
    rule: PreemptionRule = RULES[str(rng.choice(sorted(RULES)))]
    jobs = JobBatch.of(specs)
    return {"jobs": jobs, "cluster": cluster, "world": world, "node_changes": changes, "rule": rule, "seed": seed}


@pytest.mark.parametrize("policy", POLICIES)
def test_random_runs_are_what_they_would_be_if_every_round_were_decided(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    every_asked = our_asked = 0
    for seed in SEEDS:
        case = drawn(seed)
        every, ours = asked_each_round(policy, case, monkeypatch), run(policy, case)
        assert ours.commands == every.commands, seed
        every_asked, our_asked = every_asked + every.asked, our_asked + ours.asked
    assert our_asked < every_asked or "group" in policy  # groups may change in any round


@pytest.mark.parametrize("saves", [Checkpoints.NEVER, Checkpoints.PERIODIC])
@pytest.mark.parametrize("rule", ["may-lose-work", "freely"])
@pytest.mark.parametrize("policy", ["pollux:patience_s=300", pytest.param("sia:patience_s=300", marks=needs_solver)])
def test_jobs_that_lose_more_than_a_turn_end_although_others_are_due(
    policy: str, rule: str, saves: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each fills the cluster: turns of `patience_s` would begin them again for ever."""
    specs = [replace(fixed(f"j{i}", 4, checkpoints=saves), iterations=1000.0) for i in range(2)]
    world = replace(make_world("plait"), checkpoint_every_s=700.0)
    case = {"jobs": JobBatch.of(specs), "cluster": Cluster.of(1, 4), "world": world, "rule": RULES[rule]}
    every, ours = asked_each_round(policy, case, monkeypatch), run(policy, case)
    assert ours.commands == every.commands
    assert every.commands[-1][0] < 10 * 1000.0
    if rule == "freely":
        assert sum(said["type"] == "Stop" for _, said in every.commands) > 2, "they take turns"


@pytest.mark.parametrize("policy", ["pollux", pytest.param("sia", marks=needs_solver)])
def test_a_trace_like_the_demo_takes_few_decisions_and_no_integer_program(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If every round is decided, there are 574 decisions for 60 jobs."""
    jobs = load_jobs(generate("philly", 60, 8, 0.35, 2)).jobs
    case = {"jobs": jobs, "cluster": Cluster.of(1, 8), "world": make_world("plait")}
    every = asked_each_round(policy, case, monkeypatch)
    tables, programs = Counter[str](), Counter[str]()
    for module, name in ((kinds, "knapsack_of_one_size"), (knapsack, "knapsack_of_one_size"), (knapsack, "knapsack")):
        monkeypatch.setattr(module, name, counted(getattr(module, name), tables))
    for module in (kinds, programs_of):
        monkeypatch.setattr(module, "solve", counted(module.solve, programs))
    ours = run(policy, case)
    assert ours.commands == every.commands
    assert ours.asked < every.asked / 3
    assert ours.asked < 5 * len(jobs)
    assert tables.total() < 4 * ours.asked
    assert programs.total() == 0


@pytest.mark.parametrize("interval_s", [0.001, 0.2, 60.0])
def test_rounds_can_be_short_and_far_from_the_start(interval_s: float) -> None:
    """As in a trace whose times are dates."""
    begin_s, specs = 1.8e9, [fixed(f"j{i}", 2) for i in range(2)]
    controller = Controller(make_policy(f"pollux:interval_s={interval_s:g}"), Cluster.of(1, 2))
    controller.handle(JobSubmitted(begin_s, 0, JobBatch.of(specs)))
    commands = [controller.handle(ReplanDue(begin_s + at_s)) for at_s in (0.0, 0.5, 100.0)]
    assert [sum(isinstance(one, Launch) for one in some) for some in commands] == [1, 0, 0]
    assert controller.plan.valid_until_s > begin_s + 100.0


def counted(function: Any, counts: Counter[str]) -> Any:
    def counting(*args: Any, **options: Any) -> Any:
        counts[function.__name__] += 1
        return function(*args, **options)

    return counting
