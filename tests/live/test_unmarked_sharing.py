"""Two programs that know nothing of plait share a GPU, once each has been profiled without marks."""

import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from plait.core.resources import Resource
from plait.live.client.client import FINAL
from plait.outlook.log_replay import read_rows, replay
from plait.testing.cluster import Cluster

pytestmark = pytest.mark.engines

#: Arguments: seconds to wait for a batch, seconds to wait for the forward pass of a device, batches.
SCRIPT = """
import sys, time
import torch

def load(indices):
    time.sleep(float(sys.argv[1]))
    return torch.zeros(1, 4)

model = torch.nn.Linear(4, 4)
model.register_forward_pre_hook(lambda *call: time.sleep(float(sys.argv[2])))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for batch in torch.utils.data.DataLoader(range(int(sys.argv[3])), collate_fn=load):
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()
"""
STORAGE_BOUND, GPU_BOUND = ("0.05", "0.0"), ("0.0", "0.05")
SLOW = [pytest.mark.slow, pytest.mark.skipif(not os.environ.get("PLAIT_SLOW"), reason="minutes; PLAIT_SLOW=1")]

#: Without torch. Arguments: read or compute, seconds of that alone.
PROGRAM = """
import mmap, os, sys, time
work_s, block = float(sys.argv[2]), mmap.mmap(-1, 1 << 20)
while sys.argv[1] == "compute" and time.thread_time() < work_s:
    pass
if sys.argv[1] == "read":
    with open(f"data-{os.getpid()}", "wb") as file:
        file.write(os.urandom(64 << 20))
        os.fsync(file.fileno())
    fd, until_s = os.open(file.name, os.O_RDONLY | os.O_DIRECT), time.monotonic() + work_s
    while time.monotonic() < until_s:
        for at in range(64):
            os.preadv(fd, [block], at << 20)
"""


def requests(folder: Path, text: str, *arguments: tuple[str, ...]) -> list[dict[str, Any]]:
    paths = [folder / f"train-{i}.py" for i in range(len(arguments)) if (folder / f"train-{i}.py").write_text(text)]
    commands = [[sys.executable, str(path), *words] for path, words in zip(paths, arguments, strict=True)]
    return [{"command": command, "workdir": str(folder), "retries": 0} for command in commands]


@pytest.mark.parametrize(
    ("policy", "text", "arguments", "batches"),
    [
        ("muri-l", SCRIPT, ((*STORAGE_BOUND, "120"), (*GPU_BOUND, "120")), ([0, 1, 0, 1], [1, 1])),
        pytest.param("plait", PROGRAM, (("read", "24"), ("compute", "24")), ([0, 1, 0, 1],), marks=SLOW),
        pytest.param("plait", SCRIPT, ((*STORAGE_BOUND, "800"), (*GPU_BOUND, "800")), ([0, 1],), marks=SLOW),
    ],
)
def test_programs_without_marks_share_a_gpu_if_their_bottlenecks_differ(policy, text, arguments, batches, tmp_path):
    jobs, options = requests(tmp_path, text, *arguments), {"policy": policy, "round": 0.5}
    with Cluster(tmp_path / "home", nodes=1, slots=1, options=options) as cluster, cluster.client() as client:

        def run(which: list[int]) -> tuple[bool, float]:
            """Submit jobs together and wait for their ends; returns whether several ran at once, and the seconds."""
            names, together = [one.id for one in client.submit([jobs[i] for i in which])], False
            while not all(client.job(name).state in FINAL for name in names):
                together |= sum(client.job(name).state == "running" for name in names) > 1
                time.sleep(0.1)
            ended = [client.job(name) for name in names]
            assert [job.state for job in ended] == ["finished"] * len(names)
            return together, max(j.ended_s or 0.0 for j in ended) - min(j.started_s or 0.0 for j in ended)

        first = [run(which) for which in batches if len(batches[0]) == 2]  # nothing is known of either
        alone_s = run([0])[1] + run([1])[1]
        (together, seconds), *rest = first or [run(which) for which in batches]
        assert together  # on one slot; programs without torch compete for cores with all that runs on the machine
        assert text != SCRIPT or seconds < 0.85 * len(batches[0]) / 2 * alone_s
        assert not any(gained for gained, _ in rest)  # nobody would


def test_scripts_of_which_nothing_is_known_share_without_a_restart_and_faster_than_in_turns(tmp_path):
    """The second is tried beside the first, and stays as a member of its group, no guest, by what both report."""
    endless, options = ((*STORAGE_BOUND, "1000000"), (*GPU_BOUND, "1000000")), {"policy": "plait", "round": 0.5}
    with Cluster(tmp_path / "home", nodes=1, slots=1, options=options) as cluster, cluster.client() as client:
        names = [one.id for one in client.submit(requests(tmp_path, SCRIPT, *endless))]
        while (second := client.job(names[1])).profile_source is None:  # it waits for nothing but this
            assert second.state not in FINAL
            time.sleep(0.2)
        time.sleep(3.0)  # for a decision
        jobs = [client.job(name) for name in names]
        assert [(job.state, job.starts, job.preemptions) for job in jobs] == [("running", 1, 0)] * 2
        answer = replay(read_rows(client.all_events()))
    assert answer.difference is None
    columns = answer.state.controller.job_store.columns
    assert columns["stage_s"][:2].argmax(axis=1).tolist() == [Resource.STORAGE, Resource.GPU]
    assert columns["shared_speed"][:2].sum() > 1.2  # in turns they would make 1.0 times the progress of one job
    assert [len(job.group.members) for job in jobs if job.group is not None] == [2, 2], "no guest, which would be paced"
