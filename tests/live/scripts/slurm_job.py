"""Training that takes as long as its test wants: slurm_job.py OUT. Slow steps until OUT/hurry exists.

Writes the final weights to OUT/<job>.bin, and to OUT/steps how far it has come.
"""

import os
import sys
import time
from pathlib import Path

import light_torch  # noqa: F401  before torch
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from plait.training import attach

EPOCHS, BATCHES, BATCH = 20, 10, 4
out = Path(sys.argv[1])
torch.set_num_threads(1)
torch.manual_seed(7)
data = TensorDataset(torch.randn(BATCHES * BATCH, 8), torch.arange(BATCHES * BATCH) % 2)
model = nn.Sequential(nn.Linear(8, 32), nn.Dropout(0.2), nn.Linear(32, 2))
optimizer = torch.optim.Adam(model.parameters(), 0.01)
job = attach(model=model, optimizer=optimizer)
loader = job.wrap_loader(DataLoader(data, BATCH, shuffle=True))
print("resumed at", job.resume(), "on", os.environ.get("CUDA_VISIBLE_DEVICES"), flush=True)
for epoch in job.epochs(EPOCHS):
    for i, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        (out / "steps").write_text(f"{epoch} {i}")
        if not (out / "hurry").exists():
            time.sleep(1.0)

part = out / f".{os.getpid()}"
part.write_bytes(b"".join(p.detach().numpy().tobytes() for p in model.parameters()))
part.replace(out / f"{os.environ.get('PLAIT_JOB', 'alone')}.bin")
