"""The tables and kernels of groups that share GPUs do what their references do, compiled or not."""

from __future__ import annotations

import os
import random

import numpy as np
import pytest

from plait.core.jit import has_machine_code, plain
from plait.core.jobs import JobBatch, JobSpec
from plait.core.plan import Gate, Group, Groups, Member
from plait.core.resources import StageProfile
from plait.sim import neighbours, shared_gpu
from reference import shared_gpu as reference

KERNELS = neighbours.connected, neighbours.enter, neighbours.drop, shared_gpu.host_loads, shared_gpu.beside_others


@pytest.fixture(params=[False, True], ids=["plain", "compiled"], autouse=True)
def _either(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Call kernels as plain Python, then compiled where that takes no time."""
    if request.param and not (os.environ.get("PLAIT_SLOW") or all(map(has_machine_code, KERNELS))):
        pytest.skip("compiles for 5 s, or lacks the extra [sim]; set PLAIT_SLOW=1")
    for module in (neighbours, shared_gpu):
        monkeypatch.setattr(module, "either", lambda kernel, *_: kernel if request.param else plain(kernel))


def drawn_group(chance: random.Random, jobs: list[int], gpus: list[int]) -> Group:
    """A host of some jobs that take turns, or a guest."""
    guest = chance.random() < 0.6
    turns = chance.random() < 0.5
    return Group(tuple(Member(job, turn=turns * i) for i, job in enumerate(jobs)), tuple(sorted(gpus)),
                 Gate.NONE if guest else chance.choice(list(Gate)), guest)  # fmt: skip


@pytest.mark.parametrize("seed", range(10))
def test_groups_that_share_gpus_are_found_whoever_came_and_left(seed: int) -> None:
    chance, running, number = random.Random(seed), list[Group](), 0
    tables = neighbours.GpuNeighbours()
    for _ in range(60):
        if running and chance.random() < 0.4:
            at = chance.randrange(len(running))
            group, member = running[at], chance.choice(running[at].members)
            rest = tuple(one for one in group.members if one is not member)
            running[at : at + 1] = [Group(rest, group.gpus, group.gate, group.guest)] if rest else []
            others = any(not set(group.gpus).isdisjoint(one.gpus) for one in running)
            assert tables.leave(member.job) == others
            assert not tables.leave(member.job)
        else:
            jobs = list(range(number, number + chance.choice([1, 1, 2, 3])))
            number += len(jobs)
            running.append(drawn_group(chance, jobs, chance.sample(range(24), chance.choice([1, 1, 2, 5]))))
            tables.put(Groups.of(running[-1:]))
            assert [tables.is_guest(job) for job in jobs] == [running[-1].guest] * len(jobs)
        seeds = chance.sample(range(24), chance.randint(1, 3))
        found = list(tables.around(np.array(seeds)))
        assert sorted(map(str, found)) == sorted(map(str, reference.around(running, seeds)))


@pytest.mark.parametrize("seed", range(10))
def test_paces_are_those_of_the_reference(seed: int) -> None:
    chance = random.Random(seed)
    specs, rows = list[JobSpec](), list[Group]()
    hosts: set[int] = set()
    for _ in range(12):
        gpus, guest = chance.sample(range(10), chance.choice([1, 1, 2, 4])), chance.random() < 0.6
        if guest or hosts.isdisjoint(gpus):
            hosts |= set() if guest else set(gpus)
            jobs = list(range(len(specs), len(specs) + chance.choice([1, 1, 2])))
            rows.append(Group(tuple(map(Member, jobs)), tuple(sorted(gpus)), guest=guest))
            for job in jobs:
                gpu_s, cpu_s = chance.uniform(0.05, 1.0), chance.uniform(0.0, 1.0)
                profile = StageProfile.of(cpu=cpu_s, gpu=gpu_s) if chance.random() < 0.8 else None
                step_s = max(gpu_s, cpu_s) if chance.random() < 0.5 else gpu_s + cpu_s
                specs.append(JobSpec(id=f"j{job}", gpus=len(gpus), iterations=1.0, iteration_s=step_s, profile=profile))
    truth, groups = JobBatch.of(specs), Groups.of(rows)
    if groups.guest is None:
        groups.guest = np.zeros(len(groups), dtype=np.bool_)
    alone = truth.iteration_s * np.array([chance.uniform(1.0, 1.5) for _ in specs])
    law = shared_gpu.GpuSharing(gaps=chance.choice([1, 3]))
    assert law.iteration_s(truth, groups, alone).tolist() == reference.iteration_s(law, truth, groups, alone)
