"""How fast hosts and guests of GPUs are in a simulated cluster; tables and kernels against their references."""

import os
import random

import numpy as np
import pytest

from plait.core.cluster import Cluster
from plait.core.errors import InputError
from plait.core.jit import has_machine_code, plain
from plait.core.jobs import JobBatch, JobSpec
from plait.core.plan import Gate, Group, Groups, Member
from plait.core.resources import StageProfile
from plait.sharing.macro_model import HELD, Load, estimate
from plait.sim import neighbours, shared_gpu
from plait.sim.physics import StandardPhysics
from plait.sim.shared_gpu import LEAST_SHARE, GpuSharing
from reference import shared_gpu as reference

CLUSTER = Cluster.parse("1x4")


def batch(*profiles: StageProfile | None) -> JobBatch:
    return JobBatch.of(
        JobSpec(id=f"j{i}", profile=profile, iteration_s=1.0 if profile is None else None, iterations=10.0)
        for i, profile in enumerate(profiles)
    )


def paces(truth: JobBatch, *groups: tuple[int, tuple[int, ...], bool], **options: float) -> list[float]:
    """Seconds an iteration of each job of (job, GPUs, guest)."""
    there = Groups.of(Group((Member(job),), gpus, guest=guest) for job, gpus, guest in groups)
    physics = StandardPhysics(sharing=GpuSharing(**options))  # type: ignore[arg-type]
    return physics.iteration_s(truth, there, CLUSTER).tolist()


HALF = StageProfile.of(cpu=0.5, gpu=0.5)
BUSY = StageProfile.of(cpu=0.1, gpu=0.9)


def test_a_host_loses_and_a_guest_gets_what_the_macro_model_says_of_the_pair() -> None:
    for quantum_s, noise in ((0.002, 0.05), (0.02, 0.05), (0.002, 0.2)):
        host_s, guest_s = paces(
            batch(HALF, HALF), (0, (0,), False), (1, (0,), True), quantum_s=quantum_s, noise=noise
        )  # fmt: skip
        found = estimate(Load(1.0, 0.5, noise=noise), quantum_s, seconds=3600.0, counted=True)
        assert host_s == pytest.approx(found.slowdown)
        assert guest_s == pytest.approx(1.0 + 0.5 * (1 / (0.5 * found.slack_share) - 1), rel=1e-6)
        assert 1.0 < host_s <= 1.02
    assert paces(batch(HALF, HALF), (0, (0,), False), (1, (0,), True))[0] < 1.002


def test_without_a_host_a_guest_is_as_fast_as_alone_and_two_share_evenly() -> None:
    truth = batch(HALF, HALF, HALF)
    assert paces(truth, (0, (0,), True)) == [1.0]
    assert paces(truth, (0, (0,), True), (1, (0,), True)) == [1.5, 1.5]
    assert paces(truth, (0, (0,), False), (1, (1,), True)) == [1.0, 1.0]  # nobody shares anything


def test_a_gang_gets_what_it_gets_on_its_worst_gpu() -> None:
    truth = batch(HALF, BUSY, HALF).replace(gpus=np.array([1, 1, 2]))
    hosts = (0, (0,), False), (1, (1,), False)
    worst, better, best = (paces(truth, *hosts, (2, gpus, True))[-1] for gpus in ((0, 1), (0, 2), (2, 3)))
    part = estimate(Load(1.0, 0.9), 0.002, seconds=3600.0, counted=True).slack_share
    assert worst == pytest.approx(1.0 + 0.5 * (1 / (0.1 * part) - 1), rel=1e-6)
    assert 1.0 == best < better < worst


def test_stages_that_overlap_alone_overlap_beside_others() -> None:
    overlapped = StageProfile.from_sequence([0.0, 0.5, 0.5, 0.4], 1.0)
    truth = batch(overlapped, overlapped)
    assert paces(truth, (0, (0,), True), (1, (0,), True)) == [1.0, 1.0]  # half of a GPU is enough


LOADER = StageProfile.of(cpu=0.8, gpu=0.2)


def test_a_guest_gets_the_cores_that_its_host_leaves_and_two_guests_wait_for_each_other() -> None:
    apart = paces(batch(LOADER, LOADER), (0, (0,), False), (1, (0,), True), cores_apart=True)
    host_s, guest_s = paces(batch(LOADER, LOADER), (0, (0,), False), (1, (0,), True))
    assert (apart[0] < host_s, apart[1] < guest_s, host_s) == (True, True, 1.0 + HELD)
    assert 0.8 / host_s + 0.8 / guest_s == pytest.approx(1.0, abs=0.002)
    idle = StageProfile.of(storage=1.0)  # a host that leaves nothing: its guest makes no step, and costs it no more
    assert paces(batch(idle, idle), (0, (0,), False), (1, (0,), True)) == [
        1.0 + HELD,
        pytest.approx(1.0 / (1.0 - 1.0 / (1.0 + HELD)), rel=0.01),
    ]
    both = paces(batch(StageProfile.of(cpu=1.0), StageProfile.of(cpu=1.0)), (0, (0,), True), (1, (0,), True))
    assert both == pytest.approx([2.0, 2.0], rel=0.01)
    assert paces(batch(HALF, HALF), (0, (0,), False), (1, (0,), True)) == paces(
        batch(HALF, HALF), (0, (0,), False), (1, (0,), True), cores_apart=True
    )


def test_jobs_that_declare_few_cores_leave_the_others_theirs() -> None:
    truth = batch(LOADER, LOADER).replace(cpus=np.array([8.0, 8.0]))
    there = Groups.of([Group((Member(0),), (0,)), Group((Member(1),), (0,), guest=True)])
    nodes = Cluster.of(1, 4, cpus=64.0)
    pace_s, apart_s = (
        StandardPhysics(sharing=GpuSharing(cores_apart=apart)).iteration_s(truth, there, nodes)
        for apart in (False, True)
    )
    assert pace_s.tolist() == apart_s.tolist()
    assert (StandardPhysics().iteration_s(batch(LOADER, LOADER), there, nodes) > apart_s).all()


def test_a_stage_longer_than_the_iteration_holds_up_nobody_without_company_on_its_gpus() -> None:
    ahead = StageProfile.from_sequence([0.114, 0.0, 0.08, 0.0], 0.109)  # reads ahead while the GPU works
    times = paces(batch(ahead, HALF, HALF), (0, (0,), False), (1, (1,), False), (2, (1,), True))
    assert times[0] == 0.109


def test_a_host_without_a_profile_leaves_nothing() -> None:
    host_s, guest_s = paces(batch(None, HALF), (0, (0,), False), (1, (0,), True))
    assert host_s == 1.0
    assert guest_s == pytest.approx(0.5 + 0.5 / LEAST_SHARE)


def test_longer_quanta_leave_guests_less() -> None:
    short = StageProfile.of(cpu=0.1, gpu=0.1)
    truth = batch(short, HALF)
    times = [paces(truth, (0, (0,), False), (1, (0,), True), quantum_s=q)[1] for q in (0.001, 0.01, 0.05)]
    assert np.argsort(times).tolist() == [0, 1, 2]
    assert times[2] > 3 * times[0]


def test_without_guests_nothing_changes() -> None:
    assert paces(batch(HALF, BUSY), (0, (0,), False), (1, (1,), False)) == [1.0, 1.0]


@pytest.mark.parametrize("options", [{"noise": -0.1}, {"quantum_s": 0.0}, {"gaps": 0}])
def test_what_cannot_be_is_refused(options: dict[str, float]) -> None:
    with pytest.raises(InputError):
        GpuSharing(**options)  # type: ignore[arg-type]


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
