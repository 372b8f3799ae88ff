"""A training on an emulated GPU that other processes use too: kernels in a queue, then work on the host.

    python shared_gpu.py --gpu /tmp/gpu0 --kernels 20 --kernel-ms 5 --host-ms 100 --steps 300 --record steps.txt

Its state is a toy; what counts is when it uses the GPU, and how much of its memory. Two things make it a good
neighbour: its GPU work is a stage, and it has yield points. A step has more kernels, if part of its memory is on the
host. While the file --burst is there, steps need --burst-gb of memory. The training ends when the file --stop is there.

Every half second, and after each step with memory on the host, it writes a line to --record: time, steps, seconds of
kernels, GB on the GPU, GB on the host.
"""

import argparse
import contextlib
import os
import time
from pathlib import Path

from plait.core.resources import Resource
from plait.training import attach
from plait.training.emulation import Declared, FifoDevice, FifoMemory

GB = 1e9
parser = argparse.ArgumentParser()
parser.add_argument("--gpu", required=True)
parser.add_argument("--kernels", type=int, default=20)
parser.add_argument("--kernel-ms", type=float, default=5.0)
parser.add_argument("--host-ms", type=float, default=100.0)
parser.add_argument("--steps", type=int, default=300)
parser.add_argument("--memory-gb", type=float, default=1.0)
parser.add_argument("--burst-gb", type=float, default=1.0)
parser.add_argument("--burst", type=Path)
parser.add_argument("--stop", type=Path)
parser.add_argument("--record", required=True)
options = parser.parse_args()

with contextlib.suppress(OSError, AttributeError):  # it only sleeps; as root it is not delayed by other programs
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))
state = {"served_s": 0.0}
job = attach(state=state)
gpu = FifoDevice(options.gpu)
declared = Declared(options.gpu, persistent=min(1.0, options.memory_gb) * GB, peak=options.memory_gb * GB)
memory = FifoMemory(gpu, declared, job.page if job.attached else None)
if job.attached:
    job.stages.memory = memory  # on a real GPU plait asks torch
if options.host_ms:
    gpu.ready_s = 0.5  # what the machine delays it by, it catches up with: only the GPU shall make it slower
written_s = 0.0
for step in job.steps(options.steps):
    if options.burst is not None:
        memory.demand(GB * (options.burst_gb if options.burst.exists() else options.memory_gb))
    with job.stage(Resource.GPU):
        kernels = round(options.kernels * memory.begin_step())
        for kernel in range(kernels):
            if kernel:
                job.yield_point()
            gpu.run(options.kernel_ms / 1e3)
    state["served_s"] += kernels * options.kernel_ms / 1e3
    if options.host_ms:
        gpu.host_work(options.host_ms / 1e3)
    now_s, on_gpu = time.monotonic(), gpu.reserved_bytes
    on_host = memory.peak_bytes - on_gpu
    last = step + 1 == options.steps or (options.stop is not None and options.stop.exists())
    if now_s - written_s > 0.5 or on_host > 0 or last:
        written_s = now_s
        with open(options.record, "a") as file:
            file.write(f"{now_s} {step + 1} {state['served_s']} {on_gpu / GB:.3f} {on_host / GB:.3f}\n")
    if last:
        break
