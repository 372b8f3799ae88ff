"""Loops as scripts of the field write them; field_loops.py TRACE KIND STOP: a line for each batch, and the end.

The process sends itself SIGTERM at its STOPth line; 0 never.
"""

import hashlib
import os
import random
import signal
import sys
from itertools import count, cycle

import numpy as np
import torch
from torch import nn
from torch.nn.utils import prune
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, Sampler, TensorDataset, WeightedRandomSampler

from plait.training import attach

trace, kind, stop = sys.argv[1], sys.argv[2], int(sys.argv[3])
torch.manual_seed(1)
random.seed(1)
np.random.seed(1)  # noqa: NPY002
lines = 0


def points(size):
    return TensorDataset(torch.arange(size), torch.randn(size, 4, generator=torch.Generator().manual_seed(size)))


model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Tanh(), nn.Linear(8, 4))
sgd = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
loader = DataLoader(points(24), 4, shuffle=True)  # six batches


def line(*values):
    global lines
    with open(trace, "a") as file:
        file.write(" ".join(map(str, values)) + "\n")
    lines += 1
    if lines == stop:
        os.kill(os.getpid(), signal.SIGTERM)


def learn(x, *optimizers, lr=None):
    for optimizer in optimizers or (sgd,):
        for group in optimizer.param_groups:
            group["lr"] = group["lr"] if lr is None else lr
        optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    for optimizer in optimizers or (sgd,):
        optimizer.step()
    return loss.item()


def bar(batches):
    """A progress bar, or the logger of a training engine."""
    for number, batch in enumerate(batches):
        assert number >= 0
        yield batch


def by_number(batches, job):
    for epoch in job.epochs(3):
        for i, (ids, x) in batches(epoch):
            line(epoch, i, ids.tolist(), learn(x, lr=0.1 / (1 + i)))


def counted_from_one():
    job = attach(model=model, sgd=sgd)
    wrapped = job.wrap_loader(loader)
    by_number(lambda epoch: enumerate(bar(wrapped), start=1), job)


def counted_over_all_epochs():
    job = attach(model=model, sgd=sgd)
    wrapped = job.wrap_loader(loader)

    def forever():
        for _ in job.epochs(3):
            yield from wrapped

    for i, (ids, x) in enumerate(forever()):
        line(i, ids.tolist(), learn(x, lr=0.1 / (1 + i)))


def counted_in_pairs():
    job = attach(model=model, sgd=sgd)
    wrapped = job.wrap_loader(loader)
    for epoch in job.epochs(3):
        batches = iter(wrapped)
        for i, ((_, x), (ids, y)) in enumerate(zip(batches, batches, strict=True)):
            line(epoch, i, ids.tolist(), learn(torch.cat((x, y)), lr=0.1 / (1 + i)))


def counted_stream():
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(points(24))

    job = attach(model=model, sgd=sgd)
    wrapped = job.wrap_loader(DataLoader(Stream(), 4))
    by_number(lambda epoch: enumerate(wrapped), job)


def counted_steps():
    job = attach(model=model, sgd=sgd)
    x = torch.randn(8, 4)
    for i, step in enumerate(bar(job.steps(18)), start=1):
        line(i, step, learn(x, lr=0.1 / (1 + i)))


def counted_steps_saved_in_them():
    """The checkpoint is requested within a step, once before and once after the optimizer's."""
    job = attach(model=model, sgd=sgd)
    x = torch.randn(8, 4)
    for i, step in enumerate(job.steps(18)):
        if step == 7:
            job.checkpoint(block=True)
        line(i, step, learn(x, lr=0.1 / (1 + i)))
        if step == 9:
            job.checkpoint(block=True)


def counted_epochs():
    job = attach(model=model, sgd=sgd)
    wrapped = job.wrap_loader(loader)
    for i, epoch in enumerate(job.epochs(4), start=3):
        for ids, x in wrapped:
            line(i, epoch, ids.tolist(), learn(x, lr=0.1 / (1 + i)))


def counted_epochs_without_loader():
    job = attach(model=model, sgd=sgd)
    x = torch.randn(8, 4)
    for i, epoch in enumerate(job.epochs(6)):
        line(i, epoch, learn(x, lr=0.1 / (1 + i)))


