"""Decide whether to wait for the compiler: small problems never do, a long run of small ones does once.

The compiled and the plain way give the same bits, so this choice shows in time only. A process that decides about a
few jobs neither compiles nor reads machine code that it would hardly use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from functools import cache, partial
from typing import ParamSpec, TypeVar

from plait.core.jit import announced, has_machine_code, plain

P = ParamSpec("P")
R = TypeVar("R")

#: How much plain work, a tenth of a millisecond each, is done before a kernel is compiled, and before its machine code
#: is read from disk. Reading takes about as long; compiling four times as long, but later processes have it too.
PATIENCE, READING = 5_000, 200
COMPILE_CPU_S = 2

_asked: dict[Callable[..., object], float] = {}
_loaded: set[Callable[..., object]] = set()  # asking the compiler takes longer than a small problem
_nothing = nullcontext()
_ahead = ContextVar("ahead", default=False)  # each thread has its own


@contextmanager
def ahead() -> Iterator[None]:
    """Compile each kernel that this thread asks for in the block and that is not on disk, however small the problem."""
    before = _ahead.set(True)
    try:
        yield
    finally:
        _ahead.reset(before)


def compiled(kernel: Callable[..., object], work: float) -> bool:
    """Whether to call `kernel` compiled for a piece of `work`: tenths of a millisecond that plain Python takes for it.

    True as soon as its machine code is in memory, or the work since the process began makes it worth while to compile
    it, or to read it where it is on disk; never without a compiler. `ahead` does not wait for work.
    """
    if kernel in _loaded:
        return True
    if not hasattr(kernel, "py_func"):
        return False
    if _ahead.get():
        return not has_machine_code(kernel)
    asked = _asked[kernel] = _asked.get(kernel, 0) + work
    return asked >= PATIENCE or (asked >= READING and has_machine_code(kernel))


def run(kernel: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Call a compiled kernel; print a notice if that means waiting for the compiler."""
    if kernel in _loaded:
        return kernel(*args, **kwargs)
    return _announced(kernel, COMPILE_CPU_S, *args, **kwargs)


def either(kernel: Callable[P, R], work: float, cpu_s: int = COMPILE_CPU_S) -> Callable[P, R]:
    """The function for a piece of `work` (see `compiled`): the compiled kernel or its plain twin.

    `cpu_s`: about how long compiling it takes, for the notice.
    """
    if kernel in _loaded:
        return kernel
    return partial(_announced, kernel, cpu_s) if compiled(kernel, work) else _plain(kernel)


def _announced(kernel: Callable[P, R], cpu_s: int, *args: P.args, **kwargs: P.kwargs) -> R:
    with _first(kernel, getattr(kernel, "__name__", str(kernel)), cpu_s):
        return kernel(*args, **kwargs)


_plain = cache(plain)


def waiting(kernel: Callable[..., object], what: str, cpu_s: int) -> AbstractContextManager[None]:
    """A context in which to call `kernel`: prints once that `what` is being compiled, which takes `cpu_s` seconds."""
    return _nothing if kernel in _loaded else _first(kernel, what, cpu_s)


@contextmanager
def _first(kernel: Callable[..., object], what: str, cpu_s: int) -> Iterator[None]:
    with announced(what, cpu_s):
        yield
    _loaded.add(kernel)
