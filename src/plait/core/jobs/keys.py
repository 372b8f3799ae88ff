"""Keys of orders of jobs, one job at a time: smaller goes first.

A policy declares its order as one of these kinds (`plait.policies.compose`), so that the table of a view and the
simulator's compiled stretches (`plait.sim.stretch`) compute it by the same code.
"""

from __future__ import annotations

import math

import numpy as np

from plait.core.arrays import FloatArray, IntArray
from plait.core.jit import lean_part, linked

#: Kinds of keys: number of the job; whole solo run time; remaining time, alone and times GPUs; GPUs; seconds and
#: GPU-seconds on GPUs so far.
ARRIVAL, DURATION, REMAINING, REMAINING_SERVICE, SIZE, RUN, ATTAINED = range(7)
#: Kind of an order by queues over service, see `queue_of`; jobs of one queue go by another key.
QUEUE = 7

#: Times closer than this are the same time, seconds; a change of order takes effect this much later at the earliest:
#: sums of service are off by rounding errors, and "in 1e-13 s" would mean now.
CLOCK_S, TICK_S = 1e-6, 1e-3


@lean_part
def left_s(iterations: float, done: float, iteration_s: float) -> float:
    """Seconds of work left, rounded to the clock's resolution: equal work compares equal whatever its iteration time.

    Of `iterations` so many are `done`, and one takes `iteration_s` seconds.
    """
    out: float = np.rint((iterations - done) * iteration_s * 1e3) / 1e3
    return out


@lean_part
def order_key(
    kind: int,
    number: int,
    gpus: int,
    iterations: float,
    done: float,
    iteration_s: float,
    run_s: float,
    attained_gpu_s: float,
) -> float:
    """The key of one job; the arguments are its columns in a `JobTable`."""
    key = float(number)
    if kind == DURATION:
        key = left_s(iterations, 0.0, iteration_s)
    elif kind == REMAINING:
        key = left_s(iterations, done, iteration_s)
    elif kind == REMAINING_SERVICE:
        key = left_s(iterations, done, iteration_s) * gpus
    elif kind == SIZE:
        key = float(gpus)
    elif kind == RUN:
        key = run_s
    elif kind == ATTAINED:
        key = attained_gpu_s
    return key


@lean_part
def queue_of(service: float, bounds: FloatArray) -> int:
    """The queue of a job with so much service: how many of the ascending `bounds` it has reached."""
    level = 0
    while level < len(bounds) and bounds[level] <= service + CLOCK_S:
        level += 1
    return level


@lean_part
def leaves_queue_s(service: float, level: int, speed: float, bounds: FloatArray) -> float:
    """Seconds until a job that receives `speed` of service a second leaves queue `level`; infinity in the last one."""
    seconds = math.inf
    if level < len(bounds):
        seconds = max((bounds[level] - service) / speed, TICK_S)
    return seconds


@linked()
def fill_queues(
    service: FloatArray, speed: FloatArray, bounds: FloatArray, level: IntArray, leaves_s: FloatArray
) -> None:
    """Write `queue_of` and `leaves_queue_s` of each job into `level` and `leaves_s`."""
    for i in range(len(service)):
        level[i] = queue_of(service[i], bounds)
        leaves_s[i] = leaves_queue_s(service[i], level[i], speed[i], bounds)


@linked()
def fill_keys(
    kind: int,
    number: IntArray,
    gpus: IntArray,
    iterations: FloatArray,
    done: FloatArray,
    iteration_s: FloatArray,
    run_s: FloatArray,
    attained_gpu_s: FloatArray,
    keys: FloatArray,
) -> None:
    """Write the key of each job of `number` into `keys`; the other arrays are columns by job number."""
    for i in range(len(number)):
        j = number[i]
        keys[i] = order_key(kind, j, gpus[j], iterations[j], done[j], iteration_s[j], run_s[j], attained_gpu_s[j])


@linked()
def fill_left_s(
    number: IntArray, iterations: FloatArray, done: FloatArray, iteration_s: FloatArray, out: FloatArray
) -> None:
    """Write `left_s` of each job of `number` into `out`; the other arrays are columns by job number."""
    for i in range(len(number)):
        j = number[i]
        out[i] = left_s(iterations[j], done[j], iteration_s[j])
