"""Keys of orders of jobs, one job at a time: smaller goes first.

A policy declares its order as one of these kinds (`plait.policies.compose`), so that the table of a view and the
simulator's compiled stretches (`plait.sim.stretch`) compute it by the same code.
"""

from __future__ import annotations

import numpy as np

from plait.core.arrays import FloatArray, IntArray
from plait.core.jit import lean_part, linked

#: Kinds of keys: number of the job; whole solo run time; remaining time, alone and times GPUs; GPUs; seconds and
#: GPU-seconds on GPUs so far.
ARRIVAL, DURATION, REMAINING, REMAINING_SERVICE, SIZE, RUN, ATTAINED = range(7)


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
