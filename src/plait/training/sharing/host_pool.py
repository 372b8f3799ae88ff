"""Pinned memory of the host for what does not fit on the device: a pool that torch takes from where its own is full.

AntMan's universal memory (Xiao et al., OSDI 2020) with means of torch: a `torch.cuda.MemPool(use_on_oom=True)` over an
allocator of pinned, mapped memory. Kernels read it over the bus by an ordinary pointer; a tensor that was put there
stays until it is freed, and the next step is on the device again if there is room.

torch takes only blocks that the pool has cached already, by stream and by size class, so the arena is allocated at
once: small blocks (torch keeps requests of up to 1 MiB apart) and one large block for the current stream, and the same
in little for each other stream that the script has used so far. Without small blocks all 512 requests of 512 bytes and
64 KiB failed on a full H100 (torch 2.11), with 1 GiB of the arena free. The allocator is some lines of C over the
driver. Wheels have it compiled (`hatch_build.py`); elsewhere a compiler makes it. Without either, or with a torch that
lacks the option, there is no pool and `HostPoolError` says why.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from plait.core.errors import InputError, PlaitError
from plait.core.files import OWNER_ONLY, replace_file

VARIABLE = "PLAIT_HOST_POOL_GB"
DEFAULT_GB = 4.0
_SOURCE = Path(__file__).with_name("host_allocator.c")
SHIPPED = _SOURCE.with_suffix(".so")

#: Requests of up to this size come from blocks that torch keeps apart.
_SMALL_BYTES = 1 << 20
#: Of the arena: the part in small blocks (at most 64 MiB a stream), and that of all streams but the current one.
_SMALL_PART, _OTHERS_PART, _MOST_SMALL_BYTES = 1 / 16, 1 / 4, 64 << 20


class HostPoolError(PlaitError):
    """There can be no pool; says why."""


def arena_bytes(environ: Any = os.environ) -> int:
    """How large the pool is to be, by `PLAIT_HOST_POOL_GB` (GiB; 0: none). Raises `InputError` for no such number."""
    text = environ.get(VARIABLE) or str(DEFAULT_GB)
    try:
        size = float(text)
        if not 0 <= size < 1e6:
            raise ValueError
    except ValueError:
        raise InputError(f"{VARIABLE} is {text!r}, needs GiB of pinned host memory a job may use, as in 4") from None
    return int(size * 2**30)


def build_allocator(folder: Path | None = None) -> Path:
    """The compiled allocator: that of the wheel, or one made once for each user.

    Raises `HostPoolError` without a compiler.
    """
    if SHIPPED.exists():
        return SHIPPED
    cache = folder or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "plait"
    library = cache / f"host_allocator-{_SOURCE.stat().st_mtime_ns:x}.so"
    if library.exists():
        return library
    compiler = next(filter(None, map(shutil.which, (os.environ.get("CC") or "cc", "gcc", "clang"))), None)
    if compiler is None:
        raise HostPoolError("no C compiler (cc, gcc or clang) to build the allocator of pinned memory with")
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as scratch:
            made = Path(scratch) / "made.so"
            command = [compiler, "-O2", "-shared", "-fPIC", "-o", str(made), str(_SOURCE), "-ldl", "-lpthread"]
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
            replace_file(library, made.read_bytes(), mode=OWNER_ONLY)
    except (OSError, subprocess.SubprocessError) as error:
        said = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
        raise HostPoolError(f"the allocator of pinned memory cannot be built: {said[-1] if said else error}") from None
    return library


class HostPool:
    """An arena of pinned memory that torch's allocator falls back to."""

    def __init__(self, cuda: Any, size_bytes: int, library: Path) -> None:
        """Allocate the arena; `cuda`: torch.cuda, initialised. Raises `HostPoolError` if this torch cannot."""
        self.size_bytes = size_bytes
        try:
            self._allocator = cuda.memory.CUDAPluggableAllocator(str(library), "plait_host_alloc", "plait_host_free")
            self._pool = cuda.MemPool(self._allocator.allocator(), use_on_oom=True)
        except (AttributeError, TypeError, RuntimeError) as error:
            raise HostPoolError(f"this torch has no pool that is used when the device is full: {error}") from None
        try:
            with cuda.use_mem_pool(self._pool):
                self._reserve(cuda, size_bytes)
        except (AttributeError, RuntimeError) as error:
            raise HostPoolError(f"{size_bytes / 2**30:.1f} GiB of host memory cannot be pinned: {error}") from None

    @staticmethod
    def _reserve(cuda: Any, size_bytes: int) -> None:
        """Allocate the arena and free it, back into the pool in use."""
        current = cuda.current_stream()
        others = _other_streams(cuda, current)
        shares = [(current, 1 - (_OTHERS_PART if others else 0))]
        shares += [(stream, _OTHERS_PART / len(others)) for stream in others]
        for stream, share in shares:
            with cuda.stream(stream):
                _reserve_blocks(cuda, int(size_bytes * share))


def _reserve_blocks(cuda: Any, size_bytes: int) -> None:
    """Allocate small blocks and a large one for the current stream, all at once, and free them."""
    import torch

    device = f"cuda:{cuda.current_device()}"
    count = int(min(size_bytes * _SMALL_PART, _MOST_SMALL_BYTES)) // _SMALL_BYTES
    sizes = [_SMALL_BYTES] * count + [size_bytes - count * _SMALL_BYTES]
    blocks = [torch.empty(size, dtype=torch.uint8, device=device) for size in sizes]
    del blocks


def _other_streams(cuda: Any, current: Any) -> list[Any]:
    """Streams of the current device that have allocated memory, without the current one."""
    segments = cuda.memory.memory_snapshot()
    handles = {one["stream"] for one in segments if one["device"] == cuda.current_device()}
    return [
        cuda.ExternalStream(handle) if handle else cuda.default_stream()
        for handle in sorted(handles - {current.cuda_stream})
    ]
