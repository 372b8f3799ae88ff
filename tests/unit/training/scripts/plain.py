"""Training that knows nothing of plait: two optimizers, 40 steps of each."""

import time

import torch

models = [torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)]
optimizers = [torch.optim.SGD(model.parameters(), 0.1) for model in models]
for _ in range(40):
    for model, optimizer in zip(models, optimizers, strict=True):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
    time.sleep(0.01)
print("trained")
