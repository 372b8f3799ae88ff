"""Kernels are compiled by one of the processes that run the tests; the others wait for it and load its machine code.

On a clean checkout all of them would compile the same ones at the same time, and the compiler's index of what is on
disk would lose what one of them had written.
"""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path
from typing import Any


def compile_once() -> None:
    """From here on in this process; does nothing without the compiler, or where files cannot be locked."""
    try:
        import fcntl

        from numba.core.dispatcher import Dispatcher
    except ImportError:
        return
    compile_here = Dispatcher.compile
    held: set[str] = set()

    def compile_or_load(self: Any, sig: Any) -> Any:
        name = f"{self.py_func.__module__}.{self.py_func.__qualname__}"
        if not name.startswith("plait.") or name in held:
            return compile_here(self, sig)
        # Kernels call kernels and never in a circle, so whoever waits for one holds none that its owner waits for.
        path = Path(self.py_func.__code__.co_filename)
        mark = hashlib.sha256(f"{path}:{name}".encode()).hexdigest()[:16]
        with open(Path(tempfile.gettempdir()) / f"plait-kernel-{mark}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            held.add(name)
            try:
                return compile_here(self, sig)
            finally:
                held.discard(name)

    Dispatcher.compile = compile_or_load
