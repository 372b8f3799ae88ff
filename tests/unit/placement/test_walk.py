"""The compiled walk and the plain one agree, and what both say can be."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.core.cluster import Cluster, Node
from plait.placement import Scheme, kernels
from reference.placement_walk import Answer, Gang, Hardware, choose, walk
from sampling import examples
from strategies import clusters


def compiled(gangs: list[Gang], cluster: Cluster, seed: int) -> list[Answer]:
    """The same question to the kernel; the order is the identity, seeds count up with the position."""
    held = [gang.runs_on for gang in gangs]
    distinct = sorted({h for h in held if h})
    running_group = np.array([distinct.index(h) if h else -1 for h in held], dtype=np.int64)
    status, positions, gpus, offsets = kernels.admit(
        np.arange(len(gangs), dtype=np.int64),
        np.array([g.size for g in gangs], dtype=np.int64),
        running_group,
        np.array([int(g.scheme) for g in gangs], dtype=np.int64),
        np.array([g.strict for g in gangs]),
        np.array([cluster.kind_mask(g.kinds) for g in gangs], dtype=np.int64),
        np.array([[g.cpus, g.memory_bytes] for g in gangs], dtype=np.float64),
        np.array([gpu for h in distinct for gpu in h], dtype=np.int64),
        np.concatenate([[0], np.cumsum([len(h) for h in distinct])]).astype(np.int64),
        seed,
        cluster.cap_prefix,
        cluster.node_kind,
        cluster.node_rack,
        cluster.node_gpus,
        cluster.first_gpu,
        cluster.gpu_node,
        cluster.node_up,
        cluster.node_spare,
    )
    where = {int(p): tuple(gpus[offsets[i] : offsets[i + 1]].tolist()) for i, p in enumerate(positions)}
    return [Answer(int(s), where.get(p, ())) for p, s in enumerate(status)]


@st.composite
def questions(draw: st.DrawFn) -> tuple[list[Gang], Cluster, int]:
    """A cluster, gangs in order, some of them running on GPUs nobody else runs on."""
    limits = draw(st.booleans())
    cluster = draw(clusters(limits=limits))
    seed = draw(st.integers(0, 10**9))
    one = draw(st.none() | st.sampled_from(Scheme))
    hardware = Hardware(cluster)
    if draw(st.booleans()):  # some run on nodes that are down
        hardware.free = set(range(cluster.gpus))
    gangs: list[Gang] = []
    for p in range(draw(st.integers(1, 9))):
        gang = Gang(
            size=draw(st.sampled_from([1, 1, 2, 2, 3, 4, 5, 8, 12])),
            scheme=draw(st.sampled_from(Scheme)) if one is None else one,
            strict=draw(st.sampled_from([False, False, False, True])),
            kinds=draw(st.sampled_from([frozenset(cluster.kinds), frozenset(cluster.kinds[:1])])),
            cpus=draw(st.sampled_from([0.0, 1.0, 4.0, 6.0])) if limits else 0.0,
            memory_bytes=draw(st.sampled_from([0.0, 4.0, 8.0])) if limits else 0.0,
            seed=seed + p,
        )
        if draw(st.booleans()):  # it runs already, somewhere it could have been put
            other = Gang(gang.size, (), draw(st.sampled_from(Scheme)), False, gang.kinds, gang.cpus, gang.memory_bytes)
            gpus = choose(hardware, other)
            if gpus:
                hardware.take(gang, gpus)
                gang = Gang(
                    gang.size, gpus, gang.scheme, gang.strict, gang.kinds, gang.cpus, gang.memory_bytes, gang.seed
                )
        gangs.append(gang)
    return draw(st.permutations(gangs).map(_reseeded(seed))), cluster, seed


def _reseeded(seed: int):  # type: ignore[no-untyped-def]
    def renumber(gangs: list[Gang]) -> list[Gang]:
        return [
            Gang(g.size, g.runs_on, g.scheme, g.strict, g.kinds, g.cpus, g.memory_bytes, seed + p)
            for p, g in enumerate(gangs)
        ]

    return renumber


@settings(max_examples=examples(300))
@given(questions())
def test_compiled_and_plain_walk_agree(question: tuple[list[Gang], Cluster, int]) -> None:
    gangs, cluster, seed = question
    assert compiled(gangs, cluster, seed) == walk(gangs, cluster)


@settings(max_examples=examples(100))
@given(questions())
def test_every_answer_is_possible(question: tuple[list[Gang], Cluster, int]) -> None:
    gangs, cluster, seed = question
    hardware = Hardware(cluster)
    hardware.free |= {gpu for gang in gangs for gpu in gang.runs_on}
    for gang, answer in zip(gangs, compiled(gangs, cluster, seed), strict=True):
        if answer.status != kernels.PLACED:
            assert answer.gpus == ()
            continue
        assert len(answer.gpus) == gang.size
        assert {cluster.gpu(gpu).kind for gpu in answer.gpus} <= gang.kinds
        assert len({cluster.gpu(gpu).kind for gpu in answer.gpus}) == 1
        assert hardware.can_have(gang, answer.gpus), "used twice, down, or beyond cores and memory"
        hardware.take(gang, answer.gpus)


@settings(max_examples=examples(100))
@given(questions())
def test_asked_again_everybody_stays(question: tuple[list[Gang], Cluster, int]) -> None:
    """What was placed runs now; the same order must not move anybody who is placed again."""
    gangs, cluster, seed = question
    first = compiled(gangs, cluster, seed)
    now = [
        Gang(g.size, a.gpus, g.scheme, g.strict, g.kinds, g.cpus, g.memory_bytes, g.seed)
        for g, a in zip(gangs, first, strict=True)
    ]
    second = compiled(now, cluster, seed)
    budget = cluster.gpus_up
    for gang, a, b in zip(gangs, first, second, strict=True):
        if gang.size > budget:
            break  # from here on others may be let in by count
        budget -= gang.size
        if a.gpus:
            assert b.gpus == a.gpus


def reference_places(size: int, cluster: Cluster, **gang: object) -> tuple[int, ...]:
    question = Gang(size, kinds=frozenset(cluster.kinds), **gang)  # type: ignore[arg-type]
    (answer,) = walk([question], cluster)
    assert compiled([question], cluster, 0) == [answer]
    return answer.gpus


def test_consolidated_takes_the_tightest_single_node() -> None:
    assert reference_places(4, Cluster.parse("1x8,1x4")) == (8, 9, 10, 11)


def test_consolidated_takes_more_nodes_where_cores_are_short() -> None:
    cluster = Cluster.of(2, 4, cpus=8.0)
    assert reference_places(4, cluster, cpus=4.0) == (0, 1, 4, 5)


def test_consolidated_does_not_wait_for_a_node_that_is_down() -> None:
    cluster = Cluster.parse("1x8,2x4").without_node("n0")
    assert reference_places(8, cluster) == tuple(range(8, 16))


@pytest.mark.parametrize(
    ("scheme", "expected"),
    [
        (Scheme.CONSOLIDATED, (8, 9, 10)),
        (Scheme.CONSOLIDATED_FIRST_FIT, (2, 3, 4)),
        (Scheme.FIRST_FIT, (2, 3, 4)),
        (Scheme.BEST_FIT, (8, 9, 10)),
        (Scheme.SPREAD, (8, 9, 10)),
        (Scheme.COUNTING, (2, 3, 4)),
    ],
)
def test_where_each_scheme_puts_three_gpus(scheme: Scheme, expected: tuple[int, ...]) -> None:
    cluster = Cluster.parse("1x8,1x4")
    everything = frozenset(cluster.kinds)
    two, one = Gang(2, (0, 1), kinds=everything), Gang(1, (11,), kinds=everything)
    answers = walk([two, one, Gang(3, scheme=scheme, kinds=everything)], cluster)
    assert answers[2].gpus == expected
    assert compiled([two, one, Gang(3, scheme=scheme, kinds=everything)], cluster, 0) == answers


def test_spread_fills_fragments_and_best_fit_keeps_gangs_together() -> None:
    cluster = Cluster.parse("2x4")
    everything = frozenset(cluster.kinds)
    running = Gang(3, (0, 1, 2), kinds=everything)
    spread = walk([running, Gang(2, scheme=Scheme.SPREAD, kinds=everything)], cluster)[1]
    together = walk([running, Gang(2, scheme=Scheme.BEST_FIT, kinds=everything)], cluster)[1]
    assert (spread.gpus, together.gpus) == ((3, 4), (4, 5))


def test_first_fit_consolidation_stays_under_one_switch() -> None:
    cluster = Cluster.parse("4x4@2")
    everything = frozenset(cluster.kinds)
    busy = Gang(1, (0,), kinds=everything)
    wide = Gang(8, scheme=Scheme.CONSOLIDATED_FIRST_FIT, kinds=everything)
    assert walk([busy, wide], cluster)[1].gpus == tuple(range(8, 16))


def test_first_fit_consolidation_takes_the_fewest_nodes_where_no_switch_could_hold_the_gang() -> None:
    scheme = Scheme.CONSOLIDATED_FIRST_FIT
    assert reference_places(7, Cluster.parse("1x1,1x2,1x4"), scheme=scheme) == tuple(range(7))
    assert reference_places(12, Cluster.parse("4x4@2"), scheme=scheme) == tuple(range(12))
    assert reference_places(8, Cluster.parse("1x8,2x4").without_node("n0"), scheme=scheme) == tuple(range(8, 16))


def test_a_running_job_moves_only_if_a_higher_ranked_one_cannot_be_placed_otherwise() -> None:
    cluster = Cluster.parse("3x4")
    everything = frozenset(cluster.kinds)
    wide = Gang(4, kinds=everything)
    high, low = Gang(1, (0,), kinds=everything), Gang(1, (4,), kinds=everything)
    assert [a.gpus for a in walk([wide, high, low], cluster)] == [(8, 9, 10, 11), (0,), (4,)]
    third = Gang(1, (8,), kinds=everything)
    answers = walk([wide, high, low, third], cluster)
    assert [a.gpus for a in answers] == [(0, 1, 2, 3), (5,), (4,), (8,)]
    assert compiled([wide, high, low, third], cluster, 0) == answers


@given(size=st.integers(1, 16))
def test_random_is_the_same_for_the_same_seed(size: int) -> None:
    cluster = Cluster((Node("a", 8), Node("b", 8)))
    gang = Gang(size, scheme=Scheme.RANDOM, kinds=frozenset(cluster.kinds), seed=7)
    assert compiled([gang], cluster, 7) == compiled([gang], cluster, 7) == walk([gang], cluster)
