"""DDP's buckets after a resume are what they would have been: the same sums, to the last bit.

DDP sends all gradients of its first backward pass in one bucket, notes in which order they arrived, and from the next
forward pass on has buckets in that order. A ring sums each piece of a bucket beginning at another rank, so from three
ranks on the place of a gradient in its bucket decides in which order its summands are added, and so its last bits. A
resumed process would begin with the one bucket again. So the order of arrival is in the checkpoint, and a resumed
process plays it to DDP before its first pass: without gradients, without sending anything, without touching a random
stream, a buffer or a hook of the script.

A model of which DDP may leave parameters out (`find_unused_parameters`) has the same buckets from the first pass on.
Not covered, since DDP prepares its passes in another way there: `static_graph`, DDP's own mixed precision.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import torch


class Buckets:
    """The order in which the gradients of one DDP model arrived in its first synchronised pass."""

    def __init__(self, model: Any) -> None:
        """Watch the first pass of this model, unless it was made already or nothing will change after it."""
        self._model = model
        self.order: list[int] = []
        #: While this is set, buckets are not sent.
        self.playing = False
        self._arrived: dict[int, int] = {}
        self._watching: list[Any] = []
        if _rebuilds(model):
            count = itertools.count()
            for index, one in enumerate(_parameters(model)):
                hooked: Any = one  # untyped in torch
                self._watching.append(hooked.register_post_accumulate_grad_hook(self._watcher(index, count)))

    def _watcher(self, index: int, count: itertools.count[int]) -> Any:
        def watch(parameter: torch.Tensor) -> None:
            self._arrived[index] = next(count)  # passes that only accumulate come before: the last one counts

        return watch

    def sent(self) -> None:
        """The last bucket of a pass is complete: all gradients have arrived."""
        if self._watching:
            self._forget()
            self.order = sorted(self._arrived, key=lambda index: self._arrived[index])

    def _forget(self) -> None:
        for handle in self._watching:
            handle.remove()
        self._watching.clear()

    def state_dict(self) -> dict[str, Any]:
        """The order; empty if there was no pass, or DDP does not go by it."""
        return {"order": list(self.order)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Play this order to DDP, unless its first pass was made already or the model has other parameters now."""
        order = [int(index) for index in state["order"]]
        if not self._watching or self._arrived or sorted(order) != list(range(len(_parameters(self._model)))):
            return
        self._forget()
        self.order = order
        self._play()

    def _play(self) -> None:
        parameters = _parameters(self._model)
        before = [parameter.grad for parameter in parameters]
        for parameter in parameters:
            parameter.grad = None
        self.playing = True
        try:
            self._model.reducer.prepare_for_backward([])
            with torch.enable_grad():
                begin: Any = _Arrivals.apply  # untyped in torch
                begin(torch.zeros((), requires_grad=True), self._model.reducer, self.order).backward()
        finally:
            self.playing = False
            for parameter, gradient in zip(parameters, before, strict=True):
                parameter.grad = gradient


class _Arrivals(torch.autograd.Function):
    """A backward pass in which DDP is told that gradients have arrived; there are none, which it takes as zeros."""

    @staticmethod
    def forward(ctx: Any, one: torch.Tensor, reducer: Any, order: list[int]) -> torch.Tensor:
        ctx.reducer, ctx.order = reducer, order
        return one.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        for index in ctx.order:
            ctx.reducer._autograd_hook(index)
        return gradients[0], None, None


def _rebuilds(model: Any) -> bool:
    """Whether DDP will make its buckets anew after the first pass, in a way that can be played."""
    special = ["find_unused_parameters", "static_graph", "mixed_precision", "_has_rebuilt_buckets"]
    special += ["_delay_all_reduce_all_params", "_use_python_reducer"]
    known = callable(getattr(getattr(model, "reducer", None), "_autograd_hook", None))
    known = known and callable(getattr(model, "_build_params_for_reducer", None))
    return known and not any(getattr(model, name, None) for name in special)


def _parameters(model: Any) -> list[torch.nn.Parameter]:
    """What DDP reduces, as it numbers them."""
    found: list[torch.nn.Parameter] = model._build_params_for_reducer()[0]
    return found
