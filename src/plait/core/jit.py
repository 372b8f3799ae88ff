"""The one place that knows about the compiler.

`kernel` compiles a function with Numba when the extra `[sim]` is installed and leaves it as plain Python
otherwise; both give the same results. Set `NUMBA_DISABLE_JIT=1` to force plain Python.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar, cast

P = ParamSpec("P")
R = TypeVar("R")

try:
    import numba
except ImportError:
    HAVE_NUMBA = False
else:
    HAVE_NUMBA = True


def kernel(function: Callable[P, R]) -> Callable[P, R]:
    """Compile `function` if a compiler is there; machine code is cached on disk.

    A kernel may call kernels of its own file only: the cache is renewed when that file changes, and does not
    look at other files.
    """
    if not HAVE_NUMBA:
        return function
    return cast("Callable[P, R]", numba.njit(cache=True)(function))
