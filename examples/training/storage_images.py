"""Storage-bound: thousands of image files from disk through a small CNN, until it tells the shapes apart.

    python storage_images.py [--data FOLDER] [--images N] [--epochs N] [--workers N] [--steps N]

The images are made once: grey pictures of circles, squares and crosses in noise, 256 x 256 and scaled down to 64 x 64
when they are loaded, a file each. Files are read past the page cache, so that the disk is what the job waits for, as
with a data set larger than memory; `devices` may declare a slower disk. Goal: 95 % of held-out pictures right.
"""

import argparse
import os
from pathlib import Path

import numpy as np
import torch
from devices import read
from torch import nn
from torch.utils.data import DataLoader, Dataset

from plait.training import attach

parser = argparse.ArgumentParser()
parser.add_argument("--data", type=Path, default=Path.home() / ".cache" / "plait-images")
parser.add_argument("--images", type=int, default=4000)
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--workers", type=int, default=1)
parser.add_argument("--steps", type=int, default=0, help="about so many in all, on fewer images")
options = parser.parse_args()
if options.steps:
    options.images = min(options.images, 32 * max(options.steps // options.epochs, 1))
torch.set_num_threads(1)
torch.manual_seed(0)


def picture(index: int) -> np.ndarray:
    """A shape of kind `index % 3` somewhere in noise."""
    random = np.random.default_rng(index)
    y, x = np.mgrid[:64, :64]
    cy, cx, r = random.integers(20, 44), random.integers(20, 44), random.integers(8, 18)
    dy, dx = abs(y - cy), abs(x - cx)
    ring = abs(np.hypot(dy, dx) - r) < 2
    square = abs(np.maximum(dy, dx) - r) < 2
    cross = (np.minimum(dy, dx) < 2) & (np.maximum(dy, dx) < r)
    small = random.random((64, 64)) * 120 + 100 * (ring, square, cross)[index % 3]
    return small.astype(np.uint8).repeat(4, 0).repeat(4, 1)


class Pictures(Dataset):
    """Files of a folder, made if they are not there."""

    def __init__(self, folder: Path, first: int, count: int) -> None:
        self.paths = [folder / f"{index:06d}.npy" for index in range(first, first + count)]
        folder.mkdir(parents=True, exist_ok=True)
        for index, path in enumerate(self.paths, first):
            if not path.exists():
                making = path.with_suffix(f".{os.getpid()}")
                with making.open("wb") as file:
                    np.save(file, picture(index))
                making.replace(path)

    def __len__(self) -> int:
        return len(self.paths)

    def read(self, index: int) -> tuple[int, bytes]:
        """From disk: what kind it is, and the file."""
        return int(self.paths[index].stem) % 3, read(self.paths[index])

    def decode(self, raw: tuple[int, bytes]) -> tuple[torch.Tensor, int]:
        """What the network sees."""
        pixels = np.frombuffer(raw[1], np.uint8)[-(256**2) :].reshape(256, 256)[::4, ::4]
        return torch.from_numpy(pixels.astype(np.float32) / 255).unsqueeze(0), raw[0]

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.decode(self.read(index))


train = DataLoader(Pictures(options.data, 0, options.images), 32, shuffle=True, num_workers=options.workers)
held_out = DataLoader(Pictures(options.data, 10**5, 300), 100)
model = nn.Sequential(
    *(nn.Conv2d(1, 8, 5, 3), nn.ReLU(), nn.Conv2d(8, 16, 5, 2), nn.ReLU(), nn.Conv2d(16, 32, 3, 2), nn.ReLU()),
    *(nn.AdaptiveMaxPool2d(2), nn.Flatten(), nn.Linear(128, 3)),
)
optimizer = torch.optim.Adam(model.parameters(), 2e-3)

job = attach(model=model, optimizer=optimizer)
train = job.wrap_loader(train)
for epoch in job.epochs(options.epochs):
    for step, (pixels, kinds) in enumerate(train):
        loss = nn.functional.cross_entropy(model(pixels), kinds)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 25 == 0:
            print(f"epoch {epoch} step {step} loss {loss.item():.3f}", flush=True)
with torch.no_grad():
    right = sum((model(pixels).argmax(1) == kinds).sum().item() for pixels, kinds in held_out)
print(f"done: {right / 300:.1%} right (goal 95.0%)")
