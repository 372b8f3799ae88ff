"""The client of a rank against switch and server of the protocol, on one clock: exact sums, whatever is lost."""

import math

import numpy as np
import pytest
from aggregation_world import DIRECTIONS, Faults, World, grants

from plait.core.errors import InputError
from plait.network.protocol import fixed_point, header
from plait.network.protocol.fixed_point import NOT_FINITE
from plait.training.collectives import aggregation_kernels as kernels
from plait.training.collectives.aggregation_client import MOST_SEQS, AggregationClient, options_of
from sampling import sample

MODES = ("dedicated", "shared_hash", "shared_cycle", "hybrid_region", "hybrid_modulo")


def tensors(jobs: int, workers: int, size: int, seed: int) -> list[list[np.ndarray]]:
    chance = np.random.default_rng(seed)
    return [[chance.standard_normal(size + 13 * j).astype(np.float32) for _ in range(workers)] for j in range(jobs)]


def check(world: World, gradients: list[list[np.ndarray]]) -> None:
    """Run a tensor of each job, and compare all sums with those of whole numbers in NumPy."""
    exponents = [max(kernels.exponent_of(one) for one in job) for job in gradients]
    scales = [world.clients[j][0].scale_for(exponent) for j, exponent in enumerate(exponents)]
    done = world.run(gradients, scales)
    assert all(all(one) for one in done)
    for j, job in enumerate(gradients):
        sums = np.sum([np.rint(one.astype(np.float64) * scales[j]).astype(np.int64) for one in job], axis=0)
        for client in world.clients[j]:
            assert not client.overflowed
            np.testing.assert_array_equal(client.sums[: len(job[0])], sums)
            out = np.empty(len(job[0]), dtype=np.float32)
            client.mean(out)
            np.testing.assert_allclose(out, np.mean(job, axis=0), atol=2.0 ** (exponents[j] - 20))


@pytest.mark.parametrize("index", MODES)
@pytest.mark.parametrize(("jobs", "workers", "loss"), sample([(2, 2, 0.0), (3, 4, 0.05)], [
    (jobs, workers, loss) for jobs in (1, 2, 3, 4) for workers in (2, 4, 8) for loss in (0.0, 0.001, 0.01, 0.05)
]))  # fmt: skip
def test_sums_are_exact_in_every_mode_whatever_is_lost(index, jobs, workers, loss) -> None:
    world = World(grants(jobs, workers, index), Faults(dict.fromkeys(DIRECTIONS, loss)), seed=jobs * workers)
    for tensor in range(3):
        check(world, tensors(jobs, workers, 400, seed=tensor))
    assert world.settle() == 0
    counts = world.clients[0][0].counts
    assert counts.results == 150
    assert counts.resent > 0 or loss < 0.01
    assert counts.resent == 0 or loss > 0 or index not in ("dedicated", "hybrid_modulo")


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_each_direction_may_lose_packets_alone(direction) -> None:
    world = World(grants(1, 2, "shared_hash"), Faults({direction: 0.2}), seed=1)
    check(world, tensors(1, 2, 400, seed=0))
    assert world.clients[0][0].counts.resent > 0


@pytest.mark.parametrize("index", MODES)
def test_repeated_and_late_packets_do_not_count_twice(index) -> None:
    world = World(grants(2, 3, index), Faults({"to_worker": 0.02}, duplicate=0.1, late=0.05), seed=5)
    for tensor in range(3):
        check(world, tensors(2, 3, 300, seed=tensor))
    assert world.settle() == 0


def test_jobs_that_collide_say_so() -> None:
    world = World(grants(4, 2, "shared_hash", slots=16))
    check(world, tensors(4, 2, 800, seed=0))
    assert all(client.counts.collided > 0 for clients in world.clients for client in clients)


@pytest.mark.parametrize("index", MODES)
def test_a_tensor_is_given_up_without_an_answer_and_the_next_one_is_exact_again(index) -> None:
    world = World(grants(1, 2, index, max_timeouts=5))
    check(world, tensors(1, 2, 300, seed=0))
    world.cut = True
    assert world.run(tensors(1, 2, 300, seed=1), [1000.0]) == [[False, False]]
    assert world.clients[0][0].counts.timeouts > 5
    world.restart_switch()
    world.register(world.jobs[0])
    world.cut = False
    check(world, tensors(1, 2, 300, seed=2))
    assert world.settle() == 0


def test_a_switch_that_restarts_within_a_tensor_makes_no_wrong_sum() -> None:
    for index in MODES:
        world = World(grants(1, 2, index, max_timeouts=5), Faults({"to_worker": 0.3}), seed=3)
        deliver, left = world.deliver, [12]

        def restart(world=world, deliver=deliver, left=left) -> None:
            left[0] -= 1
            if left[0] == 0:
                world.restart_switch()
                world.register(world.jobs[0])
            deliver()

        world.deliver = restart
        gradients = tensors(1, 2, 800, seed=0)
        done = world.run(gradients, [1e6])
        sums = sum(np.rint(one.astype(np.float64) * 1e6).astype(np.int64) for one in gradients[0])
        for rank, good in enumerate(done[0]):
            if good:
                np.testing.assert_array_equal(world.clients[0][rank].sums[:800], sums)


def test_a_rank_that_died_lets_the_others_give_up() -> None:
    world = World(grants(1, 3, "shared_hash", max_timeouts=5))
    world.dead.add((0, 2))
    assert world.run(tensors(1, 3, 300, seed=0), [1000.0]) == [[False, False, False]]


