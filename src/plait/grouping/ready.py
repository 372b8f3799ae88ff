"""Whether to wait for the compiler: small problems never do, and a long run of small ones does once.

The compiled and the plain way give the same bits, so this choice shows in time only.
"""

from __future__ import annotations

from collections.abc import Callable

#: Work (groups times members, or jobs) that is worth loading or compiling a kernel for, alone or summed up.
PATIENCE = 20_000

_done: dict[str, int] = {}


def compiled(kernel: Callable[..., object], work: int) -> bool:
    """Whether to call `kernel` (True) or its plain twin for a piece of `work`.

    A kernel that is loaded is always used; without a compiler it never is.
    """
    signatures = getattr(kernel, "signatures", None)
    if signatures is None:
        return False
    if signatures:
        return True
    name = kernel.__name__
    _done[name] = _done.get(name, 0) + work
    return _done[name] >= PATIENCE
