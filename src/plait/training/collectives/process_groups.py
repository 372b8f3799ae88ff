"""Process groups of plait's own, gone before the interpreter takes itself apart.

A group of gloo has threads. One that is destroyed while Python ends, because a module still held on to it, may find a
thread in the middle of a reduction that another rank is late for; that thread cannot get back into a Python that is no
longer there, and the process aborts (exit code -6) after training that went well. So every group of ours is given back
by a function that runs when the interpreter begins to end (`atexit`), while threads still may run: what was sent is
waited for, then the group is destroyed and nobody holds it any more.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
from typing import Any

#: Seconds to wait at the end for a rank that is late; one that died is known at once.
LATE_S = 60.0


class OwnGroup:
    """A host-side group of all ranks, made by all of them together; `group` is None once it is given back."""

    def __init__(self, name: str) -> None:
        """Make it, in an initialised `torch.distributed`."""
        import torch.distributed as dist

        self.group: Any = dist.new_group(backend="gloo", group_desc=name)
        self.work: Any = None  # the newest asynchronous operation on it
        self._pid = os.getpid()
        atexit.register(self.close)

    def close(self) -> None:
        """Wait for what was sent, then destroy the group; twice does no harm. Not in forked children."""
        group, work = self.group, self.work
        self.group = self.work = None
        atexit.unregister(self.close)
        if group is None or self._pid != os.getpid():
            return
        if work is not None:
            _wait(work)
        dist = sys.modules.get("torch.distributed")
        if dist is not None and dist.is_initialized():
            # Not in the list any more if the script has destroyed all groups: then letting go of it is enough.
            with contextlib.suppress(RuntimeError, ValueError, AssertionError, KeyError):
                dist.destroy_process_group(group)


def _wait(work: Any) -> None:
    """Until a reduction is over, or its other ranks are gone; `Work.wait` itself may wait for half an hour."""

    def wait() -> None:
        with contextlib.suppress(RuntimeError):  # a rank has died
            work.wait()

    waiting = threading.Thread(target=wait, name="plait-last-word", daemon=True)
    waiting.start()
    waiting.join(LATE_S)
