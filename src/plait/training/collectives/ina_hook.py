"""Let switches add up the gradients of a DistributedDataParallel model: two lines in a script.

    from plait.training import ina, ina_allreduce_hook

    model.register_comm_hook(ina(), ina_allreduce_hook)

Under plait the scheduler grants switch memory to the job, and gradients go through the switch as long as it does.
Without a grant, without plait, and whenever anything fails, gradients go by gloo, as without the hook; the reason is
said once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist

from plait.core.errors import InputError
from plait.runtime.network.grant import VARIABLE, GrantFile
from plait.runtime.network.report import NetworkReport, write_report
from plait.training.collectives.aggregation_engine import Engine
from plait.training.collectives.aggregation_session import Session
from plait.training.collectives.agreement import RankGroup, Reason


class InaState:
    """Aggregation of one model's gradients on one rank; made by `ina`."""

    def __init__(self, process_group: Any, give_up_after: int, environ: Mapping[str, str]) -> None:
        """As `ina`."""
        self._group = process_group if process_group is not None else dist.group.WORLD
        self._size = dist.get_world_size(self._group)
        self._engine: Engine | None = None
        self._folder = environ.get("PLAIT_RUN_DIR")
        self._last = NetworkReport()
        self._why = "this is one rank alone"
        if self._size > 1:
            self._start(give_up_after, environ)
        if self._engine is None and dist.get_rank(self._group) == 0 and self._size > 1:
            print(f"plait: gradients go by all-reduce: {self._why}", file=sys.stderr)

    def _start(self, give_up_after: int, environ: Mapping[str, str]) -> None:
        """Start an engine if all ranks know of a grant file; otherwise none of them does."""
        group = RankGroup(self._group)
        grants = GrantFile.of(environ)
        if group.worst(Reason.NONE if grants is not None else Reason.NO_GRANT)()[0] is not Reason.NONE:
            group.close()
            self._why = f"not all ranks have the environment variable {VARIABLE}, which `plait submit --ina auto` sets"
            return
        session = Session(grants, group.rank, group.size)
        self._engine = Engine(group, session, give_up_after=give_up_after, folder=self._folder)

    @property
    def reason(self) -> str:
        """Why gradients go by all-reduce; empty while they are added up by a switch."""
        return self._why if self._engine is None else self.report().reason

    def report(self) -> NetworkReport:
        """Counters of this rank so far: buckets each way and why, packets, and where the time went."""
        return self._engine.report() if self._engine is not None else replace(self._last, reason=self._why)

    def reduce(self, tensor: torch.Tensor) -> Any:
        """A future of the mean of `tensor` over all ranks, which replaces its content."""
        if self._engine is not None:
            return self._engine.submit(tensor)
        tensor.mul_(1.0 / self._size)
        work = dist.all_reduce(tensor, group=self._group, async_op=True)
        return work.get_future().then(lambda done: done.value()[0])

    def not_used(self, why: str) -> None:
        """Say that the script communicates in another way."""
        self._why = why
        if self._engine is not None:
            self._engine.say(f"gradients are not aggregated: {why}")
            self._last = replace(self._engine.report(), mode="gloo", reason=why)
            self._engine.close()
            self._engine = None
            if self._folder:
                write_report(self._folder, self._last)

    def close(self) -> None:
        """End the thread of this rank; all ranks do so together. At the end of the process it happens by itself."""
        if self._engine is not None:
            self._last = self._engine.report()
            self._engine.close()
            self._engine = None
            self._why = "aggregation was closed"


def ina(process_group: Any = None, *, give_up_after: int = 3, environ: Mapping[str, str] = os.environ) -> InaState:
    """The state of `ina_allreduce_hook`, made by all ranks of `process_group` (None: all) at the same place.

    `give_up_after`: failed buckets in a row after which gradients go by gloo until there is a new grant.
    `environ` names the grant file, as `plait submit --ina auto` does. Raises `InputError` before
    `torch.distributed` is initialised, and for a number that is not positive.
    """
    if not (dist.is_available() and dist.is_initialized()):
        raise InputError("ina() needs process groups: call torch.distributed.init_process_group first")
    if isinstance(give_up_after, bool) or not isinstance(give_up_after, int) or give_up_after < 1:
        raise InputError(f"give_up_after is {give_up_after!r}; give a number of buckets, 1 or more")
    return InaState(process_group, give_up_after, environ)


def ina_allreduce_hook(state: InaState, bucket: Any) -> Any:
    """A communication hook of DistributedDataParallel: the mean of a bucket over all ranks, through a switch if it can.

    Never blocks the backward pass. A rank that dies makes it raise on the others, as DDP's own all-reduce does.
    """
    return state.reduce(bucket.buffer())


ina_allreduce_hook.__annotations__.clear()  # DDP accepts its own annotations alone


def hook_of(state: InaState) -> Callable[[Any, Any], Any]:
    """`ina_allreduce_hook` with its state, for hooks that are given others."""
    return lambda _, bucket: ina_allreduce_hook(state, bucket)
