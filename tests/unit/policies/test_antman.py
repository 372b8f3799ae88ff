"""AntMan's global scheduler alone: views made by hand, plans that take effect at once."""

from __future__ import annotations

import math
import os
import random
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from plait.control.job_store import JobStore
from plait.control.plan_check.capacity import refuse_overfull
from plait.core.cluster import Cluster
from plait.core.errors import InputError
from plait.core.jit import has_machine_code, plain
from plait.core.jobs import Checkpoints, JobBatch, JobClass, JobSpec, JobTable, Phase
from plait.core.plan import NO_GROUPS, Groups, Plan, Reservation
from plait.core.policy import Usage, View
from plait.core.resources import StageProfile
from plait.policies import guest_walk, guest_walk_kernels
from plait.policies.antman import AntMan
from plait.policies.catalog import make_policy
from plait.sim.run import simulate
from plait.sim.world import make_world
from plait_papers.antman.workload import Workload, jobs_of
from reference import guest_walk as reference

G, O, A = JobClass.GUARANTEED, JobClass.OPPORTUNISTIC, JobClass.AUTO  # noqa: E741 - one letter each
#: As in the paper: nobody starts on reserved GPUs, no guaranteed job is preempted, guests do not age.
PUBLISHED: dict[str, Any] = {"order": "fifo", "backfill": False, "crowding": False, "guest_age_s": math.inf}
HALF = StageProfile.of(cpu=0.5, gpu=0.5)  # keeps its GPUs busy half of the time


@dataclass
class House:
    """Jobs on a cluster under a policy whose plans take effect at once."""

    policy: AntMan
    cluster: Cluster
    now_s: float = 0.0
    store: JobStore = field(default_factory=JobStore)
    running: Groups = NO_GROUPS
    reservations: tuple[Reservation, ...] = ()
    usage: Usage | None = None
    plan: Plan = field(default_factory=lambda: Plan(NO_GROUPS))

    def submit(self, *specs: JobSpec) -> House:
        self.store.append(JobBatch.of(replace(s, submit_s=self.now_s) for s in specs), 0.0)
        return self

    def view(self) -> View:
        phase = self.store.columns["phase"][: self.store.count]
        active = np.flatnonzero(phase <= int(Phase.RUNNING))
        table = JobTable(self.store.columns, active, self.now_s, 0.0, self.store)
        return View(
            self.now_s, self.cluster, table, self.running, reservations=self.reservations, usage=self.usage
        )  # fmt: skip

    def decide(self, after_s: float = 1.0) -> Plan:
        self.now_s += after_s
        plan, columns = self.policy.decide(self.view()), self.store.columns
        before = {m.job: g.gpus for g in self.running for m in g.members}
        changed = np.array([any(before.get(m.job) != g.gpus for m in g.members) for g in plan.groups], dtype=np.bool_)
        refuse_overfull(plan.groups, changed, columns["gpu_memory_bytes"], self.cluster, self.store.name, "antman")
        columns["running_group"][:] = -1
        waiting = columns["phase"] <= int(Phase.RUNNING)
        columns["phase"][waiting] = int(Phase.WAITING)
        for i, group in enumerate(plan.groups):
            for member in group.members:
                columns["running_group"][member.job], columns["phase"][member.job] = i, int(Phase.RUNNING)
                if before.get(member.job) != group.gpus:
                    columns["last_start_s"][member.job] = self.now_s
                    columns["slow_since_s"][member.job] = math.nan
        self.running, self.reservations, self.plan = plan.groups, plan.reservations, plan
        return plan

    def finish(self, job: int) -> House:
        self.store.columns["phase"][job] = int(Phase.FINISHED)
        self.store.columns["running_group"][job] = -1
        return self

    def gpus(self, guests: bool | None = None) -> dict[int, tuple[int, ...]]:
        return {
            m.job: g.gpus for g in self.running for m in g.members if guests is None or g.guest is guests
        }  # fmt: skip


def job(name: str, gpus: int = 1, klass: JobClass = G, profile: StageProfile | None = HALF, **more: Any) -> JobSpec:
    return JobSpec(
        id=name, gpus=gpus, job_class=klass, profile=profile, iterations=1000.0, iteration_s=1.0, **more
    )  # fmt: skip


def house(cluster: str = "2x4", **options: Any) -> House:
    return House(AntMan(**{**PUBLISHED, **options}), Cluster.parse(cluster))


# -- guaranteed jobs -----------------------------------------------------------------------------------------


def test_a_gang_gets_the_fewest_nodes_then_the_fewest_guests_then_the_least_room() -> None:
    here = house("3x4")
    here.submit(job("one", 1)).decide()
    assert here.gpus() == {0: (0,)}
    here.submit(job("four", 4)).decide()
    assert here.gpus()[1] == (4, 5, 6, 7)
    here.submit(job("two", 2)).decide()
    assert here.gpus()[2] == (1, 2)  # not a whole node broken for it
    here.submit(job("guest", 2, O), job("three", 3)).decide()
    assert here.gpus(guests=True) == {3: (3, 11)}  # the idle ones; hosts chose first
    assert here.gpus()[4] == (8, 9, 10)


