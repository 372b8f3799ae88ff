"""What `adaptive_job.py` learns: a line through the origin from labels with noise."""

import torch
from torch import nn

FEATURES, FIXED_BATCH, RATE = 16, 32, 0.02


def examples(count: int, seed: int, noise: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and labels, the labels with noise."""
    chance = torch.Generator().manual_seed(seed)
    line = torch.randn(FEATURES, 1, generator=torch.Generator().manual_seed(1))
    x = torch.randn(count, FEATURES, generator=chance)
    return x, x @ line + noise * torch.randn(count, 1, generator=chance)


def new_model() -> nn.Linear:
    torch.manual_seed(3)
    return nn.Linear(FEATURES, 1)
