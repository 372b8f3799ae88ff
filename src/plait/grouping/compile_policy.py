"""Whether to wait for the compiler: small problems never do, and a long run of small ones does once.

The compiled and the plain way give the same bits, so this choice shows in time only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import ParamSpec, TypeVar

from plait.core.jit import announced, has_machine_code

P = ParamSpec("P")
R = TypeVar("R")

#: Jobs that are worth compiling a kernel for, asked for at once or one call after the other.
PATIENCE = 20_000
COMPILE_CPU_S = 2

_asked: dict[str, int] = {}
_loaded: set[Callable[..., object]] = set()  # asking the compiler takes longer than a small problem
_nothing = nullcontext()


def compiled(kernel: Callable[..., object], work: int) -> bool:
    """Whether to call `kernel` compiled for a piece of `work`, a number of jobs weighted by what is done with each.

    True as soon as its machine code is in memory or on disk; never without a compiler.
    """
    if kernel in _loaded:
        return True
    if not hasattr(kernel, "py_func"):
        return False
    name = kernel.__name__
    _asked[name] = _asked.get(name, 0) + work
    return _asked[name] >= PATIENCE or has_machine_code(kernel)


def run(kernel: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Call a compiled kernel, and say so if that means waiting for the compiler."""
    with waiting(kernel, f"grouping ({getattr(kernel, '__name__', kernel)})", COMPILE_CPU_S):
        return kernel(*args, **kwargs)


def waiting(kernel: Callable[..., object], what: str, cpu_s: int) -> AbstractContextManager[None]:
    """Call `kernel` in this: the first time it says so if `what` has to be compiled, later it costs nothing."""
    return _nothing if kernel in _loaded else _first(kernel, what, cpu_s)


@contextmanager
def _first(kernel: Callable[..., object], what: str, cpu_s: int) -> Iterator[None]:
    with announced(what, cpu_s):
        yield
    _loaded.add(kernel)
