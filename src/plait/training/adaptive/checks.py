"""Refuse models, optimizers and loaders that cannot adapt, before training begins."""

from __future__ import annotations

import sys
import warnings
from typing import Any, Literal

import torch

from plait.core.errors import InputError
from plait.training.adaptive.base import AdaptiveLoader
from plait.training.adaptive.gradients.preconditioner import divides
from plait.training.adaptive.patches import is_held

Kind = Literal["plain", "ddp", "fsdp2"]


def parallel_kind(model: Any) -> Kind:
    """How the model is spread over ranks; raises `InputError` for FSDP1."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp is not None and isinstance(model, fsdp.FullyShardedDataParallel):
        raise InputError(
            "Adaptive: FullyShardedDataParallel hides the gradients of single parameters; "
            "shard the model by torch.distributed.fsdp.fully_shard (FSDP2), or use DistributedDataParallel"
        )
    if fsdp is not None and isinstance(model, getattr(fsdp, "FSDPModule", ())):
        return "fsdp2"
    return "ddp" if isinstance(model, torch.nn.parallel.DistributedDataParallel) else "plain"


def check(kind: Kind, model: Any, optimizer: Any, scheduler: Any) -> None:
    """Raise `InputError` for a `model`, `optimizer` or `scheduler` that gives no estimates, or wrong ones.

    `kind`: how the model is spread over ranks, from `parallel_kind`.
    """
    name = type(optimizer).__name__
    if any(base.__name__ == "ZeroRedundancyOptimizer" for base in type(optimizer).__mro__):
        raise InputError(
            "Adaptive: ZeroRedundancyOptimizer has the state of each parameter on one rank only; "
            "use the optimizer itself, or shard the model by fully_shard (FSDP2)"
        )
    if isinstance(optimizer, torch.optim.LBFGS):
        raise InputError("Adaptive: LBFGS makes several passes over a batch in one step; use SGD, Adam or AdamW")
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise InputError(f"Adaptive(optimizer={name}): needs torch's own optimizer, not something around it")
    if is_held(optimizer):
        raise InputError(
            f"Adaptive: this {name} is in another Adaptive already, which scales its learning rate; "
            "make one for each optimizer"
        )
    if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
        raise InputError(
            "Adaptive(scheduler=ReduceLROnPlateau): it goes by a metric that only the script knows; "
            "leave scheduler out and step it in the script, once an epoch"
        )
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    own = {id(p) for p in model.parameters()}
    if not any(id(p) in own for p in parameters):
        raise InputError(
            f"Adaptive: {name} has no parameter of this {type(model).__name__}; give the optimizer that steps the "
            f"model, made of its parameters as they are now: {name}(model.parameters(), ...)"
        )
    if kind != "fsdp2" and any(hasattr(p, "to_local") for p in parameters):
        raise InputError(
            "Adaptive: parameters are distributed tensors but the model is not sharded by fully_shard; "
            "gradient noise under tensor parallelism is not estimated, give the whole model to fully_shard"
        )
    if kind == "plain" and _ranks() > 1:
        raise InputError(
            f"Adaptive: {_ranks()} ranks and a model that does not average its gradients; "
            "give it DistributedDataParallel(model)"
        )


def check_loader(loader: Any) -> None:
    """Raise `InputError` for a loader that is not adaptive, or that another `Adaptive` uses already."""
    if not isinstance(loader, AdaptiveLoader):
        raise InputError(
            f"Adaptive(loader={type(loader).__name__}): its batch cannot change; give an "
            "AdaptiveDataLoader(dataset, batch_size, max_batch_size=...), which takes DataLoader's other options too"
        )
    if loader.followed:
        raise InputError(
            "this loader feeds another Adaptive already, and one gradient noise decides its batch; "
            "give each Adaptive a loader of its own"
        )


def check_graph(model: Any, *, accumulation: bool) -> None:
    """Raise `InputError` for DDP's `static_graph` with accumulation: accumulated passes differ from the first one."""
    if accumulation and getattr(model, "static_graph", False):
        raise InputError(
            "Adaptive: DistributedDataParallel(static_graph=True) expects every pass to be reduced, and the loader has "
            "accumulation=True; leave static_graph out, or accumulation"
        )


def warn_unknown(optimizer: Any) -> None:
    """Warn of an optimizer whose scaling of gradients is unknown, so that no rule for its learning rate is certain."""
    if not isinstance(optimizer, torch.optim.SGD) and not divides(optimizer):
        name = type(optimizer).__name__
        warnings.warn(
            f"plait: gradient noise for {name} is measured without what {name} makes of gradients, and its learning "
            'rate is scaled by AdaScale as for SGD; say which rule it needs, such as Adaptive(rule="square-root")',
            RuntimeWarning,
            stacklevel=3,
        )


def _ranks() -> int:
    """Ranks of the default process group; 1 for jobs that share a process."""
    from plait.training.adaptive.ranks import ranks

    return ranks().world_size
