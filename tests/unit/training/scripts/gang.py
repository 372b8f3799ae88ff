"""Any number of ranks under DDP with several buckets; gang.py WEIGHTS [--alone] [--inner] [--accumulate] [--unused].

The layers run in another order than they are made in, so DDP's buckets change after the first pass.
--alone: as if plait were not there, and without its line for DDP. --inner: a communication hook of the script's own.
--unused: DDP looks for unused parameters.
"""

import contextlib
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from plait.training import attach

weights, options = sys.argv[1], sys.argv[2:]
if "--alone" in options:
    del os.environ["PLAIT_RUN_DIR"]
dist.init_process_group("gloo")
torch.manual_seed(1)
world = dist.get_world_size()


class Crossed(nn.Module):
    def __init__(self):
        super().__init__()
        self.last, self.first, self.middle = nn.Linear(40, 2), nn.Linear(8, 40), nn.Linear(40, 40)

    def forward(self, x):
        return self.last(torch.tanh(self.middle(nn.functional.dropout(torch.tanh(self.first(x)), 0.2))))


data = TensorDataset(torch.randn(32 * world, 8), torch.arange(32 * world) % 2)
sampler = DistributedSampler(data)
loader = DataLoader(data, 4, sampler=sampler)
model = nn.parallel.DistributedDataParallel(
    Crossed(), bucket_cap_mb=0.002, find_unused_parameters="--unused" in options
)
optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
inner = fp16_compress_hook if "--inner" in options else None
job = attach(optimizer=optimizer)
if "--alone" not in options:
    model = job.wrap_ddp(model, inner=inner and (lambda state, bucket: inner(None, bucket)))
elif inner:
    model.register_comm_hook(None, inner)
loader = job.wrap_loader(loader)
job.resume()
for epoch in job.epochs(2):
    sampler.set_epoch(epoch)
    for number, (x, y) in enumerate(loader):
        last = "--accumulate" not in options or number % 2 == 1
        with contextlib.nullcontext() if last else model.no_sync():
            nn.functional.cross_entropy(model(x), y).backward()
        if last:
            optimizer.step()
            optimizer.zero_grad()
        if job.attached:
            time.sleep(0.01)
torch.save((model.module.state_dict(), torch.rand(3)), weights + str(dist.get_rank()))
dist.destroy_process_group()
