"""All ranks of some jobs, forked from one process that has imported torch and reads names of files, a line each.

A file is JSON: {"jobs": [{"folder", "ranks", ...}]}, see `JOB`. Each rank writes rank<r>.json into the folder
of its job. When all have ended, the file with the ending .ended is there; .log has what they wrote to standard error,
and .pid the process whose end is the end of all of them. With `way` "plain" no plait is in the script, "auto": as the
import hook of a job under plait does it, "ina": the two lines, "own": as auto, with a hook of the script's own.
"""

import hashlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch._dynamo  # DistributedDataParallel imports it, which takes each rank longer than fifty steps
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from plait.live.system import procs
from plait.network.protocol.fixed_point import scale_of
from plait.runtime.network.grant import VARIABLE, read_grant
from plait.training import ina, ina_allreduce_hook
from plait.training.collectives.aggregation_client import warm_up
from plait.training.collectives.aggregation_kernels import exponent_of
from plait.training.torch_watch import watch_ddp

JOB = {"way": "auto", "steps": 10, "tensors": 0, "grant": "", "pause_at": [], "die": [], "seconds": 60}


def model(seed: int) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Linear(32, 48), torch.nn.Tanh(), torch.nn.Linear(48, 48), torch.nn.Tanh(), torch.nn.Linear(48, 8)
    )


def checked_sums(state: Any, count: int, rank: int, size: int) -> tuple[int, int]:
    """Of so many tensors, how many were aggregated, and how many of these differ from the sums of whole numbers."""
    checked = wrong = 0
    for at in range(count):
        mine = torch.randn(3000 + 17 * at, generator=torch.Generator().manual_seed(1000 * at + rank))
        all_ = [torch.empty_like(mine) for _ in range(size)]
        dist.all_gather(all_, mine)
        scale = scale_of(max(exponent_of(one.numpy()) for one in all_), size)
        sums = sum(np.rint(one.numpy().astype(np.float64) * scale) for one in all_)
        before = state.report().aggregated
        state.reduce(mine).wait()
        if state.report().aggregated > before:
            checked += 1
            wrong += not np.array_equal(mine.numpy(), (sums / (size * scale)).astype(np.float32))
    return checked, wrong


def pause(folder: Path, rank: int, step: int, state: Any) -> None:
    """Say that this rank is at a step, and how many buckets it has aggregated; wait for the file `go` of the step."""
    part = folder / f"paused{step}-{rank}.part"
    part.write_text(str(state.report().aggregated if state is not None else 0))
    part.rename(part.with_suffix(""))
    end_s = time.monotonic() + 60
    while not (folder / f"go{step}").exists() and time.monotonic() < end_s:
        time.sleep(0.01)


def train(job: dict[str, Any], rank: int, said: dict[str, Any]) -> None:
    size, folder = job["ranks"], Path(job["folder"])
    limit = timedelta(seconds=job["seconds"])
    # By a file: nobody else can have taken it, as happens with a free port that is remembered.
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size, timeout=limit)
    if job["way"] in ("auto", "own"):
        watch_ddp()
    net = DistributedDataParallel(model(seed=1), bucket_cap_mb=0.01)
    state = None
    if job["way"] == "ina":
        state = ina()
        net.register_comm_hook(state, ina_allreduce_hook)
    elif job["way"] == "own":
        net.register_comm_hook(None, lambda _, bucket: dist.all_reduce(
            bucket.buffer().div_(size), async_op=True).get_future().then(lambda done: done.value()[0]))  # fmt: skip
    if job["way"] in ("auto", "own"):
        from plait.training.collectives.ina_hook import slot_of

        slot = slot_of(net)
        state = slot.state if slot is not None else None
    if job["tensors"]:
        said["checked"], said["wrong"] = checked_sums(state, job["tensors"], rank, size)
    chance = torch.Generator().manual_seed(50 + rank)
    target = model(seed=2)
    losses = []
    for step in range(job["steps"]):
        if step in job["pause_at"]:
            pause(folder, rank, step, state)
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


def run_rank(job: dict[str, Any], rank: int) -> int:
    """Train as a rank and write what there is to say; returns the exit code."""
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
    return code


def fork(run: Callable[[], int]) -> int:
    """Run in a child, which ends with this process; returns its pid."""
    pid = os.fork()
    if pid:
        return pid
    procs.prctl(procs.PR_SET_PDEATHSIG, signal.SIGKILL)
    code = 1
    try:
        code = run()
    finally:
        os._exit(code)


def run_jobs(file: Path) -> int:
    """All ranks of the jobs of a file, until they have ended."""
    file.with_suffix(".pid").write_text(str(os.getpid()))
    log = os.open(file.with_suffix(".log"), os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 2)
    jobs = [{**JOB, **given} for given in json.loads(file.read_text())["jobs"]]
    children = [fork(partial(run_rank, job, rank)) for job in jobs for rank in range(job["ranks"])]
    for pid in children:
        os.waitpid(pid, 0)
    file.with_suffix(".ended").touch()
    return 0


def main() -> None:
    torch.set_num_threads(1)
    warm = False
    for line in sys.stdin:
        file = Path(line.strip())
        grants = [job["grant"] for job in json.loads(file.read_text())["jobs"] if job.get("grant")]
        if grants and not warm:
            warm_up(read_grant(grants[0]))  # once for all ranks
            warm = True
        fork(partial(run_jobs, file))
        while True:  # runs that have ended
            try:
                if os.waitpid(-1, os.WNOHANG)[0] == 0:
                    break
            except ChildProcessError:
                break


if __name__ == "__main__":
    main()
