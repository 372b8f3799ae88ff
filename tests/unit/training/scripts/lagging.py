"""Two ranks that end apart; lagging.py KIND LAG [destroy]: rank 1 is late in its last step. KIND: steps, adaptive."""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch.utils.data import TensorDataset

from plait.training import attach
from plait.training.adaptive import Adaptive, AdaptiveDataLoader

kind, lag = sys.argv[1], float(sys.argv[2])
late = os.environ["RANK"] == "1"
dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.Linear(5, 1)
used = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
job = attach(model=model, optimizer=optimizer)


def learn(x, y):
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(used(x), y).backward()
    optimizer.step()


if kind == "adaptive":
    data = TensorDataset(torch.randn(24, 5), torch.randn(24, 1))
    loader = AdaptiveDataLoader(data, 8, max_batch_size=16, interval_s=1e-9)
    Adaptive(job, used, optimizer, loader)
    for _ in loader.remaining_epochs(1):
        for x, y in loader:
            learn(x, y)
            time.sleep(lag if late and loader.progress.reached else 0.0)
else:
    for step in job.steps(3):
        learn(torch.randn(8, 5), torch.randn(8, 1))
        time.sleep(lag if late and step == 2 else 0.0)
if "destroy" in sys.argv:
    dist.destroy_process_group()
