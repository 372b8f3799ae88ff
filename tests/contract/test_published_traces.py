"""Every policy of the catalog brings every job of two published traces to its end, with the invariants on.

Traces with a thousand jobs and overloads of weeks; the policies that decide every few minutes take minutes
there and run only with `PLAIT_SLOW=1`. By default most policies get every third job on half of the GPUs, where jobs
wait for days and weeks too, and a few the whole trace; with `PLAIT_SLOW=1` all get the whole.
"""

import os
from pathlib import Path

import pytest

from plait.core.cluster import Cluster
from plait.core.jobs import JobBatch, Phase
from plait.policies.catalog import CATALOG, make_policy
from plait.sim.run import simulate
from plait.sim.world import make_world
from plait.traces.formats.registry import read_trace
from plait.traces.load import load_jobs

#: seconds on one core with all checks: las 5 and 18, 2d-las 5 and 18, themis 11 and 84; gandiva 39 without, or more;
#: muri-l 17 and 120; those that choose sizes decide each minute of months, or more
OFTEN = ("las", "2d-las", "themis", "gandiva", "muri-l", "pollux", "optimus", "sia", "pollux-ga")
SLOW = {(trace, policy) for trace in ("trace1", "trace3") for policy in OFTEN}
SLOW |= {("trace1", policy) for policy in CATALOG if policy not in ("srsf", "tiresias-l")}
SLOW |= {("trace3", policy) for policy in ("muri-s", "muri-l:quantum_s=7200", "sia:interval_s=86400")}
#: whose runs are of whole traces whatever PLAIT_SLOW says: quick ones, one of each kind
WHOLE = {("trace3", policy) for policy in ("fifo", "srsf")}
THOROUGH = bool(os.environ.get("PLAIT_SLOW"))
#: the same policies, decided less often
COARSE = {"las": "las:quantum_s=3600", "2d-las": "2d-las:quantum_s=3600", "themis": "themis:lease_s=14400"}
COARSE |= {"gandiva": "gandiva:slice_s=21600", "muri-l": "muri-l:quantum_s=7200"}
COARSE |= {policy: f"{policy}:interval_s=86400" for policy in ("pollux", "optimus", "sia")}

slow = pytest.mark.skipif(not THOROUGH, reason="takes minutes; set PLAIT_SLOW=1")
CASES = [
    pytest.param(trace, policy, marks=[slow, pytest.mark.slow] if (trace, policy) in SLOW else [])
    for trace in ("trace3", "trace1")
    for policy in [*CATALOG, *COARSE.values()]
    if trace == "trace3" or policy not in COARSE.values()
]


@pytest.mark.parametrize(("trace", "policy"), CASES)
def test_every_job_ends(trace: str, policy: str, published: Path) -> None:
    jobs = load_jobs(read_trace(published / "muri" / f"{trace}.csv")).jobs
    cluster = "8x8"
    if not THOROUGH and (trace, policy) not in WHOLE:
        jobs, cluster = JobBatch.of(list(jobs)[::3]), "4x8"
    run = simulate(jobs, Cluster.parse(cluster), make_policy(policy), make_world("plait"), check=True)
    columns = {name: run.controller.job_store.columns[name][: len(jobs)] for name in ("end_s", "submit_s", "phase")}
    longer_s = columns["end_s"] - columns["submit_s"] - jobs.iterations * jobs.iteration_s
    assert longer_s.max() > (2 if policy == "plait" else 3) * 86400, "hardly anybody waited"  # its guests wait less
    assert (columns["phase"] == int(Phase.FINISHED)).all()


def test_a_gang_wider_than_the_cluster_is_refused_with_the_reason(published: Path) -> None:
    jobs = load_jobs(read_trace(published / "tiresias" / "60_job.csv")).jobs
    assert int(jobs.gpus.max()) == 8
    run = simulate(jobs, Cluster.parse("2x2"), make_policy("srsf"), make_world("plait"), check=True)
    job_store = run.controller.job_store
    for number, spec in enumerate(jobs):
        phase = Phase(int(job_store.columns["phase"][number]))
        assert phase is (Phase.FAILED if spec.gpus > 4 else Phase.FINISHED)
        if spec.gpus > 4:
            words = f"needs {spec.gpus} GPUs of one kind; the largest gang that fits this cluster is 4"
            assert job_store.columns["reason"][number] == words
