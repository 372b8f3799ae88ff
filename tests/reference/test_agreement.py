"""The engine and the naive simulator agree to the millisecond, on hundreds of small random runs.

PLAIT_SLOW=1: on eight times as many.
"""

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from plait.core.cluster import Cluster
from plait.core.jobs import JobBatch, JobSpec, Phase
from plait.core.policy import Policy
from plait.core.preemption import FREELY
from plait.core.resources import StageProfile
from plait.policies.catalog import CATALOG, make_policy
from plait.sim.failures import NodeChange
from plait.sim.physics import StandardPhysics
from plait.sim.run import simulate
from plait.sim.world import Overheads, World
from reference import orders
from reference.naive import Choice, Naive, Rules, asking, naive

#: Of the runs, one in so many is made each time.
ONE_IN = 1 if os.environ.get("PLAIT_SLOW") else 8


def some(count: int, first: int = 0) -> range:
    """Seeds of so many runs, or of the part of them that is made by default: from another one on for each `first`."""
    return range(count) if ONE_IN == 1 else range(first % 2, count // 4, 2)


CLUSTERS = ("1x1", "1x4", "2x2", "2x4", "3x4", "1x8,2x4", "4x2@2", "2x4:a,2x4:b")


def random_specs(rng: np.random.Generator, cluster: Cluster) -> list[JobSpec]:
    """Jobs with many ties: in submission, size and length."""
    coarse = bool(rng.random() < 0.5)
    widest = min(cluster.largest_gang(), 2 * int(cluster.node_gpus.max()))
    rows = []
    for i in range(int(rng.integers(2, 11))):
        gpus = int(rng.choice([g for g in (1, 1, 2, 2, 3, 4, 8) if g <= widest]))
        iteration_s = 1.0 if coarse else float(rng.choice([1.0, 0.25, 0.1]))
        seconds = float(rng.integers(1, 60)) * 10 if coarse else int(rng.integers(1, 400_000)) / 1000
        profile = None
        if rng.random() < 0.6:
            profile = StageProfile.from_sequence((rng.dirichlet(np.ones(4)) * iteration_s).tolist(), iteration_s)
        rows.append(
            JobSpec(
                id=f"j{i}",
                submit_s=float(rng.integers(0, 20)) * 10 if coarse else int(rng.integers(0, 300_000)) / 1000,
                gpus=gpus,
                iterations=seconds / iteration_s,
                iteration_s=iteration_s,
                profile=profile,
                user=str(rng.choice(["a", "b", "c"])),
                project=str(rng.choice(["p", "q"])),
                skew=None if rng.random() < 0.3 else float(rng.random()),
                weight=float(rng.choice([1.0, 1.0, 2.0])),
                retries=int(rng.choice([0, 1, 3, 30])),
            )
        )
    return sorted(rows, key=lambda spec: spec.submit_s)


def random_changes(rng: np.random.Generator, cluster: Cluster) -> list[tuple[int, str, bool]]:
    """Nodes go, and all of them come back."""
    changes = []
    for node in cluster.nodes:
        at = 0
        while rng.random() < 0.5:
            down = at + int(rng.integers(1, 40)) * 10_000 + int(rng.integers(0, 2))
            at = down + int(rng.integers(1, 20)) * 10_000
            changes += [(down, node.id, False), (at, node.id, True)]
            if rng.random() < 0.3:  # said again, when something else may happen
                changes += [(down + 10_000, node.id, False)] if at > down + 10_000 else [(at + 10_000, node.id, True)]
                at += 10_000
    return sorted(changes)


def world_of(rules: Rules) -> World:
    return World(
        "test",
        "",
        StandardPhysics(rules.spread_slowdown, rules.skew_threshold, rules.sharing, rules.kind_speed),
        Overheads.constant(
            rules.launch_ms / 1000, rules.save_ms / 1000, rules.restore_ms / 1000, rules.migrate_ms / 1000
        ),
        round_s=rules.round_ms / 1000,
        checkpoint_every_s=rules.checkpoint_ms / 1000,
        job_mtbf_s=rules.mtbf_s,
    )


def story(ends: Sequence[float], **columns: Sequence[float]) -> list[dict[str, float]]:
    """One row a job, so that a difference is easy to read."""
    rows = [{"job": float(i), "end_ms": end} for i, end in enumerate(ends)]
    for name, column in columns.items():
        for row, value in zip(rows, column, strict=True):
            row[name] = value
    return rows


def agree(
    specs: list[JobSpec],
    cluster: Cluster,
    policy: Policy,
    chooser: Callable[[Naive], Choice],
    rules: Rules,
    changes: list[tuple[int, str, bool]],
) -> None:
    slow = naive(specs, cluster, chooser, rules, changes)
    plain = story(
        [round(j.ended_at) for j in slow.jobs],
        failed=[float(j.state == "failed") for j in slow.jobs],
        starts=[j.starts for j in slow.jobs],
        preemptions=[j.preemptions for j in slow.jobs],
        promotions=[j.promotions for j in slow.jobs],
        failures=[j.failures for j in slow.jobs],
        service_ms=[j.service for j in slow.jobs],
        held_ms=[j.held for j in slow.jobs],
    )
    node_changes = [NodeChange(at / 1000, node, up) for at, node, up in changes]
    fast = simulate(  # freely: the naive scheduler stops whom the order says, whatever that loses
        JobBatch.of(specs), cluster, policy, world_of(rules), seed=rules.seed, node_changes=node_changes, check=True,
        rule=FREELY,
    )  # fmt: skip
    job_store = fast.controller.job_store.columns
    n = len(specs)
    engine = story(
        [round(end * 1000) for end in job_store["end_s"][:n].tolist()],
        failed=(job_store["phase"][:n] == int(Phase.FAILED)).astype(float).tolist(),
        starts=job_store["starts"][:n].tolist(),
        preemptions=job_store["preemptions"][:n].tolist(),
        promotions=job_store["promotions"][:n].tolist(),
        failures=job_store["failures"][:n].tolist(),
        service_ms=fast.backend.service_ms.tolist(),
        held_ms=fast.backend.run_ms.tolist(),
    )
    assert engine == plain


WORLDS: dict[str, Rules] = {
    "ideal": Rules(),
    "ideal-rounds": Rules(round_ms=60_000),
    "costly": Rules(launch_ms=9_000, save_ms=3_000, restore_ms=5_000, migrate_ms=2_500),
    "costly-rounds": Rules(round_ms=45_000, launch_ms=9_000, save_ms=3_000, restore_ms=5_000, migrate_ms=2_500),
}


def try_out(
    name: str,
    rules: Rules,
    seeds: range,
    policy: str,
    own: Callable[[], Callable[[Naive], Choice]] | None,
    uneven: bool,
) -> None:
    for seed in seeds:
        rng = np.random.default_rng((seed, len(name)))
        choices = CLUSTERS if own is None else CLUSTERS[:6]
        cluster = Cluster.parse(str(rng.choice(choices)))
        specs = random_specs(rng, cluster)
        world = replace(rules, seed=seed)
        changes: list[tuple[int, str, bool]] = []
        if seed % 3 == 1:
            world, changes = replace(world, checkpoint_ms=20_000), random_changes(rng, cluster)
        if seed % 3 == 2:
            world = replace(world, mtbf_s=900.0, checkpoint_ms=float(rng.choice([0, 20_000, math.inf])))
        if uneven and seed % 2:
            world = replace(world, spread_slowdown=1.3, kind_speed={"b": 2.0}, sharing=(1.0, 2.5))
        made = make_policy(policy)
        chooser = asking(make_policy(policy)) if own is None else own()
        try:
            agree(specs, cluster, made, chooser, world, changes)
        except Exception as error:
            raise AssertionError(f"policy {policy}, cluster {cluster}, seed {seed}, {world}, {changes}") from error


OPTIONS = (
    "fifo-backfill:reserve_after_s=50",
    "yarn-cs:shares=2/1",
    "srsf:min_run_s=30,quantum_s=20",
    "2d-las:quantum_s=25,placement=spread",
    "srtf:placement=random",
    "tiresias-l:thresholds=100/300,knob=1,floor_s=5",
    "tiresias-l:thresholds=100/300,within=running_first",
    "tiresias-g:thresholds=100/300,every=2",
    "themis:lease_s=40",
    "gandiva:slice_s=20",
    "drf:placement=spread",
)


#: a search that takes seconds a decision, made short
CHEAP = {"pollux-ga": "pollux-ga:generations=3,population=20", "sia": "sia:interval_s=240"}
#: the naive world has no guests (`reference/guest_walk.py` has), and keeps no reports of groups
TRIED_AS = {**CHEAP, "plait": "plait:guests=0,learn=off"}


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("policy", [*CATALOG, *OPTIONS])
def test_every_policy_through_a_view_made_by_hand(policy: str, world: str) -> None:
    try_out(
        world,
        WORLDS[world],
        some(6 if policy in CHEAP else 12, list(WORLDS).index(world) + len(policy)),
        TRIED_AS.get(policy, policy),
        None,
        uneven=True,
    )


OWN: dict[str, Callable[[], Callable[[Naive], Choice]]] = {
    "fifo": lambda: orders.by(orders.arrival, preempt=False, strict=True),
    "fifo-backfill": lambda: orders.by(orders.arrival, preempt=False),
    "sjf": lambda: orders.by(orders.duration, preempt=False),
    "smallest-first": lambda: orders.by(orders.size),
    "srtf": lambda: orders.by(orders.remaining_time),
    "srsf": lambda: orders.by(orders.remaining_service),
    "las:quantum_s=30": lambda: orders.by(orders.run_time, quantum_s=30),
    "2d-las:quantum_s=30": lambda: orders.by(orders.attained, quantum_s=30),
    "tiresias-l:thresholds=100/300": lambda: orders.Tiresias((100, 300)),
    "tiresias-l:thresholds=50,within=submit": lambda: orders.Tiresias((50,), "submit"),
    "tiresias-l:thresholds=100/300,within=running_first": lambda: orders.Tiresias((100, 300), "running_first"),
    "tiresias-l:thresholds=60,dimensions=1": lambda: orders.Tiresias((60,), dimensions=1),
    "tiresias-l:thresholds=100,knob=1,floor_s=5": lambda: orders.Tiresias((100,), knob=1, floor_s=5),
    "tiresias-l:thresholds=100,knob=2,guard=off": lambda: orders.Tiresias((100,), knob=2, guard=False),
    "tiresias-l:thresholds=100/300,knob=1,floor_s=5,within=running_first": lambda: orders.Tiresias(
        (100, 300), "running_first", knob=1, floor_s=5
    ),
}


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("policy", OWN)
def test_orders_written_twice(policy: str, world: str) -> None:
    text = policy + ("," if ":" in policy else ":") + "placement=counting"
    try_out(world, WORLDS[world], some(21, list(WORLDS).index(world)), text, OWN[policy], uneven=False)


def sharers(rng: np.random.Generator, cluster: Cluster) -> list[JobSpec]:
    """Jobs that leave their GPUs idle half of the time, many of them alike."""
    rows = []
    for i in range(int(rng.integers(3, 9))):
        gpu = float(rng.choice([0.2, rng.uniform(0.1, 0.6)]))
        rows.append(
            JobSpec(
                id=f"j{i}",
                submit_s=float(rng.integers(0, 5)) * 7,
                gpus=min(int(rng.choice([1, 1, 2])), cluster.gpus),
                iterations=float(rng.choice([60, rng.integers(5, 200)])),
                iteration_s=1.0,
                profile=StageProfile.of(gpu=gpu, cpu=1 - gpu),
                gpu_memory_bytes=float(rng.choice([0, 6e9])),
            )
        )
    return sorted(rows, key=lambda spec: spec.submit_s)


SHARING = {
    "well": Rules(sharing=(1.0, 1.2)),
    "badly": Rules(sharing=(1.0, 2.5)),
    "rounds": Rules(sharing=(1.0, 2.5), round_ms=15_000),
    "costly": Rules(sharing=(1.0, 1.2), launch_ms=2_000, save_ms=500, restore_ms=800, migrate_ms=300),
    "failing": Rules(sharing=(1.0, 2.5), mtbf_s=100.0, checkpoint_ms=20_000),
}


@pytest.mark.parametrize("world", SHARING)
@pytest.mark.parametrize("cluster", ["1x1", "1x2", "2x2"])
def test_jobs_that_share_gpus(cluster: str, world: str) -> None:
    shared = 0
    for seed in some(24, len(world)):
        specs = sharers(np.random.default_rng(seed), Cluster.parse(cluster))
        choose = asking(make_policy("gandiva:slice_s=10"))

        def counting(run: Naive, choose: Callable[[Naive], Choice] = choose) -> Choice:
            nonlocal shared
            choice = choose(run)
            shared += sum(len(members) > 1 for members, _ in choice.groups)
            return choice

        rules = replace(SHARING[world], seed=seed)
        agree(specs, Cluster.parse(cluster), make_policy("gandiva:slice_s=10"), counting, rules, [])
    assert shared > 48 // ONE_IN, "hardly anybody shared"


def takers_of_turns(rng: np.random.Generator, cluster: Cluster) -> list[JobSpec]:
    """Jobs of three kinds that bottleneck on different resources, and some that nobody has profiled."""
    kinds = [StageProfile.from_sequence(rng.dirichlet(np.full(4, 0.3)).tolist(), 1.0) for _ in range(3)]
    rows = []
    for i in range(int(rng.integers(4, 10))):
        gpus = min(int(rng.choice([1, 1, 2])), cluster.gpus)
        rows.append(
            JobSpec(
                id=f"j{i}",
                submit_s=float(rng.integers(0, 12)) * 10,
                gpus=gpus,
                iterations=float(rng.choice([60, rng.integers(5, 400)])),
                iteration_s=1.0,
                profile=None if rng.random() < 0.1 else kinds[int(rng.integers(3))],
                retries=30,
            )
        )
    return sorted(rows, key=lambda spec: spec.submit_s)


TURNS = {
    "muri-s": 200,
    "muri-s:merge=always,guard=0.5": 30,
    "muri-s:merge=always,method=consecutive,guard=off,turns=worst": 300,
    "muri-l:quantum_s=30,max_jobs=2": 300,
    "muri-l:order=discretised,objective=speedup": 200,
    "muri-l:order=themis,method=greedy": 200,
}


@pytest.mark.parametrize("policy", TURNS)
def test_jobs_that_take_turns(policy: str) -> None:
    shared = 0
    for seed in some(60, len(policy)):
        rng = np.random.default_rng((seed, 0x7142))
        cluster = Cluster.parse(str(rng.choice(["1x1", "1x2", "2x2", "1x4"])))
        rules = replace(SHARING[str(rng.choice(list(SHARING)))], seed=seed, sharing=(1.0, 1.2, 1.5, 1.4))
        changes = random_changes(rng, cluster) if seed % 3 == 1 else []
        choose = asking(make_policy(policy))

        def counting(run: Naive, choose: Callable[[Naive], Choice] = choose) -> Choice:
            nonlocal shared
            choice = choose(run)
            shared += sum(len(members) > 1 for members, _ in choice.groups)
            return choice

        agree(takers_of_turns(rng, cluster), cluster, make_policy(policy), counting, rules, changes)
    assert shared > TURNS[policy] // ONE_IN, "hardly anybody shared"
