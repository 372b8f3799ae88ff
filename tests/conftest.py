"""What all tests share: Hypothesis without deadlines (kernels compile on first use), and the published data."""

from __future__ import annotations

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
_kill = os.kill


def _kill_one(pid: int, number: int) -> None:
    """Refuse 0, -1 and 1: a pid that is not known yet would end the tests with all that they are part of."""
    assert pid > 1, f"signal {number} to {pid}: the process is not known yet; wait until it is"
    _kill(pid, number)


os.kill = _kill_one


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
