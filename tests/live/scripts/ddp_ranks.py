"""All ranks of some jobs, forked from one process that has imported torch: ddp_ranks.py FILE.

FILE is JSON: {"jobs": [{"folder", "port", "ranks", ...}]}, see `Job`. Each rank writes rank<r>.json into the folder of
its job. With `way` "plain" no plait is in the script, "auto": as the import hook of a job under plait does it, "ina":
the two lines, "own": as auto, with a hook of the script's own.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from plait.network.protocol.fixed_point import scale_of
from plait.runtime.network.grant import VARIABLE, read_grant
from plait.training import ina, ina_allreduce_hook
from plait.training.collectives.aggregation_client import warm_up
from plait.training.collectives.aggregation_kernels import exponent_of
from plait.training.torch_watch import watch_ddp

JOB = {"way": "auto", "steps": 10, "tensors": 0, "grant": "", "pause_at": -1, "die": [], "seconds": 60}


def model(seed: int) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Linear(32, 96), torch.nn.Tanh(), torch.nn.Linear(96, 96), torch.nn.Tanh(), torch.nn.Linear(96, 8)
    )


def wrong_sums(state: Any, count: int, rank: int, size: int) -> int:
    """Of so many tensors, how many differ from the sums of whole numbers, if they were aggregated."""
    wrong = 0
    for at in range(count):
        mine = torch.randn(3000 + 17 * at, generator=torch.Generator().manual_seed(1000 * at + rank))
        all_ = [torch.empty_like(mine) for _ in range(size)]
        dist.all_gather(all_, mine)
        scale = scale_of(max(exponent_of(one.numpy()) for one in all_), size)
        sums = sum(np.rint(one.numpy().astype(np.float64) * scale) for one in all_)
        before = state.report().aggregated
        state.reduce(mine).wait()
        if state.report().aggregated > before:
            wrong += not np.array_equal(mine.numpy(), (sums / (size * scale)).astype(np.float32))
    return wrong


def pause(folder: Path, rank: int) -> None:
    """Say that this rank is here, and wait for the file `go`."""
    (folder / f"paused{rank}").touch()
    end_s = time.monotonic() + 60
    while not (folder / "go").exists() and time.monotonic() < end_s:
        time.sleep(0.01)


def train(job: dict[str, Any], rank: int, said: dict[str, Any]) -> None:
    size, folder = job["ranks"], Path(job["folder"])
    limit = timedelta(seconds=job["seconds"])
    store = f"tcp://127.0.0.1:{job['port']}"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=size, timeout=limit)
    if job["way"] in ("auto", "own"):
        watch_ddp()
    net = DistributedDataParallel(model(seed=1), bucket_cap_mb=0.02)
    state = None
    if job["way"] == "ina":
        state = ina()
        net.register_comm_hook(state, ina_allreduce_hook)
    elif job["way"] == "own":
        net.register_comm_hook(None, lambda _, bucket: dist.all_reduce(
            bucket.buffer().div_(size), async_op=True).get_future().then(lambda done: done.value()[0]))  # fmt: skip
    if job["way"] in ("auto", "own"):
        from plait.training.collectives.ddp_aggregation import slot_of

        slot = slot_of(net)
        state = slot.state if slot is not None else None
    if job["tensors"]:
        said["wrong"] = wrong_sums(state, job["tensors"], rank, size)
    chance = torch.Generator().manual_seed(50 + rank)
    target = model(seed=2)
    losses = []
    for step in range(job["steps"]):
        if step == job["pause_at"]:
            pause(folder, rank)
        if job["die"] == [rank, step]:
            os._exit(9)
        batch = torch.randn(16, 32, generator=chance)
        loss = torch.nn.functional.mse_loss(net(batch), target(batch).detach())
        net.zero_grad()
        loss.backward()
        with torch.no_grad():  # by hand: the first step of an optimizer of torch imports much
            for one in net.parameters():
                one -= 0.1 * one.grad
        losses.append(float(loss))
    said["losses"] = losses
    digest = hashlib.sha256()
    for one in net.module.parameters():
        digest.update(one.detach().numpy().tobytes())
    said["parameters"] = digest.hexdigest()
    said["report"] = vars(state.report()) | {"events": [e.text for e in state.report().events]} if state else None
    dist.barrier()


def main(file: str) -> None:
    torch.set_num_threads(1)

    jobs = json.loads(Path(file).read_text())["jobs"]
    for grant in {one["grant"] for one in jobs if one.get("grant")}:
        warm_up(read_grant(grant))  # once for all ranks
    children = []
    for given in jobs:
        job = {**JOB, **given}
        for rank in range(job["ranks"]):
            pid = os.fork()
            if pid:
                children.append(pid)
                continue
            said: dict[str, Any] = {}
            code = 0
            if job["grant"]:
                os.environ[VARIABLE] = job["grant"]
            begin_s = time.monotonic()
            try:
                train(job, rank, said)
            except BaseException as error:
                said["error"], code = f"{type(error).__name__}: {error}", 1
            said["seconds"] = time.monotonic() - begin_s
            part = Path(job["folder"]) / f"rank{rank}.part"
            part.write_text(json.dumps(said))
            part.rename(part.with_suffix(".json"))
            sys.stderr.flush()
            os._exit(code)
    for pid in children:
        os.waitpid(pid, 0)


if __name__ == "__main__":
    main(sys.argv[1])
