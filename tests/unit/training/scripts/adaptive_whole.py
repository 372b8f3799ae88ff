"""A regression whose batch adapts, on any number of ranks; adaptive_whole.py SEEN STEPS.

Each rank writes the samples of each batch to SEEN-EPOCH-RANK. After STEPS steps of this attempt the job is asked to
stop; 0: never. Rank 0 says at the end what it knows of itself: keys of its times, fit, noise, progress, batch.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from plait.training import attach
from plait.training.adaptive import Accumulator, Adaptive, AdaptiveDataLoader

seen, steps = sys.argv[1], int(sys.argv[2])
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
if world > 1:
    dist.init_process_group("gloo")
torch.manual_seed(1)
x = torch.randn(600, 8)
y = x @ torch.arange(8.0) + torch.randn(600)
data = torch.utils.data.TensorDataset(x, y, torch.arange(600))
job = attach()
loader = job.wrap_loader(
    AdaptiveDataLoader(
        data, 16, max_batch_size=128, local_batch=(4, 24), accumulation=True, shuffle=True, interval_s=1e-9
    )
)
model = torch.nn.Linear(8, 1)
if world > 1:
    model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
adaptive = Adaptive(job, model, optimizer, loader)
metrics = Accumulator()
made = 0
with Path(f"{seen}-{os.environ['PLAIT_EPOCH']}-{rank}").open("w") as file:
    for epoch in job.epochs(2):
        for a, b, numbers in loader:
            file.write(f"{epoch} {' '.join(str(int(i)) for i in numbers)}\n")
            optimizer.zero_grad()
            loss = (model(a).squeeze(1) - b).square().mean()
            loss.backward()
            time.sleep(0.002 + 0.0002 * len(a))
            optimizer.step()
            loader.decisions.fitter.wait()  # of the step before: slow machines learn as much as fast ones
            metrics.add(loss=loss.detach() * len(a), samples=len(a))
            made += loader.is_sync_pass
            if steps and made == steps:
                os.kill(os.getpid(), signal.SIGTERM)
        with metrics.synchronized():
            if rank == 0:
                print("pass", metrics["samples"], float(metrics["loss"]) / metrics["samples"], flush=True)
        metrics.reset()
if rank == 0:
    told = {
        "gpus": sorted({gpus for (_, gpus, *_), timing in loader.timings.keys.items() if timing.steps}),
        "theta": loader.decisions.fitter.theta,
        "known": adaptive.statistics.known,
        "progress": loader.progress.iterations,
        "batch": loader.current_batch_size,
    }
    print("told", json.dumps(told), flush=True)
if world > 1:
    dist.destroy_process_group()
