"""How fast hosts and guests of a GPU are under the law of `plait.sharing`, in clusters of any size.

The law itself is not run here: its result over an hour is that of its macro model (`plait.sharing.macro_model`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np

from plait.core.arrays import FloatArray, IntArray
from plait.core.errors import InputError
from plait.core.jobs import JobBatch
from plait.core.plan import Groups
from plait.core.resources import Resource
from plait.sharing import Load, estimate, longest_quantum_s

#: What a guest gets at least: the law tries one quantum now and then, however little a host leaves.
LEAST_SHARE = 1e-4
#: Seconds over which the law's result is taken: guests stay for hours.
HORIZON_S = 3600.0


@dataclass(frozen=True)
class GpuSharing:
    """How hosts and guests share GPUs in a simulation.

    host_slowdown  how much longer a host's iterations take beside guests, as a part; the law keeps it below 0.02
    quantum_s      GPU work that a guest starts without a look at its share, seconds
    gaps           times in a step that a host waits for the GPU anew; 1 with stage marks and the gate

    A guest gets the part of a host's slack that the macro model of the law says, all of a GPU without a host. Guests
    of a GPU share that evenly, and a gang gets what it gets on its worst GPU. What it does outside the GPU takes as
    long as before, beside its GPU work if the two overlap when it is alone. A host without a stage profile is taken to
    leave no slack. Raises `InputError` for values that cannot be.
    """

    host_slowdown: float = 0.01
    quantum_s: float = 0.002
    gaps: int = 1

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        if not 0 <= self.host_slowdown < math.inf:
            raise InputError(f"host_slowdown must be a part >= 0, got {self.host_slowdown}")
        if not (self.quantum_s > 0 and self.gaps >= 1):
            raise InputError(f"quantum_s must be > 0 and gaps >= 1, got {self.quantum_s} and {self.gaps}")

    def iteration_s(self, truth: JobBatch, groups: Groups, alone: FloatArray) -> FloatArray:
        """Seconds an iteration of each member beside hosts and guests.

        `alone`: without other groups; `groups` holds all that share GPUs, with their flags.
        """
        guest = np.zeros(len(groups), dtype=bool) if groups.guest is None else groups.guest
        gpu_s = np.where(
            np.isnan(truth.stage_s[groups.jobs, Resource.GPU]), np.inf, truth.stage_s[groups.jobs, Resource.GPU]
        )
        gpu_s = np.minimum(gpu_s * alone / truth.iteration_s[groups.jobs], alone)
        owner = np.repeat(np.arange(len(groups)), groups.gpu_count())
        gpus, at = np.unique(groups.gpus, return_inverse=True)
        guests = np.bincount(at[guest[owner]], minlength=len(gpus))
        usable = np.ones(len(gpus))
        crowd = np.maximum.reduceat(guests[at], groups.first_gpu[:-1])  # of each group: guests on its fullest GPU
        longer = np.ones(len(groups))
        for g in np.flatnonzero(~guest & (crowd > 0)).tolist():
            members = slice(int(groups.first_job[g]), int(groups.first_job[g + 1]))
            step_s = float(alone[members].max())
            busy = min(float((gpu_s[members] / alone[members]).sum()), 1.0)
            usable[at[groups.first_gpu[g] : groups.first_gpu[g + 1]]] = self.usable(step_s, busy, int(crowd[g]))
            longer[g] = 1.0 + self.host_slowdown
        share = np.minimum.reduceat((usable / np.maximum(guests, 1))[at], groups.first_gpu[:-1])
        group = groups.group_of_member()
        slowed = _slowed(truth, groups.jobs, alone, gpu_s, np.maximum(share, LEAST_SHARE)[group])
        out: FloatArray = np.where(guest[group], slowed, alone * longer[group])
        return out

    def usable(self, step_s: float, busy: float, guests: int) -> float:
        """The part of a GPU that guests get together beside a host whose step keeps it `busy` (0 to 1)."""
        if busy >= 1.0:
            return LEAST_SHARE
        if self.quantum_s * guests <= longest_quantum_s(step_s, self.gaps):
            return (1.0 - busy) * _part(_rounded(step_s, 1), round(busy, 1), self.quantum_s, self.gaps, 1)
        return (1.0 - busy) * _part(_rounded(step_s, 2), round(busy, 2), self.quantum_s, self.gaps, guests)


@cache
def _part(step_s: float, busy: float, quantum_s: float, gaps: int, guests: int) -> float:
    """The part of the slack that guests get, of a host that is rounded so that few have to be worked out."""
    load = Load(step_s, min(max(busy, 0.01), 0.99) * step_s, gaps, gaps)
    return estimate(load, quantum_s, guests=guests, seconds=HORIZON_S).slack_share


def _rounded(value: float, digits: int) -> float:
    return float(f"{value:.{digits}g}")


def _slowed(truth: JobBatch, jobs: IntArray, alone: FloatArray, gpu_s: FloatArray, share: FloatArray) -> FloatArray:
    """Guests whose GPU work takes as long as `share` of a GPU needs for it; the rest beside it if it overlaps alone."""
    stages = truth.stage_s[jobs].sum(axis=1) / truth.iteration_s[jobs]
    overlaps = stages > 1.0 + 1e-6  # NaN, without a profile: all of it is GPU work
    needed = gpu_s / share
    slowed: FloatArray = np.where(overlaps, np.maximum(alone, needed), alone + needed - gpu_s)
    return slowed
