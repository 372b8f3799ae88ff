"""A tiny network on random data with everything that has state: dropout, scheduler, augmentation by three libraries.

tiny.py WEIGHTS [--workers N] [--epochs N] [--delay S]: writes the final weights, says how many steps it did.
"""

import argparse
import random
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from plait.training import attach

parser = argparse.ArgumentParser()
parser.add_argument("weights")
parser.add_argument("--workers", type=int, default=0)
parser.add_argument("--persistent", action="store_true")
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--delay", type=float, default=0.005)
parser.add_argument("--stateful", action="store_true")
options = parser.parse_args()


class Points(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        x = torch.full((8,), index / 64) + 0.1 * torch.rand(8) + random.random() + float(np.random.rand())  # noqa: NPY002
        return x, torch.tensor(index % 2)


torch.manual_seed(1)
random.seed(1)
np.random.seed(1)  # noqa: NPY002
model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.3), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.9)
more = {"persistent_workers": True} if options.persistent else {}
kind = DataLoader
if options.stateful:
    from torchdata.stateful_dataloader import StatefulDataLoader as kind
loader = kind(Points(), batch_size=4, shuffle=True, num_workers=options.workers, **more)

job = attach(model=model, optimizer=optimizer, scheduler=scheduler)
loader = job.wrap_loader(loader)
steps = 0
for _ in job.epochs(options.epochs):
    model.train()
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        scheduler.step()
        time.sleep(options.delay)
        steps += 1
    model.eval()
    random.random()
    torch.rand(1)
torch.save((model.state_dict(), optimizer.state_dict(), torch.rand(2), random.random()), options.weights)
print(f"steps {steps}")
