"""Activations on the host: what a backward pass will need, put there as it is saved, back on the device as it is used.

The portable way to need less memory of the device: hooks of torch on saved tensors, copies in both directions. Copies
are exact, so gradients are bitwise equal to those without. The hooks are per thread and stay once they are there; with
a budget of 0 they let everything pass.
"""

from __future__ import annotations

import math
from typing import Any

from plait.training.process import capturing

#: Smaller tensors are not worth a copy.
LEAST_BYTES = 1 << 16


class SavedTensors:
    """Spills the saved tensors of the thread that calls `install`, up to a budget of bytes a step."""

    def __init__(self) -> None:
        self.budget_bytes = 0.0
        self.spilled_bytes = 0  # since `begin_step`
        self._hooks: Any = None
        self._copies: dict[tuple[Any, ...], _Copy] = {}

    def install(self) -> None:
        """Hook saved tensors of this thread from now on; twice does no harm."""
        if self._hooks is None:
            from torch.autograd.graph import saved_tensors_hooks

            self._hooks = saved_tensors_hooks(self._pack, self._unpack)
            self._hooks.__enter__()

    def begin_step(self) -> int:
        """A step has ended: what it had on the host, in bytes; the next one begins."""
        spilled, self.spilled_bytes = self.spilled_bytes, 0
        self._copies.clear()
        return spilled

    def _pack(self, tensor: Any) -> Any:
        size = tensor.numel() * tensor.element_size()
        if size < LEAST_BYTES or self.spilled_bytes + size > self.budget_bytes or _lives_on(tensor) or capturing():
            return tensor
        from torch.multiprocessing.reductions import StorageWeakRef

        # Several operations may save the same values: one copy for all. A weak reference to the storage keeps its
        # address from being used again.
        storage = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
        key = (storage.cdata, tensor.storage_offset(), tensor.size(), tensor.stride(), tensor.dtype, tensor._version)
        copy = self._copies.get(key)
        if copy is None:
            copy = self._copies[key] = _Copy(tensor, storage)
            self.spilled_bytes += size
        return copy

    def _unpack(self, packed: Any) -> Any:
        return packed.back() if isinstance(packed, _Copy) else packed


class _Copy:
    """A tensor on the host."""

    def __init__(self, tensor: Any, storage: Any) -> None:
        import torch

        self._device, self._storage = tensor.device, storage
        pinned = tensor.is_cuda
        self._host = torch.empty(tensor.size(), dtype=tensor.dtype, layout=tensor.layout, pin_memory=pinned)
        self._host.copy_(tensor, non_blocking=pinned)  # in the stream that made it; read in that of the backward pass
        self._strides = tensor.stride()

    def back(self) -> Any:
        import torch

        tensor = torch.empty_strided(self._host.size(), self._strides, dtype=self._host.dtype, device=self._device)
        return tensor.copy_(self._host, non_blocking=self._device.type == "cuda")


def _lives_on(tensor: Any) -> bool:
    """Whether a tensor stays on the device anyway: a parameter or a view of one; and what cannot be copied."""
    base = tensor._base if tensor._is_view() else tensor
    parameter = base.is_leaf and base.requires_grad
    return bool(parameter or tensor.is_sparse or 0 in tensor.stride() or type(tensor).__name__ == "FakeTensor")


def budget(demand_bytes: float | None, limit_bytes: float) -> float:
    """Bytes that steps of such a demand (None: unknown yet) should have on the host to fit into a limit.

    A tenth more than what is missing, for what the backward pass brings back one by one.

    >>> budget(None, 5.0), budget(10.0, 5.0), budget(10.0, 12.0), budget(10.0, math.inf)
    (inf, 6.0, 0.0, 0.0)
    """
    if limit_bytes == math.inf:
        return 0.0
    return math.inf if demand_bytes is None else max(1.1 * demand_bytes - limit_bytes, 0.0)
