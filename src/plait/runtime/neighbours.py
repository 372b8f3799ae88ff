"""The neighbours of a process on its GPU: the entry "sharing" of control.json.

    "sharing": {"guest": true, "hosts": ["/run/.../page.bin"], "gate": true}

The agent writes it (`Neighbours.control`), the training library reads it (`neighbours_of`). If it is missing or null,
the process has its GPU to itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plait.core.errors import InputError


@dataclass(frozen=True)
class Neighbours:
    """The role of a process on its GPU, and its neighbours.

    guest   whether it is opportunistic: limited to a share, and running only while its agent renews `Page.share_until`
    hosts   page files of the guaranteed processes on the same GPU
    gate    whether a guest starts GPU work only while no host is in its GPU stage
    """

    guest: bool = False
    hosts: tuple[Path, ...] = ()
    gate: bool = True

    def control(self) -> dict[str, Any]:
        """The entry for control.json."""
        return {"guest": self.guest, "hosts": [str(path) for path in self.hosts], "gate": self.gate}


def neighbours_of(control: Mapping[str, Any]) -> Neighbours | None:
    """The neighbours in `control`, the contents of control.json; None without any. Raises `InputError` if invalid.

    >>> neighbours_of({"sharing": {"guest": True, "hosts": ["/run/page.bin"]}}).hosts
    (PosixPath('/run/page.bin'),)
    """
    entry = control.get("sharing")
    if entry is None:
        return None
    if not isinstance(entry, Mapping):
        raise InputError(f"sharing in control.json is {entry!r}, needs an object such as {Neighbours().control()}")
    guest, hosts, gate = entry.get("guest", False), entry.get("hosts", []), entry.get("gate", True)
    for name, value in (("guest", guest), ("gate", gate)):
        if not isinstance(value, bool):
            raise InputError(f"sharing.{name} in control.json is {value!r}, needs true or false")
    if not isinstance(hosts, list) or not all(isinstance(path, str) and path for path in hosts):
        raise InputError(f"sharing.hosts in control.json is {hosts!r}, needs a list of page files")
    return Neighbours(guest, tuple(map(Path, hosts)), gate)
