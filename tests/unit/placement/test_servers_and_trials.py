"""Parameter servers and what they put on links, and jobs that are tried packed and spread."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.control.controller import Controller
from plait.control.messages import Command, Event, Launch
from plait.core.arrays import FloatArray, IntArray
from plait.core.cluster import Cluster
from plait.core.errors import InputError
from plait.core.highs import Program, solve
from plait.core.jobs import JobBatch, JobSpec, placement_skew
from plait.placement import SkewAware, TriedPlacement
from plait.placement.packing import learnt_packlimit
from plait.placement.servers import by_rule, level_workers, link_loads, server_parts, starting_ranks
from plait.policies.catalog import make_policy
from plait.sim.physics import StandardPhysics
from plait.sim.run import simulate
from plait.sim.world import make_world
from sampling import examples

# -- servers --------------------------------------------------------------------------------------------------


def levelled_servers(workers: IntArray, parts: FloatArray) -> IntArray:
    """The node of each server so that the busiest link is the least busy, by an integer program."""
    n, k = len(workers), len(parts)
    program = Program(np.append(np.zeros(n * k), 1.0), np.append(np.ones(n * k), np.inf))
    for s in range(k):
        program.put(program.add(1, 1.0, 1.0), s * n + np.arange(n), 1.0)
    for node in range(n):
        row = program.add(1, -np.inf, float(-workers[node]))
        program.put(row, np.arange(k) * n + node, parts * (workers.sum() - 2.0 * workers[node]))
        program.put(row, np.array([n * k]), -1.0)
    found = solve(program, whole=np.append(np.ones(n * k, dtype=bool), False))
    assert found is not None
    return np.argmax(found.values[:-1].reshape(k, n), axis=1)


@settings(max_examples=examples(25), deadline=None)
@given(st.lists(st.integers(1, 4), min_size=2, max_size=3), st.lists(st.integers(1, 9), min_size=1, max_size=4))
def test_the_rule_for_servers_is_near_the_integer_program_which_is_the_best_of_all(
    workers: list[int], sizes: list[int]
) -> None:
    w, parts = np.array(workers), np.array(sizes) / sum(sizes)
    best = min(link_loads(w, parts, np.array(on)).max() for on in product(range(len(w)), repeat=len(parts)))
    assert link_loads(w, parts, levelled_servers(w, parts)).max() == pytest.approx(best)
    assert best - 1e-9 <= link_loads(w, parts, by_rule(w, parts)).max() <= 1.35 * best


def test_links_carry_what_leaves_the_node() -> None:
    """By hand: a server on node 0 with all parameters of three workers there and one on node 1."""
    assert link_loads(np.array([3, 1]), np.array([1.0]), np.array([0])).tolist() == [1, 1]
    assert link_loads(np.array([3, 1]), np.array([1.0]), np.array([1])).tolist() == [3, 3]
    assert by_rule(np.array([3, 1]), np.array([1.0])).tolist() == [0]
    assert server_parts(np.nan, 3).tolist() == pytest.approx([1 / 3] * 3)
    assert starting_ranks(["a", "a", "b", "b"], 2) == [0, 2]


@settings(max_examples=examples(25), deadline=None)
@given(st.lists(st.integers(0, 4), min_size=3, max_size=4), st.integers(2, 6), st.integers(0, 99))
def test_workers_by_the_integer_program_level_the_links_as_well_as_any(room: list[int], need: int, seed: int) -> None:
    if sum(room) < need:
        return
    base = np.random.default_rng(seed).uniform(0, 3, len(room))

    def busiest(take: tuple[int, ...]) -> float:
        count = np.array(take)
        return float((base + 2 * count * (1 - count / need))[count > 0].max())

    found = level_workers(np.array(room), need, base, 1.0)
    assert found.sum() == need
    assert (found <= room).all()
    best = min(busiest(take) for take in product(*(range(r + 1) for r in room)) if sum(take) == need)
    assert busiest(tuple(found.tolist())) <= best + 2e-3 * max(base.max(), need)


def test_the_imbalance_of_servers_is_the_skew() -> None:
    share = np.array([0.7, 0.7, 0.112, 0.7, np.nan])
    skew = placement_skew(share, np.array([0, 8, 8, 1, 4]))
    assert skew[:4].tolist() == pytest.approx([0.7, 1 - 1 / 5.6, 0, 0])
    assert np.isnan(skew[4])
    jobs = [JobSpec(id=str(i), gpus=4, iterations=9, iteration_s=1, skew=0.7, servers=s) for i, s in enumerate((8, 1))]
    slow = StandardPhysics(spread_slowdown=2.0).sensitive(JobBatch.of(jobs), np.arange(2))
    assert slow.tolist() == [True, False]
    assert len(set(SkewAware().schemes(skew).tolist())) == 2


# -- trials ---------------------------------------------------------------------------------------------------


def nodes_over_time(policy: str, jobs: list[JobSpec]) -> tuple[dict[int, list[tuple[float, int]]], Any]:
    """When each job started on how many nodes of four GPUs, where spreading costs 30 %, and the columns at the end."""
    where: dict[int, list[tuple[float, int]]] = {}

    def observe(controller: Controller) -> list[Callable[[Event, list[Command]], None]]:
        def step(event: Event, commands: list[Command]) -> None:
            for command in commands:
                for group in command.groups if isinstance(command, Launch) else ():
                    nodes = len(set(controller.cluster.gpu_node[list(group.gpus)].tolist()))
                    where.setdefault(group.members[0].job, []).append((event.at_s, nodes))

        return [step]

    world = replace(make_world("ideal"), physics=StandardPhysics(spread_slowdown=1.3))
    run = simulate(
        JobBatch.of(jobs), Cluster.parse("4x4"), make_policy(policy), world, observe=observe, check=True  # type: ignore[arg-type]
    )  # fmt: skip
    return where, run.controller.job_store.columns


def job(i: int, model: str, skew: float, **more: Any) -> JobSpec:
    return JobSpec(
        id=f"j{i}", submit_s=500.0 * i, gpus=4, iterations=5000, iteration_s=1, model=model, skew=skew, **more
    )


def test_the_first_job_of_a_model_is_tried_both_ways_and_the_others_go_by_what_it_lost() -> None:
    jobs = [job(i, "large" if i % 2 == 0 else "small", 0.9 if i % 2 == 0 else 0.1) for i in range(8)]
    where, columns = nodes_over_time("fifo-backfill:placement=trial", jobs)
    assert [nodes for _, nodes in where[0]] == [1, 4, 1], "packed, apart, and packed again: it loses"
    assert [at_s for at_s, _ in where[0]] == [0, 300, 500], "after its trial, then as soon as its loss is known"
    assert columns["spread_s"][0] / columns["packed_s"][0] == pytest.approx(1.3)
    assert columns["spread_s"][1] / columns["packed_s"][1] == pytest.approx(1.0)
    assert all(len(starts) == 1 and starts[0][1] == 1 for i, starts in where.items() if i % 2 == 0 and i > 0)
    assert all(len(starts) == 1 for i, starts in where.items() if i > 1), "one of each model is enough"
    others, known = nodes_over_time("fifo-backfill:placement=skew", jobs)
    assert np.isnan(known["spread_s"][:8]).all(), "measured only where placements are tried"
    assert others[0] == [(0.0, 1)]


def test_a_limit_of_the_skew_is_learnt_from_what_models_lost() -> None:
    skew, lost = np.array([0.1, 0.2, 0.5, 0.7, 0.7]), np.array([0.0, 0.02, 0.04, 0.3, 0.5])
    assert learnt_packlimit(skew, lost, np.array([0, 1, 2, 3, 3]), 0.05) == pytest.approx(0.6)
    for unknown in (skew[:3], skew * np.nan):
        assert np.isnan(learnt_packlimit(unknown, lost[: len(unknown)], np.arange(len(unknown)), 0.05))
    assert np.isnan(learnt_packlimit(skew, lost * 0, np.arange(5), 0.05)), "none loses"
    assert learnt_packlimit(skew, lost[::-1], np.arange(5), 0.05) == pytest.approx(0.6), (
        "the highest of equally good ones"
    )
    models = [(f"m{i}", s) for i, s in enumerate((0.1, 0.15, 0.8, 0.9))]
    jobs = [job(4 * i, model, s) for i, (model, s) in enumerate(models)]
    jobs += [job(40, "new", 0.85), job(44, "other", 0.2)]
    where, _ = nodes_over_time("fifo-backfill:placement=trial", jobs)
    assert [len(where[i]) for i in (4, 5)] == [1, 1], "no trial is needed any more"
    assert where[4][0][1] == 1


def test_a_job_without_room_the_other_way_is_not_moved() -> None:
    full = [job(0, "a", 0.9), *(replace(job(i, "b", 0.9), submit_s=0.0) for i in range(1, 4))]
    where, _ = nodes_over_time("fifo-backfill:placement=trial", full)
    assert all(len(starts) == 1 for starts in where.values())


def test_limits_of_trials_are_checked() -> None:
    place = make_policy("srsf:placement=trial,loss=0.1,trial_s=60").place  # type: ignore[attr-defined]
    assert place == TriedPlacement(0.1, 60)
    for text, message in {
        "loss=-1": "loss is -1",
        "trial_s=0": "trial_s is 0",
        "packlimit=0.5": "goes with placement=skew",
    }.items():
        with pytest.raises(InputError, match=message):
            make_policy(f"srsf:placement=trial,{text}")
    for policy in ("muri-s", "plait", "drf", "themis", "yarn-cs"):  # nothing would be tried
        with pytest.raises(InputError, match=r"placement=trial|placement is .trial."):
            make_policy(f"{policy}:placement=trial")
    assert make_policy("plait:group=off,placement=trial").tries_placements  # type: ignore[attr-defined]
