"""What a live cluster executes of plans."""

from __future__ import annotations

#: Guest groups on a GPU, at most; plans with more are refused.
GUESTS_PER_GPU = 8
#: Jobs are not killed: all that a policy stops may save a checkpoint first.
KILLS = False
