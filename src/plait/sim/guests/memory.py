"""What the memory of shared GPUs does to the speed of hosts and guests in simulations of clusters.

The memory law of `plait.sharing` is not run here: this is where it settles. Guests have their persistent bytes; what
is left goes to them in the order of what each byte brings, and a guest's missing bytes are in host memory. A burst of a
host takes from its guests what it needs, for as long as the law holds it back; it costs the host one slow step and
every guest of the GPU a shrink and a growth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from plait.core.arrays import BoolArray, FloatArray
from plait.core.plan import Groups
from plait.sharing.memory_state import (
    CONTEXT_BYTES,
    FOOTPRINT_STEPS,
    HEADROOM,
    HOLD_S,
    LEAST_HEADROOM_BYTES,
    MARGIN_BYTES,
)
from plait.sim.guests.models import GuestModel

#: What a shrink and a growth take, seconds (AntMan, section 5: 17 and 115 ms for ResNet-50).
SHRINK_S, GROW_S = 0.017, 0.115
#: How much longer a step takes with all of its memory on the host; that of the micro model.
SPILL_COST = 4.0


@dataclass(frozen=True, slots=True)
class Use:
    """By group: bytes that it has of each of its GPUs, bytes in host memory, relative speed and slowdown by bursts.

    `slower` is >= 1: of a host the slow steps, of a guest the time of shrinks, growths and of less memory in between.
    """

    granted_bytes: FloatArray
    spill_bytes: FloatArray
    speed: FloatArray
    slower: FloatArray


def use(
    groups: Groups,
    guest: BoolArray,
    models: Sequence[GuestModel],
    memory_bytes: FloatArray,
    step_s: FloatArray,
    capacity_bytes: FloatArray,
) -> Use:
    """The memory of hosts and guests.

    groups          all that share GPUs; guest (groups,) flags
    models          of each group; memory_bytes (groups,) what it takes of a GPU when nobody limits it, 0 unknown
    step_s          of each group alone, seconds
    capacity_bytes  of each entry of `groups.gpus`; infinite where not known
    """
    n, first = len(groups), groups.first_gpu.tolist()
    granted, speed, slower = memory_bytes.copy(), np.ones(n), np.ones(n)
    owner = np.repeat(np.arange(n), groups.gpu_count())
    gpus, capacity = groups.gpus.tolist(), capacity_bytes.tolist()
    here: dict[int, list[int]] = {}
    for at, group in enumerate(owner.tolist()):
        here.setdefault(gpus[at], []).append(group)
    room = {gpu: capacity[at] for at, gpu in enumerate(gpus)}
    shared = {gpu: found for gpu, found in here.items() if any(guest[g] for g in found)}
    for gpu, found in shared.items():
        hosts, guests = [g for g in found if not guest[g]], [g for g in found if guest[g]]
        slack = room[gpu] - MARGIN_BYTES - len(found) * CONTEXT_BYTES - sum(_footprint(memory_bytes[g]) for g in hosts)
        for g, size in _given(guests, slack, models, memory_bytes).items():
            granted[g] = min(granted[g], size)  # a gang has what it has on its fullest GPU
    for g in np.flatnonzero(guest & (memory_bytes > 0)).tolist():
        speed[g] = models[g].speed(granted[g], memory_bytes[g])
    for gpu, found in shared.items():
        for host in found:
            model = models[host]
            if guest[host] or not model.burst_bytes or not model.burst_every_s < np.inf:
                continue
            spare = room[gpu] - MARGIN_BYTES - len(found) * CONTEXT_BYTES - float(granted[found].sum())
            missing = model.burst_bytes - spare
            if missing <= 0:
                continue
            lost_s = SPILL_COST * missing / (memory_bytes[host] + model.burst_bytes) * step_s[host]
            slower[host] = max(slower[host], 1.0 + lost_s / model.burst_every_s)
            for g in found:
                if guest[g]:
                    held_s = min(max(HOLD_S, FOOTPRINT_STEPS * step_s[host]), model.burst_every_s)
                    slower[g] = max(slower[g], _after_burst(models[g], granted, memory_bytes, g, missing, found, guest,
                                                            held_s, model.burst_every_s, speed[g]))  # fmt: skip
    spill = np.where(guest, np.maximum(memory_bytes - granted, 0.0), 0.0)
    assert first[-1] == len(gpus)
    return Use(granted, spill, speed, slower)


def _footprint(memory_bytes: float) -> float:
    """What the law keeps for a host."""
    return memory_bytes + max(HEADROOM * memory_bytes, LEAST_HEADROOM_BYTES) if memory_bytes else 0.0


def _given(
    guests: list[int], slack: float, models: Sequence[GuestModel], memory_bytes: FloatArray
) -> dict[int, float]:  # fmt: skip
    """What each guest of a GPU gets of its slack: persistent bytes in their order, the rest where it brings most."""
    out = dict.fromkeys(guests, 0.0)
    for g in guests:
        if models[g].persistent_bytes <= slack:
            out[g] = models[g].persistent_bytes
            slack -= out[g]
    worth = {g: (1.0 - models[g].speed(out[g], memory_bytes[g])) / (memory_bytes[g] - out[g])
             for g in guests if memory_bytes[g] > out[g] >= models[g].persistent_bytes}  # fmt: skip
    for g in sorted(worth, key=lambda g: -worth[g]):
        more = min(memory_bytes[g] - out[g], max(slack, 0.0))
        out[g] += more
        slack -= more
    return out


def _after_burst(
    model: GuestModel,
    granted: FloatArray,
    memory_bytes: FloatArray,
    g: int,
    missing: float,
    found: list[int],
    guest: BoolArray,
    held_s: float,
    every_s: float,
    speed: float,
) -> float:
    """How much longer a guest takes for its shrinks, growths, and for the memory that a burst keeps from it."""
    theirs = sum(granted[other] for other in found if guest[other])
    if not theirs or not speed:
        return 1.0
    left = granted[g] - min(missing, theirs) * granted[g] / theirs
    low = model.speed(left, memory_bytes[g]) if left >= model.persistent_bytes else 0.0
    done_s = (every_s - held_s) * speed + held_s * low - (SHRINK_S + GROW_S) * speed
    return every_s * speed / max(done_s, 1e-3 * every_s * speed)
