"""A script that does not call plait: its optimizer steps are counted from when torch is imported."""

from __future__ import annotations

import os
from typing import Any

from plait.training.notes import note
from plait.training.torch_watch import watch_torch

_lacking = False


def watch_script() -> None:
    """See every optimizer step of the process. Once a process."""
    watch_torch(_stepped)


def _stepped(optimizer: Any) -> None:
    """After every optimizer step. The first one attaches a script that has not."""
    global _lacking
    if _lacking:
        return
    try:
        from plait.training.attachment import optimizer_stepped
    except Exception as error:  # the script's environment lacks what plait needs, and the script goes on without
        _lacking = True
        note(os.environ.get("PLAIT_RUN_DIR"), f"this script runs without step counts: {error!r}")
        return
    optimizer_stepped(optimizer)
