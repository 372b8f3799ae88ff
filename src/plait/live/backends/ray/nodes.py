"""Which nodes of a Ray cluster plait uses, what they are called there, and how many GPUs they have."""

from __future__ import annotations

import re
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
        """Name of the actor on it; another one when the node comes back as another node of Ray."""
        return f"executor-{self.name}-{self.id[:8]}"


def name_nodes(found: Sequence[Mapping[str, Any]], taken: Mapping[str, str], slots: int | None) -> dict[str, RayNode]:
    """The living nodes that have something to give, by name.

    `found` as the bridge gives them, `taken` the names that nodes of Ray (by id) have already, `slots` of nodes that
    report neither GPUs nor slots. Of two that claim one name, the one that has it keeps it until it is dead: so a
    raylet that was started again takes over once Ray has noticed. The other one is not used: under a name made up for
    it, which the next look may give differently, there would be two agents on the same GPUs.

    >>> node = {"id": "ab12cd34ef", "alive": True, "host": "box", "address": "1.2.3.4", "gpus": 2, "kind": None}
    >>> name_nodes([node | {"labels": {}}], {}, None)["box"].executor
    'executor-box-ab12cd34'
    >>> second = node | {"id": "99zz88yy77"}
    >>> list(name_nodes([node | {"labels": {}}, second | {"labels": {"plait/node": "box-2"}}], {}, None))
    ['box-2', 'box']
    """
    named: dict[str, RayNode] = {}
    # nodes with a name already come first; then by id, so that every look gives the same
    for item in sorted(found, key=lambda item: (item["id"] not in taken, item["id"])):
        name, (gpus, real) = name_of(item), _size(item, slots)
        if name in named or not item["alive"] or gpus == 0:
            continue
        rack = str(item["labels"].get(RACK, "0"))
        kind = item["kind"] if item["kind"] and _NAME.fullmatch(item["kind"]) else None
        named[name] = RayNode(
            item["id"], name, gpus, real, int(rack) if rack.isdigit() else 0, kind, str(item["address"])
        )
    return named


def passed_over(found: Sequence[Mapping[str, Any]], named: Mapping[str, RayNode], slots: int | None) -> list[str]:
    """A sentence for each living node of `found` with resources that is not in `named` because its name is taken.

    `slots`: CPU slots per node.
    """
    used = {node.id for node in named.values()}
    return [
        f"the raylet {item['id'][:8]} at {item['address']} is not used, since another one is {name_of(item)} already; "
        "give it a name of its own: ray start --labels plait/node=NAME"
        for item in found
        if item["alive"] and item["id"] not in used and _size(item, slots)[0] > 0
    ]


def name_of(item: Mapping[str, Any]) -> str:
    """The label plait/node, otherwise the host's name: a returning node gets the same name from every caller.

    >>> name_of({"labels": {"plait/node": "n7"}, "host": "gpu box"}), name_of({"labels": {}, "host": "gpu box"})
    ('n7', 'gpu-box')
    """
    label = str(item["labels"].get(NAME) or "")
    if _NAME.fullmatch(label):
        return label
    return re.sub(r"[^A-Za-z0-9._-]", "-", str(item["host"]))[:63].lstrip("._-") or "node"


def _size(item: Mapping[str, Any], slots: int | None) -> tuple[int, bool]:
    """How many GPUs or slots; whether they are GPUs. A label of 0 keeps plait away from a node."""
    label = str(item["labels"].get(SLOTS, ""))
    if label.isdigit():
        return int(label), False
    if item["gpus"] > 0:
        return int(item["gpus"]), True
    return slots or 0, False
