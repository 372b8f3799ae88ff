"""The placer of elastic jobs: nobody is moved without need, and arranged nodes become real ones."""

from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.core.errors import InputError
from plait.placement import elastic
from plait.placement.elastic import PlacedSizes, place_arranged, place_sizes, place_undisturbed, rebuild
from sampling import examples


def matrix(*rows: list[int]) -> np.ndarray:
    return np.array(rows, dtype=np.int64)


def column(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def check(found: PlacedSizes, sizes: np.ndarray, running: np.ndarray, capacity: np.ndarray) -> None:
    """What holds for every placement."""
    got = found.gpus.sum(axis=1)
    assert (found.gpus >= 0).all()
    assert (found.gpus.sum(axis=0) <= capacity).all()
    spread = (found.gpus > 0).sum(axis=1) > 1
    assert ((found.gpus[spread] > 0).sum(axis=0) <= 1).all(), "two spread jobs share a node"
    served = np.ones(len(sizes), dtype=bool)
    served[found.unplaced] = False
    assert (got[served] == sizes[served]).all()
    assert (got[~served] < sizes[~served]).all()
    elsewhere = (found.gpus != running).any(axis=1) & (running.sum(axis=1) == sizes) & (sizes > 0) & served
    assert found.moved.tolist() == np.flatnonzero(elsewhere).tolist()


def test_unchanged_sizes_keep_their_gpus_and_the_rest_fits_best():
    running = matrix([2, 0, 0], [0, 3, 0], [0, 0, 0], [0, 0, 0])
    found = place_sizes(column(2, 3, 1, 2), running, column(4, 4, 4))
    assert found.gpus.tolist() == [[2, 0, 0], [0, 3, 0], [0, 1, 0], [2, 0, 0]]
    assert found.moved.size == found.unplaced.size == 0


def test_whole_nodes_are_freed_by_moving_the_fewest_small_jobs():
    running = matrix([1, 0, 0, 0], [1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 2, 0], [0, 0, 0, 0])
    found = place_sizes(column(1, 1, 1, 2, 8), running, column(4, 4, 4, 4))
    check(found, column(1, 1, 1, 2, 8), running, column(4, 4, 4, 4))
    assert found.gpus[4].tolist() == [0, 4, 0, 4]  # the free node, and the one with a single job
    assert found.moved.tolist() == [2]


def test_a_fragmented_node_is_cleared_of_one_job_not_two():
    running = matrix([1, 0], [1, 0], [1, 0], [0, 2], [0, 0])
    found = place_sizes(column(1, 1, 1, 2, 2), running, column(4, 3))
    assert found.unplaced.size == 0
    assert found.moved.tolist() == [2]
    assert found.gpus[4].tolist() == [2, 0]


def test_a_job_on_a_node_that_went_down_is_moved():
    running = matrix([2, 0], [0, 2])
    found = place_sizes(column(2, 2), running, column(0, 4))
    assert found.gpus.tolist() == [[0, 2], [0, 2]]
    assert found.moved.tolist() == [0]


def test_pinned_jobs_stay_and_what_has_no_place_is_named_or_cut():
    running = matrix([1, 0], [0, 1], [0, 0])
    pinned = np.array([True, True, False])
    found = place_sizes(column(1, 1, 4), running, column(4, 4), pinned=pinned)
    assert found.gpus[:2].tolist() == running[:2].tolist()
    assert found.unplaced.tolist() == [2]
    cut = place_sizes(column(1, 1, 4), running, column(4, 4), pinned=pinned, smaller=(0, 1, 2, 4))
    assert cut.unplaced.tolist() == [2]
    assert cut.gpus[2].sum() == 2


def test_a_job_that_may_spread_takes_parts_of_nodes_but_never_beside_another():
    running = np.zeros((4, 3), dtype=np.int64)
    sizes = column(3, 3, 2, 2)
    strict = place_sizes(sizes, running, column(4, 4, 2))
    assert strict.unplaced.tolist() == [3]
    found = place_sizes(column(3, 3, 2, 2), running, column(4, 4, 2), spread=np.array([False, False, False, True]))
    check(found, sizes, running, column(4, 4, 2))
    assert found.unplaced.size == 0
    assert found.gpus[3].tolist() == [1, 1, 0]


def test_jobs_scattered_over_parts_of_nodes_give_way_when_others_have_no_place():
    running = matrix([2, 2, 2, 2], [0, 0, 0, 0])
    found = place_sizes(column(8, 8), running, column(4, 4, 4, 4))
    check(found, column(8, 8), running, column(4, 4, 4, 4))
    assert found.unplaced.size == 0
    assert found.moved.tolist() == [0]


@pytest.mark.parametrize("spread", [False, True])
def test_a_job_in_fragments_comes_together_as_soon_as_it_can(spread):
    loose, capacity = np.array([spread, False]), column(4, 4, 4, 4)
    sizes, running = column(4, 3), matrix([1, 1, 1, 1], [3, 0, 0, 0])
    found = place_sizes(sizes, running, capacity, spread=loose)
    check(found, sizes, running, capacity)
    assert found.gpus.tolist() == [[0, 4, 0, 0], [3, 0, 0, 0]]
    assert found.moved.tolist() == [0]
    for mask in ("stay", "pinned"):
        kept = place_sizes(sizes, running, capacity, spread=loose, **{mask: np.array([True, False])})
        assert kept.gpus.tolist() == running.tolist()


def test_a_job_in_fragments_stays_where_no_node_can_hold_it():
    running = matrix([1, 1, 0], [3, 0, 0], [0, 3, 0], [0, 0, 3])
    for spread in (False, True):
        found = place_sizes(column(2, 3, 3, 3), running, column(4, 4, 4), spread=np.full(4, spread))
        assert found.gpus.tolist() == running.tolist()


def test_small_jobs_make_room_only_for_a_job_that_was_promised_one_node():
    running = matrix([2, 2, 0], [2, 0, 0], [0, 2, 0], [0, 0, 1])
    sizes, capacity = column(4, 2, 2, 1), column(4, 4, 4)
    found = place_sizes(sizes, running, capacity)
    check(found, sizes, running, capacity)
    assert sorted(found.gpus[0].tolist()) == [0, 0, 4]
    assert found.moved.tolist() == [0, 3]
    found = place_sizes(sizes, running, capacity, spread=np.full(4, True))
    assert found.moved.size == 0


def test_refuses_columns_of_the_wrong_length():
    with pytest.raises(InputError, match=r"a size for each of 2 jobs and a capacity for each of 3 nodes"):
        place_sizes(column(1), np.zeros((2, 3), dtype=np.int64), column(4, 4, 4))


def fewest_moves(sizes: np.ndarray, running: np.ndarray, nodes: int) -> int:
    """By trying every placement of ladder sizes on nodes of 4 GPUs."""
    best = len(sizes) + 1

    def rows(job: int) -> list[tuple[int, tuple[int, ...]]]:
        parts = (0, sizes[job]) if sizes[job] <= 4 else (0, 4)
        whole = sorted(row for row in product(parts, repeat=nodes) if sum(row) == sizes[job])
        stays = tuple(running[job].tolist())
        return sorted((int(running[job].sum() == sizes[job] and row != stays), row) for row in set(whole))

    options = [rows(job) for job in range(len(sizes))]

    def go(job: int, free: list[int], moves: int) -> None:
        nonlocal best
        if moves >= best or min(free) < 0:
            return
        if job == len(sizes):
            best = moves
            return
        for moved, row in options[job]:
            go(job + 1, [a - b for a, b in zip(free, row, strict=True)], moves + moved)

    go(0, [4] * nodes, 0)
    return best


def test_no_placement_moves_fewer_jobs():
    rng = np.random.default_rng(0)
    needed = 0
    for _ in range(60):
        nodes, jobs = int(rng.integers(2, 5)), int(rng.integers(3, 7))
        running, sizes = np.zeros((jobs, nodes), dtype=np.int64), np.zeros(jobs, dtype=np.int64)
        for _ in range(5):
            sizes = np.where(rng.random(jobs) < 0.5, 0, sizes)
            for job in rng.permutation(np.flatnonzero(sizes == 0)).tolist():
                sizes[job] = rng.choice([k for k in (0, 1, 2, 4, 8) if k <= 4 * nodes - sizes.sum()])
            found = place_sizes(sizes, running, np.full(nodes, 4))
            assert found.unplaced.size == 0
            assert found.moved.size == fewest_moves(sizes, running, nodes)
            needed += found.moved.size
            running = found.gpus
    assert needed > 0, "no case needed a move"


@st.composite
def rounds(draw: st.DrawFn) -> tuple[int, int, list[list[int]]]:
    """GPUs a node, nodes, and per round the ladder size of each job, together at most what there is."""
    per_node = draw(st.sampled_from([1, 2, 4, 6, 8]))
    nodes = draw(st.integers(1, 7))
    parts = [k for k in (1, 2, 4) if per_node % k == 0 and k < per_node]
    ladder = [0, *parts, *(per_node * n for n in range(1, nodes + 1))]
    jobs = draw(st.integers(1, 12))
    out = []
    for _ in range(draw(st.integers(1, 4))):
        left, sizes = per_node * nodes, []
        for _ in range(jobs):
            size = draw(st.sampled_from([k for k in ladder if k <= left]))
            left -= size
            sizes.append(size)
        out.append(sizes)
    return per_node, nodes, out


@settings(max_examples=examples(60), deadline=None)
@given(rounds())
def test_every_choice_on_the_ladder_finds_a_place_round_after_round(case):
    per_node, nodes, sizes_of = case
    capacity = np.full(nodes, per_node)
    running = np.zeros((len(sizes_of[0]), nodes), dtype=np.int64)
    for sizes in sizes_of:
        found = place_sizes(np.array(sizes), running, capacity)
        check(found, np.array(sizes), running, capacity)
        assert found.unplaced.size == 0
        assert ((found.gpus > 0).sum(axis=1) == -(-np.array(sizes) // per_node)).all(), "on more nodes than it needs"
        again = place_sizes(np.array(sizes), found.gpus, capacity)
        assert again.gpus.tolist() == found.gpus.tolist(), "a placement that can stay was changed"
        running = found.gpus


@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_any_sizes_on_unequal_nodes_break_no_rule_and_are_cut_rather_than_lost(data):
    nodes, jobs = data.draw(st.integers(1, 6)), data.draw(st.integers(0, 8))
    capacity = np.array(data.draw(st.lists(st.integers(0, 8), min_size=nodes, max_size=nodes)))
    running = np.zeros((jobs, nodes), dtype=np.int64)
    for _ in range(3):
        sizes = np.array(data.draw(st.lists(st.integers(0, 12), min_size=jobs, max_size=jobs)), dtype=np.int64)
        spread = np.array(data.draw(st.lists(st.booleans(), min_size=jobs, max_size=jobs)), dtype=bool)
        found = place_sizes(sizes, running, capacity, spread=spread, smaller=range(13))
        check(found, sizes, running, capacity)
        if found.gpus.sum() < capacity.sum():
            assert (found.gpus.sum(axis=1)[found.unplaced] > 0).all(), "a GPU is free, and a job has none"
        running = found.gpus
        capacity = np.where(np.array(data.draw(st.lists(st.booleans(), min_size=nodes, max_size=nodes))), capacity, 0)


@pytest.mark.skipif(not hasattr(place_undisturbed, "py_func"), reason="needs the compiler: the extra sim")
def test_the_kernel_places_as_plain_python_does(monkeypatch):
    """Random sizes, some of them running as they are, on nodes some of which are down or smaller."""
    done = 0
    for seed in range(600):
        rng = np.random.default_rng(seed)
        jobs, nodes = int(rng.integers(1, 9)), int(rng.integers(1, 7))
        capacity = rng.choice([0, 2, 4, 4, 4], nodes)
        sizes, running, free = (
            rng.choice([0, 1, 1, 2, 4, 6, 8], jobs),
            np.zeros((jobs, nodes), np.int64),
            capacity.copy(),
        )
        for j in np.flatnonzero(rng.random(jobs) < 0.6).tolist():
            wanted = int(sizes[j]) if rng.random() < 0.8 else 2
            for n in rng.permutation(nodes).tolist() if free.sum() >= wanted else []:
                running[j, n] = min(free[n], wanted - running[j].sum())
                free[n] -= running[j, n]
        spread, pinned = rng.random((2, jobs)) < 0.3
        found = []
        for way in (False, True):
            monkeypatch.setattr(elastic, "compiled", lambda *asked, way=way: way)
            found.append(place_sizes(sizes, running, capacity, spread=spread, pinned=pinned))
        assert [one.tolist() for one in vars(found[0]).values()] == [one.tolist() for one in vars(found[1]).values()]
        gpus, order = np.zeros_like(running), np.argsort(-sizes, kind="stable")
        done += place_undisturbed(sizes, order, running, capacity, pinned, gpus)
    assert 150 < done < 600  # the kernel does its part, and not all


def random_arrangement(rng: np.random.Generator, jobs: int, nodes: int) -> np.ndarray:
    """Jobs on nodes of 4 GPUs, at most one that is spread on a node."""
    out = np.zeros((jobs, nodes), dtype=np.int64)
    owned = np.zeros(nodes, dtype=bool)
    for job in range(jobs):
        free = 4 - out.sum(axis=0)
        count = int(rng.integers(1, 3))
        open_nodes = np.flatnonzero((free > 0) & (~owned if count > 1 else True))
        if len(open_nodes) >= count:
            chosen = rng.choice(open_nodes, count, replace=False)
            out[job, chosen] = [rng.integers(1, free[n] + 1) for n in chosen]
            owned[chosen] |= count > 1
    return out


@settings(max_examples=examples(80), deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 8), st.integers(1, 5))
def test_patterns_are_kept_and_no_numbering_of_nodes_keeps_more(seed, jobs, nodes):
    rng = np.random.default_rng(seed)
    arranged, running = random_arrangement(rng, jobs, nodes), random_arrangement(rng, jobs, nodes)
    capacity = np.full(nodes, 4)
    found = rebuild(arranged, running, capacity)
    assert (found.gpus.sum(axis=1) == arranged.sum(axis=1)).all()
    assert sorted(map(sorted, found.gpus.T.tolist())) == sorted(map(sorted, arranged.T.tolist()))
    spread = (found.gpus > 0).sum(axis=1) > 1
    assert ((found.gpus[spread] > 0).sum(axis=0) <= 1).all()
    if not ((arranged > 0).sum(axis=1) > 1).any():
        kept = (found.gpus == running).all(axis=1).sum()
        best = max((arranged[:, list(order)] == running).all(axis=1).sum() for order in permutations(range(nodes)))
        assert kept >= best


def test_a_running_arrangement_stays():
    rng = np.random.default_rng(5)
    running = random_arrangement(rng, 9, 6)
    shuffled = running[:, rng.permutation(6)]
    assert rebuild(shuffled, running, np.full(6, 4)).gpus.tolist() == running.tolist()


def test_the_placer_comes_first_and_the_arrangement_where_it_fails():
    running = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 0]])
    easy = place_arranged(np.array([[1, 0, 0], [0, 1, 0], [0, 1, 0], [0, 0, 3]]), running, np.full(3, 4))
    assert easy.moved.size == easy.unplaced.size == 0
    arranged = np.array([[4, 0], [0, 4], [3, 0], [3, 0], [0, 3], [0, 3]])  # the largest first: 4 + 4, 3 + 3 + 3, and 3
    running = np.zeros_like(arranged)
    assert place_sizes(arranged.sum(axis=1), running, np.full(2, 10)).unplaced.size == 1
    found = place_arranged(arranged, running, np.full(2, 10))
    assert found.unplaced.size == 0
    assert found.gpus.sum(axis=1).tolist() == [4, 4, 3, 3, 3, 3]
    assert found.gpus.sum(axis=0).tolist() == [10, 10]


def test_nodes_that_are_down_are_left_out_and_too_few_are_refused():
    arranged = np.array([[4, 0], [0, 2]])
    running = np.array([[0, 4, 0], [0, 0, 0]])
    found = rebuild(arranged, running, np.array([0, 4, 4]))
    assert found.gpus.tolist() == [[0, 4, 0], [0, 0, 2]]
    with pytest.raises(InputError, match="does not fit on nodes"):
        rebuild(arranged, running, np.array([0, 4, 1]))
