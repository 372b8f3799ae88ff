from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from live_cases import Cluster
from local_agent import LocalAgent

from plait.live.system import procs


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Callable[..., Cluster]]:
    """Makes clusters; what they decided must be derived again from their logs."""
    from plait.outlook.log_replay import replay, stored_rows

    made: list[Cluster] = []

    def make(*args: Any, **options: Any) -> Cluster:
        made.append(Cluster(tmp_path / f"home{len(made)}", *args, **options))
        return made[-1]

    yield make
    for one in made:
        verified = replay(stored_rows(one.store))
        one.store.close()
        assert verified.difference is None, str(verified.difference)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[LocalAgent]:
    made = LocalAgent(tmp_path / "home", slot_memory=16.0)
    yield made
    made.close()
    procs.prctl(procs.PR_SET_CHILD_SUBREAPER, 0)