def test_hosts_avoid_guests_where_that_costs_no_node() -> None:
    here = house("2x4")
    here.submit(job("guest", 4, O)).decide()
    here.submit(job("host", 4)).decide()
    assert here.gpus() == {0: (0, 1, 2, 3), 1: (4, 5, 6, 7)}
    here.submit(job("late", 4)).decide()
    assert here.gpus()[2] == (0, 1, 2, 3)  # and never wait for one
    assert here.gpus(guests=True) == {0: (0, 1, 2, 3)}


def test_a_gang_that_needs_two_nodes_stays_in_a_rack() -> None:
    here = house("4x4@2")
    here.submit(job("one", 4), job("pair", 8)).decide()
    assert here.gpus()[1] == tuple(range(8, 16))


def test_a_gang_that_does_not_fit_holds_what_there_is_and_guests_use_it() -> None:
    here = house()
    here.submit(job("small", 2)).decide()
    here.submit(job("whole", 8), job("later", 1), job("guest", 4, O)).decide()
    assert here.gpus() == {0: (0, 1), 3: (4, 5, 6, 7)}
    assert here.reservations == (Reservation(1, (2, 3, 4, 5, 6, 7)),)
    assert here.plan.reasons[1] == "needs 8 GPUs; 6 are reserved for it until the rest is free"
    assert here.plan.reasons[2] == "needs 1 GPU; all are held, or reserved for jobs ahead of it"
    here.finish(0).decide()
    assert here.gpus(guests=False) == {1: tuple(range(8))}
    assert here.reservations == ()
    assert here.gpus(guests=True) == {3: (4, 5, 6, 7)}  # not stopped for it


def test_a_gang_of_guests_next_to_hosts_is_on_one_node() -> None:
    """Its ranks can pause together only there; over several nodes it would make no step."""
    here = house("2x4")
    here.submit(job("wide", 6, O)).decide()
    assert here.gpus() == {0: (0, 1, 2, 3, 4, 5)}
    here.submit(job("host", 3), job("late", 3), job("narrow", 4, O)).decide()
    assert here.gpus(guests=False) == {1: (4, 6, 7), 2: (0, 1, 2)}
    assert here.gpus(guests=True) == {3: (0, 1, 2, 3)}
    assert here.plan.reasons[0].startswith(
        "needs 6 GPUs to share; a guaranteed job needs memory or cores that it used, or"
    )
    here.decide()
    assert here.plan.reasons[0].endswith("; a gang shares GPUs with guaranteed jobs on one node only")


def test_who_has_a_reservation_goes_first_from_then_on() -> None:
    here = house("1x4")
    here.submit(job("a", 1, project="a"), job("b", 1, project="b")).decide()
    here.submit(job("wide", 4, project="a")).decide()
    here.finish(1).submit(job("b2", 1, project="b")).decide()  # b uses less now, and its job would fit
    assert 3 not in here.gpus()
    assert here.reservations == (Reservation(2, (1, 2, 3)),)


def test_projects_take_turns_by_what_they_use() -> None:
    here = house("1x4")
    here.submit(*(job(f"a{i}", 1, project="a") for i in range(4)), *(job(f"b{i}", 1, project="b") for i in range(4)))
    here.decide()
    assert sorted(here.gpus()) == [0, 1, 4, 5]


def test_quotas_hold_and_count_in_order() -> None:
    here = house(quota=(("a", "", 4),))
    here.submit(job("a0", 2, project="a"), job("a1", 4, project="a"), job("a2", 2, project="a"), job("b", 1)).decide()
    assert sorted(here.gpus()) == [0, 3]  # a2 does not slip past a1, which would never start
    assert "the quota of project a is used up" in here.plan.reasons[1]
    here.submit(job("a3", 8, project="a")).decide()
    assert "more than the quota of project a ever allows" in here.plan.reasons[4]
    here.finish(0).decide()
    assert 1 in here.gpus()
    assert 2 not in here.gpus()


def test_kinds_have_quotas_of_their_own_and_gangs_one_kind() -> None:
    here = house("1x4:v100,1x4:a100", quota=(("*", "v100", 2),))
    here.submit(job("a", 3), job("b", 2), job("c", 2)).decide()
    assert here.gpus() == {0: (4, 5, 6), 1: (0, 1)}
    assert "quota" in here.plan.reasons[2] or "reserved" in here.plan.reasons[2]


@pytest.mark.parametrize("order", ["srsf", "tiresias", "fifo"])
def test_backfill_knows_durations_only_if_they_are_exact(order: str) -> None:
    """Two GPUs of four are reserved for a gang; a short job may use it only if its duration is known."""
    for knows, runs in (("exact", [0, 2]), ("predicted", [0]), ("nothing", [0])):
        here = house("1x4", order=order, knows=knows, backfill=True)
        here.submit(job("first", 2)).decide()
        here.submit(replace(job("gang", 4), iterations=1.0)).decide()
        here.submit(replace(job("short"), iterations=20.0)).decide()
        assert sorted(here.gpus()) == runs, knows


