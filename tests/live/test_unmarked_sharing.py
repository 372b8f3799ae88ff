"""Two programs that know nothing of plait share a GPU, once each has been profiled without marks."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from plait.live.client.client import FINAL
from plait.testing.cluster import Cluster

pytestmark = pytest.mark.engines

#: Arguments: seconds to wait for a batch, seconds to wait for the forward pass of a device.
SCRIPT = """
import sys, time
import torch
from torch.utils.data import DataLoader, Dataset

class Items(Dataset):
    def __len__(self):
        return 300

    def __getitem__(self, index):
        time.sleep(float(sys.argv[1]))
        return torch.zeros(4)

class Slow(torch.nn.Linear):
    def forward(self, x):
        time.sleep(float(sys.argv[2]))
        return super().forward(x)

model = Slow(4, 4)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for batch in DataLoader(Items(), 1):
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()
"""
STORAGE_BOUND, GPU_BOUND = ("0.02", "0.0"), ("0.0", "0.02")

#: Without torch. Arguments: read or compute, seconds of that alone.
PROGRAM = """
import mmap, os, sys, tempfile, time
how, work_s = sys.argv[1], float(sys.argv[2])
if how == "compute":
    while time.thread_time() < work_s:
        pass
else:
    block = mmap.mmap(-1, 1 << 20)
    with tempfile.NamedTemporaryFile(dir=".") as file:
        for _ in range(64):
            file.write(os.urandom(1 << 20))
        file.flush()
        os.fsync(file.fileno())
        fd = os.open(file.name, os.O_RDONLY | os.O_DIRECT)
        until_s = time.monotonic() + work_s
        while time.monotonic() < until_s:
            for at in range(64):
                os.preadv(fd, [block], at << 20)
"""


@pytest.mark.parametrize(
    ("policy", "text", "arguments"),
    [
        ("muri-l", SCRIPT, (STORAGE_BOUND, GPU_BOUND)),
        ("plait", SCRIPT, (STORAGE_BOUND, GPU_BOUND)),
        pytest.param(
            "plait",
            PROGRAM,
            (("read", "24"), ("compute", "24")),
            marks=[
                pytest.mark.slow,
                pytest.mark.skipif(not os.environ.get("PLAIT_SLOW"), reason="minutes; PLAIT_SLOW=1"),
            ],
        ),
    ],
)
def test_programs_without_marks_share_a_gpu_if_their_bottlenecks_differ(
    policy: str, text: str, arguments: tuple[tuple[str, str], ...], tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(text)
    jobs: list[dict[str, Any]] = [
        {"command": [sys.executable, str(script), *words], "workdir": str(tmp_path), "retries": 0}
        for words in arguments
    ]
    options = {"policy": policy, "round": 0.5}
    with Cluster(tmp_path / "home", nodes=1, slots=1, options=options) as cluster, cluster.client() as client:

        def run(*which: int) -> tuple[bool, float]:
            """Submit jobs together and wait for their ends; returns whether several ran at once, and the seconds."""
            begin_s = time.monotonic()
            names = [one.id for one in client.submit([jobs[i] for i in which])]
            together = False
            while True:
                states = [client.job(name).state for name in names]
                together |= states.count("running") > 1
                if all(state in FINAL for state in states):
                    assert states == ["finished"] * len(names)
                    return together, time.monotonic() - begin_s
                assert time.monotonic() < begin_s + 300, states
                time.sleep(0.1)

        alone_s = run(0)[1] + run(1)[1]
        together, four_s = run(0, 1, 0, 1)
        assert together  # on one slot: each knows what it needs from its first run
        if text == SCRIPT:  # the others compete for cores of the machine with all that runs there
            assert four_s < (0.85 if policy == "muri-l" else 1.0) * 2 * alone_s
        if policy == "muri-l":  # under plait one may be the guest of the other, in what that leaves
            assert not run(1, 1)[0]  # nobody gains
