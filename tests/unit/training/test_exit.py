"""Jobs of several ranks end with exit code 0 also where one of them lags: nothing of gloo lives into the end."""

import os
import sys
from pathlib import Path

import pytest
from attempts import the_forker

pytest.importorskip("torch")
WAYS = [("steps", ""), ("adaptive", ""), ("steps", "destroy"), ("adaptive", "destroy")]
TRIES = 100 if os.environ.get("PLAIT_SLOW") else 2


@pytest.mark.parametrize(("kind", "destroy"), WAYS)
def test_ranks_that_end_apart_end_well(kind: str, destroy: str, tmp_path: Path) -> None:
    """PLAIT_SLOW: 25 pairs of each kind, 100 in all; else one or two."""
    codes = []
    for number in range(-(-TRIES // len(WAYS))):
        job = tmp_path / f"j-{number}"
        both = the_forker().gang(job, 1, "lagging.py", kind, "0.15", destroy, finalise=True, world=2)
        codes += [attempt.end() for attempt in both]
    assert [code for code, _ in codes] == [0] * len(codes), codes


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads the states of threads from /proc")
def test_the_end_waits_for_threads_that_still_release_what_they_hold(tmp_path: Path) -> None:
    """Until they sleep, not until they end: the threads of a group that the script keeps never do."""
    attempt = the_forker().start(tmp_path / "job", 1, "late_release.py", str(tmp_path / "released"), finalise=True)
    assert attempt.end()[0] == 0
    assert (tmp_path / "released").exists()
