"""Network-bound: a wide network under DistributedDataParallel; each step sends all its gradients.

    torchrun --nproc-per-node 2 network_mlp.py [--steps N] [--width N]
    plait submit --gpus 2 -- python network_mlp.py

It learns to tell which of sixteen noisy patterns it sees; `devices` may declare a slower link between the workers.
Goal: 95 % of unseen ones right.
"""

import argparse

import torch
import torch.distributed as dist
from devices import link
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from plait.training import attach

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--steps", type=int, default=0, help="about so many in all, on less data")
parser.add_argument("--width", type=int, default=1024)
options = parser.parse_args()
torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(0)

patterns = torch.randn(16, 256)
kinds = torch.arange(4096) % 16
noisy = patterns[kinds] + 3 * torch.randn(4096, 256)
rows = min(3072, 32 * max(options.steps // options.epochs, 1)) if options.steps else 3072
train, held_out = TensorDataset(noisy[:rows], kinds[:rows]), (noisy[3072:], kinds[3072:])
sampler = DistributedSampler(train, seed=0)
loader = DataLoader(train, 16, sampler=sampler)
width = options.width
layers = [nn.Linear(256, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 16)]
model = DistributedDataParallel(nn.Sequential(*layers))
optimizer = torch.optim.SGD(model.parameters(), 0.02, momentum=0.9)

job = attach(model=model, optimizer=optimizer)
model, loader = job.wrap_ddp(model, inner=link()), job.wrap_loader(loader)
for epoch in job.epochs(options.epochs):
    sampler.set_epoch(epoch)
    for step, (x, y) in enumerate(loader):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0 and step % 20 == 0:
            print(f"epoch {epoch} step {step} loss {loss.item():.3f}", flush=True)
with torch.no_grad():
    right = (model.module(held_out[0]).argmax(1) == held_out[1]).float().mean().item()
if dist.get_rank() == 0:
    print(f"done: {right:.1%} right (goal 95.0%)")
dist.destroy_process_group()