def test_other_orders() -> None:
    here = house("1x1", order="srtf")
    here.submit(job("long"), replace(job("short"), iterations=10.0)).decide()
    assert sorted(here.gpus()) == [1]
    here = house("1x4", order="srsf")
    here.submit(job("wide", 4), replace(job("narrow"), iterations=3000.0)).decide()
    assert sorted(here.gpus()) == [1]
    here = house("1x1", order="srsf", knows="nothing")
    here.submit(replace(job("served"), iterations=10.0), job("new"))
    here.store.columns["attained_gpu_s"][0] = 100.0
    here.decide()
    assert sorted(here.gpus()) == [1]
    here = house("1x1", order="tiresias")
    here.submit(job("served"), job("new"))
    here.store.columns["attained_gpu_s"][0] = 1e6
    here.decide()
    assert sorted(here.gpus()) == [1]


# -- preemption among guaranteed jobs ------------------------------------------------------------------------

LONG_GPU_S = 1e6  # in the last queue


def test_a_job_takes_gpus_back_from_those_of_later_queues_as_few_as_it_needs() -> None:
    here = house("1x4", order="tiresias")
    here.submit(job("one"), job("two", 2), job("new one"), job("guest", 1, O)).decide()
    here.store.columns["attained_gpu_s"][:2] = LONG_GPU_S
    here.submit(job("late", 2)).decide()
    assert here.gpus(guests=False) == {0: (0,), 2: (3,), 4: (1, 2)}  # GPUs of "two", which is enough
    assert 1 in here.plan.reasons
    here.finish(4).decide()
    assert here.gpus(guests=False)[1] == (1, 2)


def test_equal_queues_preempt_nobody_nor_does_another_order() -> None:
    here = house("1x2", order="tiresias")
    here.submit(job("first", 2)).decide()
    here.submit(job("second", 2)).decide()
    assert here.gpus() == {0: (0, 1)}
    here.policy = replace(here.policy, order="srtf")
    here.submit(replace(job("short", 2), iterations=1.0)).decide()
    assert here.gpus() == {0: (0, 1)}


def test_nobody_is_stopped_for_a_job_that_could_not_start_even_then() -> None:
    here = house("1x4", order="tiresias")
    here.submit(job("served", 2), job("new")).decide()
    here.store.columns["attained_gpu_s"][0] = LONG_GPU_S
    here.submit(job("wide", 4)).decide()
    assert here.gpus(guests=False) == {0: (0, 1), 1: (2,)}
    assert here.reservations == (Reservation(2, (3,)),)
    here.finish(1).decide()
    assert here.gpus(guests=False) == {2: (0, 1, 2, 3)}


def test_a_job_that_cannot_resume_is_not_preempted() -> None:
    here = house("1x1", order="tiresias")
    here.submit(job("plain", checkpoints=Checkpoints.NEVER)).decide()
    here.store.columns["attained_gpu_s"][0] = LONG_GPU_S
    here.submit(job("new")).decide()
    assert here.gpus() == {0: (0,)}


def test_a_job_makes_room_in_the_quota_of_its_project_too() -> None:
    here = house("1x4", order="tiresias", quota=(("a", "", 2),))
    here.submit(job("a0", 2, project="a"), job("b0", 1, project="b")).decide()
    here.store.columns["attained_gpu_s"][:2] = LONG_GPU_S
    here.submit(job("a1", 1, project="a")).decide()
    assert here.gpus(guests=False) == {1: (2,), 2: (0,)}  # b0 holds none of the quota


def test_a_preempted_job_starts_again_in_the_end_and_stops_are_few() -> None:
    """Ten short jobs beside three long ones: each stops one, and two stop as the long ones change queues."""
    long = [job(f"long{i}", 4) for i in range(3)]
    specs = [replace(one, iterations=80_000.0) for one in long]
    specs += [replace(job(f"short{i}", 4), iterations=300.0, submit_s=60_000.0 + 2_000.0 * i) for i in range(10)]
    done = simulate(JobBatch.of(specs), Cluster.parse("1x8"), make_policy("antman"), make_world("plait"), check=True)
    columns = done.controller.job_store.columns
    assert np.isfinite(columns["end_s"][:13]).all()
    jct_s = columns["end_s"][3:13] - columns["submit_s"][3:13]
    assert (jct_s < 1_000.0).all()
    assert columns["preemptions"][:13].tolist() == [0, 11, 1] + [0] * 10


# -- behind reservations -------------------------------------------------------------------------------------


def test_a_job_that_ends_before_a_reservation_is_complete_starts_on_its_gpus() -> None:
    here = house("2x4", backfill=True)
    here.submit(job("running", 2)).decide()  # ends in 1000 s
    here.submit(
        job("wide", 8), replace(job("long"), iterations=1001.0), replace(job("short", 4), iterations=999.0),
        replace(job("last", 2), iterations=10.0),
    ).decide()  # fmt: skip
    assert sorted(here.gpus()) == [0, 3]
    assert len(here.reservations) == 1
    assert len(here.reservations[0].gpus) == 2  # the reservation keeps one at least, so "last" does not fit after one
    assert here.plan.reasons[1] == "needs 8 GPUs; 2 are reserved for it until the rest is free"


