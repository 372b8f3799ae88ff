"""Let switches add up the gradients of a DistributedDataParallel model: two lines in a script.

    from plait.training import ina, ina_allreduce_hook

    model.register_comm_hook(ina(), ina_allreduce_hook)

Under plait the scheduler grants switch memory to the job, and gradients go through the switch as long as it does.
Without a grant, without plait, and whenever anything fails, gradients go by gloo, as without the hook; the reason is
said once.
"""

from __future__ import annotations

import functools
import os
import sys
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist

from plait.core.errors import InputError
from plait.runtime.network.grant import VARIABLE, GrantFile
from plait.runtime.network.report import NetworkReport, write_report
from plait.training.collectives.aggregation_engine import Engine
from plait.training.collectives.aggregation_session import RankGroup, Reason, Session
from plait.training.collectives.network import OWN_HOOK, Hook
from plait.training.process import note


class InaState:
    """Aggregation of one model's gradients on one rank; made by `ina`."""

    def __init__(self, process_group: Any, give_up_after: int, environ: Mapping[str, str]) -> None:
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


# Aggregation without a line in the script: every DistributedDataParallel model gets the hook when it is made.
#
# DDP takes one communication hook for each model. So the one that is registered calls what the `HookSlot` of the model
# holds: aggregation at first; later what the script registers, which ends aggregation of this model, or plait's network
# stage around either of them. Our design. Start at `install`, which
# `torch_watch` calls.


class HookSlot:
    """The hook of one model, and the state of aggregation; None after the script has taken the slot."""

    def __init__(self, state: InaState) -> None:
        self.state: InaState | None = state
        self._call: tuple[Any, Hook] = None, hook_of(state)
        self._taken = False

    def hook(self, _: Any, bucket: Any) -> Any:
        state, hook = self._call
        return hook(state, bucket)

    @property
    def inner(self) -> Hook:
        """What is called now, as a hook that needs no state."""
        state, hook = self._call
        return lambda _, bucket: hook(state, bucket)

    def take(self, state: Any, hook: Hook) -> None:
        """Call the hook of the script from here on, which can be registered once, as in DDP."""
        if self._taken:
            raise RuntimeError("register_comm_hook or register_builtin_comm_hook can only be called once.")
        self._taken = True
        self._call = state, hook
        self.leave(OWN_HOOK if hook is not ina_allreduce_hook else "")

    def wrap(self, hook: Hook) -> None:
        """Call a hook of plait, which calls `inner` itself."""
        self._call = None, hook

    def leave(self, why: str) -> None:
        """Aggregate no more; `why` is reported, unless it is empty."""
        ours, self.state = self.state, None
        if ours is not None and why:
            ours.not_used(why)
        elif ours is not None:
            ours.close()


_slots: weakref.WeakKeyDictionary[Any, HookSlot] = weakref.WeakKeyDictionary()


def slot_of(model: Any) -> HookSlot | None:
    """The slot of a DDP model; None for one that got none."""
    return _slots.get(model)


def install(ddp: Any) -> None:
    """Let models of the class `ddp`, DistributedDataParallel, aggregate from now on; twice is once."""
    if getattr(ddp, "_plait_slots", False):
        return
    ddp._plait_slots = True
    made, registered, builtin = ddp.__init__, ddp.register_comm_hook, ddp._register_builtin_comm_hook

    @functools.wraps(made)
    def init(model: Any, *args: Any, **options: Any) -> None:
        made(model, *args, **options)
        _give_slot(model, registered)

    @functools.wraps(registered)
    def register_comm_hook(model: Any, state: Any, hook: Hook) -> None:
        slot = _slots.get(model)
        if slot is None:
            registered(model, state, hook)
            return
        model._check_comm_hook(hook)
        slot.take(state, hook)
        model._comm_hooks.append((hook, state))

    @functools.wraps(builtin)
    def register_builtin(model: Any, kind: Any) -> None:
        slot = _slots.get(model)
        if slot is None:
            builtin(model, kind)
            return
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

        narrow = str(kind).endswith("FP16_COMPRESS")
        slot.take(model.process_group, default_hooks.fp16_compress_hook if narrow else default_hooks.allreduce_hook)

    ddp.__init__, ddp.register_comm_hook, ddp._register_builtin_comm_hook = init, register_comm_hook, register_builtin


def _give_slot(model: Any, register: Callable[[Any, Any, Hook], None]) -> None:
    """Register a slot for a new model, on all ranks alike."""
    if model._comm_hooks:  # DDP's own mixed precision
        note(os.environ.get("PLAIT_RUN_DIR"), "gradients are not aggregated: DDP's mixed precision has its own hook")
        return
    slot = HookSlot(ina(model.process_group))

    def hook(state: Any, bucket: Any) -> Any:
        return slot.hook(state, bucket)

    hook.__annotations__.clear()  # DDP accepts only its own annotations, or none
    register(model, None, hook)
    model._comm_hooks.clear()  # the script has registered none
    _slots[model] = slot
