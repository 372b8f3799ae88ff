"""Short digests of values, of the variables of a script, and of the random streams of a process."""

from __future__ import annotations

import hashlib
import os
import random
import sys
import sysconfig
import types
from collections import deque
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from plait.training.state import random_streams

#: Larger tensors and arrays are read at this many places.
SAMPLED = 1 << 20
#: Values of one container, and containers within containers.
MOST, DEEPEST = 2000, 4
_SCALARS = (bool, int, float, complex, str, bytes, type(None))
_OWN = str(Path(__file__).resolve().parents[2])


class NoValue(Exception):
    """The object holds no data that could be compared."""


def digest(value: Any) -> str:
    """Sixteen hexadecimal digits for a value; raises `NoValue` for functions, files, iterators and the like."""
    made = hashlib.blake2b(digest_size=8)
    _add(made, value, 0)
    return made.hexdigest()


def streams_digest() -> str:
    """Of Python's, NumPy's and torch's random streams."""
    return digest(random_streams.capture())


def script_variables() -> dict[str, tuple[str, str]]:
    """Variables of the script's frames and modules that hold data: {name: (digest, text)}.

    Frames of installed packages and of plait are left out. The variables of an inner frame hide those of an outer one.
    """
    found: dict[str, tuple[str, str]] = {}
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        if _of_script(frame.f_code.co_filename):
            for space in (frame.f_locals, frame.f_globals):
                for name, value in list(space.items()):
                    if name not in found and not name.startswith("__"):
                        found.update(_parts(name, value))
        frame = frame.f_back
    return found


def unsaved_buffers(name: str, module: Any) -> Iterator[tuple[str, str]]:
    """(path, digest) of the buffers of a module that its `state_dict` leaves out."""
    if hasattr(module, "named_modules"):
        for inner, part in module.named_modules():
            for buffer in sorted(getattr(part, "_non_persistent_buffers_set", ())):
                if part._buffers.get(buffer) is not None:
                    yield ".".join(filter(None, (name, inner, buffer))), digest(part._buffers[buffer])


def _parts(name: str, value: Any) -> Iterator[tuple[str, tuple[str, str]]]:
    try:
        yield name, (digest(value), _text(value))
        for path, made in unsaved_buffers(name, value):
            yield path, (made, "a buffer with persistent=False")
    except NoValue:
        pass
    except Exception:  # a property or a state_dict of the script that fails has nothing to compare
        pass


@cache
def _of_script(file: str) -> bool:
    """True for a file that is neither of plait, nor of Python, nor an installed package."""
    path = os.path.abspath(file)
    installed = {sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib", "purelib", "platlib")}
    inside = any(path.startswith(folder + os.sep) for folder in (_OWN, *installed) if folder)
    return not inside and not (file.startswith("<") and file not in ("<string>", "<stdin>"))


def _text(value: Any) -> str:
    """A value in a few words."""
    if isinstance(value, _SCALARS):
        return repr(value)[:60]
    if isinstance(value, list | tuple | dict | set | deque):
        return f"{type(value).__name__} of {len(value)}"
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        return repr(value.item())[:60]
    shape = getattr(value, "shape", None)
    kind = type(value).__name__
    return f"{kind} of shape {tuple(shape)}" if isinstance(shape, tuple) else kind


def _add(made: Any, value: Any, depth: int) -> None:
    """Add a value to the hash `made`; raises `NoValue`."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if isinstance(value, _SCALARS):
        made.update(f"{type(value).__name__} {value!r};".encode())
    elif hasattr(torch, "Tensor") and isinstance(value, torch.Tensor):  # type: ignore[union-attr]
        _add_tensor(made, value)
    elif hasattr(numpy, "ndarray") and isinstance(value, (numpy.ndarray, numpy.generic)):  # type: ignore[union-attr]
        array = value.reshape(-1)
        made.update(f"{value.dtype} {value.shape};".encode())
        array = array[:: max(array.size // SAMPLED, 1)]
        made.update(repr(array.tolist()).encode() if array.dtype.hasobject else array.tobytes())
    elif depth >= DEEPEST or isinstance(value, type | types.ModuleType) or _is_loader(value):
        raise NoValue
    elif isinstance(value, Mapping):
        for key in list(value)[:MOST]:
            _add(made, key if isinstance(key, _SCALARS) else repr(key), depth + 1)
            _add_inner(made, value[key], depth)
    elif isinstance(value, list | tuple | deque):
        made.update(f"{type(value).__name__} {len(value)};".encode())
        for item in list(value)[-MOST:]:
            _add_inner(made, item, depth)
    elif isinstance(value, set | frozenset):
        made.update(repr(sorted(map(repr, value))[:MOST]).encode())
    elif isinstance(value, random.Random):
        made.update(repr(value.getstate()).encode())
    else:
        _add_object(made, value, depth)


def _add_inner(made: Any, value: Any, depth: int) -> None:
    try:
        _add(made, value, depth + 1)
    except NoValue:
        made.update(type(value).__name__.encode())


def _add_object(made: Any, value: Any, depth: int) -> None:
    """An object by its own state: `state_dict()`, that of a generator, or the attributes of a class of the script."""
    if callable(getattr(value, "state_dict", None)):
        _add(made, value.state_dict(), depth)
    elif callable(getattr(value, "get_state", None)):
        _add(made, value.get_state(), depth)
    elif hasattr(value, "bit_generator"):
        _add(made, value.bit_generator.state, depth)
    elif hasattr(value, "__dict__") and _of_script(_file_of(type(value))) and not callable(value):
        made.update(type(value).__name__.encode())
        for name, inner in sorted(vars(value).items()):
            made.update(name.encode())
            _add_inner(made, inner, depth)
    else:
        raise NoValue


def _add_tensor(made: Any, value: Any) -> None:
    import torch

    flat = value.detach()
    flat = (flat.to_dense() if flat.layout != torch.strided else flat).reshape(-1)
    flat = flat[:: max(flat.numel() // SAMPLED, 1)].cpu().contiguous()
    made.update(f"{value.dtype} {tuple(value.shape)};".encode())
    if flat.numel():
        made.update(flat.view(torch.uint8).numpy().tobytes())


def _is_loader(value: Any) -> bool:
    """True for loaders, whose position the batches show."""
    return any(kind.__name__ == "DataLoader" for kind in type(value).__mro__) or hasattr(value, "_passes")


def _file_of(kind: type) -> str:
    return getattr(sys.modules.get(kind.__module__), "__file__", None) or "<none>"
