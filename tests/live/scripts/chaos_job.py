"""A few seconds of training with shuffled data, dropout and momentum on any number of ranks.

chaos_job.py OUT SEED PAUSE: so many seconds after each step, none as soon as there is a file OUT/hurry.
Writes the final weights of each rank to OUT/<job>-e<epoch>-r<rank>.bin.
"""

import os
import sys
import time
from pathlib import Path

import light_torch  # noqa: F401  before torch
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from plait.training import attach

EPOCHS, BATCHES, BATCH = 3, 12, 4
out, seed, pause_s = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.set_num_threads(1)
if world > 1:
    dist.init_process_group("gloo")
torch.manual_seed(seed)
count = BATCHES * BATCH * world
data = TensorDataset(torch.randn(count, 8), torch.arange(count) % 2)
model = nn.Sequential(nn.Linear(8, 32), nn.Dropout(0.2), nn.Linear(32, 2))
sampler = DistributedSampler(data, seed=seed) if world > 1 else None
loader = DataLoader(data, BATCH, sampler=sampler, shuffle=sampler is None)
net = nn.parallel.DistributedDataParallel(model) if world > 1 else model
optimizer = torch.optim.Adam(net.parameters(), 0.01)
job = attach(model=model, optimizer=optimizer)
if world > 1:
    net = job.wrap_ddp(net)
loader = job.wrap_loader(loader)
print("resumed at", job.resume(), flush=True)
for epoch in job.epochs(EPOCHS):
    if sampler is not None:
        sampler.set_epoch(epoch)
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
        end = time.monotonic() + pause_s
        while (left := end - time.monotonic()) > 0 and not (out / "hurry").exists():
            time.sleep(min(left, 0.25))

name = f"{os.environ.get('PLAIT_JOB', 'alone')}-e{os.environ.get('PLAIT_EPOCH', '0')}-r{rank}.bin"
weights = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
drawn = torch.rand(4).numpy().tobytes()  # random streams too are where they should be
part = out / f".{name}.{os.getpid()}"
part.write_bytes(weights + drawn)
part.replace(out / name)
if world > 1:
    dist.destroy_process_group()
    if "PLAIT_JOB" not in os.environ:  # outside plait nobody waits for torch's threads: see process_groups.py
        from plait.training.process import let_threads_finish  # older libraries lack it

        let_threads_finish()
