"""A model sharded by `fully_shard` whose number of ranks changes; sharded_resize.py OUT STEPS.

After STEPS steps of this attempt the job is asked to stop; 0: never. Rank 0 writes the final weights to OUT.
"""

import os
import signal
import sys

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.utils.data import TensorDataset

from plait.training import attach
from plait.training.adaptive import Adaptive, AdaptiveDataLoader

out, steps = sys.argv[1], int(sys.argv[2])
dist.init_process_group("gloo")
torch.manual_seed(1)
x = torch.randn(240, 7)
model = torch.nn.Sequential(torch.nn.Linear(7, 9), torch.nn.Tanh(), torch.nn.Linear(9, 1))
for layer in (model[0], model[2], model):
    fully_shard(layer)
optimizer = torch.optim.AdamW(model.parameters(), 0.01)
job = attach()
loader = job.wrap_loader(AdaptiveDataLoader(TensorDataset(x, x.sum(1, keepdim=True)), 12, interval_s=1e-9))
adaptive = Adaptive(job, model, optimizer, loader)
made = 0
for _ in job.epochs(2):
    for a, b in loader:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(a), b).backward()
        optimizer.step()
        loader.decisions.fitter.wait()
        made += 1
        if made == steps:
            os.kill(os.getpid(), signal.SIGTERM)
whole = {name: p.full_tensor().detach() for name, p in model.named_parameters()}
if dist.get_rank() == 0:
    theta = loader.decisions.fitter.theta
    torch.save(
        {"weights": whole, "fitted": theta is not None, "gpus": sorted(k for _, k, _ in loader.timings.keys)}, out
    )
dist.destroy_process_group()
