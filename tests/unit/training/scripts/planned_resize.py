"""A model whose execution plan changes with its ranks; planned_resize.py OUT STEPS, PLAIT_BATCH has the plan's stage.

After STEPS steps of this attempt the job is asked to stop; 0: never. With PACE_S steps take so long, until there is a
file OUT.hurry. After each step rank 0 appends a line to OUT:
ranks, stage, its bytes of parameters and of optimizer states, accumulated passes, and the mean loss; at the end it
writes the weights next to it.
"""

import json
import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch.utils.data import TensorDataset

from plait.training import attach
from plait.training.adaptive import Accumulator, Adaptive, AdaptiveDataLoader, parallelize

out, steps = sys.argv[1], int(sys.argv[2])
dist.init_process_group("gloo")
torch.manual_seed(1)
x = torch.randn(240, 8)
model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 4))
job = attach()
loader = job.wrap_loader(AdaptiveDataLoader(TensorDataset(x, x[:, :4].sin()), interval_s=1e-9))
model = parallelize(model, loader, [model[0], model[2]])
optimizer = torch.optim.AdamW(model.parameters(), 0.01)
adaptive = Adaptive(job, model, optimizer, loader)
sums, made = Accumulator(), 0
for _ in job.epochs(2):
    for a, b in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(a), b)
        loss.backward()
        optimizer.step()
        sums["loss"] += float(loss) * len(a)
        sums["samples"] += len(a)
        if not loader.is_sync_pass:
            continue
        with sums.synchronized():
            mean = sums["loss"] / sums["samples"]
        sums.reset()
        shards = [getattr(p, "to_local", lambda p=p: p)() for p in model.parameters()]
        states = [s[n] for s in optimizer.state.values() for n in ("exp_avg", "exp_avg_sq")]
        states = [getattr(s, "to_local", lambda s=s: s)() for s in states]
        held = [sum(t.numel() * t.element_size() for t in some) for some in (shards, states)]
        if dist.get_rank() == 0:
            row = [dist.get_world_size(), loader.limits.zero_stage, *held, loader.accumulation_steps, mean]
            with open(out, "a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
        loader.decisions.fitter.wait()
        time.sleep(0.0 if os.path.exists(f"{out}.hurry") else float(os.environ.get("PACE_S", "0")))
        made += 1
        if made == steps:
            os.kill(os.getpid(), signal.SIGTERM)
whole = {name: getattr(p, "full_tensor", lambda p=p: p)().detach() for name, p in model.named_parameters()}
if dist.get_rank() == 0:
    theta, keys = loader.decisions.fitter.theta, {key[1::2] for key in loader.timings.keys}
    found = {"weights": whole, "fitted": theta is not None, "gpus": sorted(keys)}
    torch.save(found, out.replace(".jsonl", ".pt"))
dist.destroy_process_group()
