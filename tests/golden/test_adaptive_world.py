"""The world `pollux` on the published workload: adaptive sizes against sizes as asked. With `PLAIT_SLOW=1`: minutes."""

import os
from pathlib import Path

import numpy as np
import pytest

from plait.core.cluster import Cluster
from plait.policies.catalog import make_policy
from plait.sim.run import simulate
from plait.sim.world import make_world
from plait.traces.formats.registry import read_trace
from plait.traces.load import load_jobs

pytestmark = pytest.mark.skipif(not os.environ.get("PLAIT_SLOW"), reason="takes minutes; set PLAIT_SLOW=1")


def test_adaptive_sizes_end_sooner_than_sizes_as_asked():
    root = Path(os.environ.get("PLAIT_DATA", Path(__file__).parents[2] / ".." / "shared" / "data"))
    workload = root / "pollux" / "workload-6.csv"
    if not workload.exists():
        pytest.skip(f"needs {workload}; set PLAIT_DATA to the folder that has it")
    jobs = load_jobs(read_trace(workload)).jobs
    assert len(jobs) == 160
    mean_s = {}
    for policy in ("tiresias-l", "srtf", "pollux"):
        run = simulate(jobs, Cluster.parse("16x4"), make_policy(policy), make_world("pollux"), check=True)
        mean_s[policy] = float((run.controller.job_store.columns["end_s"][:160] - jobs.submit_s).mean())
        assert np.isfinite(mean_s[policy])
    # measured: 4,024 s, 3,781 s, 2,824 s; the paper's simulator has 30 % less than Tiresias, too
    assert mean_s["pollux"] < 0.8 * mean_s["tiresias-l"]
    assert mean_s["pollux"] < 0.85 * mean_s["srtf"]
