"""A small DDP training without a line about aggregation: OUT SEED STEPS PAUSE_S; it writes its weights at the end."""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    out, seed, steps, pause_s = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(seed)
    layers = [torch.nn.Linear(256, 512), torch.nn.Tanh(), torch.nn.Linear(512, 16)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    draw = torch.Generator().manual_seed(1000 * seed + rank)
    loss = torch.zeros(())
    for _ in range(steps):
        x = torch.randn(16, 256, generator=draw)
        optimizer.zero_grad()
        loss = (model(x) - x[:, :16]).pow(2).mean()
        loss.backward()
        optimizer.step()
        time.sleep(pause_s)
    job = os.environ.get("PLAIT_JOB", "alone")
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    torch.save({"weights": weights, "loss": loss.item()}, out / f"{job}-{seed}-r{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


main()
