"""Names of running groups: one that keeps a member on the same GPUs keeps its name, and each change gets a version."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from plait.control.controller import Controller
from plait.core.codec.values import Codec, row
from plait.core.errors import PlaitError
from plait.core.plan import Gate, Group
from plait.core.resources import Resource
from plait.live.protocol.wire import GroupInfo, Mate
from plait.live.scheduler.records.attempts import Attempt
from plait.runtime.gate_choice import choose_gate

QUANTUM_S = 0.01
#: Groups and their members as lists of their values.
_WRITE, _READ = row(Codec(own={Mate: row(Codec(), Mate)}), GroupInfo)


class GroupBook:
    """Groups by the GPUs that they hold: `of_job` has the place of each job, `by_job` its group.

    `by_gpus` has the groups that are no guests, whose GPUs (of the cluster) are theirs alone but for guests; `shared`
    has the jobs on each GPU with guests.
    """

    def __init__(self) -> None:
        self.by_gpus: dict[tuple[int, ...], GroupInfo] = {}
        self.of_job: dict[int, tuple[int, ...]] = {}
        self.by_job: dict[int, GroupInfo] = {}
        self.shared: dict[int, tuple[int, ...]] = {}
        self.made = 0

    @property
    def guests(self) -> set[int]:
        return {job for job, group in self.by_job.items() if group.guest}

    def group_of(self, attempt: Attempt) -> GroupInfo | None:
        """The group on the GPUs of an attempt: its own if it is a guest there, otherwise the one that holds them."""
        return self.by_job.get(attempt.job) if attempt.guest else self.by_gpus.get(attempt.gpus)

    def update(self, controller: Controller, per_gpu: Callable[[int], int] = lambda job: 1) -> None:
        """Follow the controller: groups lose the jobs that have left. `per_gpu`: processes of a job on a GPU."""
        columns, running = controller.job_store.columns, controller.running
        new: dict[tuple[int, ...], GroupInfo] = {}
        of_job: dict[int, tuple[int, ...]] = {}
        by_job: dict[int, GroupInfo] = {}
        names: set[str] = set()
        group_of = columns["running_group"]
        for index in range(len(running)):
            group = running[index]
            members = [m for m in group.members if group_of[m.job] == index]
            if not members:
                continue
            world_sizes = [len(group.gpus) * per_gpu(m.job) for m in members]
            there = Group(tuple(members), group.gpus, group.gate, group.guest)
            named = self._named(there, columns, world_sizes, names)
            names.add(named.id)
            if not group.guest:
                new[group.gpus] = named
            for member in members:
                of_job[member.job], by_job[member.job] = group.gpus, named
        self.by_gpus, self.of_job, self.by_job = new, of_job, by_job
        self._note_shared()

    def _note_shared(self) -> None:
        lent = {gpu for job in self.guests for gpu in self.of_job[job]}
        self.shared = {}
        for job, gpus in self.of_job.items() if lent else ():
            for gpu in lent.intersection(gpus):
                self.shared[gpu] = (*self.shared.get(gpu, ()), job)

    def _named(
        self, group: Group, columns: Mapping[str, Any], world_sizes: list[int], names: Collection[str]
    ) -> GroupInfo:
        """Name a group; `names` are taken: guests on the same GPUs may part."""
        jobs = [m.job for m in group.members]
        before = (self.by_job[job] for job in jobs if self.of_job.get(job) == group.gpus)
        old = next((one for one in before if one.id not in names), None)
        asked = [m.turn for m in group.members]
        if old is not None and old.guest == group.guest and _same(old, jobs, asked, group.gate):
            return old
        gate, turns = choose(group, columns)
        mates = [Mate(job, turn, size) for job, turn, size in zip(jobs, turns, world_sizes, strict=True)]
        if old is not None:
            if old.members == mates and old.gate == gate and old.guest == group.guest:
                return old
            return GroupInfo(old.id, gate, QUANTUM_S, mates, old.version + 1, group.guest)
        self.made += 1
        return GroupInfo(f"g{self.made}", gate, QUANTUM_S, mates, guest=group.guest)

    def to_json(self) -> dict[str, Any]:
        places = {group.id: (self.of_job[job], group) for job, group in self.by_job.items()}
        groups = [[list(gpus), *_WRITE(group)] for gpus, group in places.values()]
        return {"made": self.made, "groups": groups}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> GroupBook:
        """The book that `to_json` wrote."""
        book = cls()
        book.made = int(data["made"])
        for gpus, *values in data["groups"]:
            group = _READ(values)
            if not group.guest:
                book.by_gpus[tuple(gpus)] = group
            book.of_job.update({m.job: tuple(gpus) for m in group.members})
            book.by_job.update({m.job: group for m in group.members})
        book._note_shared()
        return book


def _same(old: GroupInfo, jobs: list[int], turns: list[int], gate: Gate) -> bool:
    """Whether nothing changed of a job that is alone: others are compared after the gate was chosen."""
    return len(jobs) == 1 and [m.job for m in old.members] == jobs and old.gate == "none"


def choose(group: Group, columns: Mapping[str, Any]) -> tuple[str, list[int]]:
    """The gate of a group and its members' turns, from their stage times where the plan leaves it open.

    A group planned for lock step runs by barrier or tokens, whatever the stage times make faster (runtime, 3.2).
    """
    turns = [m.turn for m in group.members]
    if len(group.members) == 1 or group.gate is Gate.NONE:
        return "none", turns
    jobs = [m.job for m in group.members]
    stage_s, iteration_s = columns["stage_s"][jobs], columns["iteration_s"][jobs]
    if group.gate is not Gate.BARRIER or np.isnan(stage_s).any() or np.isnan(iteration_s).any():
        return group.gate.name.lower(), turns
    try:
        choice = choose_gate(stage_s.reshape(len(jobs), len(Resource)).tolist(), iteration_s.tolist())
    except PlaitError:
        return "barrier", turns  # more jobs than resources, or unusable times: as planned
    return str(choice.gate), [int(t) for t in choice.turns]
