"""Makes its loaders anew; renewed_loaders.py TRACE KIND STOP: a line for each batch, and the weights at the end.

The process sends itself SIGTERM at its STOPth line; 0 never.
"""

import hashlib
import os
import random
import signal
import sys

import torch
from torch.utils.data import DataLoader, RandomSampler, Sampler, Subset, TensorDataset

from plait.training import attach

trace, kind, stop = sys.argv[1], sys.argv[2], int(sys.argv[3])
torch.manual_seed(1)
random.seed(1)
lines = 0
data = TensorDataset(torch.arange(24), torch.randn(24, 4, generator=torch.Generator().manual_seed(24)))
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.2), torch.nn.Tanh(), torch.nn.Linear(8, 4))
sgd = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
job = attach(model=model, sgd=sgd)


def learn(*values, lr=0.1):
    global lines
    *about, x = values
    sgd.param_groups[0]["lr"] = lr
    sgd.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    sgd.step()
    with open(trace, "a") as file:
        file.write(" ".join(map(str, [*about, loss.item()])) + "\n")
    lines += 1
    if lines == stop:
        os.kill(os.getpid(), signal.SIGTERM)


def plain():
    for epoch in job.epochs(3):
        for i, (ids, x) in enumerate(job.wrap_loader(DataLoader(data, 4, shuffle=True))):
            learn(epoch, i, ids.tolist(), x, lr=0.1 / (1 + i))


def by_batches():
    for epoch in job.epochs(3):
        loader = DataLoader(data, 4, shuffle=True)
        for i, (ids, x) in job.batches(loader):
            learn(epoch, i, ids.tolist(), x)


def seeded_in_each_epoch():
    for epoch in job.epochs(3):
        loader = DataLoader(data, 4, shuffle=True, generator=torch.Generator().manual_seed(epoch))
        for i, (ids, x) in job.batches(loader):
            learn(epoch, i, ids.tolist(), x)


def one_generator():
    generator = torch.Generator().manual_seed(3)
    for epoch in job.epochs(3):
        loader = DataLoader(data, 4, shuffle=True, generator=generator)
        for i, (ids, x) in job.batches(loader):
            learn(epoch, i, ids.tolist(), x)
        job.checkpoint()


class Own(Sampler):
    """Shuffles its list in place, by a generator of its own."""

    def __init__(self, seed):
        self.dice, self.order = random.Random(seed), list(range(24))

    def __len__(self):
        return 24

    def __iter__(self):
        self.dice.shuffle(self.order)
        return iter(list(self.order))


def one_sampler():
    sampler = Own(3)
    for epoch in job.epochs(3):
        for i, (ids, x) in job.batches(DataLoader(data, 4, sampler=sampler)):
            learn(epoch, i, ids.tolist(), x)


def sampler_in_each_epoch():
    for epoch in job.epochs(3):
        for i, (ids, x) in job.batches(DataLoader(data, 4, sampler=Own(epoch), num_workers=1)):
            learn(epoch, i, ids.tolist(), x)


def made_by_a_function():
    def make(part, *, train):
        return job.wrap_loader(DataLoader(part, 4, sampler=RandomSampler(part)), train=train)

    def train(epoch, loader):
        for i, (ids, x) in enumerate(loader):
            learn(epoch, i, ids.tolist(), x)

    for epoch in job.epochs(3):
        train(epoch, make(data, train=True))
        with torch.no_grad():
            for _ids, x in make(Subset(data, range(8)), train=False):
                model(x)


def two_from_one_line():
    def make(part):
        return job.wrap_loader(DataLoader(part, 4, shuffle=True))

    for epoch in job.epochs(3):
        loaders = [make(part) for part in (data, Subset(data, range(12)))]
        for i, ((ids, x), (others, y)) in enumerate(zip(*loaders, strict=False)):
            learn(epoch, i, ids.tolist(), others.tolist(), torch.cat((x, y)))


def validation_first():
    """Wrapped like the training loader, made by the same line, and before it."""

    def make(part):
        return job.wrap_loader(DataLoader(part, 4, shuffle=True))

    for epoch in job.epochs(3):
        for part in (Subset(data, range(8)), data):
            for i, (ids, x) in enumerate(make(part)):
                if part is data:
                    learn(epoch, i, ids.tolist(), x)
                else:
                    model(x)


def longer_and_longer():
    for epoch in job.epochs(3):
        part = Subset(data, range(8 * (epoch + 1)))
        for i, (ids, x) in job.batches(DataLoader(part, 4, shuffle=True)):
            learn(epoch, i, ids.tolist(), x)


