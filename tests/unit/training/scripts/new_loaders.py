"""Trains with one loader, or with a new one in each epoch: the first argument is `once` or `again`."""

import sys

import torch
from torch.utils.data import DataLoader, TensorDataset

from plait.training import attach

model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
job = attach(model=model, optimizer=optimizer)
data = TensorDataset(torch.arange(8.0).reshape(-1, 1))
loader = None
for _ in job.epochs(3):
    if loader is None or sys.argv[1] == "again":
        loader = DataLoader(data, batch_size=4)
    for _, (x,) in job.batches(loader):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
