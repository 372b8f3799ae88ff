"""The first rung: nothing in the script. Every optimizer step of the process is seen from when torch is imported."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from plait.training.merged.thread_jobs import here
from plait.training.notes import note

WATCHED = "torch.optim.optimizer"
_watching = False


def watch_torch() -> None:
    """Register the hook now if torch is there, else when it is imported. Once a process."""
    global _watching
    if _watching:
        return
    _watching = True
    module = sys.modules.get(WATCHED)
    if module is not None and hasattr(module, "register_optimizer_step_post_hook"):
        _register(module)
    else:
        sys.meta_path.insert(0, _Finder())


def _register(module: Any) -> None:
    module.register_optimizer_step_post_hook(_stepped)


def _stepped(optimizer: Any, args: Any, kwargs: Any) -> None:
    """After every optimizer step. The first one attaches a script that has not."""
    global _lacking
    if _lacking:
        return
    try:
        from plait.training.job import AttachedJob, attach_quietly, current
    except Exception as error:  # the script's environment lacks what plait needs, and the script goes on without
        _lacking = True
        note(os.environ.get("PLAIT_RUN_DIR"), f"this script runs without step counts: {error!r}")
        return

    job = current()
    if job is None:
        global _stepped_pid
        member = here()
        if _stepped_pid == os.getpid() if member is None else member.looked:  # no job here, and there will be none
            return
        if member is None:
            _stepped_pid = os.getpid()
        else:
            member.looked = True
        made = attach_quietly()
        job = made if isinstance(made, AttachedJob) else None
    if job is not None:
        job.optimizer_stepped(optimizer)


_stepped_pid = 0
_lacking = False


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the watched module where it is and has it tell us when it is loaded."""

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
            _register(module)

        loader.exec_module = load_and_tell  # type: ignore[method-assign]
        return spec
