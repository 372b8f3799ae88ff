"""Ten steps with a checkpoint at 5; with --die the process is killed in the middle of writing that of step 10."""

import os
import signal
import sys

import torch

from plait.training import attach
from plait.training.state import checkpoint

torch.manual_seed(1)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.Adam(model.parameters())
job = attach(model=model, optimizer=optimizer)
print("resumed at", job.resume(), flush=True)


def die(state, path):
    path.with_suffix(".part").write_bytes(b"half")
    os.kill(os.getpid(), signal.SIGKILL)


for step in job.steps(15):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
    if step + 1 in (5, 10):
        if step + 1 == 10 and "--die" in sys.argv:
            checkpoint._save = die
        assert job.checkpoint(block=True).committed
torch.save(model.state_dict(), sys.argv[1])
