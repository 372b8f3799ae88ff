"""A small cluster with a real software switch: grants on disk, what dies and comes back, and nothing that is left."""

import json
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from plait.live.api.cluster import NetworkJob
from plait.live.client.client import Client
from plait.runtime.network.grant import NetworkGrant, read_grant
from plait.testing import Cluster, leaks
from plait.testing.cluster import switch_processes

pytestmark = pytest.mark.engines

#: Keeps each version of its grant file, and says that it exchanged something, until it is stopped.
RANK = """
import json, os, time
path, seen = os.environ["PLAIT_NETWORK_GRANT"], []
while True:
    now = open(path).read()
    if not seen or seen[-1] != now:
        seen.append(now)
        kept = os.path.join(os.environ["PLAIT_RUN_DIR"], "versions.json")
        with open(kept + ".new", "w") as out:
            json.dump([json.loads(one) for one in seen], out)
        os.replace(kept + ".new", kept)
    with open(os.path.join(os.environ["PLAIT_RUN_DIR"], "network_report.json"), "w") as out:
        json.dump({"mode": "aggregation", "aggregated_bytes": 3000, "fallback_bytes": 1000, "transfer_s": 1e-5}, out)
    time.sleep(0.05)
"""
PATIENCE_S = 60.0


@pytest.fixture
def client(cluster: Cluster) -> Iterator[Client]:
    with cluster.client() as made:
        yield made


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    options = {
        "policy": "fifo:ina=esa",
        "network": "leaf-spine:aggregators=256,spines=1,payload=256",
        "round": 0.2,
        "expect-gpus": 3,
    }
    with Cluster(tmp_path / "home", nodes=3, slots=1, rack_size=2, options=options) as made:
        yield made
    assert not leaks(made.layout)


def until(cluster: Cluster, found: Callable[[], Any], what: str) -> Any:
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        cluster.maintain()
        if value := found():
            return value
        time.sleep(0.05)
    logs = [path.read_text()[-1500:] for path in sorted(cluster.layout.home.glob("nodes/*/agent.log"))]
    raise AssertionError(f"waited {PATIENCE_S:g} s for {what}; {logs}")


def grant(cluster: Cluster, rank: int = 0) -> NetworkGrant:
    return read_grant(cluster.layout.rank(0, 1, rank) / "network.json")


def test_a_job_is_granted_memory_keeps_running_without_and_leaves_nothing(cluster: Cluster, client: Client) -> None:
    until(cluster, lambda: all(s.state == "up" for s in client.network().switches), "both switches")
    assert [s.node for s in client.network().switches] == ["n0", "n2"]
    command = [sys.executable, "-c", RANK]
    client.submit([{"command": command, "gpus": 2, "ina": {"mode": "require"}, "gradient_bytes": 1e6}])
    versions = cluster.layout.rank(0, 1, 1) / "versions.json"
    ranks = [cluster.layout.rank(0, 1, rank) / versions.name for rank in (0, 1)]
    until(cluster, lambda: all(path.exists() for path in ranks), "both ranks")
    first = json.loads(versions.read_text())[0]
    assert (first["version"], first["granted"], first["n_workers"]) == (1, True, 2)  # from the first look on
    assert grant(cluster) == grant(cluster, 1)

    def job() -> NetworkJob | None:
        return next(iter(client.network().jobs), None)

    until(cluster, lambda: (found := job()) and found.mode_used == "aggregation", "the report of the ranks")
    shown = job()
    assert (shown.gloo_share, shown.granted) == (0.25, True)
    (served,) = [s for s in client.network().switches if s.jobs]
    assert served.jobs[0].serves

    serving = next(s.node for s in client.network().switches if s.jobs)
    killed = next(one for name, one in switch_processes(cluster.layout) if name == f"switch {served.switch}")
    killed.send(signal.SIGKILL)
    until(cluster, lambda: not grant(cluster).granted, "the word that the switch is lost")
    until(cluster, lambda: grant(cluster).granted and grant(cluster, 1).granted, "the grant of the new switch")
    assert grant(cluster).epoch == first["epoch"] + 1

    agent, planes = cluster.agent(serving), switch_processes(cluster.layout)
    assert agent is not None
    assert len(planes) == 4
    agent.send(signal.SIGKILL)
    mine = [one for name, one in planes if name.endswith(served.switch)]
    until(cluster, lambda: not any(one.alive for one in mine), "the end of the switch with its agent")
    until(cluster, lambda: grant(cluster).granted and grant(cluster).epoch == first["epoch"] + 2, "another switch")
    assert client.job("j-0").state == "running"

    client.cancel("j-0")
    until(cluster, lambda: client.job("j-0").state == "cancelled", "the end of the job")
    until(cluster, lambda: not any(s.jobs or s.held for s in client.network().switches), "freed memory")
    seen = json.loads(versions.read_text())
    assert [one["version"] for one in seen] == sorted({one["version"] for one in seen})
