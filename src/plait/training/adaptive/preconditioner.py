"""Squared norms of gradients as the optimizer sees them: under its pre-conditioner.

    optimizer      divides each gradient elementwise by               first seen at step t, a coordinate has
    Adam, AdamW    sqrt(v / (1 - beta2^t)) + eps                      c = (1 - beta2) / (1 - beta2^t) of its square
    RMSprop        sqrt(v / (1 - alpha^t)) + eps, v less its mean     c = (1 - alpha) / (1 - alpha^t)
                   squared if it is centred
    Adagrad        sqrt(sum / t) + eps                                c = 1 / t

A constant factor does not change the noise scale, so the last two have the one that keeps them steady. P has to be the
same for all samples of a step and must not depend on them, or the estimates are biased; but what was never seen so far
(a unit behind a ReLU, a row of an embedding) has v = 0 and would count 1 / eps^2. The optimizer itself includes the
gradient of the step before it divides. Its expectation is included here: a coordinate with v = 0 counts as if it had
been seen once, at the mean square A of the coordinates that are not 0 in gradients of earlier steps: c A. Coordinates
that were not seen for long count at least a hundredth of that.

In the first steps v knows too little, so until step 5 nothing is divided. Sums are float64 on a GPU. On a CPU they are
float64 sums of float32 sums of 1,024 numbers, or 65,536 where they are divided first, right to about 1e-7; pieces of
that size stay in the cache, which makes them two to nine times faster than whole tensors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch

#: Steps before which the optimizer's own averages are not used.
FIRST_STEPS = 5
#: What was seen long ago counts at least this part of what counts for coordinates that were never seen.
LEAST_PART = 0.01
#: A is measured in so many steps at the beginning, and then after so many further ones; it forgets with this factor.
MEASURED_FIRST, MEASURED_EVERY, KEEP = 10, 8, 0.9
_PIECE, _ROW = 65536, 1024

Below = Callable[[torch.Tensor], torch.Tensor]


class Preconditioner:
    """P of one optimizer: that of Adam, AdamW, RMSprop and Adagrad; the identity for others."""

    def __init__(self, optimizer: Any) -> None:
        """Use `optimizer`; its state and groups are looked up each time, because loading a state replaces them."""
        self._optimizer = optimizer
        self.group_of = {id(p): index for index, group in enumerate(optimizer.param_groups) for p in group["params"]}
        #: True if it divides gradients.
        self.divides = divides(optimizer)
        self._active: dict[int, tuple[torch.Tensor, int, int]] = {}  # by parameter: A, how often it was seen, and when
        self._steps = 0  # that have begun
        self._divisors: dict[int, list[torch.Tensor]] = {}  # by parameter, of this step; on a CPU only
        self._device_steps: int | None = None  # counted here where reading the optimizer's counter would block the host

    def squared(self, parameter: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        """|P g|^2 for a gradient of this parameter: a scalar in float64 on the same device."""
        known = self._second(parameter)
        if known is None:
            return squared_norm(gradient)
        if not gradient.is_sparse and not gradient.is_cuda:
            return self._squared_on_host(parameter, gradient, *known)
        if gradient.is_sparse:
            gradient = gradient.coalesce()
            part = gradient.values() / known[1](known[0][tuple(gradient.indices())])
            return _product(part, part)
        total = _zero(gradient)
        for (piece,) in self._divided(parameter, gradient):
            total += _product(piece, piece)
        return total

    def _squared_on_host(
        self, parameter: torch.Tensor, gradient: torch.Tensor, second: torch.Tensor, below: Below
    ) -> torch.Tensor:
        """|P g|^2 of a dense gradient; the divisors take longest, so a step computes them once."""
        divisors = self._divisors.get(id(parameter))
        if divisors is None:
            divisors = self._divisors[id(parameter)] = [below(piece) for piece in _pieces(second)]
        total = _zero(gradient)
        for piece, divisor in zip(_pieces(gradient), divisors, strict=True):
            part = piece / divisor
            total += _product(part, part)
        return total

    def observe(self, parameter: torch.Tensor, gradient: torch.Tensor, loss_scale: torch.Tensor | None = None) -> None:
        """Update A with the `gradient` of a whole step, after its last division; the loss had factor `loss_scale`."""
        if not self.divides:
            return
        before, seen, at = self._active.get(id(parameter), (None, 0, 0))
        if seen >= MEASURED_FIRST and self._steps - at < MEASURED_EVERY:
            return
        values = gradient.coalesce().values() if gradient.is_sparse else gradient
        count = torch.count_nonzero(values).clamp_(min=1).to(torch.float64)
        square = squared_norm(values) / count
        if loss_scale is not None:
            square = square / loss_scale.to(square.device, torch.float64).square()
        now = torch.nan_to_num(square, nan=0.0, posinf=0.0)
        now = now if before is None else KEEP * before + (1 - KEEP) * now
        self._active[id(parameter)] = now, seen + 1, self._steps

    def begin(self) -> None:
        self._steps += 1
        self._divisors.clear()
        if self._device_steps is not None:
            self._device_steps += 1

    def reset(self) -> None:
        """Count steps from 0: the optimizer was reset."""
        if self._device_steps is not None:
            self._device_steps = 0

    @property
    def dividing(self) -> bool:
        """True if gradients are divided now; estimates of divided and undivided gradients do not mix."""
        if not self.divides:
            return False
        state = next((s for s in self._optimizer.state.values() if "step" in s), None)
        if state is None:
            return False
        step = state["step"]
        if not (isinstance(step, torch.Tensor) and step.is_cuda):
            return float(step) >= FIRST_STEPS
        if self._device_steps is None:
            self._device_steps = int(step)  # waits for the device, once
        return self._device_steps >= FIRST_STEPS

    def compared(
        self, parameter: torch.Tensor, gradient: torch.Tensor, before: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """<Pg, Pb> and |P(g - b)|^2 for two gradients of this parameter."""
        if gradient.is_sparse != before.is_sparse:
            gradient, before = (g.to_dense() if g.is_sparse else g for g in (gradient, before))
        if gradient.is_sparse:  # sparse gradients are not divided
            return (gradient * before).coalesce().values().sum(dtype=torch.float64), squared_norm(gradient - before)
        product, difference = _zero(gradient), _zero(gradient)
        for one, other in self._divided(parameter, gradient, before):
            product += _product(one, other)
            apart = one - other
            difference += _product(apart, apart)
        return product, difference

    def _divided(self, parameter: torch.Tensor, *gradients: torch.Tensor) -> Iterator[list[torch.Tensor]]:
        """Yield P of the gradients, piece by piece; where it divides, in float32 or better."""
        known = self._second(parameter)
        if known is None:
            yield from map(list, zip(*(_pieces(g) for g in gradients), strict=True))
            return
        second, below_of = known
        for piece, *parts in zip(_pieces(second), *(_pieces(g) for g in gradients), strict=True):
            below = below_of(piece)
            yield [part / below for part in parts]

    def _second(self, parameter: torch.Tensor) -> tuple[torch.Tensor, Below] | None:
        """The optimizer's average of squares, and the function that turns it into a divisor; None without division."""
        state = self._optimizer.state.get(parameter) if self.divides else None
        if not state or "step" not in state:
            return None
        group = self._optimizer.param_groups[self.group_of[id(parameter)]]
        step, eps = state["step"], group["eps"]
        on_device = isinstance(step, torch.Tensor) and step.is_cuda  # fused or capturable: reading it would wait
        if not on_device:
            step = float(step)
            if step < FIRST_STEPS:
                return None
        second, keeps = _moment(self._optimizer, state, group)
        factor = 1 / step if keeps is None else 1 / (1 - keeps**step)
        once = factor if keeps is None else (1 - keeps) * factor
        active, *_ = self._active.get(id(parameter), (None,))

        def below(v: torch.Tensor) -> torch.Tensor:
            v = v.to(torch.promote_types(v.dtype, torch.float32))
            if active is None:  # without A, coordinates that were never seen do not count
                root = torch.where(v > 0, v * factor, math.inf).sqrt_().add_(eps)
            else:
                unseen = (active * once).to(v.dtype)
                root = v * factor
                never = root.sign().clamp_(min=0).neg_().add_(1)  # 1 or 0: on a CPU, `where` takes twice as long
                root.clamp_(min=LEAST_PART * unseen).add_(never.mul_((1 - LEAST_PART) * unseen)).sqrt_().add_(eps)
            return torch.where(step < FIRST_STEPS, torch.ones_like(root), root) if on_device else root

        return second, below