def test_a_job_may_leave_enough_instead_of_ending_in_time() -> None:
    here = house("2x4", backfill=True)
    here.submit(job("four", 4), replace(job("two", 2), iterations=5000.0)).decide()
    here.submit(job("wide", 5), replace(job("long"), iterations=9e9), replace(job("too"), iterations=9e9)).decide()
    assert sorted(here.gpus()) == [0, 1, 3]  # in 1000 s there are six, and the wide one needs five
    here.finish(0).decide()
    assert len(here.gpus(guests=False)[2]) == 5


@pytest.mark.parametrize("unknown", ["running", "short"])
def test_nothing_starts_on_reserved_gpus_without_known_ends(unknown: str) -> None:
    here = house("2x4", backfill=True)
    here.submit(job("running", 2)).decide()
    here.submit(job("wide", 8), replace(job("short", 2), iterations=10.0))
    here.store.columns["iterations"][{"running": 0, "short": 2}[unknown]] = math.nan
    here.decide()
    assert sorted(here.gpus()) == [0]


def test_a_quota_is_filled_behind_the_job_that_waits_for_it() -> None:
    here = house(quota=(("a", "", 4),), backfill=True)
    here.submit(job("a0", 2, project="a")).decide()
    here.submit(
        job("a1", 4, project="a"), replace(job("a2", 1, project="a"), iterations=2000.0),
        replace(job("a3", 1, project="a"), iterations=500.0),
    ).decide()  # fmt: skip
    assert sorted(here.gpus()) == [0, 3]
    here.finish(0).finish(3).decide()
    assert sorted(here.gpus()) == [1]


def test_a_job_of_another_kind_leaves_the_quota_that_a_reservation_claims() -> None:
    here = house("1x4:v100,1x4:a100", quota=(("a", "", 5),), backfill=True)
    here.submit(job("other", 2, gpu_kinds=("v100",))).decide()
    here.submit(
        job("wide", 4, project="a", gpu_kinds=("v100",)),
        replace(job("long", 2, project="a", gpu_kinds=("a100",)), iterations=2000.0),
        replace(job("short", 2, project="a", gpu_kinds=("a100",)), iterations=500.0),
    ).decide()  # fmt: skip
    assert sorted(here.gpus()) == [0, 3]
    here.finish(0).finish(3).decide()
    assert sorted(here.gpus()) == [1]


# -- ageing of guests ----------------------------------------------------------------------------------------


def test_a_guest_that_waited_long_counts_as_a_guaranteed_job_submitted_later() -> None:
    full = StageProfile.of(gpu=1.0)
    here = house("1x2", guest_age_s=100.0)
    here.submit(job("host", 2, profile=full)).decide(0.0)
    here.submit(job("guest", 2, O), job("before", 1, profile=full)).decide(0.0)
    assert here.plan.valid_until_s == 100.0
    here.submit(job("soon", 1, profile=full)).decide(50.0)
    here.decide(60.0)
    here.submit(job("late", 1, profile=full)).finish(0).decide()
    assert here.gpus() == {2: (0,), 3: (1,)}
    here.finish(2).decide()
    assert here.gpus() == {3: (1,)}
    assert [one.job for one in here.reservations] == [1]
    here.finish(3).decide()
    assert here.gpus(guests=False) == {1: (0, 1)}  # a host, ahead of the one that came 110 s after it
    here.decide(1000.0)
    assert here.gpus(guests=False) == {1: (0, 1)}


def test_an_aged_guest_that_had_its_turn_goes_behind_guaranteed_jobs() -> None:
    here = house("1x2", guest_age_s=100.0, order="tiresias")
    here.submit(job("host", 2, profile=StageProfile.of(gpu=1.0)), job("guest", 2, O)).decide(0.0)
    here.decide(200.0)
    here.finish(0).decide()
    assert here.gpus(guests=False) == {1: (0, 1)}
    here.submit(job("late", 2)).decide()
    assert here.gpus(guests=False) == {1: (0, 1)}
    here.store.columns["attained_gpu_s"][1] = LONG_GPU_S
    here.decide()
    assert here.gpus(guests=False) == {2: (0, 1)}


# -- opportunistic jobs --------------------------------------------------------------------------------------


def test_guests_go_on_the_least_used_gpus_below_the_limit_all_or_nothing() -> None:
    here = house("1x4")
    busy, idle = StageProfile.of(cpu=0.1, gpu=0.9), StageProfile.of(cpu=0.7, gpu=0.3)
    here.submit(job("busy", 1, profile=busy), job("half", 1), job("idle", 1, profile=idle)).decide()
    here.submit(job("three", 3, O), job("four", 4, O)).decide()
    assert here.gpus(guests=True) == {3: (1, 2, 3)}
    assert here.plan.reasons[4].startswith("needs 4 GPUs to share; every GPU is 80% busy, short of memory")
    here.finish(3).submit(job("one", 1, O)).decide()
    assert here.gpus(guests=True) == {5: (3,)}


