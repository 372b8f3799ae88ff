"""Two scripts that know nothing of plait share a GPU, once each has been profiled without marks."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="needs the extra [live]")
pytest.importorskip("torch")
pytestmark = [
    pytest.mark.engines,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="agents need Linux"),
]

from plait.live.client.client import FINAL  # noqa: E402
from plait.testing.cluster import Cluster  # noqa: E402

#: Arguments: seconds to wait for a batch, seconds to compute in the forward pass.
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
        end_s = time.thread_time() + float(sys.argv[2])
        while time.thread_time() < end_s:
            pass
        return super().forward(x)

model = Slow(4, 4)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for batch in DataLoader(Items(), 1):
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()
"""
STORAGE_BOUND, GPU_BOUND = ("0.02", "0.0"), ("0.0", "0.02")


def test_scripts_without_marks_share_a_gpu_if_their_bottlenecks_differ(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    jobs: list[dict[str, Any]] = [
        {"command": [sys.executable, str(script), *times], "workdir": str(tmp_path), "retries": 0}
        for times in (STORAGE_BOUND, GPU_BOUND)
    ]
    options = {"policy": "muri-l", "round": 0.5}
    with Cluster(tmp_path / "home", nodes=1, slots=1, options=options) as cluster, cluster.client() as client:

        def run(*which: int) -> bool:
            """Submit jobs together and wait for their ends; returns whether all ran at once."""
            names = [one.id for one in client.submit([jobs[i] for i in which])]
            together, until_s = False, time.monotonic() + 120
            while True:
                states = [client.job(name).state for name in names]
                together |= states == ["running"] * len(names)
                if all(state in FINAL for state in states):
                    assert states == ["finished"] * len(names)
                    return together
                assert time.monotonic() < until_s, states
                time.sleep(0.1)

        run(0)
        run(1)
        assert run(0, 1)  # on one slot: each knows what it needs from its first run
        assert not run(1, 1)  # nobody gains
