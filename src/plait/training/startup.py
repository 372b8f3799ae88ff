"""Count the optimizer steps of a script that does not call plait, from the import of torch."""

from __future__ import annotations

import os
from typing import Any

from plait.training.process import note
from plait.training.successor import note_start
from plait.training.torch_watch import watch_ddp, watch_torch, when_loaded

FETCH = "torch.utils.data._utils.fetch"
_module: Any = None  # `attachment`, imported at the first step
_lacking = False


def watch_script() -> None:
    """Watch every optimizer step of the process and, in a guest, every new optimizer. Call it once per process."""
    note_start()
    watch_torch(_stepped, _watch_guest)
    if "PLAIT_MERGED" not in os.environ:
        when_loaded(FETCH, "_MapDatasetFetcher", _watch_workers)
    if "PLAIT_REHEARSAL" in os.environ:
        from plait.training.rehearsal import guard_files

        guard_files()
    watch_ddp()


def _watch_guest(module: Any) -> None:
    """After the import of torch.optim.optimizer: in a guest, watch new optimizers."""
    try:
        with open(os.path.join(os.environ["PLAIT_RUN_DIR"], "control.json"), "rb") as file:
            shared = b'"sharing"' in file.read()
    except (KeyError, OSError):
        return
    if not shared:
        return
    from plait.training.sharing.first_step import starts_as_guest, watch_first  # imported only where a GPU is shared

    if starts_as_guest(os.environ["PLAIT_RUN_DIR"]):
        watch_first(module, _made)


def _watch_workers(module: Any) -> None:
    """After the import of torch's loaders: let their workers count what they do."""
    from plait.training.passive import watch_workers  # imported only with torch: other programs start in a moment

    watch_workers(module)


def _stepped(optimizer: Any, *_: object) -> None:
    """After every optimizer step. The first one attaches a script that has not."""
    if (attachment := _module or _attachment()) is not None:
        attachment.optimizer_stepped(optimizer)


def _made(optimizer: Any) -> None:
    """After a guest has made an optimizer; the first one attaches the script."""
    if (attachment := _attachment()) is not None:
        attachment.optimizer_made(optimizer)


def _attachment() -> Any:
    global _lacking, _module
    if _lacking:
        return None
    try:
        from plait.training import attachment
    except Exception as error:  # the script's environment lacks what plait needs; the script runs without plait
        _lacking = True
        note(os.environ.get("PLAIT_RUN_DIR"), f"this script runs without step counts: {error!r}")
        return None
    _module = attachment
    return attachment
