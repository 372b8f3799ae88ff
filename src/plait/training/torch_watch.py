"""Call a function after every step of a torch optimizer, from the import of torch."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

WATCHED = "torch.optim.optimizer"
_watching = False


def watch_torch(stepped: Callable[[Any], object], loaded: Callable[[Any], object] = lambda module: None) -> None:
    """Call `stepped(optimizer)` after every optimizer step of this process; later calls do nothing.

    The hook is registered now if torch is imported, else at its import; then `loaded(torch.optim.optimizer)` is called.
    """
    global _watching
    if _watching:
        return
    _watching = True
    module = sys.modules.get(WATCHED)
    if module is not None and hasattr(module, "register_optimizer_step_post_hook"):
        _register(module, stepped, loaded)
    else:
        sys.meta_path.insert(0, _Finder(stepped, loaded))


def _register(module: Any, stepped: Callable[[Any], object], loaded: Callable[[Any], object]) -> None:
    module.register_optimizer_step_post_hook(lambda optimizer, args, kwargs: stepped(optimizer))
    loaded(module)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the watched module and registers the hook after it was loaded."""

    def __init__(self, stepped: Callable[[Any], object], loaded: Callable[[Any], object]) -> None:
        """Register `stepped` and call `loaded` after the import."""
        self._stepped, self._loaded = stepped, loaded

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The spec of the watched module, with a call added to its loading; None for all other names."""
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
            _register(module, self._stepped, self._loaded)

        loader.exec_module = load_and_tell  # type: ignore[method-assign]
        return spec