def _moment(optimizer: Any, state: Any, group: Any) -> tuple[torch.Tensor, float | None]:
    """The average of squares of one parameter and the factor it forgets with; None for Adagrad's sum."""
    if is_adam(optimizer):
        return local(state["max_exp_avg_sq" if group["amsgrad"] else "exp_avg_sq"]), group["betas"][1]
    if isinstance(optimizer, torch.optim.Adagrad):
        return local(state["sum"]), None
    second = local(state["square_avg"])
    return second - local(state["grad_avg"]).square() if group["centered"] else second, group["alpha"]


def divides(optimizer: Any) -> bool:
    """True for optimizers whose pre-conditioner is known: Adam, AdamW, RMSprop, Adagrad."""
    return is_adam(optimizer) or isinstance(optimizer, torch.optim.RMSprop | torch.optim.Adagrad)


def is_adam(optimizer: Any) -> bool:
    """True for torch's Adam and AdamW, and their subclasses."""
    return isinstance(optimizer, torch.optim.Adam | torch.optim.AdamW)


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Shard of a distributed tensor on this rank; an ordinary tensor unchanged."""
    shard: torch.Tensor = getattr(tensor, "to_local", lambda: tensor)()
    return shard


def squared_norm(tensor: torch.Tensor) -> torch.Tensor:
    """The sum of squares: a scalar in float64 on the same device."""
    if tensor.is_sparse:
        tensor = tensor.coalesce().values()
    if tensor.is_cuda or tensor.numel() < _ROW or tensor.dtype == torch.float64:
        return _product(tensor, tensor)
    flat = tensor.reshape(-1)
    whole = flat.numel() // _ROW * _ROW
    rows = torch.linalg.vector_norm(flat[:whole].view(-1, _ROW), dim=1, dtype=torch.float32).double()
    both: torch.Tensor = torch.dot(rows, rows) + _product(flat[whole:], flat[whole:])
    return both


def _zero(like: torch.Tensor) -> torch.Tensor:
    return torch.zeros((), dtype=torch.float64, device=like.device)


def _pieces(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """All elements in order; on a CPU in pieces that fit the cache."""
    if tensor.is_cuda or tensor.numel() <= _PIECE:
        return (tensor,)
    pieces: tuple[torch.Tensor, ...] = torch.split(tensor.reshape(-1), _PIECE)
    return pieces


def _product(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    if one.is_cuda:
        if one is other:
            norm: torch.Tensor = torch.linalg.vector_norm(one, dtype=torch.float64)
            return norm * norm
        return (one * other).sum(dtype=torch.float64)
    kind = torch.promote_types(one.dtype, torch.float32)
    dot: torch.Tensor = torch.dot(one.reshape(-1).to(kind), other.reshape(-1).to(kind))
    return dot.double()
