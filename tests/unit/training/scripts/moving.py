"""A profiler of transfers beside launches, pauses, and a profiler of the script's own."""

import time

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

from plait.training.profiler import Transfers

transfers = Transfers()
transfers.start()
assert not transfers.on  # no network yet
dist.init_process_group("gloo")
big = torch.ones(2_000_000)
dist.all_reduce(big)
transfers.start()
assert transfers.on
begin = time.perf_counter()
for _ in range(10):
    work = dist.all_reduce(big, async_op=True)
    time.sleep(0.02)  # what a mark from launch to arrival would count
    work.wait()
took = time.perf_counter() - begin
moving = transfers.stop()
assert 0 < moving < took / 2, (moving, took)
assert not torch.autograd._profiler_enabled()
transfers.start()
with profile(activities=[ProfilerActivity.CPU]) as own:
    big.sum()
assert any(event.key == "aten::sum" for event in own.key_averages())
assert not transfers.on
assert transfers.stop() == 0.0
assert not torch.autograd._profiler_enabled()
with profile(activities=[ProfilerActivity.CPU]):
    transfers.start()
    assert not transfers.on  # somebody was first
transfers.start()
assert transfers.on
assert transfers.stop() == 0.0
dist.destroy_process_group()
print("as it should be")
