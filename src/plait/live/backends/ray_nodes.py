"""Which nodes of a Ray cluster plait uses, what they are called there, and how many GPUs they have."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
NAME, SLOTS, RACK = "plait/node", "plait/slots", "plait/rack"


@dataclass(frozen=True)
class RayNode:
    """A node of Ray that plait uses. `real`: its GPUs are GPUs, not slots."""

    id: str
    name: str
    gpus: int
    real: bool
    rack: int
    kind: str | None
    address: str

    @property
    def executor(self) -> str:
        """What the actor on it is called; another one when the node comes back as another node of Ray."""
        return f"executor-{self.name}-{self.id[:8]}"


def name_nodes(found: Sequence[Mapping[str, Any]], taken: Mapping[str, str], slots: int | None) -> dict[str, RayNode]:
    """The living nodes that have something to give, by name.

    `found` as the bridge gives them, `taken` the names that nodes of Ray (by id) have already and keep, `slots` those
    of nodes that neither have GPUs nor say how many. The name is the label plait/node, else the host's name, with the
    beginning of its id if two nodes share it. Of two that claim one label, the one that has it keeps it until it is
    dead: so a raylet that was started again takes over once Ray has noticed.

    >>> node = {"id": "ab12cd34ef", "alive": True, "host": "box", "address": "1.2.3.4", "gpus": 2, "kind": None}
    >>> name_nodes([node | {"labels": {}}], {}, None)["box"].executor
    'executor-box-ab12cd34'
    >>> list(name_nodes([node | {"labels": {}}, node | {"id": "99zz88yy", "labels": {}}], {}, None))
    ['box-99zz88yy', 'box-ab12cd34']
    """
    usable = [(item, size) for item in found if item["alive"] and (size := _size(item, slots))[0] > 0]
    hosts = Counter(str(item["host"]) for item, _ in usable if not _label(item))
    named: dict[str, RayNode] = {}
    # whoever has a name already comes first; then by id, so that every look gives the same
    for item, (gpus, real) in sorted(usable, key=lambda pair: (pair[0]["id"] not in taken, pair[0]["id"])):
        name = taken.get(item["id"]) or _label(item) or _plain(item, hosts)
        if name in named:
            continue
        rack = str(item["labels"].get(RACK, "0"))
        kind = item["kind"] if item["kind"] and _NAME.fullmatch(item["kind"]) else None
        named[name] = RayNode(
            item["id"], name, gpus, real, int(rack) if rack.isdigit() else 0, kind, str(item["address"])
        )
    return named


def _label(item: Mapping[str, Any]) -> str | None:
    name = item["labels"].get(NAME)
    return str(name) if name and _NAME.fullmatch(str(name)) else None


def _plain(item: Mapping[str, Any], hosts: Counter[str]) -> str:
    host = re.sub(r"[^A-Za-z0-9._-]", "-", str(item["host"]))[:50].lstrip("._-") or "node"
    return host if hosts[str(item["host"])] == 1 else f"{host}-{item['id'][:8]}"


def _size(item: Mapping[str, Any], slots: int | None) -> tuple[int, bool]:
    """How many GPUs or slots; whether they are GPUs. A label of 0 keeps plait away from a node."""
    label = str(item["labels"].get(SLOTS, ""))
    if label.isdigit():
        return int(label), False
    if item["gpus"] > 0:
        return int(item["gpus"]), True
    return slots or 0, False
