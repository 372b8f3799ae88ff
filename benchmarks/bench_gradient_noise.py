"""The cost of measuring gradient noise, accumulating and scaling the learning rate, per training step.

    python benchmarks/bench_gradient_noise.py [--quick]

A network of 1.3 million parameters, batches of 64. Epochs of the plain loop and of the same loop with `Adaptive`
alternate in one process, each with its own model and the same samples; the plain loop accumulates by hand where the
other does. CPU seconds of a step are compared, including loading by torch's DataLoader in both.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import common
import torch
from common import Figure
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from plait.training import attach
from plait.training.adaptive import Adaptive, AdaptiveDataLoader

BATCH = 64
#: After the first 24 steps, which two rounds of warming up contain, gradient noise is measured in every 32nd step, so
#: each epoch contains its share.
STEPS = 32
ROWS = BATCH * STEPS
ROUNDS = 5 if "--quick" in sys.argv else 9


def network() -> nn.Module:
    """1.3 million parameters."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 16))


def data() -> TensorDataset:
    """Some rows of 16 kinds."""
    return TensorDataset(torch.randn(ROWS, 256), torch.arange(ROWS) % 16)


def plain(make: Callable[[Any], Any], passes: int) -> Callable[[], None]:
    """An epoch of the ordinary loop."""
    model = network()
    optimizer, loader = make(model.parameters()), DataLoader(data(), BATCH // passes)

    def epoch() -> None:
        for number, (x, y) in enumerate(loader):
            (nn.functional.cross_entropy(model(x), y) / passes).backward()
            if number % passes == passes - 1:
                optimizer.step()
                optimizer.zero_grad()

    return epoch


def adaptive(make: Callable[[Any], Any], passes: int) -> Callable[[], None]:
    """An epoch of the same by `Adaptive`."""
    model = network()
    optimizer = make(model.parameters())
    loader = AdaptiveDataLoader(data(), BATCH, local_batch=(1, BATCH // passes), accumulation=True, interval_s=1e9)
    Adaptive(attach(), model, optimizer, loader)

    def epoch() -> None:
        for x, y in loader:
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()

    return epoch


def cost(name: str, make: Callable[[Any], Any], passes: int) -> Figure:
    """One row."""
    epochs = plain(make, passes), adaptive(make, passes)
    taken: tuple[list[float], list[float]] = [], []
    for turn in range(ROUNDS + 2):
        for epoch, seconds in zip(epochs, taken, strict=True):
            begin = time.process_time()
            epoch()
            if turn >= 2:
                seconds.append((time.process_time() - begin) / STEPS)
    before, after = (statistics.median(seconds) for seconds in taken)
    how = "one pass a step" if passes == 1 else f"{passes} passes a step"
    against = "the plain loop" if passes == 1 else "the plain loop that accumulates"
    note = f"{(after / before - 1) * 100:+.1f} %"
    return Figure(f"{name}, {how}", after, ROUNDS, before / after, against, "goal <= 8 %", note)


def main() -> None:
    """All rows."""
    os.environ.pop("PLAIT_RUN_DIR", None)
    torch.set_num_threads(1)
    kinds: dict[str, Callable[[Any], Any]] = {
        "SGD": lambda p: torch.optim.SGD(p, 1e-3, momentum=0.9),
        "AdamW": lambda p: torch.optim.AdamW(p, 1e-3),
    }
    common.show([cost(name, make, passes) for name, make in kinds.items() for passes in (1, 2, 4)])


if __name__ == "__main__":
    main()
