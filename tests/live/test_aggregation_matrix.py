"""Every number of ranks and jobs, every addressing mode and every loss: DDP with real processes trains as with gloo.

Sums are those of whole numbers, all ranks end with the same parameters, and no aggregator stays held. All ranks are
forked from one process, because importing torch takes longer than fifty steps.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
from aggregation_plane import MODES, Plane, RankHost, Run, check_aggregated, check_alike

from plait.core.errors import InputError
from plait.runtime.network.grant import write_grant
from sampling import sample

STEPS = 50
CASES = [
    (ranks, jobs, index, loss)
    for ranks in (2, 4, 8)
    for jobs in (1, 2, 3, 4)
    for index in MODES
    for loss in (0.0, 0.001, 0.01, 0.05)
]
#: Losses of gloo by number of ranks.
_of_gloo: dict[int, list[float]] = {}


@pytest.fixture(scope="module")
def host() -> Iterator[RankHost]:
    made = RankHost()
    yield made
    made.stop()


@pytest.fixture(scope="module")
def plane() -> Iterator[Plane]:
    made = Plane()
    yield made
    made.stop()


def losses_of_gloo(host: RankHost, folder: Any, ranks: int) -> list[float]:
    if ranks not in _of_gloo:
        [found] = Run(host, folder, [{"ranks": ranks, "steps": STEPS, "way": "plain"}]).end()
        _of_gloo[ranks] = found[0]["losses"]
    return _of_gloo[ranks]


@pytest.mark.parametrize(("ranks", "jobs", "index", "loss"), sample([(2, 2, "shared_cycle", 0.01)], CASES))
def test_training_is_that_of_gloo_with_exact_sums(plane, host, tmp_path, ranks, jobs, index, loss) -> None:
    reference = losses_of_gloo(host, tmp_path, ranks)
    grants = [plane.grant(ranks, index, share=(at, jobs)) for at in range(jobs)]
    try:
        plane.lose(loss)
        configured: list[dict[str, Any]] = []
        for at, grant in enumerate(grants):
            file = str(tmp_path / f"network{at}.json")
            write_grant(file, grant)
            way = ("auto", "ina")[at % 2]
            configured.append({"ranks": ranks, "steps": STEPS, "tensors": 4, "grant": file, "way": way})
        found = Run(host, tmp_path, configured).end()
        plane.lose(0.0)
        for job in found:
            check_alike(job)
            assert job[0]["losses"][-1] == pytest.approx(reference[-1], abs=1e-5)
            check_aggregated(job)
        if index == "dedicated":  # sets stay the job's until it is freed
            for grant in grants:
                plane.free(grant)
        assert plane.held() == 0
    finally:
        plane.lose(0.0)
        for grant in grants:
            with contextlib.suppress(InputError):
                plane.free(grant)
    assert plane.tor.control.statistics()["held"] == 0
