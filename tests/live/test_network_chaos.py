"""Switches, servers, agents, the service and ranks are killed while trainings aggregate: nothing is lost or wrong.

Every job ends once, all its ranks have the same weights to the bit, and these are those of gloo but for rounding.
PLAIT_SLOW=1 takes 50 faults, not 4; CHAOS_SEED is the plan of faults.
"""

import os
import sys
import time
from pathlib import Path

import pytest
import torch
from aggregation_plane import alone

from plait.core.errors import PlaitError
from plait.live.api.jobs import JobRow
from plait.live.store import Store
from plait.outlook.log_replay import replay, stored_rows
from plait.testing import Chaos, Cluster, Kind, leaks, plan_faults

pytestmark = pytest.mark.engines

SCRIPT = Path(__file__).parent / "scripts" / "aggregated_job.py"
SEED, SLOW = int(os.environ.get("CHAOS_SEED", "1")), os.environ.get("PLAIT_SLOW") == "1"
JOBS, FAULTS, STEPS, PATIENCE_S = (4, 50, 600, 1800.0) if SLOW else (2, 4, 200, 300.0)
WEIGHTS = {
    Kind.KILL_SWITCH: 4.0, Kind.KILL_SERVER: 3.0, Kind.KILL_AGENT: 2.0, Kind.KILL_SERVICE: 1.0, Kind.KILL_WORKER: 0.3,
}  # fmt: skip
#: Weights of gloo and of fixed point differ by rounding alone: 2^-23 of the largest gradient a step.
ROUNDING = 1e-4


def test_trainings_survive_the_death_of_everything_that_adds_them_up(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    options = {
        "policy": "fifo:ina=esa", "network": "leaf-spine:aggregators=512,spines=1,payload=1024,link_gbps=1",
        "round": 0.5, "lost": 8, "grace": 2, "expect-gpus": 4,
    }  # fmt: skip
    cluster = Cluster(tmp_path / "home", nodes=4, slots=1, rack_size=2, options=options)
    with cluster:
        with cluster.client() as client:
            while any(one.state != "up" for one in client.network().switches):
                time.sleep(0.2)
            client.submit([_job(out, seed) for seed in range(JOBS)])
        chaos = Chaos(cluster, plan_faults(SEED, FAULTS, every_s=3.0, longest_s=3.0, weights=WEIGHTS))
        until, rows = time.monotonic() + PATIENCE_S, []
        while not (chaos.over and len(rows) == JOBS and all(row.state == "finished" for row in rows)):
            chaos.step()
            rows = _jobs(cluster) or rows
            assert time.monotonic() < until, f"{len(chaos.done)} of {FAULTS} faults made; {rows}; see {tmp_path}"
            time.sleep(0.2)
        chaos.end()
    print(f"chaos: seed {SEED}: {[(one.at_s, one.target) for one in chaos.done]}")
    assert leaks(cluster.layout) == []
    store = Store.open(cluster.layout.database)
    assert replay(stored_rows(store)).difference is None
    types = [entry.type for entry in store.entries()]
    store.close()
    assert types.count("SwitchLost") >= 1
    for seed in range(JOBS):
        ranks = [torch.load(path) for path in sorted(out.glob(f"j-{seed}-{seed}-r*.pt"))]
        assert len(ranks) == 2
        assert torch.equal(ranks[0]["weights"], ranks[1]["weights"])
        right = alone(tmp_path, seed, STEPS)
        assert float((ranks[0]["weights"] - right["weights"]).abs().max()) < ROUNDING
        assert abs(ranks[0]["loss"] - right["loss"]) < 1e-5


def _job(out: Path, seed: int) -> dict[str, object]:
    return {
        "command": [sys.executable, str(SCRIPT), str(out), str(seed), str(STEPS), "0.05"], "gpus": 2, "retries": 1000,
        "gradient_bytes": 5.6e5, "ina": {"mode": "auto"}, "env": {"PYTHONDONTWRITEBYTECODE": "1"},
    }  # fmt: skip


def _jobs(cluster: Cluster) -> list[JobRow] | None:
    """All jobs; None while the service does not answer."""
    try:
        with cluster.client() as client:
            return client.jobs(limit=100)
    except PlaitError:
        return None
