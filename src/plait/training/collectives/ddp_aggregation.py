"""Aggregation without a line in the script: every DistributedDataParallel model gets the hook when it is made.

DDP takes one communication hook for each model. So the one that is registered calls what the `HookSlot` of the model
holds: aggregation at first; later what the script registers, which ends aggregation of this model, or plait's network
stage around either of them. Our design. Start at `install`, which
`plait.training.torch_watch` calls.
"""

from __future__ import annotations

import functools
import os
import weakref
from collections.abc import Callable
from typing import Any

from plait.training.collectives.ina_hook import InaState, hook_of, ina, ina_allreduce_hook
from plait.training.collectives.network import OWN_HOOK, Hook
from plait.training.notes import note


class HookSlot:
    """The hook of one model, and the state of aggregation; None after the script has taken the slot."""

    def __init__(self, state: InaState) -> None:
        """Aggregate."""
        self.state: InaState | None = state
        self._call: tuple[Any, Hook] = None, hook_of(state)
        self._taken = False

    def hook(self, _: Any, bucket: Any) -> Any:
        """What DDP calls."""
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
