"""A Hugging Face Trainer under plait: one callback. A tiny GPT-2 from its configuration; nothing is downloaded.

    python huggingface_trainer.py [--steps N]

It learns to go on counting in steps of 1 to 4. Goal: a loss below 0.6.
"""

import argparse
import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from plait.training.adapters.transformers import PlaitCallback

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=600)
options = parser.parse_args()
torch.set_num_threads(1)
torch.manual_seed(0)

starts, strides = torch.randint(64, (2048, 1)), torch.randint(1, 5, (2048, 1))
counted = (starts + strides * torch.arange(16)) % 64
data = [{"input_ids": row, "labels": row} for row in counted]
model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=16, n_embd=48, n_layer=2, n_head=4))
plait = PlaitCallback()
trainer = Trainer(
    model=model,
    args=TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        max_steps=options.steps,
        per_device_train_batch_size=32,
        learning_rate=5e-3,
        logging_steps=50,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    ),
    train_dataset=data,
    callbacks=[plait],
)
trainer.train(resume_from_checkpoint=plait.checkpoint())
with torch.no_grad():
    loss = model(counted[:256].to(model.device), labels=counted[:256].to(model.device)).loss.item()
print(f"done: loss {loss:.3f} (goal 0.6)")
