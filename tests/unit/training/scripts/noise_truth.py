"""Gradient noise as a job measures it, beside the exact one; noise_truth.py MODEL OPTIMIZER frozen|moving STEPS [SEED].

The exact one is of the gradients of single examples, every so many steps, averaged as the job's statistics average.
While weights are frozen it is of all examples, and gradients are divided as the optimizer itself divides, by its own
averages of squares without bounds. While weights move it is of `SIZE` examples that come next, and none comes twice:
of data that do, a pass has still to come to those that the model has not seen for longest, and their mean gradient is
longer than that of all. What was never seen, or not for long, is bounded as the job bounds it (else single
coordinates are the whole variance). Prints both.
"""

import json
import math
import os
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.utils.data import TensorDataset

from plait.training import attach
from plait.training.adaptive import Adaptive, AdaptiveDataLoader
from plait.training.adaptive.noise import Estimate, Statistics
from plait.training.adaptive.preconditioner import Preconditioner

BATCH, SIZE, EVERY, WARM = 16, 3000, 50, 300


class Bag(nn.Module):
    """Rows of a table, of which some are rarely used."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(150, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.table(x).mean(-2).tanh())


class Transformer(nn.Module):
    """One block with two heads."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.place = nn.Embedding(40, 16), nn.Parameter(0.1 * torch.randn(6, 16))
        self.qkv, self.join, self.norm = nn.Linear(16, 48), nn.Linear(16, 16), nn.LayerNorm(16)
        self.mlp = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
        self.out = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.table(x) + self.place
        q, k, v = (t.unflatten(-1, (2, 8)).transpose(-3, -2) for t in self.qkv(self.norm(h)).chunk(3, -1))
        mixed = (q @ k.transpose(-1, -2) / math.sqrt(8)).softmax(-1) @ v
        h = h + self.join(mixed.transpose(-3, -2).flatten(-2))
        return self.out((h + self.mlp(h)).mean(-2))


def world_of(kind: str, size: int = SIZE, seed: int = 0) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """A model and its data, in no order; labels are a rule with noise."""
    random = torch.Generator().manual_seed(4 + seed)
    if kind == "mlp":
        x = torch.randn(size, 12, generator=random)
        right = (x[:, :4] * 1.5 + x[:, 4:8]).argmax(1)
        model: nn.Module = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 4))
        with torch.no_grad():
            model[0].bias[:8] -= 2.5  # type: ignore[index, operator]  # units that are rarely active
    else:
        words, length = (150, 5) if kind == "embedding" else (40, 6)
        chance = 1 / torch.arange(1.0, words + 1) ** (1.2 if kind == "embedding" else 0.8)
        x = torch.multinomial(chance, size * length, replacement=True, generator=random).view(size, length)
        right = (x % 4).mode(1).values
        model = Bag() if kind == "embedding" else Transformer()
    wrong = torch.rand(size, generator=random) < 0.3
    return model, x, torch.where(wrong, torch.randint(4, (size,), generator=random), right)


def optimizer_of(kind: str, model: nn.Module, rate: float) -> torch.optim.Optimizer:
    """One of those that divide; slow averages are faster here, since there are few steps."""
    if kind == "rmsprop":
        return torch.optim.RMSprop(model.parameters(), rate, alpha=0.99)
    if kind == "adagrad":
        return torch.optim.Adagrad(model.parameters(), 5 * rate)
    make = torch.optim.AdamW if kind == "adamw" else torch.optim.Adam
    return make(model.parameters(), rate)


def divisors(optimizer: torch.optim.Optimizer, model: nn.Module, bounded: Preconditioner | None) -> dict[str, Any]:
    """What the optimizer divides each gradient by, up to a factor."""
    found = {}
    if bounded is not None:
        for name, p in model.named_parameters():
            second, below = bounded._second(p)
            found[name] = below(second).double()
        return found
    group = optimizer.param_groups[0]
    for name, p in model.named_parameters():
        state = optimizer.state[p]
        t = float(state["step"])
        if "sum" in state:
            second = state["sum"] / t
        elif "square_avg" in state:
            second = state["square_avg"] / (1 - group["alpha"] ** t)
        else:
            second = state["exp_avg_sq"] / (1 - group["betas"][1] ** t)
        found[name] = second.double().sqrt() + group["eps"]
    return found


def exact(model: nn.Module, below: dict[str, Any], x: torch.Tensor, y: torch.Tensor) -> Estimate:
    """|Pg|^2 and tr(P Sigma P)/M0 over these examples, for gradients divided by `below`."""
    parameters = {name: p.detach() for name, p in model.named_parameters()}

    def loss(weights, one, target):
        return nn.functional.cross_entropy(functional_call(model, weights, (one[None],)), target[None])

    sqr = var = 0.0
    each = vmap(grad(loss), (None, 0, 0))(parameters, x, y)
    for name, gradients in each.items():
        divided = gradients.double() / below[name]
        divided = torch.where(gradients == 0, 0.0, divided)
        mean = divided.mean(0)
        sqr += float(mean.square().sum())
        var += float((divided - mean).square().sum()) / (len(x) - 1)
    return Estimate((sqr - var / len(x),), (var / BATCH,), float(EVERY))  # the mean of so many is longer by that


def main() -> None:
    kind, name, how, steps = *sys.argv[1:4], int(sys.argv[4])
    world = int(os.environ["WORLD_SIZE"])
    if world > 1:
        dist.init_process_group("gloo")
    seed = int(sys.argv[5]) if len(sys.argv) > 5 else 0  # of weights and of data
    torch.manual_seed(seed)
    fresh = how == "moving"
    model, x, y = world_of(kind, steps * BATCH + SIZE if fresh else SIZE, seed)
    used = nn.parallel.DistributedDataParallel(model) if world > 1 else model
    optimizer = optimizer_of(name, model, 2e-4 if how == "moving" else 0.0)
    job = attach(model=model, optimizer=optimizer)
    loader = AdaptiveDataLoader(TensorDataset(x, y), BATCH, shuffle=not fresh, interval_s=1e9)
    adaptive = Adaptive(job, used, optimizer, loader, noise_every=1)  # as good as more steps
    truth, made, begun = Statistics(), 0, False
    while made < steps:
        for a, b in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(used(a), b).backward()
            optimizer.step()
            made += loader.is_sync_pass
            if made >= WARM and not begun:
                begun = True
                adaptive.statistics.reset()
            if begun and loader.is_sync_pass and made % EVERY == 0:
                bounded = adaptive._hooks.precondition if fresh else None
                ahead = slice(made * BATCH, made * BATCH + SIZE) if fresh else slice(None)
                truth.update(exact(model, divisors(optimizer, model, bounded), x[ahead], y[ahead]))
            if made >= steps:
                break
    found = adaptive.statistics
    said = {
        "exact": truth.noise_scale(BATCH),
        "found": found.noise_scale(BATCH),
        "interval": found.noise_interval(BATCH, 2.0),
        "sqr": [truth.sqr, found.sqr],
        "var": [truth.var, found.var],
        "updates": found.updates,
    }
    print(json.dumps(said))
    if world > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
