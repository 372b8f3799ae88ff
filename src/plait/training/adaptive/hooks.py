"""Measure squared norms of gradients during the backward pass, and average gradients over the passes of a step.

Which gradients are samples, and which of torch's public hooks sees them, depends on how a step is made:

    ranks  passes  samples of a step                    seen by
    K > 1  1       the gradient of each rank            DDP's communication hook, bucket by bucket, before reduction
    K > 1  s+1     the gradient of each rank and pass   a hook on each parameter, before accumulation
    1      s+1     the gradient of each pass            a hook after accumulation, which keeps their running mean
    1      1       none: some steps are cut in two halves, which are two passes (see `plan`)
    ...            or, of shards and of what cannot be cut, this step's and the last one's:
                                                        a hook after accumulation, with a copy of the last gradient

The gradient of the whole step is measured when it is complete: in the futures of DDP's buckets, or after the
accumulation of the last pass. All this happens within `backward()`, so clipping or unscaling afterwards does not change
the estimates. Between the passes of a step gradients are stored elsewhere and `.grad` is None, so clipping or zeroing
after each backward pass does no harm.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist

from plait.core.errors import InputError
from plait.training.adaptive.noise import Pass, Squares
from plait.training.adaptive.preconditioner import Preconditioner, local
from plait.training.adaptive.profile import SyncClock

Hook = Callable[[Any, Any], Any]
Function = Callable[[torch.Tensor, Any], torch.Tensor | None]


class GradientHooks:
    """Watches the gradients of one model and optimizer, one step at a time: `begin` each pass, then `collect`."""

    def __init__(self, optimizer: Any, *, group: Any = None, inner: Hook | None = None) -> None:
        """Watch the parameters of `optimizer`.

        `group`: process group over which DDP averages, None for one process. `inner`: communication hook that
        averages, by default an all-reduce.
        """
        self.precondition = Preconditioner(optimizer)
        self.clock = SyncClock()
        self._optimizer = optimizer
        self._ranks = group.size() if group is not None else 1
        self._process_group, self._inner = group, inner or self._all_reduce
        self._now = self._idle = Pass(self._ranks, 1, 0, 1, self._ranks)
        self._weight = 0.0  # sum over the passes of this step so far
        self._loss_scale: torch.Tensor | None = None
        self._weight = 0.0  # of the passes of this step so far
        # By parameter, what it has of earlier passes: the sum; on one rank the mean, and the weight of those passes.
        self._kept: dict[int, tuple[torch.Tensor, torch.Tensor, float]] = {}
        self._kinds: dict[str, tuple[Function, set[int]]] = {}  # of hooks: what they call, for which parameters
        self._nodes: list[Any] = []  # hooks of theirs last no longer than they do
        self._groups = len(optimizer.param_groups)
        self._before: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # parameters, the last step's gradients
        self._before_batch = 0
        self.twice = False  # True if a batch had two backward passes
        self._forget()
        if self._ranks == 1:
            self._kinds["register_post_accumulate_grad_hook"] = self._accumulated, set()
        self._hook()
        # Where all parameters count alike, a bucket can be squared as a whole.
        self._alike = self._groups == 1 and not self.precondition.divides

    def _hook(self) -> None:
        """Hook the parameters without hooks; some may have been unfrozen."""
        for kind, (function, hooked) in self._kinds.items():
            for parameter in itertools.chain.from_iterable(group["params"] for group in self._optimizer.param_groups):
                if parameter.requires_grad and id(parameter) not in hooked:
                    hooked.add(id(parameter))
                    getattr(parameter, kind)(lambda given, p=parameter, function=function: function(p, given))
                    if kind == "register_hook":
                        self._hook_node(parameter)

    def _hook_node(self, parameter: torch.Tensor) -> None:
        """Store its gradient after DDP has seen it, which tells DDP that the parameter is used in this step.

        Hooks of a node run in the order of registration, and DDP registered first.
        """
        node = torch.autograd.graph.get_gradient_edge(parameter).node
        node.register_hook(lambda *_: self._put_away(parameter))
        self._nodes.append(node)

    # -- one step -------------------------------------------------------------------------------------------------

    def begin(self, now: Pass, loss_scale: torch.Tensor | None = None) -> None:
        """Begin the backward pass `now`, whose loss is multiplied by `loss_scale` (a scalar tensor)."""
        self._now = now
        self._weight = now.weight if now.index == 0 else self._weight + now.weight
        self._made.clear()
        if now.index == 0:
            self._await_reduced()  # of a step that was skipped
            self._forget()
            self.precondition.begin()
            self.clock.begin()
            self._loss_scale = loss_scale
        if now.passes > 1 and self._ranks > 1:
            self._kinds.setdefault("register_hook", (self._passed, set()))
        if now.index == 0:
            self._hook()

    def end(self) -> None:
        self._kept.clear()  # of an unfinished step; the next `begin` drops the rest
        self._now = self._idle

    def no_sync(self, model: Any) -> AbstractContextManager[None]:
        """Context in which gradients only accumulate and DDP does not average."""
        return model.no_sync() if hasattr(model, "no_sync") else nullcontext()

    def collect(self) -> Squares | None:
        """Measurements of the step, between its last backward pass and the optimizer's step; waits for no device.

        None for an uneven step, for the first step of a pair, for one that is not measured, and if no backward pass was
        seen.
        """
        now, samples = self._now, self._now.ranks * self._now.passes
        self._complete()
        if not (now.pairs if samples == 1 else now.measured):
            self._remember(False)
            self._forget()
            return None
        local, total, reduced = self._local, self._total, self._await_reduced()
        usable = now.samples > 0 and not self._odd and any(total)
        divided = self.precondition.dividing
        if samples == 1:
            # Compare parameters without a gradient in this step, which may have one from the last step.
            for key in self._before.keys() - self._compared:
                self._apart(*self._before.pop(key))
        self._forget()
        if samples == 1:
            paired = usable and self._before_batch == now.batch and any(local)
            self._remember(usable)
            return Squares(self._sum(local), self._sum(total), 1, now.batch, divided) if paired else None
        self._remember(False)
        if not usable or (self._ranks > 1 and reduced is None):
            return None
        mean = (self._sum(local) if reduced is None else reduced) / samples
        c = 1.0 if self._loss_scale is None else self._loss_scale.to(mean.device, torch.float64)
        return Squares(mean / c**2, self._sum(total) / c**2, now.samples, now.batch, divided)

    def _forget(self) -> None:
        """Drop all measurements of the step."""
        self._local: list[list[torch.Tensor]] = [[] for _ in range(self._groups)]
        self._total: list[list[torch.Tensor]] = [[] for _ in range(self._groups)]
        self._reducing: tuple[torch.Tensor, Any] | None = None
        self._compared: set[int] = set()  # parameters with a gradient in the only pass
        self._made: set[int] = set()  # parameters, or buckets of DDP, with a gradient in this pass
        self._kept.clear()
        self._odd = False  # part of the step gives no estimate

    def _remember(self, usable: bool) -> None:
        """Whether the gradients kept are those of this step."""
        self._before_batch = self._now.batch if usable else 0
        if not usable:
            self._before.clear()

    def _await_reduced(self) -> torch.Tensor | None:
        """Sum the measurements over the ranks; only the device waits."""
        if self._reducing is None:
            return None
        squares, work = self._reducing
        work.wait()
        return squares

    def _sum(self, terms: list[list[torch.Tensor]]) -> torch.Tensor:
        device = next((t.device for group in terms for t in group), torch.device("cpu"))
        zero = torch.zeros((), dtype=torch.float64, device=device)
        if device.type == "cuda":  # made on a stream of the future's own
            for term in itertools.chain.from_iterable(terms):
                term.record_stream(torch.cuda.current_stream(term.device))
        return torch.stack([torch.stack([t.to(device) for t in group]).sum() if group else zero for group in terms])

    def _square(self, parameter: torch.Tensor, gradient: torch.Tensor, into: list[list[torch.Tensor]]) -> None:
        """Add |P g|^2 of one parameter; one that the optimizer does not know counts nothing."""
        group = self.precondition.group_of.get(id(parameter))
        if group is not None:
            into[group].append(self.precondition.squared(parameter, gradient))

    def _once(self, what: int, passes: int) -> None:
        """Check that a pass makes each gradient once: a second one is no sample, and makes means over passes wrong."""
        if what not in self._made:
            self._made.add(what)
            return
        self._odd = True
        said = (
            "two backward passes in one batch of an adaptive job: add up their losses and call backward() once; or a "
            "layer in several segments of reentrant checkpoints: give checkpoint(use_reentrant=False)"
        )
        if passes > 1:
            raise InputError(f"{said}; this step accumulates gradients over {passes} batches")
        if not self.twice:
            self.twice = True
            warnings.warn(f"plait: {said}; until then no gradient noise is estimated", RuntimeWarning, stacklevel=2)

    # -- hooks of parameters --------------------------------------------------------------------------------------

    def _passed(self, parameter: torch.Tensor, gradient: torch.Tensor | None) -> torch.Tensor | None:
        """Take the gradient of this rank, one of several, and pass, before it is added to those of earlier passes."""
        if self._now.passes == 1 or gradient is None:
            return None
        self._once(id(parameter), self._now.passes)
        if self._now.last:
            self._put_back()
        elif id(parameter) in self._kept:
            parameter.grad = self._kept.pop(id(parameter))[1]
        if self._now.measured:
            self._square(parameter, gradient.detach(), self._local)
        weight = self._now.weight
        return None if weight == 1.0 else gradient * weight

    def _put_away(self, parameter: torch.Tensor) -> None:
        """Store the gradient of a pass that is not the last one."""
        if not self._now.last and parameter.grad is not None:
            self._kept[id(parameter)] = parameter, parameter.grad, 0.0
            parameter.grad = None

    def _accumulated(self, parameter: torch.Tensor, _: object) -> None:
        """After accumulation on one rank: measure the gradient of this pass, and average it with the earlier ones."""
        now = self._now
        if parameter.grad is None or now is self._idle:
            return
        self._once(id(parameter), now.passes)
        mean = parameter.grad.detach()
        if now.passes == 1:
            if now.pairs:
                self._compare(parameter, mean)
            return
        if now.measured:
            self._square(parameter, mean, self._local)
        # Since `.grad` was None, torch has not copied this gradient; one more read adds it and divides the sum.
        part, (_, earlier, weight) = now.weight / self._weight, self._kept.pop(id(parameter), (None, None, 0.0))
        if earlier is not None:
            mean = _average(earlier, mean, weight / self._weight, part)
        elif part != 1.0:
            mean.mul_(part)
        if not now.last:
            self._kept[id(parameter)] = parameter, mean, self._weight
            parameter.grad = None
            return
        parameter.grad = mean
        if now.measured:
            self._square(parameter, mean, self._total)
            self.precondition.observe(parameter, mean, self._loss_scale)

    def _compare(self, parameter: torch.Tensor, gradient: torch.Tensor) -> None:
        """Compare with the gradient of the last step, and store this one."""
        group = self.precondition.group_of.get(id(parameter))
        if group is None:
            return
        if self._loss_scale is not None:  # half precision might not hold it without its scale
            kind = torch.promote_types(gradient.dtype, torch.float32)
            gradient = gradient / self._loss_scale.to(gradient.device, kind)
        self._compared.add(id(parameter))
        _, before = self._before.get(id(parameter), (None, None))
        if before is None:  # it was 0
            self._apart(parameter, gradient)
        else:
            product, difference = self.precondition.compared(parameter, gradient, before)
            self._local[group].append(product)
            self._total[group].append(difference)
        if before is not None and before.layout == gradient.layout == torch.strided:
            before.copy_(gradient)
        else:
            self._before[id(parameter)] = parameter, gradient.clone() if self._loss_scale is None else gradient

    def _apart(self, parameter: torch.Tensor, gradient: torch.Tensor) -> None:
        """Compare with a step in which the parameter had no gradient."""
        group = self.precondition.group_of[id(parameter)]
        self._local[group].append(torch.zeros((), dtype=torch.float64, device=gradient.device))
        self._total[group].append(self.precondition.squared(parameter, gradient))

    def _put_back(self) -> None:
        """Restore all stored gradients for the last pass, in which the optimizer and DDP need them."""
        while self._kept:
            _, (parameter, gradient, _) = self._kept.popitem()
            parameter.grad = gradient

    def _complete(self) -> None:
        """Restore what had a gradient in some pass but not in the last one; on one rank, this gives no estimate."""
        if self._ranks == 1:
            self._odd = self._odd or bool(self._kept)
            for _, mean, weight in self._kept.values():
                mean.mul_(weight / self._weight)
        self._put_back()

    # -- the hook of DDP ------------------------------------------------------------------------------------------

    def comm_hook(self) -> Hook:
        """For DDP, which insists on its own types in the signature, or none."""

        def hook(state: Any, bucket: Any) -> Any:
            return self.bucket(state, bucket)

        hook.__annotations__.clear()
        return hook

    def bucket(self, state: Any, bucket: Any) -> Any:
        """Measure this rank's gradients, average them, then measure the mean."""
        if self._ranks == 1 or self._now is self._idle:
            return self._inner(state, bucket)
        buffer, now, total = bucket.buffer(), self._now, self._total  # of this step, whenever the future completes
        loss_scale = self._loss_scale
        parts = self._parts(bucket) if now.measured else []
        if now.passes == 1:
            self._once(bucket.index(), 1)
            for parameter, gradient in parts:
                self._square(parameter, gradient, self._local)
        if (factor := now.weight if now.passes == 1 else 1 / now.passes) != 1:
            buffer.mul_(factor)
        begin = buffer.storage_offset() if parts else 0
        places = [(p, g.shape, g.stride(), g.storage_offset() - begin) for p, g in parts]

        def reduced(future: Any) -> Any:
            self.clock.arrived(buffer)
            value = future.value()
            mean = value[0] if isinstance(value, list) else value
            for parameter, shape, stride, offset in places:
                gradient = mean.as_strided(shape, stride, mean.storage_offset() + offset)
                self._square(parameter, gradient, total)
                self.precondition.observe(parameter, gradient, loss_scale)
            return mean

        future = self._inner(state, bucket)
        if bucket.is_last():
            self.clock.handed_over(buffer)
        if bucket.is_last() and now.measured:
            squares = self._sum(self._local)
            self._reducing = squares, dist.all_reduce(squares, group=self._process_group, async_op=True)
        return future.then(reduced)

    def _parts(self, bucket: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Parameters and gradients in a bucket; the whole bucket as one where all parameters count alike."""
        buffer, parameters = bucket.buffer(), bucket.parameters()
        if buffer.is_sparse:
            self._odd = True
            return []
        if self._alike and all(id(p) in self.precondition.group_of for p in parameters):
            return [(parameters[0], buffer)]
        return list(zip(parameters, bucket.gradients(), strict=True))

    def _all_reduce(self, state: Any, bucket: Any) -> Any:
        """The mean over all ranks, as DDP computes it without a hook: scaled first (by the inverse), then summed."""
        tensor = bucket.buffer().mul_(1.0 / self._ranks)
        if self._ranks == 1:
            done: Any = torch.futures.Future(devices=[tensor.device] if tensor.is_cuda else [])
            done.set_result(tensor)
            return done
        return dist.all_reduce(tensor, group=self._process_group, async_op=True).get_future()


def _average(mean: torch.Tensor, other: torch.Tensor, keep: float, part: float) -> torch.Tensor:
    """`keep` of `mean`, which is overwritten, and `part` of `other`; they are 1 together unless passes are missing."""
    if mean.is_sparse or other.is_sparse:
        if mean.is_sparse and not other.is_sparse:
            mean, other, keep, part = other, mean, part, keep
        return mean.mul_(keep).add_(other, alpha=part)
    if abs(keep + part - 1) > 1e-9:
        mean.mul_(keep / (1 - part))
    return mean.lerp_(other, part)


class ShardedHooks(GradientHooks):
    """Watches the shards of this rank; `fully_shard` (FSDP2) runs the hooks of its parameters after the reduction.

    Gradients of single ranks never exist there, only shards of the mean over all ranks. So each step gives one sample,
    and the estimate is the biased one, from a copy of this rank's shards of the last gradient, of two steps in a row.
    In uneven steps, the last ones of a pass over the data, ranks and passes count alike instead of examples.
    """

    def __init__(self, optimizer: Any) -> None:
        """Watch the parameters of `optimizer`; raises `InputError` if they are sharded over different ranks."""
        groups = {_shard_group(p) for group in optimizer.param_groups for p in group["params"]}
        if len(groups) != 1:
            raise InputError(
                f"Adaptive: the optimizer's parameters are sharded over {len(groups)} different groups of ranks; "
                "give all of them to fully_shard with the same mesh"
            )
        super().__init__(optimizer)
        self._shards, self._passes = groups.pop(), 1

    def begin(self, now: Pass, loss_scale: torch.Tensor | None = None) -> None:
        """See `GradientHooks.begin`: all ranks and passes together are one sample."""
        self._passes = now.passes
        if now.index == 0:
            super().begin(Pass(1, 1, 0, now.batch, now.batch, now.full, pairs=now.pairs), loss_scale)

    def end(self) -> None:
        super().end()
        self._passes = 1

    def collect(self) -> Squares | None:
        """See `GradientHooks.collect`; the device waits for the sum over all shards."""
        squares = super().collect()
        if squares is not None:
            both = torch.stack([squares.first, squares.second])
            dist.all_reduce(both, group=self._shards)
            squares.first, squares.second = both.unbind()
        return squares

    def no_sync(self, model: Any) -> AbstractContextManager[None]:
        return _unreduced(model)

    def _accumulated(self, parameter: torch.Tensor, _: object) -> None:
        """Compare a complete shard: the mean over all ranks, summed over all passes."""
        if parameter.grad is None or self._now is self._idle:
            return
        self._once(id(parameter), self._passes)
        gradient = local(parameter.grad.detach())
        if self._passes > 1:
            gradient.div_(self._passes)
        if self._now.pairs:
            self._compare(parameter, gradient)


@contextmanager
def _unreduced(model: Any) -> Iterator[None]:
    model.set_requires_gradient_sync(False)
    try:
        yield
    finally:
        model.set_requires_gradient_sync(True)


def _shard_group(parameter: Any) -> Any:
    """The ranks over which a parameter is cut up."""
    placements = getattr(parameter, "placements", ())
    cut = [dim for dim, placement in enumerate(placements) if placement.is_shard()]
    if len(cut) != 1:
        raise InputError(
            f"Adaptive: a parameter of shape {tuple(parameter.shape)} is cut up along {len(cut)} dimensions of its "
            "mesh; gradient noise is estimated for parameters that fully_shard has sharded along one"
        )
    return parameter.device_mesh.get_group(cut[0])
