"""What the processes that run the tests share: machine code of kernels, and the tests' rewritten asserts.

Kernels are compiled by one of the processes; the others wait for it and load its machine code. On a clean checkout all
of them would compile the same ones at the same time, and the compiler's index of what is on disk would lose what one
of them had written.
"""

import contextlib
import hashlib
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest


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


def rewrite_once(config: pytest.Config) -> None:
    """Rewrite the asserts of all tests that will be collected, before workers start.

    On a clean checkout each worker would do so for all files at the same time: 15 s of a core for each of them. The
    functions are private to pytest; where they are not what they were, the workers do it.
    """
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None) or sys.dont_write_bytecode:
        return
    places = [Path(config.invocation_params.dir, text.split("::")[0]) for text in config.args]
    files = [file for place in places for file in ([place] if place.is_file() else sorted(place.rglob("*.py")))]
    tests = [file for file in files if file.name.startswith("test_") or file.name == "conftest.py"]
    cores = os.cpu_count() or 1
    children = []
    for first in range(cores):
        if pid := os.fork():
            children.append(pid)
            continue
        with contextlib.suppress(BaseException):
            _rewrite(tests[first::cores], config)
        os._exit(0)
    for pid in children:
        os.waitpid(pid, 0)


def _rewrite(files: list[Path], config: pytest.Config) -> None:
    from _pytest.assertion import rewrite

    state = config.stash[rewrite.assertstate_key]
    for file in files:
        folder = rewrite.get_cache_dir(file)
        rewritten = folder / (file.stem + rewrite.PYC_TAIL)
        if rewrite._read_pyc(file, rewritten) is None and rewrite.try_makedirs(folder):
            source_hash, code = rewrite._rewrite_test(file, config)
            rewrite._write_pyc(state, code, source_hash, rewritten)
