"""A training whose batch and learning rate follow the GPUs it has and the noise of its gradients.

    python adaptive.py [--epochs N]
    torchrun --nproc-per-node 2 adaptive.py
    plait submit --batch-size 32 --max-batch-size 1024 -- python adaptive.py

It learns to tell which of sixteen noisy patterns it sees. Goal: 95 % of unseen ones right.
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

from plait.training import attach
from plait.training.adaptive import Accumulator, Adaptive, AdaptiveDataLoader

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=float, default=6, help="as much progress as that many with batches of 32")
options = parser.parse_args()
torch.set_num_threads(1)
torch.manual_seed(0)

patterns = torch.randn(16, 256)
kinds = torch.arange(10240) % 16
noisy = patterns[kinds] + 3 * torch.randn(10240, 256)
train, held_out = TensorDataset(noisy[:8192], kinds[:8192]), (noisy[8192:], kinds[8192:])

model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 16))
used, rank = model, int(os.environ.get("RANK", 0))
if int(os.environ.get("WORLD_SIZE", 1)) > 1:
    dist.init_process_group("gloo")
    used = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)

job = attach()
loader = AdaptiveDataLoader(
    train, 32, max_batch_size=1024, local_batch=(8, 256), accumulation=True, shuffle=True, interval_s=1
)
adaptive = Adaptive(job, used, optimizer, loader)
losses = Accumulator("losses")
for turn in loader.remaining_epochs(options.epochs):
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(used(x), y)
        loss.backward()
        optimizer.step()
        losses.add(sum=loss.detach() * len(x), examples=len(x))
    with losses.synchronized():
        mean = float(losses["sum"] / losses["examples"])
    losses.reset()
    if rank == 0:
        told = " ".join(f"{name} {value:.5g}" for name, value in adaptive.figures().items())
        print(f"pass {turn} loss {mean:.3f} {told}", flush=True)
with torch.no_grad():
    right = (model(held_out[0]).argmax(1) == held_out[1]).float().mean().item()
if rank == 0:
    print(f"done: {right:.1%} right (goal 95.0%)")
if dist.is_initialized():
    dist.destroy_process_group()
