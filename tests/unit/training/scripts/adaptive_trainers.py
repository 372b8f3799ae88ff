"""A regression in somebody else's trainer, whose batch adapts; adaptive_trainers.py LIBRARY SEEN STEPS.

Each rank writes the samples of each batch to SEEN-EPOCH-RANK. After STEPS steps of this attempt the job is asked to
stop; 0: never. Rank 0 prints its progress, learning rate and losses at the end.
"""

import os
import signal
import sys
import tempfile

import torch
from torch import nn
from torch.utils.data import Dataset

from plait.training.adaptive import AdaptiveDataLoader

library, seen, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
BOUNDS = {"max_batch_size": 32, "local_batch": (2, 6), "accumulation": True, "interval_s": 1e-9}
EPOCHS, BATCH = 2, 12


class Points(Dataset):
    def __len__(self):
        return 120

    def __getitem__(self, index):
        x = torch.randn(4, generator=torch.Generator().manual_seed(index))
        return {"x": x, "labels": x.sum(0, keepdim=True), "index": torch.tensor(index)}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.made = nn.Linear(4, 1), 0

    def forward(self, x, labels, index):
        with open(f"{seen}-{os.environ['PLAIT_EPOCH']}-{rank}", "a") as file:
            file.write(f"{loader_of().epoch} {' '.join(str(int(i)) for i in index)}\n")
        self.made += loader_of().is_sync_pass
        if self.made == steps and loader_of().is_sync_pass:
            os.kill(os.getpid(), signal.SIGTERM)
        return {"loss": nn.functional.mse_loss(self.layer(x), labels)}


def schedule(optimizer):
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / 40)


torch.set_num_threads(1)
torch.manual_seed(1)
net = Net()
if library == "transformers":
    from transformers import Trainer, TrainingArguments

    from plait.training.adapters.transformers import adapt

    arguments = TrainingArguments(
        output_dir=tempfile.mkdtemp(), num_train_epochs=EPOCHS, per_device_train_batch_size=BATCH // world,
        learning_rate=1e-2, lr_scheduler_type="linear", report_to=[], disable_tqdm=True, logging_strategy="no",
        use_cpu=True, remove_unused_columns=False,
    )  # fmt: skip
    trainer = Trainer(model=net, args=arguments, train_dataset=Points())
    adapt(trainer, **BOUNDS)
    loader_of = lambda: trainer.get_train_dataloader().loader  # noqa: E731
    trainer.train()
    adaptive, optimizer = trainer.adaptive, trainer.optimizer
elif library == "lightning":
    from lightning.pytorch import LightningModule, Trainer

    from plait.training.adapters.lightning import AdaptiveCallback

    class Module(LightningModule):
        def __init__(self):
            super().__init__()
            self.net = net

        def training_step(self, batch, number):
            return self.net(**batch)["loss"]

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), 1e-2)

    callback = AdaptiveCallback(AdaptiveDataLoader(Points(), BATCH, shuffle=True, **BOUNDS), EPOCHS, scheduler=schedule)
    loader_of = lambda: callback.batches.loader  # noqa: E731
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    trainer = Trainer(max_epochs=1, accelerator="cpu", logger=False, callbacks=[callback], **quiet)
    trainer.fit(Module(), callback.batches)
    adaptive, optimizer = callback.adaptive, trainer.optimizers[0]
else:
    from accelerate import Accelerator

    from plait.training.adapters.accelerate import adapt

    accelerator = Accelerator(cpu=True)
    loader = AdaptiveDataLoader(Points(), BATCH, shuffle=True, **BOUNDS)
    loader_of = lambda: loader  # noqa: E731
    optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
    scheduler = schedule(optimizer)
    model, optimizer = accelerator.prepare(net, optimizer)
    adaptive, batches = adapt(accelerator, loader, model=model, optimizer=optimizer, epochs=EPOCHS, scheduler=scheduler)
    for batch in batches:
        accelerator.backward(model(**batch)["loss"])
        optimizer.step()
        optimizer.zero_grad()
if rank == 0:
    rate = optimizer.param_groups[0]["lr"]
    print("end", adaptive.progress, rate, adaptive.loader.epoch, adaptive.statistics.updates, flush=True)
