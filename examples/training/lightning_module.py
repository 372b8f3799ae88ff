"""A Lightning module under plait: one callback.

    python lightning_module.py [--epochs N]

A small network fits a sine. Goal: a mean squared error below 0.02.
"""

import argparse

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from plait.training.adapters.lightning import PlaitCallback

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=20)
options = parser.parse_args()
torch.set_num_threads(1)
torch.manual_seed(0)


class Sine(LightningModule):
    """x in, sin x out."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 1))

    def training_step(self, batch: list[torch.Tensor], number: int) -> torch.Tensor:
        return nn.functional.mse_loss(self.net(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), 1e-2)


x = torch.linspace(-3, 3, 1024).unsqueeze(1)
loader = DataLoader(TensorDataset(x, x.sin()), 64, shuffle=True)
plait, module = PlaitCallback(), Sine()
trainer = Trainer(
    max_epochs=options.epochs,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    callbacks=[plait],
)
trainer.fit(module, loader, ckpt_path=plait.checkpoint())
with torch.no_grad():
    error = nn.functional.mse_loss(module.net(x), x.sin()).item()
print(f"done: error {error:.4f} (goal 0.02)")
