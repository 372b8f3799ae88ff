"""Trainings whose step is not one backward pass and one step of one optimizer; iterations.py WEIGHTS KIND [DELAY]."""

import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from plait.training import attach

weights, kind = sys.argv[1:3]
delay = float(sys.argv[3]) if len(sys.argv) > 3 else 0.0
torch.manual_seed(1)
TURNS = 24
data = TensorDataset(torch.randn(TURNS * 4, 8))
net = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.2), nn.Tanh(), nn.Linear(16, 8))
loss_of = nn.functional.mse_loss


def gan():
    """Two optimizers a step, a third of its own accord every other one."""
    other, third = nn.Linear(8, 8), nn.Linear(8, 8)
    optimizers = [torch.optim.Adam(m.parameters(), 1e-2) for m in (net, other, third)]
    job = attach(net=net, other=other, third=third, first=optimizers[0], second=optimizers[1], third_too=optimizers[2])
    loader = job.wrap_loader(DataLoader(data, 4, shuffle=True))
    for _ in job.epochs(1):
        for number, (x,) in enumerate(loader):
            for module, optimizer in zip((net, other, third), optimizers, strict=True):
                if module is not third or number % 2:
                    optimizer.zero_grad()
                    loss_of(module(x), x).backward()
                    optimizer.step()
            time.sleep(delay)
    return job, (net, other, third)


def lbfgs():
    """Several passes in one step."""
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=3)
    job = attach(net=net, optimizer=optimizer)
    for turn in job.steps(TURNS):

        def closure(x=data.tensors[0][4 * turn : 4 * turn + 4]):
            optimizer.zero_grad()
            loss = loss_of(net(x), x)
            loss.backward()
            return loss

        optimizer.step(closure)
        time.sleep(delay)
    return job, (net,)


def scaler():
    """Every sixth step is skipped, since its gradients are not finite."""
    optimizer = torch.optim.SGD(net.parameters(), 1e-2, momentum=0.9)
    scale = torch.amp.GradScaler("cpu", init_scale=4.0)
    job = attach(net=net, optimizer=optimizer, scale=scale)
    for turn in job.steps(TURNS):
        x = data.tensors[0][4 * turn : 4 * turn + 4]
        optimizer.zero_grad()
        loss = loss_of(net(x), x) * (float("inf") if turn % 6 == 2 else 1.0)
        scale.scale(loss).backward()
        scale.step(optimizer)
        scale.update()
        time.sleep(delay)
    return job, (net,)


def accumulated():
    """A turn of the loop is a third of a step."""
    optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
    job = attach(net=net, optimizer=optimizer)
    for turn in job.steps(TURNS):
        x = data.tensors[0][4 * turn : 4 * turn + 4]
        loss_of(net(x), x).backward()
        if turn % 3 == 2:
            optimizer.step()
            optimizer.zero_grad()
        time.sleep(delay)
    return job, (net,)


def compiled():
    model = torch.compile(net, backend="eager")
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    job = attach(model=model, optimizer=optimizer)
    for turn in job.steps(TURNS):
        x = data.tensors[0][4 * turn : 4 * turn + 4]
        optimizer.zero_grad()
        loss_of(model(x), x).backward()
        optimizer.step()
        time.sleep(delay)
    return job, (net,)


def channels_last():
    """Tensors whose memory is not in the order of their dimensions."""
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3))
    model = model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    job = attach(model=model, optimizer=optimizer)
    for _ in job.steps(TURNS):
        x = torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last)
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        time.sleep(delay)
    first = optimizer.state[next(model.parameters())]["exp_avg"]
    assert first.is_contiguous(memory_format=torch.channels_last)
    return job, (model,)


job, modules = globals()[kind]()
torch.save([m.state_dict() for m in modules], weights)
print("steps", job.step)