def drawn_subset():
    """The data of an epoch are drawn at its beginning."""
    for epoch in job.epochs(3):
        part = Subset(data, torch.randperm(24)[: random.choice((12, 16))].tolist())
        for i, (ids, x) in job.batches(DataLoader(part, 4)):
            learn(epoch, i, ids.tolist(), x)


def in_pieces():
    """Several loaders in an epoch, one after the other."""
    for epoch in job.epochs(3):
        pieces = [range(8), range(8, 16), range(16, 24)]
        random.shuffle(pieces)
        for piece in pieces:
            for i, (ids, x) in job.batches(DataLoader(Subset(data, piece), 4, shuffle=True)):
                learn(epoch, i, ids.tolist(), x)


def two_loops_over_kept_loaders():
    first, second = (job.wrap_loader(DataLoader(data, size, shuffle=True)) for size in (8, 4))
    for epoch in job.epochs(3):
        for loader in (first, second, first):
            for i, (ids, x) in enumerate(loader):
                learn(epoch, i, ids.tolist(), x)


def kept_by_size():
    """Two loaders, each made in the first epoch that needs it."""
    loaders = {}
    for epoch in job.epochs(5):
        size = 4 if epoch % 2 else 6
        if size not in loaders:
            loaders[size] = job.wrap_loader(DataLoader(data, size, shuffle=True))
        for i, (ids, x) in enumerate(loaders[size]):
            learn(epoch, i, ids.tolist(), x)


def drawn_by_hand():
    """A loader of the epoch that is started again whenever it ends."""
    loader = job.wrap_loader(DataLoader(data, 4, shuffle=True))
    for epoch in job.epochs(2):
        short = job.wrap_loader(DataLoader(Subset(data, range(8)), 4, shuffle=True))
        others = iter(short)
        for i, (ids, x) in enumerate(loader):
            try:
                more, y = next(others)
            except StopIteration:
                others = iter(short)
                more, y = next(others)
            learn(epoch, i, ids.tolist(), more.tolist(), torch.cat((x, y)))


class Stream(torch.utils.data.IterableDataset):
    """Its items come in the order of its seed."""

    def __init__(self, seed):
        self.seed = seed

    def __iter__(self):
        order = torch.randperm(24, generator=torch.Generator().manual_seed(self.seed))
        return (data[i] for i in order.tolist())


def streams():
    for epoch in job.epochs(3):
        for i, (ids, x) in job.batches(DataLoader(Stream(epoch), 4)):
            learn(epoch, i, ids.tolist(), x)


def lists():
    """Batches in a list, drawn by the script."""
    for epoch in job.epochs(3):
        order = torch.randperm(24).split(4)
        for i, (ids, x) in job.batches([data[part] for part in order]):
            learn(epoch, i, ids.tolist(), x)


def without_epochs():
    """A loop that only counts its steps, over endless new loaders."""

    def endless():
        while True:
            yield from job.wrap_loader(DataLoader(data, 4, shuffle=True))

    batches = endless()
    for step in job.steps(18):
        ids, x = next(batches)
        learn(step, ids.tolist(), x)


def number_drawn_in_each_epoch():
    """One loader; each epoch draws a number before it."""
    loader = job.wrap_loader(DataLoader(data, 4, shuffle=True))
    for epoch in job.epochs(3):
        strength = random.random()
        for i, (ids, x) in enumerate(loader):
            learn(epoch, i, ids.tolist(), x * strength)


def other_data():
    """The data depend on what no checkpoint contains."""
    for epoch in job.epochs(3):
        part = Subset(data, range(24 if stop else 20))
        for i, (ids, x) in job.batches(DataLoader(part, 4)):
            learn(epoch, i, ids.tolist(), x)


def counts_what_is_kept():
    for _epoch in job.epochs(12):
        for chunk in range(4):
            loader = DataLoader(Subset(data, range(6 * chunk, 6 * chunk + 6)), 3)
            for _i, (_ids, x) in job.batches(loader):
                learn(x)
        with open(trace, "a") as file:
            sizes = len(job.kept.values), len(job._given), len(job._epoch_loaders._used)
            file.write(f"kept {sizes}\n")


globals()[kind]()
state = torch.cat([value.flatten() for value in model.state_dict().values()])
with open(trace, "a") as file:
    file.write(f"end {hashlib.sha256(state.numpy().tobytes()).hexdigest()}\n")
