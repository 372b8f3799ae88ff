"""Seconds of an iteration on given GPUs (Pollux, OSDI'21, section 3.2).

    T_grad(m) = alpha_c + beta_c m
    T_sync    = 0 on one GPU; alpha + beta (K - 2) with the pair of the node (N = 1) or of the network (N > 1)
    T_opt     = (T_grad^gamma + T_sync^gamma)^(1/gamma)
    T_iter    = s T_grad + T_opt

`theta[..., 7]` holds (alpha_c, beta_c, alpha_n, beta_n, alpha_r, beta_r, gamma); its leading axes broadcast against
nodes N, gpus K, local batch m (examples) and accumulation-only passes s. All times in seconds. Of the placement only
K and whether N > 1 count.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from plait.core.arrays import FloatArray
from plait.core.goodput import Estimate

#: Stands for zero seconds, and for zero GPUs beyond the second, so that logarithms exist.
TINY = 1e-8


def grad_s(theta: FloatArray, local: npt.ArrayLike) -> FloatArray:
    """T_grad(m): seconds of one forward and backward pass of `local` (m) examples on one GPU."""
    time: FloatArray = theta[..., Estimate.ALPHA_C] + theta[..., Estimate.BETA_C] * np.asarray(local)
    return time


def sync_s(theta: FloatArray, nodes: npt.ArrayLike, gpus: npt.ArrayLike) -> FloatArray:
    """T_sync: seconds of one synchronisation of `gpus` (K) GPUs on `nodes` (N) nodes; `TINY` for one GPU."""
    nodes, gpus = np.asarray(nodes), np.asarray(gpus)
    beyond = np.maximum(gpus - 2, TINY)
    inside = theta[..., Estimate.ALPHA_R] + theta[..., Estimate.BETA_R] * beyond
    between = theta[..., Estimate.ALPHA_N] + theta[..., Estimate.BETA_N] * beyond
    time: FloatArray = np.where(gpus <= 1, TINY, np.where(nodes > 1, between, inside))
    return time


def overlapped_s(grad: FloatArray, sync: FloatArray, gamma: FloatArray) -> FloatArray:
    """Seconds of two overlapping phases `grad` and `sync`: their sum for `gamma` 1, close to the longer one for 10."""
    first, second = np.log(grad), np.log(sync)
    log_s = np.maximum(first, second) + np.log1p(np.exp(-gamma * np.abs(first - second))) / gamma
    time: FloatArray = np.exp(log_s)
    return time


def step_s(theta: FloatArray, nodes: npt.ArrayLike, gpus: npt.ArrayLike, local: npt.ArrayLike) -> FloatArray:
    """T_opt: seconds of the pass of `local` (m) examples that synchronises and ends with the optimiser's step."""
    return overlapped_s(grad_s(theta, local), sync_s(theta, nodes, gpus), theta[..., Estimate.GAMMA])


def iteration_s(
    theta: FloatArray, nodes: npt.ArrayLike, gpus: npt.ArrayLike, local: npt.ArrayLike, passes: npt.ArrayLike
) -> FloatArray:
    """T_iter: seconds of `passes` accumulation-only passes and a synchronising one."""
    time: FloatArray = np.asarray(passes) * grad_s(theta, local) + step_s(theta, nodes, gpus, local)
    return time


def throughput(
    theta: FloatArray, nodes: npt.ArrayLike, gpus: npt.ArrayLike, local: npt.ArrayLike, passes: npt.ArrayLike
) -> FloatArray:
    """Examples per second of `gpus` GPUs with `local` examples each in `passes` + 1 passes: K m (s + 1) / T_iter."""
    examples = np.asarray(gpus) * np.asarray(local) * (np.asarray(passes) + 1)
    rate: FloatArray = examples / iteration_s(theta, nodes, gpus, local, passes)
    return rate
