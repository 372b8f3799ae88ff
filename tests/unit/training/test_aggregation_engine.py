"""The engine of a rank: what happens to buckets when all is well, and when anything is not."""

import threading
import time
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from aggregation_world import grants
from instant_switch import InstantSwitch, ThreadGroup, Together, bucket

from plait.runtime.network.grant import GrantFile, write_grant
from plait.runtime.network.report import read_report
from plait.training.collectives import aggregation_session
from plait.training.collectives.aggregation_engine import Engine
from plait.training.collectives.aggregation_session import Reason, Session


class Ranks:
    """Engines of all ranks of a job, a grant file each, and a switch."""

    def __init__(self, folder, size=2, index="hybrid_modulo", **options) -> None:
        self.folder, self.size = folder, size
        options = {"rto_s": 50e-3, "first_rto_s": 50e-3, "max_timeouts": 3, **options}
        self.grant = grants(1, size, index, **options)[0]
        self.switch = InstantSwitch(self.grant)
        self.together = Together(size)
        self.now = 0.0
        self.engines, self.groups = [], []
        for rank in range(size):
            (folder / str(rank)).mkdir()
            group = ThreadGroup(self.together, rank)
            grants_file = GrantFile(folder / str(rank) / "network.json")
            session = Session(
                grants_file, rank, size, connect=self.switch.connect, greet=self.switch.greet, clock=lambda: self.now
            )
            self.groups.append(group)
            self.engines.append(Engine(group, session, give_up_after=2, folder=str(folder / str(rank))))
        self.give(self.grant)

    def give(self, grant, ranks=None) -> None:
        for rank in range(self.size) if ranks is None else ranks:
            write_grant(self.folder / str(rank) / "network.json", grant)

    def reduce(self, tensors):
        """All ranks' futures, waited for; the error of any is raised."""
        futures = [engine.submit(tensor) for engine, tensor in zip(self.engines, tensors, strict=True)]
        return [future.wait() for future in futures]

    def check(self, seed=0, size=100, dtype=torch.float32) -> None:
        """One bucket: all ranks get the same, and the mean."""
        tensors = [bucket(rank, size, seed).to(dtype) for rank in range(self.size)]
        mean = sum(one.double() for one in tensors) / self.size
        found = self.reduce(tensors)
        assert all(torch.equal(one, found[0]) for one in found)
        assert all(one is tensor for one, tensor in zip(found, tensors, strict=True))
        tolerance = {torch.float32: 1e-6, torch.float64: 1e-12}.get(dtype, 1e-2)
        assert torch.allclose(found[0].double(), mean, atol=tolerance)

    def report(self, rank=0):
        return self.engines[rank].report()

    def close(self) -> None:
        for engine in self.engines:
            engine.close()


def await_report(folder, grant_version):
    """Until it is written: the thread of an engine does so after it has handed over the mean of a bucket."""
    end_s = time.monotonic() + 30
    while (found := read_report(folder)) is None or found.grant_version != grant_version:
        assert time.monotonic() < end_s, found
        time.sleep(0.005)
    return found


@pytest.fixture
def make(tmp_path):
    made = []

    def start(size=2, **options):
        made.append(Ranks(tmp_path, size, **options))
        return made[-1]

    yield start
    for ranks in made:
        ranks.close()


@pytest.mark.parametrize("index", ["dedicated", "shared_hash", "hybrid_modulo"])
def test_buckets_come_back_as_means_and_in_order(make, index) -> None:
    ranks = make(3, index=index)
    tensors = [[bucket(rank, size, seed) for rank in range(3)] for seed, size in enumerate((10, 100, 1, 257))]
    futures = [[e.submit(t) for e, t in zip(ranks.engines, row, strict=True)] for row in tensors]
    means = [sum(one.double() for one in row) / 3 for row in [[t.clone() for t in row] for row in tensors]]
    for row, mean, tensor in zip(futures, means, tensors, strict=True):
        found = [future.wait() for future in row]
        assert torch.equal(found[0], found[1])
        assert torch.allclose(found[0].double(), mean, atol=1e-6) or len(tensor[0]) == 10
    report = ranks.report()
    assert (report.mode, report.reason, report.aggregated, dict(report.fallback)) == ("aggregation", "", 4, {})
    assert report.aggregated_bytes == 4 * (10 + 100 + 1 + 257)
    assert report.results == 2 + 13 + 1 + 33
    assert ranks.groups[0].means == 0
    assert report.transfer_s > 0


