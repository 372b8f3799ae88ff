"""A model of one GPU in virtual time: a FIFO of kernels that are never preempted, and memory with a limit a job.

It runs `plait.sharing.decide` itself, the function that the agent of a node runs. Start reading at `micro_model.run`.
"""

from plait.sim.gpu.micro_model import Mark, Outcome, SimDevice, run, table_cell
from plait.sim.gpu.scenario import (
    PATTERNS,
    Hardware,
    Kernel,
    Mode,
    Opportunistic,
    Pattern,
    Phase,
    Reporting,
    Scenario,
    Variation,
)

__all__ = [
    "PATTERNS",
    "Hardware",
    "Kernel",
    "Mark",
    "Mode",
    "Opportunistic",
    "Outcome",
    "Pattern",
    "Phase",
    "Reporting",
    "Scenario",
    "SimDevice",
    "Variation",
    "run",
    "table_cell",
]
