"""A DistributedDataParallel training whose gradients switches may add up: nothing in it says so.

Run as `plait submit -g 2 --ina auto -- python network_ddp.py --megabytes 2 --steps 100`. Each rank makes the same
number of steps, and prints the last loss.
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    """Train a perceptron of that many megabytes on random numbers."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--megabytes", type=float, default=2.0, help="size of all gradients")
    options.add_argument("--steps", type=int, default=100)
    asked = options.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    dist.init_process_group("gloo")
    width = 256
    hidden = max(1, int(asked.megabytes * 1e6 / 4 / (2 * width)))
    layers = [torch.nn.Linear(width, hidden), torch.nn.Tanh(), torch.nn.Linear(hidden, width)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    draw = torch.Generator().manual_seed(dist.get_rank())
    loss = torch.zeros(())
    for _ in range(asked.steps):
        x = torch.randn(4, width, generator=draw)
        optimizer.zero_grad()
        loss = (model(x) - x).pow(2).mean()
        loss.backward()
        optimizer.step()
    print(f"rank {dist.get_rank()}: loss {loss.item():.4f} after {asked.steps} steps", flush=True)
    dist.destroy_process_group()


main()
