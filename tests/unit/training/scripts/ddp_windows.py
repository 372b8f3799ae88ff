"""Windows over DDP models that are compiled, in a group of one rank; prints what each window saw as a JSON line.

A process of its own: gloo's threads may need the interpreter's lock while a collection of garbage frees a DDP model and
waits for them under it, so a model that is freed late stops whoever frees it, for ever. This process never frees one.
"""

import json

import torch
import torch.distributed as dist
from torch._dynamo.utils import counters
from torch.nn.parallel import DistributedDataParallel

from plait.training import passive
from plait.training.passive import Hooks

kept = []


def prepare(make):
    torch._dynamo.reset()
    counters.clear()
    hooks, model = Hooks(), make(torch.nn.Linear(4, 4))
    hooks.stepped()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    kept.append(model)

    def train():
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        hooks.stepped()

    return hooks, model, train


def compiled(model):
    return torch.compile(model, backend="eager")


def in_place(model):
    model.compile(backend="eager")
    return model


def say(case, **seen):
    print(json.dumps({"case": case} | seen), flush=True)


def show_buckets(case, make):
    hooks, _, train = prepare(make)
    for iteration in range(20):
        if iteration == 15:
            hooks.start(0.01)
        train()
    hooks.stages(5, 0.01)
    say(case, messages=hooks.messages.per_iteration)


def show_capture(case, make):
    """A window in which a CUDA graph begins to be captured: DDP's next call would wait for the GPU."""
    rates = []
    ddp = DistributedDataParallel(torch.nn.Linear(4, 4))
    hooks, model, train = prepare(lambda _: make(ddp))
    train()
    ddp._set_ddp_runtime_logging_sample_rate = rates.append
    hooks.start(0.01)
    train()
    before, passive.capturing = list(rates), lambda: True
    model(torch.ones(2, 4))
    say(case, before=before, rates=rates, stages=hooks.stages(2, 0.01), interrupted=hooks.interrupted)
    passive.capturing = capturing


capturing = passive.capturing
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
show_capture("capture", lambda ddp: ddp)
show_buckets("compiled DDP", lambda model: compiled(DistributedDataParallel(model)))
show_buckets("DDP of compiled", lambda model: DistributedDataParallel(compiled(model)))
show_buckets("in place", lambda model: in_place(DistributedDataParallel(model)))
show_capture("capture, compiled", compiled)
