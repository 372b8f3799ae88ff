"""Two ranks under DDP with accumulated gradients; two.py WEIGHTS."""

import contextlib
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from plait.training import attach

dist.init_process_group("gloo")
torch.manual_seed(1)
data = TensorDataset(torch.randn(96, 8), torch.arange(96) % 2)
sampler = DistributedSampler(data)
loader = DataLoader(data, 4, sampler=sampler)
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(8, 32), nn.Dropout(0.2), nn.Linear(32, 2)))
optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
job = attach(optimizer=optimizer)
model, loader = job.wrap_ddp(model), job.wrap_loader(loader)
before = job.resume()
for epoch in job.epochs(4):
    sampler.set_epoch(epoch)
    for number, (x, y) in enumerate(loader):
        last = number % 2 == 1
        with contextlib.nullcontext() if last else model.no_sync():
            nn.functional.cross_entropy(model(x), y).backward()
        if last:
            optimizer.step()
            optimizer.zero_grad()
        time.sleep(0.005)
torch.save((model.module.state_dict(), torch.rand(3)), sys.argv[1] + str(dist.get_rank()))
print("steps", job.step - before, "of", job.step)
assert job.step == 4 * 12 // 2, job.step
dist.destroy_process_group()
