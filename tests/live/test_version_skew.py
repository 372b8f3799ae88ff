"""An upgrade while jobs run: the service, agents and libraries of the version before, as they were, beside ours.

Those come from the history of the repository, so this needs a clone that has it.
"""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="needs the extra [live]")
pytest.importorskip("torch", reason="the jobs are real training: needs the extra [torch]")
pytestmark = [
    pytest.mark.engines,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="agents need Linux"),
    pytest.mark.slow,
]

from manual_cluster import HandCluster, alone  # noqa: E402

import plait  # noqa: E402
from plait.live.supervisor.down import job_processes  # noqa: E402

#: The last commit that spoke version 2, of messages and of pages.
BEFORE = "1c74e6b2aca87cf7682f7ab6a0934a3e9964b078"
OURS = Path(plait.__file__).parents[1]
#: After each step until `hurry`: minutes in all, so that no training is over before the last upgrade.
PAUSE_S = 3.0


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources that spoke the version before."""
    root = Path(__file__).parents[2]
    command = ["git", "-C", str(root), "archive", BEFORE, "src"]
    try:
        packed = subprocess.run(command, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip(
            f"the sources that spoke version 2 (commit {BEFORE[:7]}) are not here; in a shallow clone get them by "
            f"`git fetch --depth 1 origin {BEFORE}` or `git fetch --unshallow`"
        )
    folder = tmp_path_factory.mktemp("version-2")
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(folder, filter="data")
    return folder / "src"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[HandCluster]:
    made = HandCluster(tmp_path / "home")
    yield made
    made.close()
    assert job_processes(made.layout) == {}


def test_service_agents_and_libraries_are_upgraded_in_any_order_and_jobs_go_on(
    cluster: HandCluster, old: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    cluster.start_service(old)
    cluster.start_agent("n0", sources=old)  # an old agent, and a job with our library
    first = cluster.train(out, 3, PAUSE_S, env={"PYTHONPATH": str(OURS)})
    cluster.has_made(first, 1)
    cluster.start_agent("n1", "--stop-jobs", "--stop-grace", "45")  # our agent falls back for the old service ...
    second = cluster.train(out, 4, PAUSE_S, env={"PYTHONPATH": str(old)})  # ... and a job has the old library
    cluster.has_made(second, 1)
    pids = {job: cluster.job(job)["places"][0]["pid"] for job in (first, second)}
    assert [cluster.job(job)["nodes"] for job in (first, second)] == [["n0"], ["n1"]]

    cluster.end_service()
    cluster.start_service()
    for node in ("n0", "n1"):
        cluster.node_is(node, "ready")
    for job in (first, second):  # both go on, and are still heard of
        cluster.has_made(job, cluster.job(job)["iterations_done"] + 1)
    assert {job: cluster.job(job)["places"][0]["pid"] for job in (first, second)} == pids

    assert cluster.end_agent("n0") == 0
    cluster.start_agent("n0")
    third = cluster.train(out, 5, 0.0)  # waits for one of them, and is started by the new service
    (out / "hurry").touch()
    for job, seed in ((first, 3), (second, 4), (third, 5)):
        found = cluster.finishes(job)
        assert [(a["epoch"], a["state"]) for a in found["attempts"]] == [(1, "finished")]
        assert (out / f"{job}-e1-r0.bin").read_bytes() == alone(tmp_path / f"alone-{seed}", seed)

    # Our agent has come forward with the service, and says its last word.
    assert cluster.end_agent("n1") == 0
    assert cluster.states()["n1"] == "left"
    with cluster.client as client:
        types = [entry["event"]["type"] for entry in client.all_events()]
    assert types.count("AttemptBegan") == types.count("AttemptOver") == 3
    assert "NodeLeaving" in types
