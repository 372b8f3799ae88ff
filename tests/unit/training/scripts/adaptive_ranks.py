"""Linear regression that stands still, so that its gradient noise is known; any number of ranks. Prints estimates."""

import contextlib
import json
import os
import sys

import pytest
import torch
import torch.distributed as dist
from torch.utils.data import TensorDataset

from plait.core.errors import InputError
from plait.training import attach
from plait.training.adaptive import Adaptive, AdaptiveDataLoader

M0, SIZE, FEATURES, EPOCHS = 8, 1602, 5, 3


def truth(x: torch.Tensor, y: torch.Tensor) -> dict[str, float]:
    """|g|^2 and tr(Sigma)/M0 of the mean squared error at zero weights, and standard errors of one estimate."""
    each = (-2 * x * y).double()
    g, sigma = each.mean(0), torch.cov(each.T)
    return {
        "sqr": float(g @ g),
        "var": float(sigma.trace()) / M0,
        "linear": float(4 * g @ sigma @ g) / M0,
        "square": float((sigma @ sigma).trace()),
    }


def main() -> None:
    ranks = int(os.environ["WORLD_SIZE"])
    if ranks > 1:
        dist.init_process_group("gloo")
    random = torch.Generator().manual_seed(5)
    x = torch.randn(SIZE, FEATURES, generator=random)
    y = x @ torch.full((FEATURES, 1), 0.4) + torch.randn(SIZE, 1, generator=random)
    model = torch.nn.Linear(FEATURES, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    used = torch.nn.parallel.DistributedDataParallel(model) if ranks > 1 else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    job = attach(model=model, optimizer=optimizer)
    loader = AdaptiveDataLoader(TensorDataset(x, y), M0, local_batch=(1, 4), accumulation=True, shuffle=True)
    adaptive = Adaptive(job, used, optimizer, loader, noise_every=int(sys.argv[1]))
    if ranks > 1:
        other = AdaptiveDataLoader(TensorDataset(x, y), M0)
        with pytest.raises(InputError, match="comm_hook"):
            Adaptive(job, used, torch.optim.SGD(model.parameters()), other)
        with pytest.raises(InputError, match=r"DistributedDataParallel\(model\)"):
            Adaptive(job, model, torch.optim.SGD(model.parameters()), other)
    for _ in job.epochs(EPOCHS):
        for inputs, targets in loader:
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(used(inputs), targets).backward()
            optimizer.step()
    found = adaptive.statistics
    print(
        json.dumps(
            {
                "samples": ranks * max(1, 8 // (4 * ranks)),
                "steps": job.step,
                "updates": found.updates,
                "found": [found.sqr, found.var],
                "progress": adaptive.progress,
                "truth": truth(x, y),
            }
        )
    )
    with contextlib.suppress(AssertionError):
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
