"""Guests whose script does not call plait: what holds already before their first step.

Others are attached by their first optimizer step. A guest would have used the GPU by then, so its first optimizer, as
soon as it is made, attaches it and waits for its turn; and the limit of its memory holds from CUDA's start on, which
waits while the guest is to pause: a model may not fit in less than the guest is given when it runs.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from plait.core.errors import InputError
from plait.runtime.guest_gate import neighbours_of
from plait.runtime.page import Page
from plait.sharing.directive import Action
from plait.training.sharing.device_memory import CudaMemory

LOOK_EVERY_S = 0.02


def starts_as_guest(run_dir: str) -> bool:
    """True if control.json makes this process a guest now."""
    try:
        found = neighbours_of(json.loads((Path(run_dir) / "control.json").read_text()))
    except InputError:
        return True
    except (OSError, ValueError, AttributeError):
        return False
    return found is not None and found.guest


def watch_first(module: Any, made: Callable[[Any], object]) -> None:
    """Call `made(optimizer)` for each torch optimizer that is made; `module`: torch.optim.optimizer."""
    init = module.Optimizer.__init__

    def initialise(optimizer: Any, *args: Any, **options: Any) -> None:
        init(optimizer, *args, **options)
        made(optimizer)

    initialise.__wrapped__ = init  # type: ignore[attr-defined]
    module.Optimizer.__init__ = initialise
    later = getattr(sys.modules.get("torch.cuda"), "_lazy_call", None)
    if later is not None:
        later(limit_memory)


def limit_memory() -> None:
    """At the start of CUDA, wait while there is no room for the job, then apply the memory limit, if there is one."""
    with (
        contextlib.suppress(InputError, OSError, RuntimeError),
        Page.open(Path(os.environ["PLAIT_RUN_DIR"]) / "page.bin", mapped=False) as page,
    ):
        while page.action == Action.PAUSE.value and not page.stop:
            _say_reached(page, lambda limit: limit)  # it has no memory yet
            time.sleep(LOOK_EVERY_S)
        _say_reached(page, CudaMemory(sys.modules["torch.cuda"]).bound)


def _say_reached(page: Page, bound: Callable[[float], float]) -> None:
    """Keep to the limit in the page by `bound`, and tell the agent, which gives others what this job gave back.

    Until then the agent takes it that the job will find the limit of just now, so a newer one counts.
    """
    while 0 < (limit := page.memory_limit_bytes) < math.inf:
        number = page.limit_number
        page.set_reached(number, bound(limit))
        if (page.limit_number, page.memory_limit_bytes) == (number, limit):
            return