def test_a_guest_goes_where_hosts_leave_the_storage_and_cores_that_it_needs() -> None:
    loads, trains = StageProfile.of(storage=0.9, gpu=0.1), StageProfile.of(cpu=0.3, gpu=0.7)
    for crowding, places in ((False, {2: (0,), 3: (1,)}), (True, {2: (1,), 3: (0,)})):
        here = house("1x2", crowding=crowding)
        here.submit(job("loads", profile=loads), job("trains", profile=trains)).decide()
        here.submit(job("reads", 1, O, profile=loads), job("computes", 1, O, profile=trains)).decide()
        assert here.gpus(guests=True) == places
    here.submit(job("third", 1, O, profile=loads)).finish(2).finish(3).finish(1).decide()
    assert here.gpus(guests=True) == {4: (1,)}
    reasons = here.submit(job("fourth", 1, O, profile=loads), job("host", profile=loads)).decide().reasons
    assert reasons.keys() == {5}
    assert "every GPU is 80% busy (GPU, storage or cores), short of memory" in reasons[5]


def test_a_job_with_cores_of_its_own_competes_for_none() -> None:
    here = house("1x1", crowding=True)
    busy = StageProfile.of(cpu=0.9, gpu=0.1)
    here.submit(job("host", profile=busy, cpus=2), job("guest", 1, O, profile=busy, cpus=2)).decide()
    assert here.gpus(guests=True) == {1: (0,)}


def test_a_job_without_a_profile_counts_as_measured() -> None:
    here = house("1x2")
    here.submit(job("unknown", 1, profile=None), job("other", 1, profile=None)).decide()
    here.submit(job("guest", 1, O)).decide()
    assert here.gpus(guests=True) == {}
    nothing = np.zeros(0)
    for busy, guests in (([0.9], {}), ([0.9, 0.3], {2: (1,)})):  # the second GPU came after the first report
        here.usage = Usage(np.array(busy), np.zeros(len(busy)), np.zeros(0, dtype=np.int64), *[nothing] * 4)
        here.decide()
        assert here.gpus(guests=True) == guests


def test_several_guests_share_a_gpu_if_asked_to() -> None:
    light = StageProfile.of(cpu=0.9, gpu=0.1)
    for most, started in ((1, 1), (3, 3), (0, 0)):
        here = house("1x1", max_per_gpu=most)
        here.submit(*(job(f"g{i}", 1, O, light) for i in range(4))).decide()
        assert len(here.gpus(guests=True)) == started


def test_memory_decides_who_fits_and_a_host_takes_it_from_a_guest() -> None:
    cluster = Cluster.of(1, 2, gpu_memory_bytes=16_000_000_000)
    here = House(AntMan(**PUBLISHED), cluster)
    here.submit(job("host", 1, gpu_memory_bytes=10e9), job("guest", 1, O, gpu_memory_bytes=10e9)).decide()
    assert here.gpus() == {0: (0,), 1: (1,)}
    here.submit(job("second", 1, O, gpu_memory_bytes=5e9)).decide()
    assert here.gpus(guests=True) == {1: (1,), 2: (0,)}
    here.submit(job("late", 1, gpu_memory_bytes=8e9)).decide()
    assert here.gpus(guests=False) == {0: (0,), 3: (1,)}
    assert 1 not in here.gpus()
    assert "a guaranteed job needs memory or cores" in here.plan.reasons[1]


def test_a_guest_that_may_not_be_stopped_keeps_its_memory() -> None:
    cluster = Cluster.of(1, 1, gpu_memory_bytes=16_000_000_000)
    here = House(AntMan(**PUBLISHED), cluster)
    here.submit(job("guest", 1, O, gpu_memory_bytes=10e9, checkpoints=Checkpoints.NEVER)).decide()
    here.submit(job("host", 1, gpu_memory_bytes=8e9)).decide()
    assert here.gpus() == {0: (0,)}


def shared_gpus(gpus: int, *jobs: JobSpec, **options: Any) -> House:
    """These jobs on GPUs of 16 GB."""
    here = House(AntMan(**options), Cluster.of(1, gpus, gpu_memory_bytes=16_000_000_000))
    here.submit(*jobs).decide()
    return here


def memory(here: House) -> dict[int, float]:
    """What the groups allow their members, gigabytes; 0: all that they ask for."""
    return {m.job: m.gpu_memory_bytes / 1e9 for g in here.running for m in g.members}


def test_guests_that_run_with_all_their_memory_have_it_also_if_less_is_enough_for_new_ones() -> None:
    here = shared_gpus(1, job("first", 1, O, gpu_memory_bytes=10e9), max_per_gpu=2)
    here.policy = AntMan(max_per_gpu=2, least_memory=0.5)
    here.submit(job("second", 1, O, gpu_memory_bytes=12e9)).decide()
    assert memory(here) == {0: 0.0}  # 10 and 6 GB and two contexts are more than 16 GB
    here.submit(job("third", 1, O, gpu_memory_bytes=8e9)).decide()
    assert memory(here) == {0: 0.0, 2: 4.0}
    here.finish(0).decide()
    assert memory(here) == {1: 6.0, 2: 4.0}


