"""Models of throughput by name, the third pair for racks, and policies that use them and share fits."""

from dataclasses import replace
from importlib.metadata import EntryPoint, EntryPoints
from typing import Any

import numpy as np
import pytest

from plait.control.controller import Controller
from plait.control.messages import JobCancelled, JobSubmitted
from plait.core.cluster import Cluster
from plait.core.errors import InputError
from plait.core.goodput import Estimate
from plait.core.jobs import JobBatch, JobSpec
from plait.goodput import models
from plait.goodput.models import Racks, fit_racks, throughput_model
from plait.goodput.shipped import shipped
from plait.goodput.throughput import Measurements, grad_s, step_s, throughput
from plait.policies.catalog import make_policy
from plait.policies.sizing.pools import with_shared_fits
from plait.sim.run import simulate
from plait.sim.world import make_world

THETA = np.array([0.1, 0.01, 0.5, 0.05, 0.2, 0.02, 1.5])


def half(theta: Any, nodes: Any, gpus: Any, local: Any, passes: Any) -> Any:
    """A model of a package: as if several nodes brought nothing."""
    return np.where(np.asarray(nodes) > 1, 1e-3, throughput(theta, nodes, gpus, local, passes))


def test_a_name_gives_a_model_and_others_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert throughput_model("pollux") is throughput
    assert throughput_model("racks/nodes=8/slower=1.5") == Racks(8, 1.5)
    entry = EntryPoint("half", "test_models:half", models.GROUP)
    monkeypatch.setattr(models, "entry_points", lambda group: EntryPoints([entry]))
    assert throughput_model("half").__name__ == "half"
    for wrong in ("other", "pollux/x=1", "racks", "racks/nodes=0/slower=2", "racks/nodes=2/slower=0.5", "racks/n=1"):
        with pytest.raises(InputError, match="throughput is"):
            throughput_model(wrong)
    with pytest.raises(InputError, match="throughput is"):
        make_policy("pollux:throughput=other")


def test_the_third_pair_is_what_synchronising_between_racks_takes() -> None:
    model = Racks(4, 3.0)
    sizes = ([1, 2, 4, 5], [4, 8, 16, 20])
    before = throughput(THETA, *sizes, 32, 0)
    after = model(THETA, *sizes, 32, 0)
    np.testing.assert_array_equal(after[:3], before[:3])
    slow = THETA.copy()
    slow[2:4] *= 3.0
    assert after[3] == pytest.approx(float(throughput(slow, 5, 20, 32, 0)))
    # A fitted pair counts in place of the factor.
    truth = np.array([0.1, 0.01, 0.9, 0.2, 0.2, 0.02, 1.5])
    keys = np.array([(5, 10, 16), (6, 24, 16), (8, 32, 32), (8, 8, 8)]).T
    across = Measurements(*keys, grad_s(truth, keys[2]), step_s(truth, *keys))
    nine = fit_racks(THETA, across)
    assert nine[:7] == pytest.approx(THETA)
    assert nine[7:] == pytest.approx([0.9, 0.2], rel=0.02)
    assert float(model(nine, 8, 32, 32, 0)) == pytest.approx(float(throughput(truth, 8, 32, 32, 0)), rel=0.01)
    assert float(model(nine, 4, 16, 32, 0)) == pytest.approx(float(throughput(THETA, 4, 16, 32, 0)))
    nothing = Measurements(*np.zeros((3, 0), np.int64), np.zeros(0), np.zeros(0))
    assert fit_racks(THETA, nothing)[7:] == pytest.approx(1.1 * THETA[2:4])


def adaptive(name: str, submit_s: float = 0.0, part: float = 1.0) -> JobSpec:
    model = shipped()["cifar10"]
    return JobSpec(
        id=name, gpus=1, max_gpus=16, model=model.name, batch=model.batch, iterations=model.iterations * part,
        iteration_s=model.iteration_s(1, 1), submit_s=submit_s,
    )  # fmt: skip


def largest(policy: Any, jobs: list[JobSpec]) -> tuple[int, Any]:
    """The most GPUs that a job ever had, and the run."""
    sizes: list[int] = []

    def observe(controller: Any) -> Any:
        return lambda event, commands: sizes.append(max((len(g.gpus) for g in controller.running), default=0))

    done = simulate(JobBatch.of(jobs), Cluster.parse("4x4"), policy, make_world("ideal"), observe=observe)
    return max(sizes), done


def test_a_policy_sizes_jobs_by_its_model(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = EntryPoint("half", "test_models:half", models.GROUP)
    monkeypatch.setattr(models, "entry_points", lambda group: EntryPoints([entry]))
    assert largest(make_policy("pollux"), [adaptive("a")])[0] > 4
    assert largest(make_policy("pollux:throughput=half"), [adaptive("a")])[0] == 4
    assert largest(make_policy("sia:throughput=half"), [adaptive("a")])[0] == 4


def test_shared_fits_spare_a_later_job_its_exploration() -> None:
    """The second job of the model comes when the first one has ended."""
    jobs = [adaptive("a", part=0.1), adaptive("b", 20_000.0, 0.1)]
    first: dict[str, list[int]] = {}
    for policy in ("pollux", "pollux:share_fits=on"):
        found = first[policy] = []

        def observe(controller: Any, found: list[int] = found) -> Any:
            def step(event: Any, commands: Any) -> None:
                found.extend(len(group.gpus) for group in controller.running if group.members[0].job == 1)

            return step

        simulate(JobBatch.of(jobs), Cluster.parse("4x4"), make_policy(policy), make_world("ideal"), observe=observe)
    assert first["pollux"][0] == 1
    assert first["pollux:share_fits=on"][0] > 4


def test_shared_fits_are_of_jobs_that_adapt_and_are_kept() -> None:
    """An elastic job with a fixed batch has a fit of another unit; one of a forgotten job is not in a snapshot."""
    fixed = replace(adaptive("f"), batch=None)
    controller = Controller(make_policy("pollux"), Cluster.parse("4x4"))
    controller.handle(JobSubmitted(0.0, 0, JobBatch.of([fixed, adaptive("a"), adaptive("b")])))
    columns = controller.job_store.columns

    def fit_of_last() -> list[float]:
        found: list[float] = with_shared_fits(controller.view()).jobs.goodput[-1, :7].tolist()
        return found

    for number in (0, 1):
        columns["goodput"][number, [*range(7), int(Estimate.PROFILED_GPUS)]] = [*(THETA * (number + 1)), 8 - number]
    assert fit_of_last() == (2 * THETA).tolist()
    controller.handle(JobCancelled(1.0, np.array([1])))
    assert fit_of_last() == (2 * THETA).tolist()
    controller.job_store.forget(0)
    assert np.isnan(fit_of_last()).all()
