"""A tiny network with shuffled, augmented data and dropout in somebody else's trainer.

trainers.py LOSSES LIBRARY WORKERS: appends the loss of each pass.
"""

import random
import sys
import tempfile
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

losses, library, workers = sys.argv[1], sys.argv[2], int(sys.argv[3])
SIZE, EPOCHS = 48, 3


class Points(Dataset):
    def __len__(self):
        return SIZE

    def __getitem__(self, index):
        x = torch.full((8,), index / SIZE)
        if library in ("lightning", "accelerate"):  # the others draw ahead of their checkpoints
            x += 0.1 * torch.rand(8) + random.random()
        return {"x": x, "labels": torch.tensor(index % 2)}


class Stream(IterableDataset):
    """Nobody is told how many there are."""

    def __iter__(self):
        order = list(range(SIZE))
        random.Random(7).shuffle(order)
        yield from map(Points().__getitem__, order)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.3), nn.ReLU(), nn.Linear(16, 2))

    def forward(self, x, labels):
        loss = nn.functional.cross_entropy(self.layers(x), labels)
        if self.training:
            print(loss.item().hex(), file=file, flush=True)
            time.sleep(0.005)
        return {"loss": loss}


def with_lightning():
    from lightning.pytorch import LightningModule, Trainer

    from plait.training.adapters.lightning import PlaitCallback

    class Module(LightningModule):
        def __init__(self):
            super().__init__()
            self.net = Net()

        def training_step(self, batch, number):
            return self.net(**batch)["loss"]

        def validation_step(self, batch, number):
            self.net(**batch)

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), 1e-2)

    plait = PlaitCallback()
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    trainer = Trainer(max_epochs=EPOCHS, accelerator="cpu", logger=False, callbacks=[plait], **quiet)
    loader = DataLoader(Points(), 4, shuffle=True, num_workers=workers)
    if library == "lightning stream":
        loader = DataLoader(Stream(), 4, num_workers=workers)
    trainer.fit(Module(), loader, DataLoader(Points(), 8), ckpt_path=plait.checkpoint())


def with_transformers():
    from transformers import Trainer, TrainingArguments

    from plait.training.adapters.transformers import PlaitCallback

    plait = PlaitCallback()
    arguments = TrainingArguments(
        output_dir=tempfile.mkdtemp(), num_train_epochs=EPOCHS, per_device_train_batch_size=4, learning_rate=1e-2,
        save_strategy="no", report_to=[], disable_tqdm=True, dataloader_num_workers=workers, logging_strategy="no",
    )  # fmt: skip
    trainer = Trainer(model=Net(), args=arguments, train_dataset=Points(), callbacks=[plait])
    trainer.train(resume_from_checkpoint=plait.checkpoint())


def with_accelerate():
    from accelerate import Accelerator, DataLoaderConfiguration

    from plait.training.adapters.accelerate import attach

    dispatched = DataLoaderConfiguration(dispatch_batches=library == "accelerate dispatched")
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2, dataloader_config=dispatched)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.9)
    loader = DataLoader(Points(), 4, shuffle=True, num_workers=workers)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    job, loader = attach(accelerator, loader, model=model, optimizer=optimizer, scheduler=scheduler)
    for _ in job.epochs(EPOCHS):
        for batch in loader:
            with accelerator.accumulate(model):
                accelerator.backward(model(**batch)["loss"])
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()


torch.set_num_threads(1)
torch.manual_seed(1)
random.seed(1)
with open(losses, "a") as file:
    with_library = {"lightning": with_lightning, "transformers": with_transformers, "accelerate": with_accelerate}
    with_library[library.split()[0]]()