def test_a_guest_that_runs_with_part_of_its_memory_stays_also_if_new_ones_get_all() -> None:
    two = (job("host", 1, gpu_memory_bytes=8e9), job("guest", 1, O, gpu_memory_bytes=10e9))
    here = shared_gpus(1, *two, least_memory=0.5)
    here.policy = AntMan()
    here.decide()
    assert memory(here) == {0: 0.0, 1: 5.0}
    assert here.gpus() == {0: (0,), 1: (0,)}


def test_a_guest_that_a_host_displaces_goes_elsewhere_with_part_of_its_memory() -> None:
    two = (job("host", 1, gpu_memory_bytes=8e9), job("guest", 1, O, gpu_memory_bytes=10e9))
    here = shared_gpus(2, *two)
    assert here.gpus() == {0: (0,), 1: (1,)}
    here.policy = AntMan(least_memory=0.5)
    here.submit(job("late", 1, gpu_memory_bytes=7e9)).decide()
    assert here.gpus() == {0: (0,), 1: (0,), 2: (1,)}
    assert memory(here) == {0: 0.0, 1: 5.0, 2: 0.0}


def test_guests_that_came_first_stay_where_fewer_are_allowed_from_now_on() -> None:
    here = house("1x2", max_per_gpu=2)
    here.submit(*(job(f"guest{i}", gpus, O) for i, gpus in enumerate((1, 1, 2)))).decide()
    assert here.gpus(guests=True) == {0: (0,), 1: (1,), 2: (0, 1)}
    here.policy = AntMan(max_per_gpu=1)
    here.decide()
    assert here.gpus(guests=True) == {0: (0,), 1: (1,)}
    assert 2 in here.plan.reasons


def test_an_auto_job_is_a_guest_until_it_can_be_promoted_where_it_runs() -> None:
    here = house("1x4", quota=(("p", "", 2),))
    here.submit(job("host", 2, project="p"), job("auto", 2, A, project="p")).decide()
    assert here.gpus(guests=True) == {1: (2, 3)}
    here.finish(0).decide()
    assert here.gpus(guests=False) == {1: (2, 3)}


def test_an_auto_job_is_promoted_once_no_host_is_on_its_gpus() -> None:
    here = house("1x2")
    here.submit(job("host", 2), job("auto", 2, A)).decide()
    assert here.gpus(guests=True) == {1: (0, 1)}
    here.finish(0).submit(job("late", 2)).decide()
    assert here.gpus(guests=False) == {1: (0, 1)}  # it was there first


def test_an_auto_job_waits_as_long_as_it_is_told_to() -> None:
    here = house("1x2", auto_after_s=60.0)
    here.submit(job("host", 2), job("auto", 1, A)).decide(0.0)
    assert here.gpus() == {0: (0, 1)}
    assert here.plan.valid_until_s == 60.0
    here.decide(60.0)
    assert here.gpus(guests=True) == {1: (0,)}


def test_a_stalled_guest_goes_elsewhere_at_most_once_in_a_while() -> None:
    here = house("1x2", stall_s=100.0, limit=1.0)
    here.submit(job("guest", 1, O)).decide(0.0)
    here.submit(job("host", 1)).decide(10.0)
    assert here.gpus() == {0: (0,), 1: (1,)}
    slow_since_s = here.store.columns["slow_since_s"]
    slow_since_s[0] = 15.0
    here.decide(10.0)
    assert here.plan.valid_until_s == pytest.approx(115.0)
    here.decide(90.0)
    assert here.gpus(guests=True) == {0: (0,)}  # it began 110 s ago, and has got nothing for 95
    here.decide(5.0)
    assert here.gpus(guests=True) == {0: (1,)}
    slow_since_s[0] = 110.0  # a figure from before it came here
    here.decide(50.0)
    assert here.gpus(guests=True) == {0: (1,)}
    assert here.plan.valid_until_s == pytest.approx(215.0)
    here.decide(50.0)
    assert here.gpus(guests=True) == {0: (0,)}


def test_a_guest_that_has_waited_long_enough_asks_again_later_if_there_is_nothing_better() -> None:
    here = house("1x1", stall_s=100.0, limit=1.0)
    here.submit(job("guest", 1, O), job("host", 1)).decide(0.0)
    here.store.columns["slow_since_s"][0] = 10.0
    here.decide(110.0)
    assert here.gpus(guests=True) == {0: (0,)}
    assert here.plan.valid_until_s == pytest.approx(210.0)


def test_other_policies_jobs_become_guests_where_they_run() -> None:
    here = house("1x2")
    here.submit(job("opportunistic", 1, O)).decide()
    here.running = Groups.of(replace(g, guest=False) for g in here.running)  # as any policy without classes runs it
    here.decide()
    assert here.gpus(guests=True) == {0: (0,)}


# -- options -------------------------------------------------------------------------------------------------