def counted_steps_beside():
    job = attach(model=model, sgd=sgd)
    x = torch.randn(8, 4)
    for i, step in zip(range(18), job.steps(18), strict=False):
        line(i, step, learn(x))


def counted_by_the_job():
    job = attach(model=model, sgd=sgd)
    by_number(lambda epoch: job.batches(loader), job)


def counted_beside():
    job = attach(model=model, sgd=sgd)
    wrapped = job.wrap_loader(loader)
    by_number(lambda epoch: zip(count(), wrapped, strict=False), job)


def counted_by_range():
    job = attach(model=model, sgd=sgd)
    wrapped = job.wrap_loader(loader)
    for epoch in job.epochs(3):
        batches = iter(wrapped)
        for i in range(len(wrapped)):
            ids, x = next(batches)
            line(epoch, i, ids.tolist(), learn(x, lr=0.1 / (1 + i)))


def cycled(workers=0):
    job = attach(model=model, sgd=sgd)
    short = job.wrap_loader(DataLoader(points(12), 4, shuffle=True, num_workers=workers))
    wrapped = job.wrap_loader(loader)
    for epoch in job.epochs(3):
        for i, ((ids, x), (others, y)) in enumerate(zip(cycle(short), wrapped, strict=False)):
            line(epoch, i, ids.tolist(), others.tolist(), learn(torch.cat((x, y))))


def adam_then_lbfgs():
    adam = torch.optim.Adam(model.parameters(), 1e-2)
    lbfgs = torch.optim.LBFGS(model.parameters(), 0.1, max_iter=2)
    x = torch.randn(8, 4)
    job = attach(model=model, adam=adam, lbfgs=lbfgs)
    for step in job.steps(18):
        if step < 6:
            line(step, learn(x, adam))
        else:

            def closure():
                lbfgs.zero_grad()
                loss = model(x).square().mean()
                loss.backward()
                return loss

            line(step, lbfgs.step(closure).item())


def optimizer_of_each_phase():
    """A new optimizer in each phase, registered when it is made."""
    job = attach(model=model)
    x = torch.randn(8, 4)
    phase, optimizer = -1, None
    for step in job.steps(18):
        if step // 6 != phase:
            phase = step // 6
            optimizer = torch.optim.Adam(model.parameters(), 0.01 * (phase + 1))
            job.register_state(**{f"phase{phase}": optimizer})
        line(step, learn(x, optimizer))


def warm_up_then_batches():
    """The first optimizer is finished after one epoch; batches of a loader, not numbered steps."""
    other = torch.optim.Adam(model.parameters(), 1e-2)
    job = attach(model=model, warm=sgd, other=other)
    wrapped = job.wrap_loader(DataLoader(points(48), 4, shuffle=True))
    for epoch in job.epochs(3):
        for ids, x in wrapped:
            line(epoch, ids.tolist(), learn(x, sgd if epoch == 0 else other))


def one_accumulates():
    """One optimizer steps always, the other sums its gradients over three steps."""
    other = nn.Linear(4, 4)
    slow = torch.optim.SGD(other.parameters(), 0.1, momentum=0.9)
    x = torch.randn(8, 4)
    job = attach(model=model, other=other, slow=slow, sgd=sgd)
    for step in job.steps(18):
        loss = other(x + step).square().mean() / 3
        loss.backward()
        line(step, loss.item(), learn(x, sgd))
        if step % 3 == 2:
            slow.step()
            slow.zero_grad()


def freeze():
    for parameter in model[0].parameters():
        parameter.requires_grad_(False)


def unfrozen():
    """The group is added whenever epoch 1 begins, also when it begins for the second time."""
    freeze()
    adam = torch.optim.Adam(model[3].parameters(), 1e-2)
    plan = torch.optim.lr_scheduler.LambdaLR(adam, lambda epoch: 0.9**epoch)
    job = attach(model=model, adam=adam, plan=plan)
    wrapped = job.wrap_loader(loader)
    for epoch in job.epochs(3):
        if epoch == 1:
            for parameter in model[0].parameters():
                parameter.requires_grad_(True)
            adam.add_param_group({"params": model[0].parameters(), "lr": 1e-3})
        for ids, x in wrapped:
            line(epoch, ids.tolist(), learn(x, adam))


