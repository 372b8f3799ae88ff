"""Two real trainings merged in a live cluster: one process, a hard death, and the very weights they have alone."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plait.live.store import Store
from plait.live.system import procs
from plait.outlook.log_replay import replay, stored_rows
from plait.testing import Cluster, leaks

pytestmark = pytest.mark.engines

SCRIPT = Path(__file__).parent / "scripts" / "chaos_job.py"
PROFILES = [{"storage": 0.01, "cpu": 0.03, "gpu": 0.01}, {"cpu": 0.01, "gpu": 0.03, "network": 0.01}]


def until(true: Callable[[], Any], what: str, cluster: Cluster, deadline_s: float = 90.0) -> Any:
    end = time.monotonic() + deadline_s
    while not (value := true()):
        assert time.monotonic() < end, f"waited {deadline_s:g} s for {what}"
        cluster.maintain()
        time.sleep(0.02)
    return value


def test_two_trainings_share_a_process_and_survive_its_death(tmp_path: Path) -> None:
    out, alone = tmp_path / "out", tmp_path / "alone"
    out.mkdir()
    alone.mkdir()
    base = {k: v for k, v in os.environ.items() if not k.startswith("PLAIT_")}
    base |= {"OMP_NUM_THREADS": "1", "RANK": "0", "WORLD_SIZE": "1"}
    for seed in (1, 2):
        (alone / str(seed)).mkdir()
        subprocess.run([sys.executable, str(SCRIPT), str(alone / str(seed)), str(seed), "0"], env=base, check=True)
    jobs = [
        {
            "command": [sys.executable, str(SCRIPT), str(out), str(seed), "0.05"], "workdir": str(tmp_path),
            "checkpoint_s": 0.3, "merge": True, "retries": 0, "profile": PROFILES[seed - 1],
        }
        for seed in (1, 2)
    ]  # fmt: skip
    with Cluster(tmp_path / "home", nodes=1, slots=1, options={"policy": "muri-l", "round": 1}) as cluster:
        with cluster.client() as client:
            client.submit(jobs)
        layout = cluster.layout

        def claims(epoch: int) -> list[dict[str, Any]]:
            found = [procs.read_json(layout.rank(number, epoch, 0) / "runner.json") or {} for number in (0, 1)]
            return found if all("child" in claim for claim in found) else []

        one, two = until(lambda: claims(1), "both to run", cluster)
        assert one["child"] == two["child"]
        assert one["merged"] == 2
        until(
            lambda: all(any(layout.job(n).glob("checkpoints/step-*/COMMITTED")) for n in (0, 1)), "checkpoints", cluster
        )
        os.kill(one["child"], signal.SIGKILL)
        one, two = until(lambda: claims(2), "both to run again", cluster)
        assert one["child"] != two["child"]
        assert "merged" not in one
        with cluster.client() as client:
            until(lambda: {j.state for j in client.jobs()} == {"finished"}, "both to finish", cluster)
    assert leaks(layout) == []
    for seed in (1, 2):
        (right,) = (alone / str(seed)).glob("*.bin")
        assert [p.read_bytes() == right.read_bytes() for p in out.glob(f"j-{seed - 1}-e*.bin")] == [True]
    store = Store.open(layout.database)
    try:
        ends = [e for e in (json.loads(row.entry) for row in store.entries()) if e["type"] == "RankEnded"]
        assert sorted((e["job"], e["exit_code"], e.get("merged")) for e in ends) == [
            (0, 0, None), (0, 75, "unknown"), (1, 0, None), (1, 75, "unknown"),
        ]  # fmt: skip
        assert replay(stored_rows(store)).difference is None
    finally:
        store.close()
