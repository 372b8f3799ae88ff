"""Any number of ranks over 100 samples, initial batch 10; adaptive_data.py SEEN STEPS [WORKERS] [--change] [--stream].

Each rank writes a line for each of its batches to SEEN-EPOCH-RANK: the pass and its samples. After STEPS steps of this
attempt the job is asked to stop; 0: never. What the accumulator says at the end of each pass is in the output.
--change: after the second step rank 0 has a fit by which a larger batch is better; it looks after each step.
"""

import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from plait.training import attach
from plait.training.adaptive.loader import AdaptiveDataLoader
from plait.training.adaptive.ranks import Accumulator

seen, steps = sys.argv[1], int(sys.argv[2])
workers, change = int((*sys.argv[3:], "0")[0]), "--change" in sys.argv
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
if world > 1:
    dist.init_process_group("gloo")


class Numbers:
    """The number of each sample."""

    def __len__(self):
        return 100

    def __getitem__(self, index):
        return index


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(range(200))


class Noise:
    """Of a gradient that is all noise."""

    known, sqr, var = True, 0.0, 1.0

    def gain(self, scale):
        return scale


model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
job = attach(optimizer=optimizer)
held_out = job.wrap_loader(torch.utils.data.DataLoader(Numbers(), 50), train=False)
options = {"max_batch_size": 40, "local_batch": (1, 8), "accumulation": True, "interval_s": 1e-9} if change else {}
if "--stream" in sys.argv:
    loader = AdaptiveDataLoader(Stream(), 10, size=100, num_workers=workers)
else:
    loader = AdaptiveDataLoader(Numbers(), 10, shuffle=True, seed=3, num_workers=workers, **options)
metrics = Accumulator()
job.resume()
made = 0
with Path(f"{seen}-{os.environ['PLAIT_EPOCH']}-{rank}").open("w") as file:
    for epoch in job.epochs(2):
        for batch in loader:
            file.write(f"{epoch} {' '.join(str(int(i)) for i in batch)}\n")
            metrics["samples"] += len(batch)
            metrics["sum"] += batch.double().sum()
            if not loader.is_sync_pass:
                continue
            optimizer.step()
            made += 1
            if steps == 0 and made == 5:
                for _ in held_out:
                    time.sleep(0.5)  # an evaluation in the middle of a pass is none of its time
            if change and made == 2:
                loader.follow(Noise())
                loader.decisions.fitter.theta = (1.0, 0.01, 0.1, 0.01, 0.1, 0.01, 1.0) if rank == 0 else None
            if made == steps:
                os.kill(os.getpid(), signal.SIGTERM)
        with metrics.synchronized():
            if rank == 0:
                print("sums", epoch, metrics["samples"], float(metrics["sum"]), loader.progress.iterations, flush=True)
        metrics.reset()
print("not training", loader.timings._waited_s()[0], flush=True)
if world > 1:
    dist.destroy_process_group()