def thawing():
    """One group more in each epoch, by their number."""
    adam = torch.optim.Adam(model[3].parameters(), 1e-2)
    rest = [[model[0].bias], [model[0].weight]]
    job = attach(model=model, adam=adam)
    wrapped = job.wrap_loader(loader)
    for epoch in job.epochs(3):
        while len(adam.param_groups) < 1 + epoch:
            adam.add_param_group({"params": rest[epoch - 1], "lr": 1e-3})
        for ids, x in wrapped:
            line(epoch, ids.tolist(), learn(x, adam))


def loose_buffer():
    class Centred(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", torch.zeros(4), persistent=False)

        def forward(self, x):
            self.mean.data.mul_(0.9).add_(0.1 * x.mean(0))
            return x - self.mean

    model.insert(0, Centred())
    job = attach(model=model, sgd=sgd)
    wrapped = job.wrap_loader(loader)
    by_number(lambda epoch: enumerate(wrapped), job)


def pruned():
    job = attach(model=model, sgd=sgd)
    wrapped = job.wrap_loader(loader)
    for epoch in job.epochs(3):
        if epoch == 1:
            prune.random_unstructured(model[0], "weight", 0.5)
        for ids, x in wrapped:
            line(epoch, ids.tolist(), learn(x))


def adapted():
    job = attach(model=model, sgd=sgd)
    wrapped = job.wrap_loader(loader)
    for epoch in job.epochs(3):
        if epoch == 1:
            model[3] = nn.Sequential(model[3], nn.Linear(4, 4, bias=False))
            sgd.add_param_group({"params": model[3][1].parameters()})
        for ids, x in wrapped:
            line(epoch, ids.tolist(), learn(x))


class Own(Sampler):
    """Has generators of its own, and shuffles its list in place."""

    def __init__(self, dice):
        self.dice, self.order = dice, list(range(24))

    def __len__(self):
        return len(self.order)

    def __iter__(self):
        if isinstance(self.dice, torch.Generator):
            self.order[:] = torch.randperm(24, generator=self.dice).tolist()
        else:
            self.dice.shuffle(self.order)
        return iter(list(self.order))


def sampled(sampler, **options):
    job = attach(model=model, sgd=sgd)
    wrapped = job.wrap_loader(DataLoader(points(24), 4, sampler=sampler, **options))
    by_number(lambda epoch: enumerate(wrapped), job)


def weighted(workers=0):
    weights = torch.ones(24, dtype=torch.double)
    sampler = WeightedRandomSampler(weights, 24)
    weights = sampler.weights
    job = attach(model=model, sgd=sgd, weights=weights)
    wrapped = job.wrap_loader(DataLoader(points(24), 4, sampler=sampler, num_workers=workers))
    for epoch in job.epochs(3):
        for ids, x in wrapped:
            line(epoch, ids.tolist(), learn(x))
            weights[ids] += x.abs().sum(1)


def entropy():
    class Entropy(RandomSampler):
        def __iter__(self):
            yield from random.SystemRandom().sample(range(24), 24)

    job = attach(model=model, sgd=sgd)
    wrapped = job.wrap_loader(DataLoader(points(24), 4, sampler=Entropy(range(24))))
    for epoch in job.epochs(3):
        for _ids, x in wrapped:
            learn(x)
            job.checkpoint(block=True)
            line(epoch, job.step)


KINDS = {
    "own numpy generator": lambda: sampled(Own(np.random.default_rng(3))),
    "own python generator": lambda: sampled(Own(random.Random(3))),
    "own torch generator, workers": lambda: sampled(Own(torch.Generator().manual_seed(3)), num_workers=1),
    "weights follow losses": weighted,
    "weights follow losses, workers": lambda: weighted(1),
    "cycled, workers": lambda: cycled(1),
}
(KINDS.get(kind) or globals()[kind])()
state = torch.cat([value.flatten() for value in model.state_dict().values()])
line("end", hashlib.sha256(state.numpy().tobytes()).hexdigest())