def test_sums_are_those_of_whole_numbers(make) -> None:
    ranks = make(2)
    tensors = [bucket(rank, 500) for rank in range(2)]
    arrays = [tensor.numpy().astype(np.float64) for tensor in tensors]
    exponent = max(int(np.frexp(np.abs(one).max())[1]) for one in arrays)
    scale = (2**31 - 3) / 2 * 2.0**-exponent
    sums = sum(np.rint(one * scale) for one in arrays)
    found = ranks.reduce(tensors)
    np.testing.assert_array_equal(found[0].numpy(), (sums / (2 * scale)).astype(np.float32))


def test_narrow_floats_are_aggregated_and_wide_ones_are_not(make) -> None:
    ranks = make(2)
    ranks.check(dtype=torch.float16)
    ranks.check(dtype=torch.bfloat16)
    assert ranks.report().aggregated == 2
    ranks.check(dtype=torch.float64)
    assert dict(ranks.report().fallback) == {Reason.DTYPE.text: 1}
    assert ranks.report().mode == "aggregation"


def test_gradients_that_are_not_finite_go_by_gloo(make) -> None:
    ranks = make(2)
    for wrong in (float("inf"), float("nan")):
        tensors = [bucket(rank, 50) for rank in range(2)]
        tensors[1][7] = wrong
        found = ranks.reduce(tensors)
        assert not torch.isfinite(found[0][7])
        assert torch.isfinite(found[0][:7]).all()
    ranks.check()
    report = ranks.report()
    assert (report.aggregated, dict(report.fallback)) == (1, {Reason.NOT_FINITE.text: 2})


def test_zeros_and_small_gradients_are_exact(make) -> None:
    ranks = make(2)
    assert ranks.reduce([torch.zeros(20), torch.zeros(20)])[1].count_nonzero() == 0
    found = ranks.reduce([torch.full((20,), 2.0**-120), torch.full((20,), 3 * 2.0**-120)])[1]
    assert torch.allclose(found, torch.full((20,), 2.0**-119), rtol=1e-6, atol=0.0)
    assert ranks.report().aggregated == 2


def test_a_scale_that_does_not_fit_goes_by_gloo(make) -> None:
    ranks = make(2, quantise="fixed")
    ranks.reduce([torch.full((20,), 5000.0), torch.full((20,), 1.0)])
    assert dict(ranks.report().fallback) == {Reason.OVERFLOW.text: 1}
    ranks.reduce([torch.full((20,), 50.0), torch.full((20,), 1.0)])
    assert ranks.report().aggregated == 1


def test_a_bucket_that_fails_goes_by_gloo_on_all_ranks_and_so_does_the_job_after_some(make) -> None:
    ranks = make(2)
    ranks.check(seed=1)
    ranks.switch.deaf = True
    ranks.check(seed=2)
    ranks.check(seed=3)
    ranks.switch.deaf = False
    ranks.check(seed=4)
    report = ranks.report()
    assert dict(report.fallback) == {Reason.TIMEOUTS.text: 2, Reason.GIVEN_UP.text: 1}
    assert (report.mode, report.aggregated, report.timeouts) == ("gloo", 1, 8)
    texts = [event.text for event in report.events]
    assert texts[0] == "gradients are added up by switch ('127.0.0.1', 1) (grant 1)"
    assert texts[1:] == [f"gradients go by gloo: {one.text}" for one in (Reason.TIMEOUTS, Reason.GIVEN_UP)]
    ranks.give(replace(ranks.grant, version=2, epoch=1))  # the switch is probed again
    ranks.check(seed=5)
    assert ranks.report().aggregated == 2
    assert ranks.report().grant_version == 2
    assert ranks.report().mode == "aggregation"


def test_a_failed_socket_of_one_rank_fails_the_bucket_on_all(make) -> None:
    ranks = make(2)
    ranks.check()
    ranks.switch.inboxes[1].broken = True
    ranks.check(seed=1)
    for rank in range(2):
        assert dict(ranks.report(rank).fallback) == {Reason.SOCKET.text: 1}
    ranks.check(seed=2)
    assert ranks.report().aggregated == 2


def test_a_rank_that_misses_sums_gets_them_from_one_that_has_them(make) -> None:
    ranks = make(3)
    ranks.check()
    ranks.switch.inboxes[2].deaf = True  # what the switch sends does not reach rank 2
    tensors = [bucket(rank, 100, 1) for rank in range(3)]
    mean = sum(one.double() for one in tensors) / 3
    futures = [engine.submit(tensor) for engine, tensor in zip(ranks.engines, tensors, strict=True)]
    early = futures[0].wait().clone()
    tensors[0].zero_()  # the script goes on with what it got, before the ranks have agreed
    late = futures[2].wait()
    assert torch.equal(early, late)
    assert torch.equal(early, futures[1].wait())
    assert torch.allclose(late.double(), mean, atol=1e-6)
    ranks.switch.inboxes[2].deaf = False
    ranks.check(seed=2)
    for rank in range(3):
        report = ranks.report(rank)
        assert (report.aggregated, dict(report.fallback)) == (2, {Reason.TIMEOUTS.text: 1})
    assert ranks.groups[0].means == 0