def test_options_by_name() -> None:
    policy = make_policy("antman:order=tiresias,quota=vision=32/speech@v100=16/*=8,max_per_gpu=2,stall_s=inf")
    assert isinstance(policy, AntMan)
    assert policy.preempts
    assert policy.quota == (("vision", "", 32), ("speech", "v100", 16), ("*", "", 8))
    assert policy.max_per_gpu == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("antman:quota=32", "it takes PROJECT=GPUS"),
        ("antman:quota=a=many", "it takes PROJECT=GPUS"),
        ("antman:limit=0", "limit is 0"),
        ("antman:order=lifo", "fifo, tiresias, srtf or srsf"),
        ("antman:max_per_gpu=-1", "max_per_gpu is -1"),
    ],
)
def test_options_that_cannot_be(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        make_policy(text)


# -- always --------------------------------------------------------------------------------------------------

CLUSTERS = ("2x4", "4x4@2", "1x8,2x4", "2x4:v100,2x4:a100")


def drawn_job(chance: random.Random, i: int) -> JobSpec:
    gpu_s = chance.choice([0.1, 0.4, 0.9])
    return job(
        f"j{i}",
        chance.choice([1, 1, 2, 3, 4, 8]),
        chance.choice([G, G, O, A]),
        chance.choice([None, StageProfile.of(cpu=1.0 - gpu_s, gpu=gpu_s)]),
        project=chance.choice("ab"),
        gpu_memory_bytes=chance.choice([0.0, 4e9, 10e9]),
        gpu_kinds=chance.choice([None, None, None, ("v100",)]),
    )


def check(here: House, before: dict[int, tuple[int, ...]], hosts_before: set[int]) -> None:
    """What every plan keeps."""
    specs, running = here.store, here.gpus()
    hosts = here.gpus(guests=False)
    on_hosts = Counter(gpu for gpus in hosts.values() for gpu in gpus)
    assert all(count == 1 for count in on_hosts.values()), "two hosts on a GPU"
    guests = Counter(gpu for gpus in here.gpus(guests=True).values() for gpu in gpus)
    assert max(guests.values(), default=0) <= here.policy.max_per_gpu
    reserved = Counter(gpu for r in here.reservations for gpu in r.gpus)
    assert not any(gpu in on_hosts or count > 1 for gpu, count in reserved.items())
    for number, gpus in running.items():
        spec = specs.spec(number)
        assert len(set(gpus)) == spec.gpus
        kinds = {here.cluster.kinds[here.cluster.node_kind[here.cluster.gpu_node[gpu]]] for gpu in gpus}
        assert len(kinds) == 1
        assert spec.gpu_kinds is None or kinds <= set(spec.gpu_kinds)
        assert spec.job_class is not G or number in hosts
        assert spec.job_class is not O or number not in hosts or here.policy.guest_age_s < math.inf
    for number in hosts_before if not here.policy.preempts else hosts_before & set(running):
        assert running[number] == before[number], "a guaranteed job was stopped, moved or made a guest"
        assert number in hosts
    for project, _, most in here.policy.quota:
        assert sum(len(g) for n, g in hosts.items() if specs.spec(n).project == project) <= most
    waiting = {n for n in here.view().jobs.number.tolist() if n not in running}
    assert waiting == set(here.plan.reasons)


@pytest.mark.parametrize("seed", range(200 if os.environ.get("PLAIT_SLOW") else 16))
def test_no_gang_waits_for_ever_and_all_rules_hold(seed: int) -> None:
    chance = random.Random(seed)
    cluster = Cluster.parse(CLUSTERS[seed % 4])
    gpu_bytes = 16_000_000_000 if chance.random() < 0.5 else 0
    cluster = Cluster(tuple(replace(node, gpu_memory_bytes=gpu_bytes) for node in cluster.nodes))
    quota = (("a", "", chance.choice([4, 8, 12])),) if chance.random() < 0.7 else ()
    options: dict[str, Any] = chance.choice([PUBLISHED, {}, {"order": "fifo"}, {"order": "srsf", "guest_age_s": 5.0}])
    here = House(AntMan(quota=quota, max_per_gpu=chance.choice([1, 2]), **options), cluster)
    left, steps = [drawn_job(chance, i) for i in range(40)], 0
    while left or len(here.view().jobs):
        if left and chance.random() < 0.6:
            here.submit(left.pop())
        elif here.gpus():
            here.finish(chance.choice(sorted(here.gpus())))
        before = {n: g for n, g in here.gpus().items() if n in here.view().jobs.number}
        hosts = set(here.gpus(guests=False)) & set(before)
        here.store.columns["attained_gpu_s"][list(hosts)] += chance.choice([0.0, 30_000.0])
        here.decide()
        check(here, before, hosts)
        jobs, steps = here.view().jobs, steps + 1
        if not left and not here.gpus():
            rest = [here.plan.reasons[n] for n in jobs.number.tolist()]
            never = ("ever allows" in r or not here.cluster.largest_gang(here.store.spec(n).gpu_kinds) >= g
                     for r, n, g in zip(rest, jobs.number.tolist(), jobs.gpus.tolist(), strict=True))  # fmt: skip
            assert all(never), rest
            break
        assert steps < 500


@pytest.mark.parametrize("work", [False, True])
@pytest.mark.parametrize("seed", range(60 if os.environ.get("PLAIT_SLOW") else 8))
def test_the_walk_does_what_its_reference_does_compiled_or_not(
    monkeypatch: pytest.MonkeyPatch, seed: int, work: bool
) -> None:
    if work and not (os.environ.get("PLAIT_SLOW") or has_machine_code(guest_walk_kernels.start_guests)):
        pytest.skip("compiles for 10 s, or lacks the extra [sim]; set PLAIT_SLOW=1")
    compared = [0]

    def both(
        lists: guest_walk.Lists,
        projects: guest_walk.Projects,
        jobs: guest_walk.WalkJobs,
        devices: guest_walk.Devices,
        rules: guest_walk.GuestRules,
        measured: Any,
    ) -> Any:
        copies = [
            (
                jobs._replace(whole=jobs.whole.copy(), amounts=jobs.amounts.copy(), given={}),
                devices._make(c.copy() for c in devices),
            )
            for _ in range(2)
        ]
        turns = [
            run_walk(lists, projects, *copy, rules, measured)
            for run_walk, copy in zip((ours_alone, reference.walk), copies, strict=True)
        ]
        assert turns[0].tolist() == turns[1].tolist()
        ours, theirs = (one.whole for one, _ in copies)
        np.testing.assert_array_equal(ours, theirs)
        np.testing.assert_array_equal(*(one.amounts for one, _ in copies))
        given = [{row: gpus.tolist() for row, gpus in one.given.items()} for one, _ in copies]
        assert given[0] == given[1]
        compared[0] += 1
        return ours_alone(lists, projects, jobs, devices, rules, measured)

    ours_alone = guest_walk.walk
    monkeypatch.setattr(guest_walk, "walk", both)
    monkeypatch.setattr(guest_walk, "either", lambda kernel, *_: kernel if work else plain(kernel))
    chance = random.Random(seed)
    here = crowded_house(chance, seed)
    for i in range(50):
        reads = StageProfile.of(storage=chance.choice([0.2, 0.9]), gpu=0.1)
        given = drawn_job(chance, i)
        profile = chance.choice([given.profile, reads])
        here.submit(replace(given, profile=profile, cpus=chance.choice([0.0, 2.0, 6.0])))
        if i % 10 == 9:
            least, most = chance.choice([0.3, 0.7, 1.0]), chance.choice([1, 2])
            here.policy = replace(here.policy, max_per_gpu=most, least_memory=least)
        view = here.view()
        if chance.random() < 0.3:
            busy = np.array([chance.random() for _ in range(here.cluster.gpus)])
            here.usage = Usage(busy, busy * 1e9, *(np.zeros(0, dtype=t) for t in (np.int64, *[np.float64] * 4)))
        here.decide(chance.choice([1.0, 400.0]))
        columns = here.store.columns
        columns["slow_since_s"][view.jobs.number] = [chance.choice([math.nan, 0.0]) for _ in view.jobs.number]
        if chance.random() < 0.5 and here.gpus():
            here.finish(chance.choice(sorted(here.gpus())))
    assert compared[0] == 50


def crowded_house(chance: random.Random, seed: int) -> House:
    """A cluster on which cores, memory and quotas bind or not, for a policy with any options."""
    cluster = Cluster.parse(CLUSTERS[seed % 4])
    limits = {"gpu_memory_bytes": chance.choice([0, 16_000_000_000]), "cpus": chance.choice([0, 8])}
    cluster = Cluster(tuple(replace(node, **limits) for node in cluster.nodes))
    quota = [("a", "", 6), ("b", "", 4)] if chance.random() < 0.5 else []
    return House(
        AntMan(
            quota=tuple(quota), max_per_gpu=chance.choice([1, 2]), order=chance.choice(["fifo", "srtf"]),
            auto_after_s=chance.choice([0.0, 100.0]), backfill=False, guest_age_s=chance.choice([20.0, math.inf]),
        ),
        cluster,
    )  # fmt: skip


# -- classes under load --------------------------------------------------------------------------------------


def mean_h(policy: str, load: float, opportunistic: float) -> tuple[float, float]:
    """Mean completion times of guaranteed and opportunistic jobs on a Philly-like trace of up to 6 h, in hours."""
    jobs = jobs_of(Workload(jobs=600, load=load, longest_h=6.0, opportunistic=opportunistic, seed=1))
    done = simulate(jobs, Cluster.parse("8x8"), make_policy(policy), make_world("plait"))
    jct_h = (done.controller.job_store.columns["end_s"][: len(jobs)] - jobs.submit_s) / 3600
    high = jobs.column("job_class") == int(G)
    return float(jct_h[high].mean()), float(jct_h[~high].mean())


def test_a_guaranteed_job_is_no_slower_than_without_classes_nor_than_a_guest() -> None:
    """At load 1.3, half of it guaranteed; the published order inverts the classes."""
    guaranteed, opportunistic = mean_h("antman", 1.3, 0.5)
    alike, _ = mean_h("fifo-backfill", 1.3, 0.5)
    assert guaranteed <= 1.05 * alike
    assert guaranteed <= 1.05 * opportunistic
    inverted, others = mean_h("antman:order=fifo,backfill=off,crowding=off,guest_age_s=inf", 1.3, 0.5)
    assert inverted > 2 * others
