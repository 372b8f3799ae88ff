"""Squared norms of gradients as the optimizer sees them: under its pre-conditioner.

Adam divides each gradient elementwise by sqrt(v / (1 - beta2^t)) + eps before it takes a step. In the first steps v
knows too little, so until step 5 nothing is divided. Sums are float64 on a GPU. On a CPU they are float64 sums of
float32 sums of 1,024 numbers, or 65,536 where they are divided first, right to about 1e-7; pieces of that size stay in
the cache, which makes them two to nine times faster than whole tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

#: Adam's own averages are not used for the norms before this many steps.
FIRST_STEPS = 5
_PIECE, _ROW = 65536, 1024

Below = Callable[[torch.Tensor], torch.Tensor]


class Preconditioner:
    """P of one optimizer: that of Adam and AdamW, the identity for others."""

    def __init__(self, optimizer: Any) -> None:
        """Of this optimizer; state and groups are looked up each time: loading a state puts others in place."""
        self._optimizer = optimizer
        self.group_of = {id(p): index for index, group in enumerate(optimizer.param_groups) for p in group["params"]}
        #: Whether it does anything at all.
        self.divides = is_adam(optimizer)

    def squared(self, parameter: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        """|P g|^2 for a gradient of this parameter: a scalar in float64 on the same device."""
        if gradient.is_sparse or self._second(parameter) is None:
            return squared_norm(gradient)
        total = _zero(gradient)
        for (piece,) in self._divided(parameter, gradient):
            total += _product(piece, piece)
        return total

    def compared(
        self, parameter: torch.Tensor, gradient: torch.Tensor, before: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """<Pg, Pb> and |P(g - b)|^2 for two gradients of this parameter."""
        if gradient.is_sparse != before.is_sparse:
            gradient, before = (g.to_dense() if g.is_sparse else g for g in (gradient, before))
        if gradient.is_sparse:  # nothing divides those
            return (gradient * before).coalesce().values().sum(dtype=torch.float64), squared_norm(gradient - before)
        product, difference = _zero(gradient), _zero(gradient)
        for one, other in self._divided(parameter, gradient, before):
            product += _product(one, other)
            apart = one - other
            difference += _product(apart, apart)
        return product, difference

    def _divided(self, parameter: torch.Tensor, *gradients: torch.Tensor) -> Iterator[list[torch.Tensor]]:
        """P of the gradients, piece by piece; in float32 at least where it divides."""
        known = self._second(parameter)
        if known is None:
            yield from map(list, zip(*(_pieces(g) for g in gradients), strict=True))
            return
        second, below_of = known
        for piece, *parts in zip(_pieces(second), *(_pieces(g) for g in gradients), strict=True):
            below = below_of(piece.to(torch.promote_types(piece.dtype, torch.float32)))
            yield [part / below for part in parts]

    def _second(self, parameter: torch.Tensor) -> tuple[torch.Tensor, Below] | None:
        """Adam's average of squares, and what makes a divisor of it; None if nothing is divided."""
        state = self._optimizer.state.get(parameter) if self.divides else None
        if not state or "exp_avg_sq" not in state:
            return None
        group = self._optimizer.param_groups[self.group_of[id(parameter)]]
        step, (_, beta2), eps = state["step"], group["betas"], group["eps"]
        second = local(state["max_exp_avg_sq" if group["amsgrad"] else "exp_avg_sq"])
        if isinstance(step, torch.Tensor) and step.is_cuda:  # fused or capturable: reading it would hold up the host

            def below(v: torch.Tensor) -> torch.Tensor:
                root = (v / (1 - beta2**step)).sqrt_().add_(eps)
                return torch.where(step < FIRST_STEPS, torch.ones_like(root), root)

            return second, below
        if float(step) < FIRST_STEPS:
            return None
        factor = 1 / (1 - beta2 ** float(step))
        return second, lambda v: (v * factor).sqrt_().add_(eps)


def is_adam(optimizer: Any) -> bool:
    """Whether it is torch's Adam or AdamW, or made of them."""
    return isinstance(optimizer, torch.optim.Adam | torch.optim.AdamW)


def local(tensor: torch.Tensor) -> torch.Tensor:
    """The shard that this rank has of a distributed tensor; an ordinary one as it is."""
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
    """All numbers, in the order of the tensor's indices: on a CPU some at a time."""
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
