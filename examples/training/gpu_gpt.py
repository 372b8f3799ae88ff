"""GPU-bound: a small character GPT on Python's own sources; on a machine without GPU the CPU takes its place.

    python gpu_gpt.py [--steps N] [--width N] [--layers N]

Goal: a loss of 2.2 nats a character on text it has not seen (guessing by frequency gives about 3.2).
"""

import argparse
import sysconfig
from pathlib import Path

import torch
from torch import nn

from plait.training import Resource, attach

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=600)
parser.add_argument("--width", type=int, default=64)
parser.add_argument("--layers", type=int, default=2)
parser.add_argument("--context", type=int, default=64)
parser.add_argument("--batch", type=int, default=16)
options = parser.parse_args()
torch.set_num_threads(1)
torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"

library = Path(sysconfig.get_path("stdlib"))
text = "".join((library / f"{name}.py").read_text() for name in ("argparse", "ast", "bdb", "calendar", "cgi", "csv"
    if (library / "cgi.py").exists() else "cmd", "difflib", "doctest", "inspect", "pathlib", "pdb", "random", "typing")
    if (library / f"{name}.py").exists())  # fmt: skip
data = torch.tensor([min(ord(c), 127) for c in text])
train, held_out = data[: -len(data) // 10], data[-len(data) // 10 :]


class Block(nn.Module):
    """Attention and a feed-forward network, each beside a shortcut."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.unflatten(-1, (4, -1)).transpose(1, 2) for t in self.qkv(self.norms[0](x)).chunk(3, -1))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norms[1](x))


class Gpt(nn.Module):
    """Characters in, scores of the next character out."""

    def __init__(self, width: int, layers: int, context: int) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(128, width), nn.Parameter(0.02 * torch.randn(context, width))
        self.blocks = nn.Sequential(*(Block(width) for _ in range(layers)), nn.LayerNorm(width))
        self.head = nn.Linear(width, 128)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.token(x) + self.place[: x.shape[1]]))


def loss_on(source: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
    """Mean loss on the pieces of text that begin there."""
    pieces = torch.stack([source[s : s + options.context + 1] for s in starts.tolist()]).to(device)
    return nn.functional.cross_entropy(model(pieces[:, :-1]).flatten(0, 1), pieces[:, 1:].flatten())


model = Gpt(options.width, options.layers, options.context).to(device)
optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.steps)

job = attach(model=model, optimizer=optimizer, scheduler=scheduler)
for step in job.steps(options.steps):
    with job.stage(Resource.GPU):
        loss = loss_on(train, torch.randint(len(train) - options.context - 1, (options.batch,)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    scheduler.step()
    if step % 50 == 0:
        print(f"step {step} loss {loss.item():.3f}", flush=True)
with torch.no_grad():
    starts = torch.arange(0, len(held_out) - options.context - 1, options.context)[:256]
    final = sum(loss_on(held_out, part).item() * len(part) for part in starts.split(32)) / len(starts)
print(f"done: held-out loss {final:.3f} (goal 2.2)")
