"""Elastic jobs that ask for more GPUs than a cluster has together: what they ask for instead, and how long it takes."""

import pytest

from plait.core.cluster import Cluster
from plait.core.jobs import JobBatch, JobSpec
from plait.core.resources import StageProfile
from plait.goodput.shipped import shipped
from plait.policies.catalog import make_policy
from plait.sim.run import simulate
from plait.sim.world import make_world
from plait.traces.load import no_larger_than

CIFAR = shipped()["cifar10"]


def adaptive(**changes: object) -> JobSpec:
    model = {"model": CIFAR.name, "batch": CIFAR.batch, "iterations": 100.0, "iteration_s": CIFAR.iteration_s(4, 16)}
    return JobSpec(**{"id": "a", "gpus": 16, "min_gpus": 1, "max_gpus": 64, **model, **changes})


def elastic(**changes: object) -> JobSpec:
    return JobSpec(**{"id": "e", "gpus": 8, "min_gpus": 2, "max_gpus": 16, "iterations": 10, **changes})


def capped(spec: JobSpec, cluster: str) -> JobSpec:
    return no_larger_than(JobBatch.of([spec]), Cluster.parse(cluster))[0]


@pytest.mark.parametrize(
    ("cluster", "kinds", "gpus"),
    [("4x4", None, 16), ("2x4:a,1x4:b", None, 8), ("2x4:a,1x4:b", frozenset({"b"}), 4), ("1x4,1x2", None, 6)],
)
def test_a_job_asks_for_the_largest_gang_of_a_kind_it_may_use(cluster: str, kinds: frozenset[str] | None, gpus: int):
    got = capped(adaptive(gpu_kinds=kinds), cluster)
    assert (got.gpus, got.max_gpus) == (gpus, 64 if gpus == 16 else gpus)


def test_on_two_kinds_it_runs_to_its_end():
    cluster = Cluster.parse("2x4:a,2x4:b")
    jobs = no_larger_than(JobBatch.of([adaptive()]), cluster)
    done = simulate(jobs, cluster, make_policy("fifo"), make_world("ideal"))
    assert done.controller.job_store.columns["end_s"][0] > 0


def test_an_iteration_takes_what_the_model_takes_at_that_size():
    assert capped(adaptive(), "1x4").iteration_s == pytest.approx(CIFAR.iteration_s(1, 4))
    assert capped(adaptive(iteration_s=None), "1x4").iteration_s is None


@pytest.mark.parametrize("changes", [{}, {"model": "mine", "batch": CIFAR.batch}], ids=["fixed", "unknown model"])
def test_what_is_not_known_takes_longer_in_proportion(changes: dict[str, object]):
    profile = StageProfile((0.1, 0.2, 0.4, 0.3), 1.0)
    got = capped(elastic(profile=profile, cpus=8.0, memory_bytes=80.0, **changes), "1x4")
    assert (got.gpus, got.iteration_s, got.cpus, got.memory_bytes) == (4, 2.0, 4.0, 40.0)
    assert got.profile is not None
    assert got.profile.stage_s == pytest.approx((0.2, 0.4, 0.8, 0.6))


def test_who_cannot_do_with_fewer_asks_for_what_it_asked():
    assert capped(elastic(min_gpus=5), "1x4").gpus == 8
