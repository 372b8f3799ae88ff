"""A training whose batch adapts, or does not, on any number of ranks; a pass takes a time that is given, by sleeping.

adaptive_job.py OUT KIND EPOCHS SAMPLES ALPHA_S BETA_S INTERVAL_S [SPREAD]

KIND is `adaptive`, with the bounds that the job was submitted with, or `fixed`: an ordinary loader with batches of 32.
A pass over m examples takes ALPHA_S + BETA_S m seconds before its gradients are reduced. EPOCHS count as progress: the
job makes more passes at larger batches. Each rank writes the samples of its steps, `epoch sample sample ...` a line, to
OUT/<job>-e<attempt>-r<rank>.txt, and rank 0 at the end the loss on data that nobody trained on to OUT/<job>.json.
SPREAD is the noise of the labels, and so that of the gradient.
"""

import json
import os
import sys
import time
from pathlib import Path

import light_torch  # noqa: F401  before torch
import torch
import torch.distributed as dist
from line_model import FIXED_BATCH, RATE, examples, new_model
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler

from plait.training import attach

out, kind, epochs, samples = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
alpha_s, beta_s, interval_s = (float(word) for word in sys.argv[5:8])
spread = float(sys.argv[8]) if len(sys.argv) > 8 else 1.0
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.set_num_threads(1)
if world > 1:
    dist.init_process_group("gloo")


class Numbered:
    """Samples with their numbers."""

    def __init__(self) -> None:
        self.x, self.y = examples(samples, 2, spread)

    def __len__(self) -> int:
        return samples

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor, torch.Tensor]:
        return index, self.x[index], self.y[index]


model = new_model()
net = nn.parallel.DistributedDataParallel(model) if world > 1 else model
optimizer = torch.optim.SGD(net.parameters(), RATE)
sampler = None
if kind == "adaptive":
    from plait.training.adaptive import Adaptive, AdaptiveDataLoader

    job = attach(model=model, optimizer=optimizer)
    loader = AdaptiveDataLoader(Numbered(), shuffle=True, seed=4, interval_s=interval_s)
    Adaptive(job, net, optimizer, loader)
else:
    data = Numbered()
    sampler = DistributedSampler(data, seed=4) if world > 1 else None
    loader = DataLoader(data, FIXED_BATCH // world, sampler=sampler, shuffle=sampler is None)
    job = attach(model=model, optimizer=optimizer)
    if world > 1:
        net = job.wrap_ddp(net)
    loader = job.wrap_loader(loader)
job.resume()
passes = loader.remaining_epochs(epochs) if kind == "adaptive" else job.epochs(epochs)
with (out / f"{os.environ['PLAIT_JOB']}-e{os.environ['PLAIT_EPOCH']}-r{rank}.txt").open("w") as seen:
    for epoch in passes:
        if sampler is not None:
            sampler.set_epoch(epoch)
        for numbers, x, y in loader:
            begin = time.monotonic()
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(net(x), y)
            time.sleep(max(0.0, begin + alpha_s + beta_s * len(x) - time.monotonic()))
            loss.backward()
            optimizer.step()
            seen.write(f"{epoch} {' '.join(map(str, numbers.tolist()))}\n")
            seen.flush()

if rank == 0:
    x, y = examples(2000, 5, 0.0)
    with torch.no_grad():
        found = {"loss": float(nn.functional.mse_loss(model(x), y)), "epochs": epochs}
    part = out / f".{os.environ['PLAIT_JOB']}"
    part.write_text(json.dumps(found))
    part.replace(out / f"{os.environ['PLAIT_JOB']}.json")
if world > 1:
    dist.destroy_process_group()
