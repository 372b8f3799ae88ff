"""Compilation of kernels; but for `part_compiler` no other module uses the compiler.

`kernel` compiles a function with Numba when the extra `[sim]` is installed and leaves it as plain Python otherwise;
both give the same results. `part` is for functions that only kernels call, `linked` and `lean_part` for kernels that
call kernels of other files, and `as_part` for kernels that others call as well. Set `NUMBA_DISABLE_JIT=1` to force
plain Python.

A slow compilation runs inside `announced`, which informs the user. Where the problem is small its `plain` twin answers
sooner than a compiler could; `has_machine_code` returns whether one must.
"""

from __future__ import annotations

import gc
import hashlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, ParamSpec, TypeVar, cast

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


try:
    import numba
    from numba.core import event
    from numba.extending import register_jitable
except ImportError:
    HAVE_NUMBA = False
else:
    HAVE_NUMBA = True

#: What the compiler imports to see whether there is a BLAS. No kernel needs one, and SciPy takes 0.14 s.
_BLAS = "scipy.linalg.cython_blas"
if HAVE_NUMBA and _BLAS not in sys.modules:
    sys.modules[_BLAS] = None  # type: ignore[assignment]
    try:
        from numba.np import arraymath

        arraymath._HAVE_BLAS = find_spec("scipy") is not None
    finally:
        del sys.modules[_BLAS]

#: Options of kernels and parts that make no arrays: their machine code counts no references.
_LEAN: dict[str, Any] = {"_nrt": False}
if HAVE_NUMBA:
    try:
        numba.njit(**_LEAN)(lambda: None)
    except Exception:  # a compiler without that option: the same results, more slowly
        _LEAN = {}
#: Options of linked kernels and of their parts.
_LINKED: dict[str, Any] = dict(_LEAN)
_PART: dict[str, Any] = {"no_cfunc_wrapper": True, **_LEAN}
_WITH_ARRAYS: dict[str, Any] = {"no_cfunc_wrapper": True}
if HAVE_NUMBA:
    try:
        from plait.core import part_compiler

        if part_compiler.supported():
            _PART["pipeline_class"] = _WITH_ARRAYS["pipeline_class"] = part_compiler.PartCompiler
            _LINKED["pipeline_class"] = part_compiler.KernelCompiler
    except ImportError:  # a compiler with other insides: the same results, after a longer time
        pass


def kernel(function: Callable[P, R]) -> Callable[P, R]:
    """Compile `function` if a compiler is there; machine code is cached on disk.

    A kernel may call kernels and parts of its own file only: the cache is renewed when that file changes, and does not
    look at other files. `linked` is for the others.
    """
    if not HAVE_NUMBA:
        return function
    return cast("Callable[P, R]", numba.njit(cache=True)(function))


def long_kernel(function: Callable[P, R]) -> Callable[P, R]:
    """Compile as `kernel` does a function that may take longer than 50 ms: other threads of Python run meanwhile.

    The service answers requests in another thread than the one that decides.
    """
    if not HAVE_NUMBA:
        return function
    return cast("Callable[P, R]", numba.njit(cache=True, nogil=True)(function))


def part(function: Callable[P, R]) -> Callable[P, R]:
    """Mark a part of kernels of the same file: compiled when they call it, plain Python for other callers.

    The compiler takes about a third less time for it than for a kernel: it needs no way in from Python, no place on
    disk of its own, and no second version where an argument is a constant.
    """
    if not HAVE_NUMBA:
        return function
    return register_jitable(**_WITH_ARRAYS)(function)


#: Module -> files of the modules whose kernels and parts its kernels call, by themselves or through others.
_CALLED: dict[str, set[str]] = {}


def linked(*modules: ModuleType, nogil: bool = False) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Compile as `kernel` does a function that also calls kernels and parts of these `modules`.

    `nogil`: other threads of Python run meanwhile, which costs each call a little.

    Their machine code becomes a part of its own, so its cache is renewed when one of their files changes, or a file
    that they themselves are linked with.

    The function and all that it calls make no arrays, nor copies or reductions of any. So references need no counting,
    which takes two thirds of the time of small functions with many arrays. Its parts are `lean_part`.
    """

    def compiled(function: Callable[P, R]) -> Callable[P, R]:
        called = _CALLED.setdefault(function.__module__, set())
        for module in modules:
            called |= {str(module.__file__), *_CALLED.get(module.__name__, ())}
        if not HAVE_NUMBA:
            return function
        made: Any = numba.njit(cache=True, nogil=nogil, **_LINKED)(function)
        if not hasattr(made, "py_func"):  # compilation is switched off
            return function
        contents = hashlib.sha256(b"".join(Path(name).read_bytes() for name in sorted(called))).hexdigest()
        try:
            files = made._cache._cache_file
            files._source_stamp = (files._source_stamp, contents)
        except AttributeError:  # a compiler that keeps it elsewhere: nothing on disk is better than what is outdated
            made = numba.njit(nogil=nogil, **_LINKED)(function)
        return cast("Callable[P, R]", made)

    return compiled


def lean_part(function: Callable[P, R]) -> Callable[P, R]:
    """Mark a part of `linked` kernels, of the same file or of a file that they are linked with. It makes no arrays."""
    if not HAVE_NUMBA:
        return function
    return register_jitable(**_PART)(function)


def as_part(function: Callable[P, R]) -> Callable[P, R]:
    """A `linked` kernel as a part of others, which have no use for its way in from Python and its place on disk."""
    return lean_part(function.py_func) if hasattr(function, "py_func") else function


def by_reference(value: T) -> T:
    """Return a named tuple of arrays such that passing it on to parts costs a kernel nothing.

    Without it each call of a part takes the arrays apart and puts them together again, seven numbers an array: of a
    hundred arrays and seventy parts the compiler has 18 MB of code to optimise instead of 3. The tuple may only be
    read, by attribute, and not be returned from where it is made.
    """
    return value


if HAVE_NUMBA and "pipeline_class" in _LINKED:
    part_compiler.refer(by_reference)
else:
    lean_part(by_reference)


@contextmanager
def announced(what: str, cpu_s: int) -> Iterator[None]:
    """Print once to standard error that `what` is being compiled, if anything in the block has to be.

    Silent when the machine code is in memory, on disk, or not wanted. `cpu_s` is about how long it takes.
    """
    if not HAVE_NUMBA:
        yield
        return

    class Say(event.Listener):
        said = False

        def on_start(self, event: object) -> None:
            if not self.said:
                print(f"plait: compiling {what}, about {cpu_s} s, once; later runs find it on disk", file=sys.stderr)
                gc.disable()  # a tenth of the time: the compiler makes many objects that it keeps
            self.said = True

        def on_end(self, event: object) -> None:
            """Required by Numba; nothing to do."""

    collects = gc.isenabled()
    try:
        with event.install_listener("numba:compile", Say()):
            yield
    finally:
        if collects:
            gc.enable()


def has_machine_code(function: Callable[P, R]) -> bool:
    """Whether machine code of a kernel, for any types, is in memory or was on disk at the first call."""
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

    There is no public call for this: should the private one change, the answer is no, which is safe.
    """
    try:
        index = function._cache._cache_file._load_index()
        target = function.targetctx.codegen().magic_tuple()
        return any(key[1] == target for key in index)
    except (AttributeError, IndexError, OSError, TypeError):
        return False
