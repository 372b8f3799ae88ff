"""Checkpoints at 5 and 10; before the second one no file may grow beyond 100 bytes."""

import resource
import warnings

import torch

from plait.training import attach

model = torch.nn.Linear(64, 64)
optimizer = torch.optim.Adam(model.parameters())
job = attach(model=model, optimizer=optimizer)
said = []  # later: the output is a file too
for step in job.steps(15):
    optimizer.zero_grad()
    model(torch.randn(8, 64)).square().mean().backward()
    optimizer.step()
    if step + 1 == 5:
        assert job.checkpoint(block=True).committed
    if step + 1 == 10:
        warnings.showwarning = lambda message, *where: said.append(message)
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
        assert not job.checkpoint(block=True).committed
        job.checkpointer.drain()
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        print(*said)
