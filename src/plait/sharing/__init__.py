"""Sharing of one GPU: a guaranteed job at its dedicated speed, opportunistic jobs in the time that it leaves.

Pure decisions from the standard library alone: no clock, thread, file, NumPy or random number. After AntMan (Xiao et
al., OSDI 2020); the feedback laws, which were never published, are plait's own. Start reading at `coordinator.decide`.
"""

from plait.sharing.coordinator import CODEC, Observation, State, decide, replay
from plait.sharing.directive import Action, Device, Directive, Reached, Sharer, SpillReason, StepStats
from plait.sharing.grant import longest_quantum_s
from plait.sharing.macro_model import Estimate, Load, estimate
from plait.sharing.memory_law import Rung, next_rung

__all__ = [
    "CODEC",
    "Action",
    "Device",
    "Directive",
    "Estimate",
    "Load",
    "Observation",
    "Reached",
    "Rung",
    "Sharer",
    "SpillReason",
    "State",
    "StepStats",
    "decide",
    "estimate",
    "longest_quantum_s",
    "next_rung",
    "replay",
]