def test_a_region_can_change_between_two_tensors() -> None:
    for index in ("dedicated", "hybrid_region", "hybrid_modulo", "shared_cycle"):
        world = World(grants(1, 2, index, slots=64))
        check(world, tensors(1, 2, 300, seed=0))
        moved = world.jobs[0].__class__(**{**vars(world.jobs[0]), "offset": 32, "size": 32, "epoch": 1})
        if index == "shared_cycle":
            world.register(moved)
        for client in world.clients[0]:
            client.use_region(moved)
        from plait.network.protocol import switch

        switch.grant(world.table, 0, 32, 32, 1)
        check(world, tensors(1, 2, 300, seed=1))
        held = np.flatnonzero(world.table.table["key"] >= 0)
        assert index != "dedicated" or held.max() >= 32


# -- parts ------------------------------------------------------------------------------------------------------------


def test_the_largest_exponent_is_that_of_the_reference() -> None:
    chance = np.random.default_rng(0)
    cases = [chance.standard_normal(50).astype(np.float32) * np.float32(2.0**e) for e in range(-126, 120, 13)]
    cases += [np.zeros(3), np.array([1.0]), np.array([0.5, -2.0]), np.array([1e-45]), np.array([3.4e38]), np.array([])]
    for wrong in (math.inf, -math.inf, math.nan):
        cases.append(np.array([1.0, wrong, 0.0]))
    for case in cases:
        x = np.asarray(case, dtype=np.float32)
        assert kernels.exponent_of(x) == fixed_point.exponent_of(x)
    assert kernels.exponent_of(np.array([math.nan], dtype=np.float32)) == NOT_FINITE


@pytest.mark.parametrize("quantise", ["exponent", "fixed"])
def test_packets_are_those_of_the_reference(quantise) -> None:
    """Header and payload, byte for byte, of the compiled kernel and of its plain twin."""
    grant = grants(1, 3, "shared_hash", quantise=quantise)[0]
    client = AggregationClient(grant, rank=1)
    gradients = tensors(1, 1, 45, seed=2)[0][0]
    gradients[7] = 1e9 if quantise == "fixed" else 1e6
    scale = 1000.0
    client.start(gradients, scale, now=0)
    rows = client.fill(now=1).copy()
    assert rows.shape == (6, 6 + 8)
    packets, values = header.make_packets(6, 8)
    assert header.decode(rows.view(np.uint8), np.full(6, 56), 6, packets, values) == 6
    expected = np.zeros(48, dtype=np.int32)
    limited = fixed_point.quantise(gradients, scale, quantise == "fixed", expected)
    np.testing.assert_array_equal(values.ravel(), expected)
    assert limited == (quantise == "fixed")
    assert client.overflowed == (quantise == "fixed")
    assert packets["seq"].tolist() == list(range(6))
    assert set(packets["bitmap"]) == {2}
    assert set(packets["n_workers"]) == {3}
    out = np.zeros((6, 56), dtype=np.uint8)
    header.encode(packets, values, 6, out)
    np.testing.assert_array_equal(out, rows.view(np.uint8))
    client.start(gradients, scale, now=2)
    plain_rows = np.zeros_like(rows)
    in_python = getattr(kernels.fill_packets, "py_func", kernels.fill_packets)
    in_python(client._workers, client._packets, gradients, scale, quantise == "fixed", plain_rows, 3)
    assert (plain_rows[:, 6:] == rows[:, 6:]).all()


def test_the_mean_is_that_of_the_reference() -> None:
    sums = np.random.default_rng(0).integers(-(2**31), 2**31, 1000).astype(np.int32)
    out, expected = np.zeros(1000, dtype=np.float32), np.zeros(1000, dtype=np.float32)
    kernels.write_mean(sums, 12345.678, out)
    fixed_point.dequantise(sums, 12345.678, expected)
    np.testing.assert_array_equal(out, expected)


def test_what_is_no_result_of_the_tensor_is_ignored() -> None:
    client = AggregationClient(grants(1, 2, "shared_hash")[0], rank=0)
    client.start(np.ones(64, dtype=np.float32), 10.0, now=0)
    client.fill(now=0)
    made, values = header.make_packets(5, 8)
    made["type"], made["seq"], values[:] = header.RESULT, range(5), 20
    made["type"][0] = header.DATA
    made["job"][1] = 3
    made["seq"][2] = 99
    out = np.zeros((5, 56), dtype=np.uint8)
    header.encode(made, values, 5, out)
    out[3, 0] ^= 0x40  # another version
    assert client.take(out.view(np.uint32), now=1) == 1
    assert client.sums[32:40].tolist() == [20] * 8
    assert client.sums[:32].tolist() == [0] * 32


def test_fixed_scales_refuse_what_may_not_fit() -> None:
    client = AggregationClient(grants(1, 2, "shared_hash", quantise="fixed")[0], rank=0)
    assert client.scale_for(0) == 1e6
    assert client.scale_for(11) == math.inf
    assert client.fits(10**6)
    assert not client.fits(8 * MOST_SEQS + 1)


def test_a_grant_without_a_protocol_is_refused() -> None:
    grant = grants(1, 2, "shared_hash")[0]
    for changed, message in (({}, "options without protocol"), ({"protocol": "esa", "windw": 3}, "window")):
        with pytest.raises(InputError, match=message):
            options_of(grant.__class__(**{**vars(grant), "options": changed}))


def test_gradients_share_an_exponent_unless_the_grant_says_otherwise() -> None:
    grant = grants(1, 2, "shared_cycle")[0]
    for given, expected in (({}, "exponent"), ({"quantise": "fixed"}, "fixed")):
        changed = {"protocol": "atp", **given}
        assert options_of(grant.__class__(**{**vars(grant), "options": changed})).quantise == expected
