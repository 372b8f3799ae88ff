"""A training that may be a guest or a host: guest.py WEIGHTS KIND STEPS DELAY.

plain: not a line of plait, but for what the start-up hook does elsewhere; marked: with a stage and yield points.
"""

import sys
import time

import torch
from torch import nn

weights, kind, steps, delay = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
torch.manual_seed(1)
net = nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(12)))

if kind == "plain":
    from plait.training.startup import watch_script

    watch_script()
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.mse_loss(net(torch.randn(8, 16)), torch.zeros(8, 16)).backward()
        time.sleep(delay)
        optimizer.step()
else:
    from plait.core.resources import Resource
    from plait.training import attach

    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    job = attach(net=net, optimizer=optimizer)
    for _ in job.steps(steps):
        with job.stage(Resource.GPU):
            optimizer.zero_grad()
            for _ in range(4):
                time.sleep(delay / 4)
                job.yield_point()
            nn.functional.mse_loss(net(torch.randn(8, 16)), torch.zeros(8, 16)).backward()
            optimizer.step()
torch.save(net.state_dict(), weights)
