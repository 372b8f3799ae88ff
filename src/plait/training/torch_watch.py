"""Calls a function after every step of a torch optimizer, from when torch is imported."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

WATCHED = "torch.optim.optimizer"
_watching = False


def watch_torch(stepped: Callable[[Any], object]) -> None:
    """Call `stepped(optimizer)` after every optimizer step of this process; the first call of a process counts.

    The hook is registered now if torch is there, else when it is imported.
    """
    global _watching
    if _watching:
        return
    _watching = True
    module = sys.modules.get(WATCHED)
    if module is not None and hasattr(module, "register_optimizer_step_post_hook"):
        _register(module, stepped)
    else:
        sys.meta_path.insert(0, _Finder(stepped))


def _register(module: Any, stepped: Callable[[Any], object]) -> None:
    module.register_optimizer_step_post_hook(lambda optimizer, args, kwargs: stepped(optimizer))


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the watched module where it is and has it tell us when it is loaded."""

    def __init__(self, stepped: Callable[[Any], object]) -> None:
        """Register `stepped` then."""
        self._stepped = stepped

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The module's own spec with one call added; None for all others."""
        if name != WATCHED:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        loader = spec.loader if spec else None
        if loader is None:
            return None
        load = loader.exec_module

        def load_and_tell(module: ModuleType) -> None:
            load(module)
            _register(module, self._stepped)

        loader.exec_module = load_and_tell  # type: ignore[method-assign]
        return spec