def test_a_rank_with_all_sums_does_not_wait_for_others(make) -> None:
    ranks = make(2)
    ranks.check()
    ranks.groups[1].held = held = threading.Event()  # the agreement after the bucket cannot end until it is set
    futures = [engine.submit(bucket(rank, 100, 1)) for rank, engine in enumerate(ranks.engines)]
    end_s = time.monotonic() + 30
    while not all(future.done() for future in futures) and time.monotonic() < end_s:
        time.sleep(0.005)
    done = all(future.done() for future in futures)
    held.set()
    assert done
    assert torch.equal(*[future.wait() for future in futures])


def test_a_switch_that_does_not_answer_is_asked_again_later(make) -> None:
    ranks = make(2)
    ranks.switch.silent = True
    ranks.check()
    ranks.switch.silent = False
    ranks.check(seed=1)
    assert dict(ranks.report().fallback) == {Reason.NO_ANSWER.text: 2}
    assert "no answer for rank 0" in ranks.report().events[0].text
    ranks.now += aggregation_session.RETRY_S
    ranks.check(seed=2)
    assert ranks.report().aggregated == 1


def test_a_switch_that_restarts_is_used_again_when_it_answers(make) -> None:
    ranks = make(2)
    ranks.check()
    ranks.switch.silent = True
    ranks.check(seed=1)
    ranks.check(seed=2)
    assert dict(ranks.report().fallback) == {Reason.TIMEOUTS.text: 1, Reason.NO_ANSWER.text: 1}
    ranks.switch.silent = False
    ranks.switch.begin(replace(ranks.grant, epoch=1))
    ranks.give(replace(ranks.grant, version=2, epoch=1))
    ranks.check(seed=3)
    assert ranks.report().aggregated == 2


def test_a_new_grant_is_used_once_all_ranks_know_it(make) -> None:
    ranks = make(2, slots=64)
    first = replace(ranks.grant, size=32)
    ranks.give(replace(first, version=2))
    ranks.check()
    moved = replace(first, version=3, offset=32, epoch=1)
    from plait.network.protocol import switch

    switch.grant(ranks.switch.table, 0, 32, 32, 1)
    ranks.give(moved, ranks=[1])
    ranks.check(seed=1)
    assert [ranks.report(rank).grant_version for rank in range(2)] == [2, 2]
    assert ranks.report().aggregated == 2
    ranks.give(moved, ranks=[0])
    ranks.check(seed=2)
    assert [ranks.report(rank).grant_version for rank in range(2)] == [3, 3]
    assert ranks.report().aggregated == 3
    assert ranks.switch.connections == 2


def test_a_job_with_another_number_starts_again_with_another_socket(make) -> None:
    ranks = make(2)
    ranks.check()
    other = replace(ranks.grant, version=2, job=5, token="11" * 8)
    ranks.switch.begin(other)
    ranks.give(other)
    sockets = list(ranks.switch.inboxes.values())
    ranks.check(seed=1)
    report = ranks.report()
    assert (report.aggregated, report.results) == (2, 26)
    assert all(one.closed for one in sockets)


def test_a_grant_that_is_taken_back_ends_aggregation_at_once(make) -> None:
    ranks = make(2)
    ranks.check()
    ranks.give(replace(ranks.grant, version=2, granted=False, reason="memory is needed by job 9"), ranks=[0])
    ranks.check(seed=1)
    assert ranks.report().fallback_bytes == 400
    ranks.give(replace(ranks.grant, version=2, granted=False, reason="memory is needed by job 9"), ranks=[1])
    ranks.check(seed=2)
    assert dict(ranks.report(1).fallback)[Reason.NOT_GRANTED.text] == 1
    assert ranks.report(0).events[-1].text.endswith("no switch memory is granted: memory is needed by job 9")


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"n_workers": 3}, "it is for 3 workers, and the job has 2 ranks"),
        ({"options": {"protocol": "nothing"}}, "protocol 'nothing' does not exist"),
        ({"size": 1, "options": {"protocol": "switchml", "index": "dedicated"}}, "a job needs 2 or more"),
    ],
)
def test_a_grant_that_cannot_be_used_is_said(make, changed, reason) -> None:
    ranks = make(2)
    ranks.give(replace(ranks.grant, version=2, **changed))
    ranks.check()
    assert dict(ranks.report().fallback) == {Reason.WRONG_GRANT.text: 1}
    assert reason in ranks.report().events[-1].text


