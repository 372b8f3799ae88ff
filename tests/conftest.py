"""What all tests share: Hypothesis without deadlines (kernels compile on first use), and the published data."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

import compiled_once
import postgres_server
from sampling import examples

settings.register_profile(
    "plait",
    deadline=None,
    max_examples=examples(60),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "plait"))
compiled_once.compile_once()

ROOT = Path(__file__).resolve().parents[1]
#: Tests here start processes or a service, and what those do within a second depends on what else runs on the machine.
OF_PROCESSES = tuple(
    str(ROOT / "tests" / name) for name in ("live", "gpu", "unit/cli", "unit/dashboard", "unit/live", "unit/training")
)
_kill = os.kill


def _kill_one(pid: int, number: int) -> None:
    """Refuse 0, -1 and 1: a pid that is not known yet would end the tests with all that they are part of."""
    assert pid > 1, f"signal {number} to {pid}: the process is not known yet; wait until it is"
    _kill(pid, number)


os.kill = _kill_one


def pytest_configure(config: pytest.Config) -> None:
    compiled_once.rewrite_once(config)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give tests of real processes a second try if they fail; the summary (-rR) lists each such test as rerun.

    On machines that share their cores a process may stand still for seconds, and no patience of a test is enough. A
    test that fails twice fails. Tests without processes, of which all results are determined, have one try.
    """
    for item in items:
        if str(item.path).startswith(OF_PROCESSES) or item.get_closest_marker("engines"):
            item.add_marker(pytest.mark.flaky(reruns=1))


@pytest.fixture(scope="session")
def published() -> Path:
    """The folder of published traces; tests that need it are skipped where it is not."""
    folder = Path(os.environ.get("PLAIT_DATA", ROOT.parent / "shared" / "data"))
    if not (folder / "muri" / "trace3.csv").exists():
        pytest.skip(f"no published traces in {folder}; set PLAIT_DATA to the folder that has muri/trace3.csv")
    return folder


@pytest.fixture(scope="session")
def measured() -> Path:
    """The folder of Pollux's measurements; tests that need it are skipped where it is not."""
    folder = Path(os.environ.get("PLAIT_DATA", ROOT.parent / "shared" / "data")) / "pollux"
    if not (folder / "workload-6.csv").exists():
        pytest.skip(f"no measurements in {folder}; set PLAIT_DATA to the folder that has pollux/workload-6.csv")
    return folder


@pytest.fixture(scope="session")
def postgres() -> Iterator[Callable[[], str]]:
    """Makes an empty database on a PostgreSQL server of our own at each call, and returns its URL."""
    with postgres_server.server() as database:
        yield database
