"""The walk in which gangs choose their nodes: what it decides is possible, and who runs is as for any free GPUs."""

from collections import Counter
from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.core.arrays import IntArray
from plait.core.cluster import Cluster
from plait.placement import Scheme, kernels
from plait.placement.located import Chooser, WalkAnswer, WalkOrder, located_walk
from plait.placement.located import ChoosingGang as Question
from reference.placement_walk import Gang, Hardware
from sampling import examples
from unit.placement.test_walk import compiled, questions


def located(gangs: list[Gang], cluster: Cluster, choose: Chooser) -> WalkAnswer:
    """The walk of these gangs, which choose where they go; the order is the identity."""
    held = [gang.runs_on for gang in gangs]
    distinct = sorted({h for h in held if h})
    kinds = np.array([cluster.kind_mask(gang.kinds) for gang in gangs], dtype=np.int64)
    rows = np.arange(len(gangs), dtype=np.int64)
    per_gpu = np.array([[gang.cpus, gang.memory_bytes] for gang in gangs], dtype=np.float64)
    order = WalkOrder(
        rows, np.array([g.size for g in gangs], dtype=np.int64), np.array([g.strict for g in gangs]), per_gpu
    )

    def admit(running_group: IntArray, gpus: IntArray, first_gpu: IntArray) -> WalkAnswer:
        found = kernels.admit(
            rows, order.size, running_group, np.array([int(Scheme.COUNTING)]), order.strict, kinds, per_gpu, gpus,
            first_gpu, 0, cluster.cap_prefix, cluster.node_kind, cluster.node_rack, cluster.node_gpus,
            cluster.first_gpu, cluster.gpu_node, cluster.node_up, cluster.node_spare,
        )  # fmt: skip
        return WalkAnswer(*found)

    return located_walk(
        admit, order, np.array([distinct.index(h) if h else -1 for h in held], dtype=np.int64),
        np.array([gpu for h in distinct for gpu in h], dtype=np.int64),
        np.concatenate([[0], np.cumsum([len(h) for h in distinct])]).astype(np.int64), cluster, choose,
    )  # fmt: skip


def at_random(seed: int, asked: list[Question]) -> Chooser:
    """Any possible nodes, drawn from a seed; remembers the questions."""
    draw = np.random.default_rng(seed)

    def choose(gang: Question) -> IntArray:
        asked.append(gang)
        take = np.zeros(len(gang.room), dtype=np.int64)
        for node in draw.permutation(np.repeat(np.arange(len(take)), gang.room))[: gang.gpus]:
            take[node] += 1
        return take

    return choose


@settings(max_examples=examples(200), deadline=None)
@given(questions(), st.integers(0, 100))
def test_every_answer_is_possible_and_every_gang_is_asked_once(
    question: tuple[list[Gang], Cluster, int], seed: int
) -> None:
    gangs, cluster, _ = question
    asked: list[Question] = []
    found = located(gangs, cluster, at_random(seed, asked))
    assert max(Counter(one.row for one in asked).values(), default=1) == 1
    hardware = Hardware(cluster)
    hardware.free |= {gpu for gang in gangs for gpu in gang.runs_on}
    for k, p in enumerate(found.positions.tolist()):
        gpus = tuple(found.gpus[found.first_gpu[k] : found.first_gpu[k + 1]].tolist())
        assert len(gpus) == gangs[p].size
        assert len({cluster.gpu(gpu).kind for gpu in gpus} - gangs[p].kinds) == 0
        assert hardware.can_have(gangs[p], gpus)
        hardware.take(gangs[p], gpus)
        if all(cluster.up):  # else it may get what another leaves on a lost node, and nothing else
            assert gpus == gangs[p].runs_on or p in {one.row for one in asked}


@settings(max_examples=examples(200), deadline=None)
@given(questions(), st.integers(0, 100))
def test_who_runs_does_not_depend_on_the_choices_where_only_gpus_count(
    question: tuple[list[Gang], Cluster, int], seed: int
) -> None:
    """Of one kind, without cores and memory, on nodes that are up."""
    gangs, cluster, _ = question
    cluster = Cluster(tuple(replace(node, gpu_kind="gpu") for node in cluster.nodes))
    kinds = frozenset(("gpu",))
    gangs = [replace(g, kinds=kinds, cpus=0.0, memory_bytes=0.0, scheme=Scheme.COUNTING, seed=0) for g in gangs]
    found = located(gangs, cluster, at_random(seed, []))
    expected = compiled(gangs, cluster, 0)
    assert found.status.tolist() == [answer.status for answer in expected]


def test_a_choice_sees_those_before_it_and_those_that_stay() -> None:
    """Job 1 runs on node 0; jobs 0 and 2 start, and choose the last nodes with room."""
    cluster = Cluster.parse("4x2")
    gangs = [
        Gang(2, kinds=frozenset(("gpu",))),
        Gang(2, (0, 1), kinds=frozenset(("gpu",))),
        Gang(3, kinds=frozenset(("gpu",))),
    ]
    seen: list[tuple[int, list[int], dict[int, tuple[int, ...]]]] = []

    def last_first(gang: Question) -> IntArray:
        seen.append((gang.row, gang.room.tolist(), dict(gang.placed)))
        take, left = np.zeros(4, dtype=np.int64), gang.gpus
        for node in (3, 2, 1, 0):
            take[node] = min(left, gang.room[node])
            left -= int(take[node])
        return take

    found = located(gangs, cluster, last_first)
    assert found.gpus.tolist() == [6, 7, 0, 1, 2, 4, 5]
    assert seen == [(0, [0, 2, 2, 2], {1: (0,)}), (2, [0, 2, 2, 0], {0: (3,), 1: (0,)})]
