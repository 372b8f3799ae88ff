"""Yield points of a guest whose script has none: a few places within each step at which others may use the GPU.

Only a few large blocks are hooked (hooks at every module cost up to 65 % of a short step): when the gradients of each
eighth of the parameters are complete, before the optimizer steps, and before the blocks of a model that the script
has registered. A compiled model keeps its forward pass in one piece, and a script that replays CUDA graphs its whole
step (`GraphReplays`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from plait.core.errors import InputError

#: Into how many pieces a pass through the model is divided at most.
PIECES = 8


class YieldPoints:
    """Hooks that call `reached`; there are none before `install`."""

    def __init__(self, reached: Callable[[], object]) -> None:
        """`reached`: called at each yield point, in the thread that computes."""
        self._reached = reached
        self._hooks: list[Any] = []

    @property
    def installed(self) -> bool:
        return bool(self._hooks)

    def install(self, optimizer: Any, models: Iterable[Any]) -> None:
        """Hook the parameters and the step of an optimizer, and the blocks of models; instead of those before."""
        self.remove()
        parameters = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
        for parameter in divided(parameters, [p.numel() for p in parameters]):
            if hasattr(parameter, "register_post_accumulate_grad_hook"):
                self._hooks.append(parameter.register_post_accumulate_grad_hook(lambda _: self._reached()))
        if hasattr(optimizer, "register_step_pre_hook"):
            self._hooks.append(optimizer.register_step_pre_hook(lambda *_: self._reached()))
        for model in models:
            for block in blocks(model):
                self._hooks.append(block.register_forward_pre_hook(lambda *_: self._reached()))

    def remove(self) -> None:
        while self._hooks:
            self._hooks.pop().remove()


def divided(items: list[Any], sizes: list[int], pieces: int = PIECES) -> list[Any]:
    """Those of the items at which pieces of about equal size end, without the last: at most `pieces - 1`.

    >>> divided(list("abcdefgh"), [1] * 8, 4)
    ['b', 'd', 'f']
    >>> divided(list("abc"), [1, 98, 1], 4)
    ['b']
    """
    whole, done, found = sum(sizes), 0, []
    for item, size in zip(items[:-1], sizes, strict=False):
        before, done = done, done + size
        if before * pieces // max(whole, 1) < done * pieces // max(whole, 1):
            found.append(item)
    return found[: pieces - 1]


def blocks(model: Any) -> list[Any]:
    """The largest parts of a model whose forward pass is called one after the other: at most `PIECES`.

    The largest part is divided into its own parts while that gives more of them. A part that is only a list is never
    called itself.
    """
    if hasattr(model, "_orig_mod") or getattr(model, "_compiled_call_impl", None) is not None:
        return []
    found = [model]
    while len(found) < PIECES:
        inner = [module for module in found if any(True for _ in module.children())]
        if not inner:
            break
        largest = max(inner, key=_size)
        parts = [part for part in largest.children() if _size(part)]
        if not parts:
            break
        at = found.index(largest)
        found[at : at + 1] = parts
    called = [module for module in found if type(module).__name__ not in ("ModuleList", "ModuleDict")]
    return divided([*called, None], [*map(_size, called), 0]) if len(called) > PIECES else called


def _size(module: Any) -> int:
    return sum(p.numel() for p in module.parameters())


class GraphReplays:
    """Counts replays of torch's CUDA graphs in this process."""

    def __init__(self) -> None:
        self.replays = 0  # since the last check
        self._watched: Any = None

    def watch(self, cuda: Any) -> None:
        """Count from now on; `cuda`: torch.cuda, initialised. May be called twice."""
        graph: Any = getattr(cuda, "CUDAGraph", None)
        replay = getattr(graph, "replay", None)
        if replay is None or self._watched is graph:
            return
        self._watched = graph

        def counted(this: Any) -> Any:
            self.replays += 1
            return replay(this)

        graph.replay = counted

    def check(self, yield_points: int) -> None:
        """At the end of a step of a guest that called so many yield points; raises `InputError` for graphs without."""
        replays, self.replays = self.replays, 0
        if replays and not yield_points:
            raise InputError(
                f"an opportunistic job cannot run as a guest with CUDA graphs and no yield points: its step replayed "
                f"{replays} of them as one piece of GPU work, and the guaranteed job would have to wait for all of it; "
                "call job.yield_point() between replays, capture smaller graphs, or submit it with --class guaranteed"
            )
