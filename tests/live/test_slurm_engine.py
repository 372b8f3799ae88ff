"""`plait up --backend slurm` against a real Slurm on this machine: munged, slurmctld and four slurmd, pretended GPUs.

Allocations come and go with the queue, and what Slurm does to them (time limits, preemption, dead nodes) costs jobs
no more than the steps since their last checkpoint: they end with the weights of a run that nobody disturbed.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from slurm.slurm_cluster import SlurmCluster, why_not

from plait.live.api.cluster import NodeRow
from plait.live.api.jobs import WholeJob
from plait.live.backends.slurm.node import MARK
from plait.live.client.client import Client
from plait.live.layout import Layout
from plait.live.supervisor import daemon
from plait.live.supervisor.down import job_processes, kill_jobs
from plait.live.supervisor.services import service_process

pytestmark = [
    pytest.mark.engines,
    pytest.mark.skipif(why_not() is not None, reason=why_not() or ""),
    pytest.mark.xdist_group("slurm"),
]

PLAIT = (sys.executable, "-c", "import sys; sys.argv[0] = 'plait'; from plait.cli import main; main()")
SCRIPT = Path(__file__).parent / "scripts" / "slurm_job.py"
PATIENCE_S = 120.0


class Cluster:
    def __init__(self, home: Path, slurm: SlurmCluster) -> None:
        self.layout, self.slurm = Layout(home.resolve()), slurm

    def __call__(self, *words: object, code: int = 0) -> str:
        env = {k: v for k, v in self.slurm.env.items() if k not in ("PLAIT_URL", "PLAIT_TOKEN")}
        done = subprocess.run(
            [*PLAIT, *map(str, words)], env={**env, "PLAIT_HOME": str(self.layout.home)},
            cwd=self.layout.home.parent, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == code, f"plait {words}: {done.returncode}\n{done.stdout}{done.stderr}{self.logs()}"
        return done.stdout + done.stderr

    def up(self, *words: object, **options: object) -> None:
        settings = {"partition": "test", "look": 0.5, "notice": 5, **options}
        pairs = [word for name, value in settings.items() for word in ("-o", f"{name.replace('_', '-')}={value}")]
        lost = () if "--lost" in words else ("--lost", 12)
        self(
            "up", "--backend", "slurm", "--gpus-per-node", 2, *lost, "--policy", "fifo", "--round", 0.2, *words, *pairs
        )  # fmt: skip

    def submit(self, *words: object) -> str:
        return json.loads(self("submit", "--json", *words))[0]["id"]

    def job(self, job: str) -> WholeJob:
        with Client.at(str(self.layout.home)) as client:  # asked often: a command would take a second
            return client.job(job)

    def nodes(self) -> list[NodeRow]:
        with Client.at(str(self.layout.home)) as client:
            return client.nodes()

    def queue(self) -> list[str]:
        return [line for line in self.slurm.queue() if "plait-" in line]

    def allocations(self, state: str = "RUNNING") -> list[str]:
        return [line.split()[0] for line in self.queue() if f" {state}" in line]

    def comes(self, true: Callable[[], object], what: str) -> None:
        until = time.monotonic() + PATIENCE_S
        while not true():
            assert time.monotonic() < until, f"{what} does not come\n{self.queue()}\n{self.logs()}"
            time.sleep(0.2)

    def ended(self, *jobs: str) -> list[dict]:
        found = []
        for job in jobs:
            self.comes(lambda job=job: self.job(job).state in ("finished", "failed", "cancelled"), f"end of {job}")
            found.append(self.job(job))
        return found

    def logs(self) -> str:
        names = ["keeper.log", *(str(path) for path in (self.layout.home / "slurm").glob("*.log"))]
        paths = [self.layout.home / name for name in names]
        return "\n".join(f"-- {path}\n{path.read_text()[-2000:]}" for path in paths if path.exists())

    def close(self) -> None:
        try:
            if service_process(self.layout) is not None or self.queue():
                self("down", "--stop-jobs", "--may-lose-work")
                assert self.queue() == []
        finally:
            daemon.stop(self.layout, daemon.KEEPER)
            kill_jobs(self.layout)
            process = service_process(self.layout)
            if process is not None:
                process.send(9)


@pytest.fixture(scope="module")
def slurm():
    with SlurmCluster(nodes=4, gpus=2) as cluster:
        yield cluster


@pytest.fixture
def plait(tmp_path, slurm):
    cluster = Cluster(tmp_path / "home", slurm)
    yield cluster
    cluster.close()
    for name in slurm.names:
        slurm.revive(name)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    pytest.importorskip("torch", reason="needs the extra [torch]")
    out = tmp_path_factory.mktemp("alone")
    (out / "hurry").touch()
    env = {k: v for k, v in os.environ.items() if not k.startswith("PLAIT_")}
    subprocess.run([sys.executable, SCRIPT, out], env=env, check=True, timeout=120, capture_output=True)
    return (out / "alone.bin").read_bytes()


def test_allocations_grow_with_the_queue_and_go_when_idle(plait, tmp_path):
    plait.up(max_nodes=3, idle=2)
    assert plait.queue() == []
    go = tmp_path / "go"  # a busy machine submits more slowly than jobs of any length would end
    waits = f"while not os.path.exists({str(go)!r}): time.sleep(0.05)"
    shown = f"import os, time\n{waits}\nprint('gpu', os.environ['CUDA_VISIBLE_DEVICES'])"
    jobs = [plait.submit("--", sys.executable, "-c", shown) for _ in range(7)]  # more than three nodes hold
    wide = plait.submit("--gpus", 4, "--", sys.executable, "-c", "import os; print(os.environ['WORLD_SIZE'])")
    plait.comes(lambda: len(plait.allocations()) == 3, "the third allocation")
    most = len(plait.queue())
    go.touch()
    for job in [*jobs, wide]:
        plait.comes(lambda job=job: plait.job(job).state in ("finished", "failed"), job)
        most = max(most, sum(" COMPLETING" not in line for line in plait.queue()))  # what ends counts no more
    assert [plait.job(job).state for job in [*jobs, wide]] == ["finished"] * 8
    assert most == 3
    assert all(plait("logs", job).strip().splitlines()[-1] in ("gpu 0", "gpu 1") for job in jobs)
    plait.comes(lambda: plait.queue() == [], "an empty queue, as nothing is wanted any more")
    plait.comes(lambda: plait.nodes() == [], "nodes that are forgotten")


def test_a_job_moves_before_the_time_limit_of_its_allocation(plait, undisturbed, tmp_path):
    plait.up(max_nodes=1, time_limit="1", replace=30)
    job = plait.submit("--", sys.executable, SCRIPT, tmp_path)
    plait.comes(lambda: plait.job(job).state == "running", "a running job")
    first = plait.allocations()
    plait.comes(lambda: len(plait.allocations()) == 2, "the replacement, while the first still runs")
    plait.comes(lambda: plait.allocations() and first[0] not in plait.allocations(), "the end of the first")
    plait.comes(lambda: plait.job(job).state == "running", "the job on the replacement")
    (tmp_path / "hurry").touch()
    (end,) = plait.ended(job)
    assert end.state == "finished"
    assert end.failures == 0
    assert (tmp_path / f"{job}.bin").read_bytes() == undisturbed
    log = plait("logs", job)
    assert "resumed at" in log


@pytest.mark.parametrize("what", ["notice", "scancel", "machine", "slurmd"])
def test_a_job_survives_the_end_of_its_allocation(plait, undisturbed, tmp_path, what):
    plait.up(max_nodes=2, idle=600)
    job = plait.submit("--", sys.executable, SCRIPT, tmp_path)
    plait.comes(lambda: (tmp_path / "steps").exists(), "the first step")
    before = plait.job(job)
    (number,), node = plait.allocations(), before.nodes[0]
    host = node.rpartition("-")[0]
    if what == "notice":  # what Slurm does ahead of a time limit or, where it is told to, of a preemption
        plait.slurm.command("scancel", "--batch", "--signal=TERM", number)
    elif what == "scancel":
        plait.slurm.command("scancel", number)
    elif what == "machine":
        plait.slurm.kill_machine(host)
    else:
        plait.slurm.kill(host)
    plait.comes(lambda: plait.job(job).state == "running" and plait.job(job).nodes != [node], "the job elsewhere")
    (tmp_path / "hurry").touch()
    (end,) = plait.ended(job)
    assert end.state == "finished"
    assert end.failures == 0
    assert (tmp_path / f"{job}.bin").read_bytes() == undisturbed


def test_an_agent_that_is_killed_is_started_again_and_its_jobs_go_on(plait):
    plait.up(max_nodes=1)
    job = plait.submit("--", "sleep", 600)
    plait.comes(lambda: plait.job(job).state == "running", "a running job")
    (node,), kept = plait.job(job).nodes, set(job_processes(plait.layout))
    record = plait.layout.node(node) / "agent.json"
    before = json.loads(record.read_text())["pid"]
    os.kill(before, signal.SIGKILL)
    plait.comes(lambda: json.loads(record.read_text())["pid"] != before, "another agent")
    plait.comes(lambda: plait.job(job).state == "running", "the job that went on")
    assert kept <= set(job_processes(plait.layout))
    assert plait.job(job).starts == 1
    plait("down", "--stop-jobs", "--may-lose-work")
    assert plait.queue() == []
    assert job_processes(plait.layout) == {}


def test_another_keeper_goes_on_with_the_allocations_of_the_first(plait):
    plait.up(max_nodes=2, min_nodes=1, idle=2)
    plait.comes(lambda: len(plait.nodes()) == 1, "the node that is always there")
    daemon.stop(plait.layout, daemon.KEEPER)
    job = plait.submit("--gpus", 4, "--", "sleep", 2)
    home = str(plait.layout.home)
    started = (
        f"import plait.live.supervisor.keeper as k; from plait.live.layout import Layout; k.spawn(Layout.at({home!r}))"
    )
    subprocess.run([sys.executable, "-c", started], env=plait.slurm.env, check=True, timeout=30)
    plait.comes(lambda: daemon.running(plait.layout, daemon.KEEPER) is not None, "another keeper")
    plait.comes(lambda: len(plait.nodes()) == 2, "a node for the rest of the job")
    for mark in (plait.layout.home / "nodes").glob(f"*/{MARK}"):
        mark.unlink()  # allocations of a version before have none
    (end,) = plait.ended(job)
    assert end.state == "finished"
    plait.comes(lambda: len(plait.queue()) == 1, "one allocation, as there was before")
    assert len(list((plait.layout.home / "slurm").glob("*.log"))) == 2  # nothing was asked for twice


def test_down_leaves_allocations_or_gives_them_back(plait):
    plait.up("--lost", 120, max_nodes=2, min_nodes=1)  # longer than the service is away
    job = plait.submit("--", "sleep", 600)
    plait.comes(lambda: plait.job(job).state == "running", "a running job")
    kept = plait.allocations()
    assert f"allocations of Slurm stay: {kept[0]}" in plait("down")
    assert plait.allocations() == kept
    plait("up")
    plait.comes(lambda: plait.job(job).state == "running", "the job that went on")
    assert plait.job(job).starts == 1
    assert plait.allocations() == kept
    plait("down", "--stop-jobs", "--may-lose-work")
    assert plait.queue() == []
    assert job_processes(plait.layout) == {}


def test_a_job_too_large_for_the_allocations_there_are_waits_for_more_until_slurm_has_room(plait):
    plait.up(max_nodes=3, min_nodes=1, idle=600)
    plait.comes(lambda: len(plait.nodes()) == 1, "the node that is always there")
    (first,) = [line.split()[-1] for line in plait.queue()]
    others = [name for name in plait.slurm.names if name != first]
    plait.slurm.command("scontrol", "update", f"nodename={','.join(others)}", "state=drain", "reason=busy")
    try:
        time.sleep(11)  # longer than the service waits for more nodes to join
        wide = plait.submit("--gpus", 4, "--", "sleep", 1)
        plait.comes(lambda: plait.allocations("PENDING"), "an allocation that Slurm has no room for")
        shown = plait.job(wide)
        assert (shown.state, shown.reason) == (
            "waiting",
            "waits for more nodes: needs 4 GPUs; the nodes that are there have 2",
        )
        assert "largest gang that fits this cluster is 6" in plait("submit", "--gpus", 7, "--", "true", code=2)
    finally:
        plait.slurm.command("scontrol", "update", f"nodename={','.join(others)}", "state=resume")
    (end,) = plait.ended(wide)
    assert end.state == "finished"


def test_an_allocation_whose_service_stays_away_for_the_lease_is_given_back(plait):
    plait.up("--lost", 8, "--lease", 6, max_nodes=1)
    job = plait.submit("--", "sleep", 600)
    plait.comes(lambda: plait.job(job).state == "running", "a running job")
    plait("down")
    assert plait.allocations()
    plait.comes(lambda: plait.queue() == [], "the end of the allocation")
    assert job_processes(plait.layout) == {}
