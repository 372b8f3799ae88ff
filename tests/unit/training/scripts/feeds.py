"""A tiny network fed in many ways; feeds.py LOSSES KIND [--delay S] [--evaluate-s S]: a line for each step.

Every epoch ends with an evaluation by a second loader; the losses depend on the order, on augmentation, on dropout.
"""

import argparse
import random
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    WeightedRandomSampler,
    get_worker_info,
)

from plait.training import attach

parser = argparse.ArgumentParser()
parser.add_argument("losses")
parser.add_argument("kind")
parser.add_argument("--delay", type=float, default=0.005)
parser.add_argument("--evaluate-s", type=float, default=0.0)
options = parser.parse_args()
SIZE, EPOCHS = 48, 3


def point(index):
    noise = random.random() + float(np.random.rand()) + torch.rand(8)  # noqa: NPY002
    return torch.full((8,), index / SIZE) + 0.1 * noise, torch.tensor(index)


class Points(Dataset):
    def __len__(self):
        return SIZE

    def __getitem__(self, index):
        return point(index)


class Counting(Points):
    """Has a state of its own, as datasets for StatefulDataLoader may."""

    asked = 0

    def __getitem__(self, index):
        self.asked += 1
        return torch.full((8,), index / SIZE + self.asked / 100), torch.tensor(index)

    def state_dict(self):
        return {"asked": self.asked}

    def load_state_dict(self, state):
        self.asked = state["asked"]


class Stream(IterableDataset):
    """Shuffles in a buffer with the random numbers of its process, or with its own."""

    def __init__(self, own=None):
        self.own = own

    def __iter__(self):
        info = get_worker_info()
        mine = list(range(info.id if info else 0, SIZE, info.num_workers if info else 1))
        dice = random.Random(self.own) if self.own is not None else random
        dice.shuffle(mine)
        yield from map(point, mine)


class Fickle(Stream):
    """Never the same again."""

    def __iter__(self):
        yield from map(point, random.SystemRandom().sample(range(SIZE), SIZE))


class Lazy:
    """A sampler that draws as it goes, from nowhere that could be put back."""

    def __iter__(self):
        yield from random.SystemRandom().sample(range(SIZE), SIZE)

    def __len__(self):
        return SIZE


class Tuples:
    """Batches as tuples."""

    def __iter__(self):
        order = torch.randperm(SIZE).tolist()
        yield from (tuple(order[i : i + 4]) for i in range(0, SIZE, 4))

    def __len__(self):
        return SIZE // 4


class Unsized:
    """Batches, and nobody is told how many."""

    def __iter__(self):
        yield from torch.randperm(SIZE).view(-1, 4).tolist()


class Sub(DataLoader):
    """Another constructor, the same iteration."""

    def __init__(self, data, **more):
        super().__init__(data, 4, shuffle=True, **more)


class Plain:
    """Not a DataLoader at all."""

    def __init__(self, data):
        self.data = data

    def __iter__(self):
        for rows in torch.randperm(SIZE).split(4):
            x, y = zip(*(self.data[i] for i in rows.tolist()), strict=True)
            yield torch.stack(x), torch.stack(y)

    def __len__(self):
        return SIZE // 4


def stateful(data, **more):
    from torchdata.stateful_dataloader import StatefulDataLoader

    return StatefulDataLoader(data, batch_size=4, **more)


torch.manual_seed(1)
random.seed(1)
np.random.seed(1)  # noqa: NPY002
seeded, data = torch.Generator().manual_seed(5), Points()
distributed = DistributedSampler(data, num_replicas=2, rank=1)
KINDS = {
    "stateful": lambda: stateful(data, shuffle=True, num_workers=2),
    "stateful, own state": lambda: stateful(Counting(), num_workers=2),
    "stateful stream": lambda: stateful(Stream(), num_workers=2),
    "generator": lambda: DataLoader(data, 4, shuffle=True, generator=seeded, num_workers=1),
    "generator, no workers": lambda: DataLoader(data, 4, shuffle=True, generator=seeded),
    "weighted": lambda: DataLoader(data, 4, sampler=WeightedRandomSampler(range(1, SIZE + 1), SIZE, generator=seeded)),
    "with replacement": lambda: DataLoader(data, 4, sampler=RandomSampler(data, replacement=True, num_samples=SIZE)),
    "tuples": lambda: DataLoader(data, batch_sampler=Tuples()),
    "unsized": lambda: DataLoader(data, batch_sampler=Unsized()),
    "distributed": lambda: DataLoader(data, 4, sampler=distributed, num_workers=1, persistent_workers=True),
    "stream": lambda: DataLoader(Stream(3), 4),
    "stream, workers that stay": lambda: DataLoader(Stream(), 4, num_workers=2, persistent_workers=True),
    "subclass": lambda: Sub(data, num_workers=2),
    "plain": lambda: Plain(data),
    "fickle": lambda: DataLoader(Fickle(), 4),
    "lazy": lambda: DataLoader(data, 4, sampler=Lazy()),
}
model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.3), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)
job = attach(model=model, optimizer=optimizer, scheduler=scheduler)
loader = job.wrap_loader(KINDS[options.kind]())
held_out = job.wrap_loader(DataLoader(data, 8), train=False)
step = job.resume()
with open(options.losses, "a") as file:
    for epoch in job.epochs(EPOCHS):
        distributed.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y % 2)
            loss.backward()
            optimizer.step()
            step += 1
            print(step, loss.item().hex(), file=file, flush=True)
            time.sleep(options.delay)
        scheduler.step()
        model.eval()
        print("evaluating", flush=True)
        for x, y in held_out:
            nn.functional.cross_entropy(model(x), y % 2)
            time.sleep(options.evaluate_s)
        model.train()
