"""Limits of adaptive jobs: what is refused, columns and back, and estimates in the job store and their snapshots."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given

from plait.control.controller import Controller
from plait.control.messages import GoodputReported, JobSubmitted, ReplanDue
from plait.control.snapshot import of_active, restore, snapshot
from plait.core.cluster import Cluster
from plait.core.errors import InputError
from plait.core.goodput import THETA, BatchLimits, Estimate
from plait.core.jobs import JobBatch, JobSpec
from plait.policies.catalog import make_policy
from strategies import batch_limits

LIMITS = BatchLimits(initial=128, most=4096, least_local=32, most_local=1024, accumulation=True)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"initial": 0}, "0 to 4096"),
        ({"most": 100}, "128 to 100"),
        ({"least_local": 2048}, "2048 to 1024"),
        ({"least_local": 200}, "less than one GPU has to take, 200"),
        ({"most_local": 64, "accumulation": False}, "allow accumulation"),
        (
            {"most": 128, "least_local": 100, "most_local": 110},
            "takes 2 passes of 100 to 110 examples, at least 200; give most 200, least_local 64 or most_local 128",
        ),
    ],
)
def test_limits_that_leave_no_choice_are_refused(change: dict[str, int], words: str) -> None:
    given_ = {"initial": 128, "most": 4096, "least_local": 32, "most_local": 1024, "accumulation": True, **change}
    with pytest.raises(InputError, match=words):
        BatchLimits(**given_)  # type: ignore[arg-type]


@given(batch_limits())
def test_limits_become_columns_and_come_back(limits: BatchLimits) -> None:
    batch = JobBatch.of([JobSpec(id="a", batch=limits), JobSpec(id="b")])
    assert batch[0].batch == limits
    assert batch[1].batch is None
    assert batch.column("max_batch_size").tolist() == [limits.most, 0]


def test_columns_that_no_job_can_have_name_the_job() -> None:
    batch = JobBatch.of([JobSpec(id="good", batch=LIMITS), JobSpec(id="bad", batch=LIMITS)])
    with pytest.raises(InputError, match="batch size 128 to 64"):
        batch.replace(max_batch_size=np.array([4096, 64]))


def test_fewest_gpus_beyond_what_the_batch_can_feed_are_refused() -> None:
    small = BatchLimits(initial=128, most=128, least_local=32, most_local=128)
    assert JobSpec(id="fits", gpus=8, min_gpus=4, batch=small).batch == small
    for least in ({"min_gpus": 8}, {}):
        with pytest.raises(
            InputError, match=r"job 'wide': min_gpus .* is 8, needs at most 4: no more take 32 examples"
        ):
            JobSpec(id="wide", gpus=8, batch=small, **least)
    with pytest.raises(InputError, match=r"job 'fits': min_gpus .* is 5, needs at most 4"):
        JobBatch.of([JobSpec(id="fits", gpus=8, min_gpus=4, batch=small)]).replace(min_gpus=np.array([5]))


def test_suggested_limits_are_taken() -> None:
    for change in ({"most": 200}, {"least_local": 64}, {"most_local": 128}):
        given_ = {"initial": 128, "most": 128, "least_local": 100, "most_local": 110, "accumulation": True, **change}
        limits = BatchLimits(**given_)  # type: ignore[arg-type]
        assert JobBatch.of([JobSpec(id="a", batch=limits)])[0].batch == limits


def _controller() -> Controller:
    controller = Controller(make_policy("fifo"), Cluster.parse("1x4"))
    jobs = JobBatch.of([JobSpec(id=f"j{i}", iterations=10, iteration_s=1, batch=LIMITS) for i in range(3)])
    controller.handle(JobSubmitted(0.0, 0, jobs))
    controller.handle(ReplanDue(0.0))
    row = np.full((1, len(Estimate)), math.nan)
    row[0, :THETA] = [0.1, 0.01, 0.5, 0.05, 0.2, 0.02, 1.5]
    row[0, Estimate.PROFILED_GPUS] = 2
    assert controller.handle(GoodputReported(1.0, np.array([1]), row)) == ()
    return controller


def test_policies_see_what_jobs_estimate_of_themselves() -> None:
    jobs = _controller().view().jobs
    assert jobs.batch_size.tolist() == [128] * 3
    assert np.isnan(jobs.goodput[[0, 2]]).all()
    assert jobs.goodput[1, Estimate.ALPHA_N] == 0.5
    assert math.isnan(jobs.goodput[1, Estimate.RESTART_S])


def test_estimates_survive_snapshots_and_selections() -> None:
    controller = _controller()
    again = restore(json.loads(json.dumps(snapshot(controller))), controller.policy)
    np.testing.assert_array_equal(again.view().jobs.goodput, controller.view().jobs.goodput)
    assert again.job_store.spec(1).batch == LIMITS
    small, _ = of_active(controller)
    np.testing.assert_array_equal(small.view().jobs.goodput, controller.view().jobs.goodput)


def test_snapshots_of_before_there_were_estimates_are_read() -> None:
    controller = _controller()
    old = snapshot(controller)
    del old["books"]["goodput"]
    assert np.isnan(restore(old, controller.policy).view().jobs.goodput).all()
