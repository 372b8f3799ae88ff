"""Managers of switch memory by name. Start at `make_manager`."""

from __future__ import annotations

from collections.abc import Mapping

from plait.core.errors import InputError, suggest
from plait.network.memory.inalloc import Inalloc
from plait.network.memory.manager import Manager
from plait.network.memory.partition import EqualPartition
from plait.network.memory.shared import Esa, Shared
from plait.network.topology.fields import placed, read_options, split_options

#: Name -> manager.
MANAGERS: Mapping[str, type[Manager]] = {
    "equal": EqualPartition,
    "shared": Shared,
    "esa": Esa,
    "inalloc": Inalloc,
}
#: System -> the manager of its memory.
OF_PROTOCOL: Mapping[str, str] = {
    "switchml": "equal",
    "atp": "shared",
    "a2tp": "shared",
    "esa": "esa",
    "inalloc": "inalloc",
}


def make_manager(text: str) -> Manager:
    """A manager from `NAME[:option=value,...]`.

    Raises `InputError` for an unknown name or option, or a value out of range.

    >>> make_manager("inalloc:margin=1.2,on_infeasible=notify").margin
    1.2
    """
    name, values, where = split_options(text, "memory manager", "inalloc:margin=1.2")
    if name not in MANAGERS:
        raise InputError(f"{where}: {name!r} is unknown; {suggest(name, MANAGERS)}")
    return placed(lambda: read_options(MANAGERS[name], values, where), where)
