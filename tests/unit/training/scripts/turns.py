"""Turns that go on over the passes of a loader; turns.py FILE STOP: a line for each, asked to stop in turn STOP."""

import sys

import torch
from torch.utils.data import DataLoader, TensorDataset

from plait.training import attach

data = TensorDataset(torch.arange(24.0).view(-1, 1))
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
job = attach(model=model, optimizer=optimizer)
loader = job.wrap_loader(DataLoader(data, 4, shuffle=True, generator=torch.Generator().manual_seed(5)))
batches = iter(())
with open(sys.argv[1], "a") as file:
    for turn in job.steps(18):
        batch = next(batches, None)
        if batch is None:
            batches = iter(loader)
            batch = next(batches)
        optimizer.zero_grad()
        model(batch[0]).sum().backward()
        optimizer.step()
        print(turn, ",".join(str(int(x)) for x in batch[0]), file=file, flush=True)
        if turn + 1 == int(sys.argv[2]):
            job.page.stop = 1
