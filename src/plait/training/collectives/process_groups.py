"""plait's own process groups, destroyed before the interpreter shuts down.

A gloo group has threads. If it is destroyed only during shutdown, because a module still refers to it, one of its
threads may still wait in a reduction for a late rank. It cannot return into a finished interpreter, and the process
aborts (exit code -6) after a successful training. So `atexit`, while threads can still run, waits for what was sent and
destroys every group.

The script's own groups live on in its DDP model. Their threads release the last operation only after they have woken
the script, and need the interpreter for it: the operation holds Python objects of the thread that started it. On a busy
machine the script may have ended by then, with the same exit code -6; `let_threads_finish` waits for them.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

#: Seconds to wait at the end for a late rank; a rank that died is noticed at once.
LATE_S = 60.0
#: Name of the threads of a gloo group in Linux (torch's ProcessGroupGloo).
GLOO_THREAD = "pt_gloo_runloop"
#: A thread that waits for the interpreter wakes every 5 ms (`sys.getswitchinterval`); one that sleeps longer is idle.
IDLE_S = 0.02


class OwnGroup:
    """A host-side group of ranks, created by all of them together; `group` is None once it is destroyed."""

    def __init__(self, name: str, ranks: Sequence[int] | None = None) -> None:
        """Create it in an initialised `torch.distributed`, of all ranks or of these alone."""
        import torch.distributed as dist

        if ranks is None or len(ranks) == dist.get_world_size():
            self.group: Any = dist.new_group(backend="gloo", group_desc=name)
        else:  # the other ranks do not take part in creating it
            made = dist.new_group(list(ranks), backend="gloo", group_desc=name, use_local_synchronization=True)
            self.group = made
        self.work: Any = None  # the newest asynchronous operation on it
        self._pid = os.getpid()
        atexit.register(self.close)

    def close(self) -> None:
        """Wait for the newest operation, then destroy the group; does nothing twice, or in forked children."""
        group, work = self.group, self.work
        self.group = self.work = None
        atexit.unregister(self.close)
        if group is None or self._pid != os.getpid():
            return
        if work is not None:
            _wait(work)
        dist = sys.modules.get("torch.distributed")
        if dist is not None and dist.is_initialized():
            # Raises if the script has destroyed all groups; dropping the reference is then enough.
            with contextlib.suppress(RuntimeError, ValueError, AssertionError, KeyError):
                dist.destroy_process_group(group)


def _wait(work: Any) -> None:
    """Wait until a reduction ends or its other ranks are gone; `Work.wait` alone may wait for half an hour."""

    def wait() -> None:
        with contextlib.suppress(RuntimeError):  # a rank has died
            work.wait()

    waiting = threading.Thread(target=wait, name="plait-last-word", daemon=True)
    waiting.start()
    waiting.join(LATE_S)


def let_threads_finish(limit_s: float = LATE_S) -> None:
    """Wait until every thread of a gloo group sleeps and has nothing left to release; at most `limit_s` seconds.

    To be called after the last operation. A thread that waits for another rank counts as idle.
    """
    end_s, before = time.monotonic() + limit_s, _gloo_threads()
    while before and time.monotonic() < end_s:
        time.sleep(IDLE_S)  # without the interpreter's lock, so that they can take it
        now = _gloo_threads()
        if now == before and all(state == "S" for state, _ in now.values()):
            return
        before = now


def _gloo_threads() -> dict[str, tuple[str, str]]:
    """State (R, S, D) and number of voluntary switches of each thread of a gloo group, by its id; none off Linux."""
    found = {}
    for task in Path("/proc/self/task").glob("*"):
        with contextlib.suppress(OSError):  # a thread that has ended
            fields = dict(line.split(":", 1) for line in (task / "status").read_text().splitlines())
            if fields["Name"].strip() == GLOO_THREAD:
                found[task.name] = fields["State"].split()[0], fields["voluntary_ctxt_switches"].strip()
    return found