def test_a_rank_without_a_grant_keeps_all_from_the_network(make) -> None:
    ranks = make(2)
    (ranks.folder / "1" / "network.json").unlink()
    ranks.check()
    for rank in range(2):
        assert list(ranks.report(rank).fallback) in ([Reason.NO_GRANT.text], [Reason.CHANGING.text])


def test_numbers_of_packets_are_not_used_twice(make) -> None:
    ranks = make(2)
    ranks.check()
    for engine in ranks.engines:
        engine._session.client._end = (1 << 32) - 3
    ranks.check(seed=1)
    assert dict(ranks.report().fallback) == {Reason.NO_NUMBERS.text: 1}


def test_a_rank_that_is_gone_fails_all_buckets_of_the_others(make) -> None:
    ranks = make(2)
    ranks.check()
    ranks.together.lose()
    for _ in range(2):
        future = ranks.engines[0].submit(bucket(0, 10))
        with pytest.raises(RuntimeError, match="a rank is gone"):
            future.wait()


def test_reports_reach_the_folder_of_the_rank(make) -> None:
    ranks = make(2)
    ranks.check()
    threads = threading.active_count()
    ranks.close()
    assert threading.active_count() < threads
    for rank in range(2):
        found = read_report(ranks.folder / str(rank))
        assert found.aggregated == 1
        assert "added up by switch" in (ranks.folder / str(rank) / "plait.log").read_text()


def test_a_second_model_does_not_get_the_sums_of_the_first(make) -> None:
    ranks = make(2)
    ranks.check(seed=1)
    first, together = ranks.engines, Together(2)  # each model has a group of its own
    ranks.engines = [
        Engine(
            group,
            Session(
                GrantFile(ranks.folder / str(rank) / "network.json"), rank, 2,
                connect=ranks.switch.connect, greet=ranks.switch.greet, clock=lambda: ranks.now,
            ),
            give_up_after=2, folder=None,
        )
        for rank, group in enumerate(ThreadGroup(together, rank) for rank in range(2))
    ]  # fmt: skip
    ranks.check(seed=2)
    assert dict(ranks.report().fallback) == {Reason.IN_USE.text: 1}
    ranks.close()
    ranks.engines = first
    ranks.check(seed=3)
    assert ranks.report().aggregated == 2


def test_another_priority_is_no_new_try_after_too_many_failures_and_another_region_gets_all_of_them(make) -> None:
    ranks = make(2)
    ranks.switch.deaf = True
    for seed in range(3):
        ranks.check(seed=seed)
    failed = {Reason.TIMEOUTS.text: 2, Reason.GIVEN_UP.text: 1}
    assert dict(ranks.report().fallback) == failed
    ranks.give(replace(ranks.grant, version=2, priority=9))
    ranks.check(seed=3)
    assert dict(ranks.report().fallback) == {**failed, Reason.GIVEN_UP.text: 2}
    assert ranks.report().grant_version == 2
    ranks.give(replace(ranks.grant, version=3, epoch=1))
    ranks.check(seed=4)  # fails as well, and is not the last try
    assert dict(ranks.report().fallback) == {Reason.TIMEOUTS.text: 3, Reason.GIVEN_UP.text: 2}
    ranks.switch.deaf = False
    ranks.check(seed=5)
    assert ranks.report().aggregated == 1


@pytest.mark.parametrize("index", ["dedicated", "shared_cycle", "hybrid_modulo"])
def test_another_window_comes_with_its_region_between_two_buckets(make, index) -> None:
    ranks = make(2, index=index, window=8, slots=96)
    first = replace(ranks.grant, version=2, size=32, window=4)
    ranks.give(first)
    ranks.check(seed=1)
    numbers = ranks.report().numbers
    wider = replace(first, version=3, epoch=1, size=64, window=16)
    ranks.switch.move(wider)
    ranks.give(wider)
    ranks.check(seed=2, size=500)
    report = ranks.report()
    assert (report.aggregated, report.grant_version, dict(report.fallback)) == (2, 3, {})
    assert (ranks.switch.connections, ranks.engines[0]._session.client.options.window) == (2, 16)
    assert report.numbers == numbers + 63  # they go on


def test_a_grant_that_all_ranks_have_found_is_reported_even_if_it_grants_nothing(make) -> None:
    ranks = make(2)
    ranks.check()
    nothing = replace(ranks.grant, version=2, granted=False, reason="memory is needed by job 9")
    ranks.give(nothing, ranks=[0])
    ranks.check(seed=1)
    assert [ranks.report(rank).grant_version for rank in range(2)] == [1, 1]
    ranks.give(nothing, ranks=[1])
    ranks.check(seed=2)
    for rank in range(2):
        await_report(ranks.folder / str(rank), grant_version=2)
