"""Stage gates decide when a job may use a resource that it shares with the others of its group.

    null      at once; counts only                     alone, or resources to spare
    tokens    one job a slot, in order, by quantum     default                                   (`tokens`)
    barrier   lock step: in slot s turn i has resource (s + i) mod k                              (`barrier`)

The agent creates the files of a group and writes the place of each process to control.json; the process opens its gate:

    group = make_group(folder, "tokens", members, version=3)              # members: job, turn, world size
    control = {"version": 8, "epoch": 2, "group": group.control(job=12, rank=0)}
    gate = open_gate(control, page)                                       # in the process
    gate.enter(Resource.GPU); ...; gate.leave(Resource.GPU)

The entry "group" of control.json: {"id", "dir", "index" of the member, "rank", "gate", "version", "quantum_s",
"lease_s", "rest_s", "capacities": [4], "members": [{"job", "turn", "world"}]}; without it, or null, the job is alone.

Gates only pace; they never protect. If a gate fails (files gone, a newer plan, a wait without end), the job continues
without one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plait.runtime.barrier import BarrierGate
from plait.runtime.group_files import Group, GroupError, GroupMember, group_of, make_group, remove_group
from plait.runtime.page import GATES, Page
from plait.runtime.stage_gate import DEFAULT_TIMEOUT_S, GateError, GateStats, GateTimeout, NullGate, StageGate
from plait.runtime.tokens import TokenGate

__all__ = [
    "DEFAULT_TIMEOUT_S",
    "GATES",
    "BarrierGate",
    "GateError",
    "GateStats",
    "GateTimeout",
    "Group",
    "GroupError",
    "GroupMember",
    "NullGate",
    "StageGate",
    "TokenGate",
    "make_group",
    "open_gate",
    "remove_group",
]


def open_gate(control: Mapping[str, Any], page: Page | None = None) -> StageGate:
    """Open the gate of `control`, the contents of control.json; if that fails, the null gate with a `reason`.

    Writes the gate in effect, and the version of its plan, to `page`.
    """
    entry = control.get("group")
    gate: StageGate = NullGate()
    if entry and entry.get("gate", "none") != "none":
        try:
            group = group_of(entry)
            index, rank = int(entry.get("index", 0)), int(entry.get("rank", 0))
            if not (0 <= index < len(group.members) and 0 <= rank < group.members[index].world_size):
                raise GroupError(f"group {group.folder.name} has no process {rank} of member {index}")
            gate = (TokenGate if group.gate == "tokens" else BarrierGate)(group, index, rank)
        except (GroupError, OSError) as error:
            gate = NullGate(str(error))
    if page is not None:
        page.gate = GATES.index(gate.kind)
        page.gate_version = gate.version if gate.version else int((entry or {}).get("version", 0))
    return gate
