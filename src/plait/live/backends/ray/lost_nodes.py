"""Nodes that a Ray cluster has lost: reported to the service until it has recorded them."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from plait.live.backends.ray.nodes import name_of
from plait.live.client.client import Refused

if TYPE_CHECKING:
    from plait.live.client.client import Client


class Gone:
    """By name, until the service does not have them any more."""

    def __init__(self) -> None:
        self._why: dict[str, str] = {}  # Ray's reasons of their deaths; empty without a reason
        self._told: set[str] = set()
        self._dead: set[str] = set()  # ids of Ray's, each of which counts once

    def note(self, found: Sequence[Mapping[str, Any]], before: Iterable[str], now: Collection[str]) -> None:
        """Compare two looks at the nodes: `found` as the bridge gives them, and the names of nodes used before and now.

        A restarted head may not know earlier nodes, which does not prove that they are dead.
        """
        dead = {item["id"]: item for item in found if not item["alive"]}
        died = [item for number, item in dead.items() if number not in self._dead]
        self._dead = set(dead)
        self._why = dict.fromkeys(before, "") | self._why
        self._why |= {name_of(item): item["why"] or "the node is dead" for item in died}
        self._why = {name: why for name, why in self._why.items() if name not in now}
        self._told &= set(self._why)

    def tell(self, service: Client) -> list[str]:
        """Report lost nodes; return messages. Raises any error of the client; the next poll reports everything again.

        Nodes that a user drained stay in the service's list: they would come back without that.
        """
        there: dict[str, Any] = {node["id"]: node for node in service.nodes()} if self._why else {}
        said = []
        for name, why in list(self._why.items()):
            node = there.get(name)
            lost = node is not None and node["state"] in ("lost", "left")
            if node is None or (lost and node["drained"]):
                del self._why[name]
            elif lost and not node["gpus_used"]:
                with contextlib.suppress(Refused):  # something may still run there: retried
                    service.forget_node(name)
                    said.append(f"node {name} is gone")
            elif why and not lost and (name not in self._told or node["state"] == "suspect"):
                with contextlib.suppress(Refused):  # forgotten meanwhile
                    service.node_gone(
                        name, f"Ray: {why}", certain=False
                    )  # its agent may live; if suspect again: the leader may be another by now
                said += [] if name in self._told else [f"Ray reports that {name} is dead"]
                self._told.add(name)
        return said
