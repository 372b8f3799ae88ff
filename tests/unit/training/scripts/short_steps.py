"""Trains in steps of MS milliseconds of a clock that only the steps move; short_steps.py MS STOP STEPS [HOW].

Prints how often everything that belongs to a step was done, and the page. STOP: the step in which the agent asks for a
stop, 0 never. HOW: with `zip` each step draws from two loaders; `calls` counts the calls of plait's functions in the
second half.
"""

import sys
from types import SimpleNamespace

import torch
from torch.utils.data import DataLoader, TensorDataset

from plait.core.resources import Resource
from plait.training import attach, attached_job, stages
from plait.training.loader import loader

step_s, stop, steps = float(sys.argv[1]) / 1e3, int(sys.argv[2]), int(sys.argv[3])
now_s = 1000.0


def clock():
    return now_s


for module in (attached_job, stages, loader):
    module.time = SimpleNamespace(monotonic=clock, time=clock)

model = torch.nn.Linear(2, 2)
sgd = torch.optim.SGD(model.parameters(), 0.01)
job = attach(model=model, sgd=sgd)
job.stages._clock = clock
published, publish = 0, job.stages.publish


def counted():
    global published
    published += 1
    publish()


job.stages.publish = counted
batches = job.wrap_loader(DataLoader(TensorDataset(torch.ones(100, 2)), 1))
how = sys.argv[4] if len(sys.argv) > 4 else ""
other = job.wrap_loader(DataLoader(TensorDataset(torch.ones(100, 2)), 1)) if how == "zip" else [(None,)] * 100


def called(frame, event, _):
    global calls
    calls += event == "call" and "/plait/" in frame.f_code.co_filename


calls = 0
done = 0
while done < steps:
    for (x,), _ in zip(batches, other, strict=False):
        now_s += step_s
        sgd.zero_grad()
        model(x).sum().backward()
        if done + 1 == stop:
            job.page.stop = 1
        sgd.step()
        done += 1
        if how == "calls" and done == steps // 2:
            sys.setprofile(called)
        assert job.page.steps == job.step == done
        assert job.page.in_stage == 0
        if done == steps:
            break
sys.setprofile(None)
if how == "calls":
    print("calls", calls / (steps - steps // 2))
print("published", published, "gpu", round(job.page.busy_s[Resource.GPU], 3), "step", round(job.page.step_s, 6))
