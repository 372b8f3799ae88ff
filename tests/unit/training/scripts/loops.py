"""What counts as an iteration, what is told to the page; loops.py WHAT."""

import sys
import time
import warnings

import torch
from torch.utils.data import DataLoader, Dataset

from plait.training import Resource, attach

model = torch.nn.Sequential(torch.nn.Linear(4, 12), torch.nn.Linear(12, 4))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
job = attach(model=model, optimizer=optimizer)
what = sys.argv[1]


def learn(x):
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()


class Slow(Dataset):
    """Reads that wait, decoding that computes; `split` offers both by name."""

    def __len__(self):
        return 80

    def __getitem__(self, index):
        time.sleep(0.004)
        end = time.thread_time() + 0.002
        while time.thread_time() < end:
            pass
        return torch.ones(4)


class Split(Slow):
    def read(self, index):
        time.sleep(0.004)
        return index

    def decode(self, raw):
        end = time.thread_time() + 0.002
        while time.thread_time() < end:
            pass
        return torch.ones(4)


if what == "boundaries":
    for _ in range(7):
        learn(torch.randn(8, 4))
        learn(torch.randn(8, 4))
        job.step_boundary()
elif what == "stages":
    for _ in job.steps(60):
        with job.stage(Resource.CPU):
            time.sleep(0.002)
        with job.stage(Resource.GPU):
            time.sleep(0.006)
            learn(torch.randn(8, 4))
elif what in ("one", "split", "worker"):
    data = Split() if what == "split" else Slow()
    loader = job.wrap_loader(DataLoader(data, 2, num_workers=what == "worker"))
    for _ in job.epochs(1):
        for x in loader:
            learn(x)
elif what == "refused":
    try:
        job.register_state(environment=object())
    except Exception as error:
        print(type(error).__name__, error)
warnings.warn("the end", stacklevel=1)
