"""Restore DDP's buckets after a resume, so that sums of gradients are the same to the last bit.

DDP sends all gradients of its first backward pass in one bucket and records the order of their arrival; from the next
forward pass on, its buckets follow that order. A ring sums each piece of a bucket starting at a different rank, so with
three or more ranks the position of a gradient in its bucket decides the order of its summands, and so its last bits. A
resumed process would start with the single bucket again. Therefore the checkpoint holds the order of arrival, and a
resumed process replays it to DDP before its first pass: without gradients, without sending anything, and without
touching random streams, buffers or hooks of the script.

With `find_unused_parameters` DDP uses the same buckets from the first pass on. `static_graph` and DDP's own mixed
precision are not covered, since DDP prepares its passes differently there.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import torch


class Buckets:
    """The order in which the gradients of one DDP model arrived in its first synchronised pass."""

    def __init__(self, model: Any) -> None:
        """Watch the first pass of `model`, unless it is over or DDP will not rebuild its buckets."""
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
        """Note that the last bucket of a pass is complete, so all gradients have arrived."""
        if self._watching:
            self._forget()
            self.order = sorted(self._arrived, key=lambda index: self._arrived[index])

    def _forget(self) -> None:
        for handle in self._watching:
            handle.remove()
        self._watching.clear()

    def state_dict(self) -> dict[str, Any]:
        """The order; empty before the first pass, or if DDP does not use it."""
        return {"order": list(self.order)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replay the order to DDP, unless its first pass is over or the model has other parameters now."""
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
    """A backward pass that reports the arrival of gradients to DDP without any, which DDP treats as zeros."""

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
    """True if DDP will rebuild its buckets after the first pass, in a way that can be replayed."""
    special = ["find_unused_parameters", "static_graph", "mixed_precision", "_has_rebuilt_buckets"]
    special += ["_delay_all_reduce_all_params", "_use_python_reducer"]
    known = callable(getattr(getattr(model, "reducer", None), "_autograd_hook", None))
    known = known and callable(getattr(model, "_build_params_for_reducer", None))
    return known and not any(getattr(model, name, None) for name in special)


def _parameters(model: Any) -> list[torch.nn.Parameter]:
    """The parameters that DDP reduces, in its numbering."""
    found: list[torch.nn.Parameter] = model._build_params_for_reducer()[0]
    return found
