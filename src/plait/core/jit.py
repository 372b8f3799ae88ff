"""The one place that knows about the compiler.

`kernel` compiles a function with Numba when the extra `[sim]` is installed and leaves it as plain Python
otherwise; both give the same results. `part` is for what only kernels call. Set `NUMBA_DISABLE_JIT=1` to force plain
Python.

A kernel that takes long to compile is called inside `announced`, so that nobody waits without knowing why. Where
the problem is small its `plain` twin answers sooner than a compiler could; `has_machine_code` tells whether one must.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from types import FunctionType
from typing import Any, ParamSpec, TypeVar, cast

P = ParamSpec("P")
R = TypeVar("R")


try:
    import numba
    from numba.core import event
    from numba.extending import register_jitable
except ImportError:
    HAVE_NUMBA = False
else:
    HAVE_NUMBA = True


def kernel(function: Callable[P, R]) -> Callable[P, R]:
    """Compile `function` if a compiler is there; machine code is cached on disk.

    A kernel may call kernels and parts of its own file only: the cache is renewed when that file changes, and does not
    look at other files.
    """
    if not HAVE_NUMBA:
        return function
    return cast("Callable[P, R]", numba.njit(cache=True)(function))


def part(function: Callable[P, R]) -> Callable[P, R]:
    """A piece of kernels of the same file: compiled when they call it, plain Python for everybody else.

    The compiler takes about a third less time for it than for a kernel: it needs no way in from Python, no place on
    disk of its own, and no second version where an argument is a constant.
    """
    if not HAVE_NUMBA:
        return function
    return register_jitable(no_cfunc_wrapper=True)(function)


@contextmanager
def announced(what: str, cpu_s: int) -> Iterator[None]:
    """Say on standard error, once, that `what` is being compiled, if anything in the block has to be.

    Says nothing when the machine code is in memory, on disk, or not wanted. `cpu_s` is about how long it takes.
    """
    if not HAVE_NUMBA:
        yield
        return

    class Say(event.Listener):
        said = False

        def on_start(self, event: object) -> None:
            if not self.said:
                print(f"plait: compiling {what}, about {cpu_s} s, once; later runs find it on disk", file=sys.stderr)
            self.said = True

        def on_end(self, event: object) -> None:
            """Nothing to say."""

    with event.install_listener("numba:compile", Say()):
        yield


def has_machine_code(function: Callable[P, R]) -> bool:
    """Whether machine code of a kernel, for any types, is in memory or was on disk when first asked."""
    return bool(getattr(function, "overloads", None)) or _on_disk(function)


def plain(function: Callable[P, R]) -> Callable[P, R]:
    """The plain Python twin of a kernel: same source, same results, and the kernels it calls are plain too."""
    if not hasattr(function, "py_func"):
        return function
    names = dict(function.py_func.__globals__)
    for name, value in names.items():
        if hasattr(value, "py_func"):
            names[name] = FunctionType(value.py_func.__code__, names, name, value.py_func.__defaults__)
    return cast("Callable[P, R]", names[function.py_func.__name__])


@cache
def _on_disk(function: Any) -> bool:
    """Whether the compiler's cache holds the kernel, from this source and for this processor.

    There is no public way to ask: should the private one change, the answer is no, which is safe.
    """
    try:
        index = function._cache._cache_file._load_index()
        target = function.targetctx.codegen().magic_tuple()
        return any(key[1] == target for key in index)
    except (AttributeError, IndexError, OSError, TypeError):
        return False
