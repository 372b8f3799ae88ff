"""Call a function after every step of a torch optimizer, or at the first DDP model, from the import of torch."""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from plait.runtime.network.grant import VARIABLE

WATCHED = "torch.optim.optimizer"
DDP = "torch.nn.parallel.distributed"
_watching = _watching_ddp = False


def watch_torch(stepped: Callable[..., object], loaded: Callable[[Any], object] = lambda module: None) -> None:
    """Call `stepped(optimizer, args, kwargs)` after every optimizer step of this process; later calls do nothing.

    The hook is registered now if torch is imported, else at its import; then `loaded(torch.optim.optimizer)` is called.
    """
    global _watching
    if _watching:
        return
    _watching = True
    when_loaded(WATCHED, "register_optimizer_step_post_hook", lambda module: _register(module, stepped, loaded))


def watch_ddp() -> None:
    """Let DDP models of this process aggregate their gradients, if the scheduler has named a grant; once a process."""
    global _watching_ddp
    if _watching_ddp or not os.environ.get(VARIABLE):
        return
    _watching_ddp = True
    when_loaded(DDP, "DistributedDataParallel", _before_first_model)


def _before_first_model(module: Any) -> None:
    """Install the hook of aggregation at the first model: torch is not complete when its module is loaded."""
    ddp = module.DistributedDataParallel
    original = ddp.__init__

    @functools.wraps(original)
    def first(model: Any, *args: Any, **options: Any) -> None:
        from plait.training.collectives.ina_hook import install

        ddp.__init__ = original
        install(ddp)
        ddp.__init__(model, *args, **options)

    ddp.__init__ = first


def when_loaded(name: str, has: str, call: Callable[[Any], object]) -> None:
    """Call `call(module)` after the import of a module, now if it is loaded so far that it has the attribute `has`."""
    module = sys.modules.get(name)
    if module is not None and hasattr(module, has):
        call(module)
    else:
        sys.meta_path.insert(0, _Finder(name, call))


def _register(module: Any, stepped: Callable[..., object], loaded: Callable[[Any], object]) -> None:
    module.register_optimizer_step_post_hook(stepped)
    loaded(module)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the watched module and calls a function after it was loaded."""

    def __init__(self, watched: str, call: Callable[[Any], object]) -> None:
        """Call `call(module)` after the import of the module `watched`."""
        self._watched, self._call = watched, call

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The spec of the watched module, with a call added to its loading; None for all other names."""
        if name != self._watched:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        loader = spec.loader if spec else None
        if loader is None:
            return None
        load = loader.exec_module

        def load_and_tell(module: ModuleType) -> None:
            load(module)
            self._call(module)

        loader.exec_module = load_and_tell  # type: ignore[method-assign]
        return spec
