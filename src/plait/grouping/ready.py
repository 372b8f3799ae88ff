"""Whether to wait for the compiler: small problems never do, and a long run of small ones does once.

The compiled and the plain way give the same bits, so this choice shows in time only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from plait.core.jit import announced, has_machine_code

P = ParamSpec("P")
R = TypeVar("R")

#: Jobs that are worth compiling a kernel for, asked for at once or one call after the other.
PATIENCE = 20_000
COMPILE_CPU_S = 2

_asked: dict[str, int] = {}


def compiled(kernel: Callable[..., object], work: int) -> bool:
    """Whether to call `kernel` compiled for a piece of `work`, a number of jobs weighted by what is done with each.

    True as soon as its machine code is in memory or on disk; never without a compiler.
    """
    signatures = getattr(kernel, "signatures", None)
    if signatures is None:
        return False
    if signatures:
        return True
    name = kernel.__name__
    _asked[name] = _asked.get(name, 0) + work
    return _asked[name] >= PATIENCE or has_machine_code(kernel)


def run(kernel: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Call a compiled kernel, and say so if that means waiting for the compiler."""
    if getattr(kernel, "signatures", None):
        return kernel(*args, **kwargs)
    with announced(f"grouping ({kernel.__name__})", COMPILE_CPU_S):
        return kernel(*args, **kwargs)
