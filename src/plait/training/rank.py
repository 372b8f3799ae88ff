"""Interface of the job of a process for loaders, the network stage and advice: one rank under plait."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from plait.training.device.gpu_stage import GpuStage
    from plait.training.environment import Environment
    from plait.training.stages import Stages
    from plait.training.state.state_registry import StateRegistry


class Rank(Protocol):
    """Implemented by `plait.training.attached_job.AttachedJob`, whose docstrings describe each member."""

    around: Environment
    stages: Stages
    compute: GpuStage
    kept: StateRegistry

    @property
    def counted(self) -> int: ...
    @property
    def had_loop(self) -> bool: ...
    @property
    def saves(self) -> Any: ...
    @property
    def in_epochs(self) -> bool: ...
    @property
    def compute_thread(self) -> int: ...
    @property
    def gate_thread(self) -> Any: ...
    def resume(self) -> int: ...
    def safe_point(self, loop: str, *, last: bool = False) -> None: ...
    def batch_ended(self) -> None: ...
    def look_up(self, *, evaluating: bool) -> None: ...
    def in_loop(self, loop: str) -> AbstractContextManager[None]: ...
    def in_evaluation(self) -> AbstractContextManager[None]: ...
