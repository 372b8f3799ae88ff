"""Guests, reservations and usage: what plans may have, what the controller makes of it, and what it remembers."""

import json
import math
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plain_capacity import reference_overfull
from scripted_runs import decide, finish, floats, ints, submit

from plait.control import messages
from plait.control.controller import Controller
from plait.control.plan_check.capacity import needed_bytes, overfull
from plait.control.plan_check.check import GPU_TWICE, GUESTS_FULL, OK, check_plan
from plait.control.snapshot import of_active, restore, snapshot
from plait.control.usage import SLOW_SPEED, note_slow_guests
from plait.core.cluster import Cluster, Node
from plait.core.errors import PlaitError, PlanError
from plait.core.jobs import Checkpoints, JobSpec
from plait.core.plan import NO_GROUPS, Group, Groups, Member, Plan, Reservation
from plait.core.policy import View

GB = 1_000_000_000


@dataclass
class Planned:
    """Proposes the next of these plans and keeps the views that it was shown."""

    plans: list[Plan]
    views: list[View] = field(default_factory=list)
    name: str = "planned"

    def decide(self, view: View) -> Plan:
        self.views.append(view)
        return self.plans[len(self.views) - 1]


def host(job: int, *gpus: int) -> Group:
    return Group((Member(job),), gpus)


def guest(job: int, *gpus: int, memory_bytes: float = 0.0) -> Group:
    return Group((Member(job, gpu_memory_bytes=memory_bytes),), gpus, guest=True)


def specs(*gpus: int, **more: object) -> list[JobSpec]:
    return [
        JobSpec(id=f"j{i}", gpus=n, iterations=100.0, iteration_s=1.0, **more)  # type: ignore[arg-type]
        for i, n in enumerate(gpus)
    ]


def running(plans: list[Plan], *gpus: int, cluster: str | Cluster = "2x2", **more: object) -> tuple[Controller, list]:
    """A controller whose policy made the first of these plans for jobs of these sizes."""
    hardware = Cluster.parse(cluster) if isinstance(cluster, str) else cluster
    c = Controller(Planned(plans), hardware)
    c.handle(submit(0, *specs(*gpus, **more)))
    return c, list(c.handle(decide(0.0)))


def refused(plan: Plan, *gpus: int, **more: object) -> str:
    with pytest.raises(PlanError) as error:
        running([plan], *gpus, **more)  # type: ignore[arg-type]
    return str(error.value)


# -- guests ----------------------------------------------------------------------------------------------


def test_a_guest_lies_across_hosts_and_is_launched_and_stopped_like_them() -> None:
    first = Plan.of([host(0, 0, 1), host(1, 2), guest(2, 1, 2)])
    c, commands = running([first, Plan.of([host(0, 0, 1)])], 2, 1, 2, cluster="1x4")
    assert [list(one.groups) for one in commands if isinstance(one, messages.Launch)] == [list(first.groups)]
    assert c.running.guests.jobs.tolist() == [2]
    assert c.running.hosts.jobs.tolist() == [0, 1]
    c.handle(finish(1, 5.0))
    (stop,) = c.handle(decide(5.0))
    assert isinstance(stop, messages.Stop)
    assert stop.jobs.tolist() == [2]


def test_promotion_in_place_is_an_adjustment_without_restart() -> None:
    c, _ = running([Plan.of([host(0, 0), guest(1, 0)]), Plan.of([host(1, 0)]), Plan.of([host(1, 0)])], 1, 1)
    c.handle(finish(0, 5.0))
    (adjust,) = c.handle(decide(5.0))
    assert isinstance(adjust, messages.Adjust)
    assert list(adjust.groups) == [host(1, 0)]
    assert c.job_store.columns["starts"][1] == 1
    c.changed = True
    assert c.handle(decide(6.0)) == []


def test_a_plan_without_guests_has_no_column_of_them() -> None:
    assert Groups.of([host(0, 0), host(1, 1)]).guest is None
    some = Groups.of([host(0, 0), guest(1, 0), guest(2, 1)])
    assert list(some[ints(2, 0)]) == [guest(2, 1), host(0, 0)]
    assert list(some[ints(1)]) == [guest(1, 0)]
    assert list(some) == [host(0, 0), guest(1, 0), guest(2, 1)]
    assert list(NO_GROUPS.guests) == list(some.hosts.guests) == []


def test_two_hosts_on_a_gpu_are_refused_with_both_names() -> None:
    text = refused(Plan.of([host(0, 0), guest(1, 0), host(2, 0)]), 1, 1, 1)
    assert "policy planned made a plan that puts job 'j2' (number 2) on GPU 0 of node 'n0'" in text
    assert "already uses (job 'j0' (number 0), job 'j1' (number 1))" in text


def test_more_guests_than_a_gpu_takes_are_refused() -> None:
    plan = Plan.of([guest(0, 0), guest(1, 0)])
    c = Controller(Planned([plan]), Cluster.parse("1x1"), max_guests_per_gpu=1)
    c.handle(submit(0, *specs(1, 1)))
    with pytest.raises(PlanError, match=r"'j1' .* as a guest on GPU 0 .*where it has job 'j0' .* at most 1 guest$"):
        c.handle(decide(0.0))
    none = Controller(Planned([plan]), Cluster.parse("1x1"), max_guests_per_gpu=0)
    none.handle(submit(0, *specs(1, 1)))
    with pytest.raises(PlanError, match="guests are not allowed here"):
        none.handle(decide(0.0))


@pytest.mark.parametrize(
    ("plan", "wanted"),
    [
        (Plan.of([guest(0, 0)]), "gives job 'j0' (number 0) 1 GPUs, which is not the requested size"),
        (Plan.of([guest(0, 0, 0)]), "puts job 'j0' (number 0) on GPU 0"),
        (Plan.of([guest(0, 3, 4)]), "on GPU 4; this cluster has GPUs 0 to 3"),
        (Plan.of([host(0, 0, 1), guest(0, 0, 1)]), "runs job 'j0' (number 0) in two places at once"),
    ],
)
def test_gangs_of_guests_are_whole_and_on_gpus_that_are_there(plan: Plan, wanted: str) -> None:
    assert wanted in refused(plan, 2)


def small(gigabytes: int) -> Cluster:
    return Cluster((Node("n0", 2, gpu_memory_bytes=gigabytes * GB),))


def test_hosts_guests_and_their_contexts_fit_the_memory_of_a_gpu() -> None:
    plan = Plan.of([host(0, 0), guest(1, 0)])
    text = refused(plan, 1, 1, cluster=small(16), gpu_memory_bytes=8 * GB)
    assert "puts job 'j1' (number 1) on GPU 0 of node 'n0' beside job 'j0' (number 0)" in text
    assert "takes 17 GB of GPU memory with 0.5 GB for the context of each process; the GPU has 16 GB" in text
    running([plan], 1, 1, cluster=small(17), gpu_memory_bytes=8 * GB)
    running([Plan.of([host(0, 0), guest(1, 0, memory_bytes=7 * GB)])], 1, 1, cluster=small(16), gpu_memory_bytes=8 * GB)
    # Without guests no context counts: today's plans stay valid.
    running([Plan.of([host(0, 0), host(1, 1)])], 1, 1, cluster=small(8), gpu_memory_bytes=8 * GB)


@st.composite
def crowded(draw: st.DrawFn) -> tuple[Groups, Cluster]:
    memory = draw(st.sampled_from([0, 3 * GB, 9 * GB]))
    cluster = Cluster((Node("n0", 3, gpu_memory_bytes=memory), Node("n1", 2)))
    rows, job = [], 0
    for _ in range(draw(st.integers(1, 6))):
        gpus = tuple(sorted(draw(st.sets(st.integers(0, 2), min_size=1, max_size=3))))
        members = draw(st.integers(1, 2))
        of = tuple(Member(job + i, gpu_memory_bytes=draw(st.sampled_from([0.0, 1.0 * GB]))) for i in range(members))
        rows.append(Group(of, gpus, guest=draw(st.booleans())))
        job += members
    return Groups.of(rows), cluster


@given(crowded(), st.integers(1, 3))
def test_the_kernel_seats_guests_as_counting_does(some: tuple[Groups, Cluster], most: int) -> None:
    groups, cluster = some
    n = len(groups.jobs)
    columns = {"running_group": np.full(n, -1), "phase": np.zeros(n, dtype=np.int64), "stamp": np.zeros(n, np.int64)}
    columns |= {"min_gpus": np.ones(n, dtype=np.int64), "max_gpus": np.full(n, 9)}
    code = check_plan(groups, NO_GROUPS, columns, 1, n, cluster, most)[0]
    hosts = [sum(gpu in g.gpus for g in groups if not g.guest) for gpu in range(cluster.gpus)]
    guests = [sum(gpu in g.gpus for g in groups if g.guest) for gpu in range(cluster.gpus)]
    possible = {GPU_TWICE} if max(hosts) > 1 else set()
    possible |= {GUESTS_FULL} if max(guests) > most else set()
    assert code in (possible or {OK})


@given(crowded(), st.data())
def test_the_kernel_adds_up_memory_as_plain_sums_do(some: tuple[Groups, Cluster], data: st.DataObject) -> None:
    groups, cluster = some
    asked = np.array(data.draw(st.lists(st.sampled_from([0.0, 2.0 * GB]), min_size=len(groups.jobs), max_size=12)))
    changed = np.array(data.draw(st.lists(st.booleans(), min_size=len(groups), max_size=len(groups))))
    needed = needed_bytes(groups, np.resize(asked, len(groups.jobs)))
    flags = np.zeros(len(groups), dtype=np.bool_) if groups.guest is None else groups.guest
    gpu, _ = overfull(
        groups.first_job, groups.gpus, groups.first_gpu, flags, changed, needed, cluster.gpu_node,
        cluster.node_gpu_memory_bytes,
    )  # fmt: skip
    found = reference_overfull(groups, changed, needed, cluster)
    assert (gpu in found) if gpu >= 0 else not found


def test_a_policy_that_moves_a_kept_guest_leaves_it_and_its_hosts_where_they_are() -> None:
    """The guest cannot go on from a checkpoint; the plan moves it, and everything else that shares its GPU stays."""
    plans = [
        Plan.of([host(0, 0), guest(1, 0), host(2, 1)]),
        Plan.of([host(0, 0), guest(1, 1), host(2, 1), host(3, 2)], reservations=(Reservation(4, (3,)),)),
    ]
    c, _ = running(plans, 1, 1, 1, 1, 2, cluster="1x4", checkpoints=Checkpoints.NEVER)
    c.changed = True
    (launch,) = c.handle(decide(1.0))
    assert isinstance(launch, messages.Launch)
    assert launch.groups.jobs.tolist() == [3]
    assert sorted(map(str, c.running)) == sorted(map(str, [host(0, 0), guest(1, 0), host(2, 1), host(3, 2)]))
    assert c.reservations == (Reservation(4, (3,)),)


# -- reservations ----------------------------------------------------------------------------------------


def test_reservations_are_in_the_next_view_until_their_job_starts_or_their_gpus_are_lost() -> None:
    plan = Plan.of([host(0, 0), guest(1, 2)], reservations=(Reservation(2, (1, 2, 3)),))
    c, _ = running([plan, plan], 1, 1, 4)
    assert c.view().reservations == (Reservation(2, (1, 2, 3)),)
    c.handle(messages.NodeLost(1.0, "n1"))
    assert c.view().reservations == (Reservation(2, (1,)),)
    c.handle(messages.JobCancelled(2.0, ints(2)))
    assert c.view().reservations == ()


@pytest.mark.parametrize(
    ("reservations", "wanted"),
    [
        ((Reservation(7, (1,)),), "reserves GPUs for job number 7, which was never submitted"),
        ((Reservation(0, (1,)),), "reserves GPUs for job 'j0' (number 0), which runs; reservations are for jobs"),
        ((Reservation(1, (9,)),), "reserves GPU 9 for job 'j1' (number 1); this cluster has GPUs 0 to 3"),
        ((Reservation(1, (2,)), Reservation(1, (3,))), "two reservations for job 'j1'"),
        ((Reservation(1, (2,)), Reservation(2, (2,))), "GPU 2 of node 'n1' for job 'j2' (number 2) and for job 'j1'"),
        ((Reservation(1, (2, 2)),), "GPU 2 of node 'n1' for job 'j1' (number 1) and for job 'j1'"),
        ((Reservation(1, (0,)),), "GPU 0 of node 'n0' for job 'j1' (number 1), and job 'j0' (number 0) runs there"),
    ],
)
def test_reservations_that_cannot_be_are_refused(reservations: tuple[Reservation, ...], wanted: str) -> None:
    assert wanted in refused(Plan.of([host(0, 0)], reservations=reservations), 1, 2, 2)


def test_a_reservation_on_a_node_that_is_down_is_refused() -> None:
    c = Controller(Planned([Plan.of([], reservations=(Reservation(0, (3,)),))]), Cluster.parse("2x2"))
    c.handle(submit(0, *specs(2)))
    c.handle(messages.NodeLost(0.0, "n1"))
    with pytest.raises(PlanError, match=r"reserves GPU 3 of node 'n1' for job 'j0' .*, which is down"):
        c.handle(decide(0.0))


# -- usage -----------------------------------------------------------------------------------------------

NAN = math.nan


def used(at_s: float, utilisation: np.ndarray, memory: np.ndarray, jobs: np.ndarray, step_s: np.ndarray) -> object:
    nothing = np.full(len(jobs), NAN)
    return messages.UsageReported(at_s, utilisation, memory, jobs, step_s, nothing, nothing, nothing)


def test_usage_is_what_was_reported_last_of_each_gpu_and_of_each_running_job() -> None:
    c, _ = running([Plan.of([host(0, 0), host(1, 1)])], 1, 1)
    assert c.view().usage is None
    c.handle(used(1.0, floats(0.5, 0.25), floats(8e9), ints(0, 1), floats(0.1, 0.2)))
    c.handle(used(2.0, floats(NAN, 0.75, 0.0), floats(NAN), ints(1), floats(0.3)))
    usage = c.view().usage
    np.testing.assert_array_equal(usage.utilisation, floats(0.5, 0.75, 0.0, NAN))
    np.testing.assert_array_equal(usage.memory_bytes, floats(8e9, NAN, NAN, NAN))
    assert (usage.jobs.tolist(), usage.step_s.tolist()) == ([0, 1], [0.1, 0.3])
    c.handle(finish(0, 3.0))
    c.handle(used(3.0, floats(), floats(), ints(), floats()))
    c.handle(messages.NodeLost(4.0, "n0"))
    assert c.usage.jobs.tolist() == [1]
    np.testing.assert_array_equal(c.usage.utilisation, floats(NAN, NAN, 0.0, NAN))
    c.handle(messages.NodeJoined(5.0, Node("n2", 1)))
    c.handle(used(5.0, floats(NAN, NAN, NAN, NAN, 1.0), floats(), ints(), floats()))
    np.testing.assert_array_equal(c.usage.utilisation, floats(NAN, NAN, 0.0, NAN, 1.0))


def test_usage_of_gpus_that_are_not_there_is_refused() -> None:
    c, _ = running([Plan.of([host(0, 0)])], 1)
    with pytest.raises(PlaitError, match="0 jobs and the 4 GPUs of the cluster; send one figure for each"):
        c.handle(used(1.0, np.zeros(5), floats(), ints(), floats()))
    with pytest.raises(PlaitError, match="columns of other lengths"):
        c.handle(used(1.0, floats(), floats(), ints(0), floats()))


def progressed(at_s: float, done: float, run_s: float, step_s: float) -> messages.ProgressReported:
    """What is measured of job 1."""
    return messages.ProgressReported(at_s, ints(1), floats(done), floats(run_s), floats(run_s), floats(step_s))


def slow_since_s(c: Controller) -> list[float]:
    return c.view().jobs.slow_since_s.tolist()


def test_guests_are_slow_since_they_got_nothing() -> None:
    """Of one second an iteration alone, job 1 is the guest; steps of over 100 s are next to nothing."""
    c, _ = running([Plan.of([host(0, 0), guest(1, 0)])], 1, 1)
    np.testing.assert_array_equal(slow_since_s(c), [NAN, NAN])
    c.handle(progressed(20.0, 10.0, 20.0, 2.0))
    c.handle(progressed(30.0, 15.0, 30.0, 1e6))
    np.testing.assert_array_equal(slow_since_s(c), [NAN, 30.0])  # it got something until now
    c.handle(progressed(90.0, 15.0, 90.0, 1e6))
    np.testing.assert_array_equal(slow_since_s(c), [NAN, 30.0])
    c.handle(progressed(95.0, 15.0, 95.0, 1.0))
    np.testing.assert_array_equal(slow_since_s(c), [NAN, NAN])
    c.handle(progressed(100.0, 20.0, 100.0, 1.0))
    c.handle(progressed(150.0, 20.001, 150.0, 1e6))
    np.testing.assert_array_equal(slow_since_s(c), [NAN, 100.0])  # and nothing since the report before


@pytest.mark.parametrize("seed", range(5))
def test_slow_guests_are_noted_one_by_one_as_all_at_once(seed: int) -> None:
    chance, n = np.random.default_rng(seed), 40
    jobs, group = np.sort(chance.choice(60, n, replace=False)), chance.integers(-1, 12, 60)
    done, ran_s, step_s = chance.uniform(0, 9, n), chance.uniform(0, 900, n), chance.choice([NAN, 0.5, 90.0, 1e6], n)
    told, guest = chance.random(n) < 0.2, chance.random(12) < 0.6
    before_done, before_s, alone_s = chance.uniform(0, 9, 60), chance.uniform(0, 900, 60), chance.choice([NAN, 1.0], 60)
    since_s = chance.choice([NAN, 5.0], 60)
    expected = since_s.copy()
    for i, job in enumerate(jobs.tolist()):
        speed = alone_s[job] / step_s[i]
        if not told[i] and group[job] >= 0 and guest[group[job]] and speed == speed:
            run_s, work_s = ran_s[i] - before_s[job], (done[i] - before_done[job]) * alone_s[job]
            first_s = expected[job] if expected[job] == expected[job] else 1e3 - run_s * (work_s < SLOW_SPEED * run_s)
            expected[job] = first_s if speed < SLOW_SPEED else NAN
    note_slow_guests(jobs, done, ran_s, step_s, told, 1e3, guest, group, before_done, before_s, alone_s, since_s)
    np.testing.assert_array_equal(since_s, expected)


def test_a_step_that_was_too_short_to_measure_is_not_slow() -> None:
    c, _ = running([Plan.of([host(0, 0), guest(1, 0)])], 1, 1)
    c.handle(used(20.0, floats(), floats(), ints(0, 1), floats(500.0, 101.0)))
    np.testing.assert_array_equal(slow_since_s(c), [NAN, 20.0])
    c.handle(used(25.0, floats(), floats(), ints(0, 1), floats(0.0, 0.0)))
    np.testing.assert_array_equal(slow_since_s(c), [NAN, NAN])


def test_what_agents_measure_of_a_guest_goes_before_its_mean_pace() -> None:
    c, _ = running([Plan.of([host(0, 0), guest(1, 0)])], 1, 1)
    c.handle(used(10.0, floats(), floats(), ints(0, 1), floats(500.0, 99.0)))
    np.testing.assert_array_equal(slow_since_s(c), [NAN, NAN])
    assert not c.changed
    c.handle(used(20.0, floats(), floats(), ints(0, 1), floats(500.0, 101.0)))
    np.testing.assert_array_equal(slow_since_s(c), [NAN, 20.0])
    assert c.changed, "the policy has to know, or it would not look again in time"
    c.changed = False
    c.handle(progressed(30.0, 10.0, 30.0, 1.0))
    c.handle(used(40.0, floats(), floats(), ints(1), floats(121.0)))
    c.handle(used(50.0, floats(), floats(), ints(1), floats(NAN)))
    np.testing.assert_array_equal(slow_since_s(c), [NAN, 20.0])
    c.handle(used(60.0, floats(), floats(), ints(1), floats(2.0)))
    np.testing.assert_array_equal(slow_since_s(c), [NAN, NAN])
    assert not c.changed


def test_a_guest_whose_speed_nobody_knows_is_slow_from_a_minute_a_step_on() -> None:
    """A guest beside its host measures no profile, and it is the one that may never get anything."""
    c, _ = running([Plan.of([host(0, 0), guest(1, 0)])], 1, 1)
    c.job_store.columns["iteration_s"][:] = NAN
    c.handle(used(10.0, floats(), floats(), ints(0, 1), floats(500.0, 59.0)))
    np.testing.assert_array_equal(slow_since_s(c), [NAN, NAN])
    c.handle(used(20.0, floats(), floats(), ints(0, 1), floats(500.0, 61.0)))
    np.testing.assert_array_equal(slow_since_s(c), [NAN, 20.0])
    c.handle(used(30.0, floats(), floats(), ints(1), floats(5.0)))
    np.testing.assert_array_equal(slow_since_s(c), [NAN, NAN])


def test_a_guest_that_starts_again_is_not_slow_yet() -> None:
    here, there, nowhere = ([host(0, 0), *more] for more in ([guest(1, 0)], [guest(1, 1)], []))
    c, _ = running([Plan.of(groups) for groups in (here, there, nowhere, there)], 1, 1)
    for at_s, plans in ((1.0, 1), (2.0, 2)):  # it is moved, and it is stopped and starts again
        c.handle(used(at_s, floats(), floats(), ints(1), floats(1e3)))
        np.testing.assert_array_equal(slow_since_s(c), [NAN, at_s])
        for _ in range(plans):
            c.changed = True
            c.handle(decide(at_s))
        np.testing.assert_array_equal(slow_since_s(c), [NAN, NAN])
        assert c.job_store.columns["starts"][1] == at_s + 1


def test_nobody_but_guests_is_slow() -> None:
    c, _ = running([Plan.of([Group((Member(0), Member(1)), (0,))])], 1, 1)
    c.handle(progressed(20.0, 0.0, 20.0, 1e6))
    np.testing.assert_array_equal(slow_since_s(c), [NAN, NAN])


# -- memory of the controller ----------------------------------------------------------------------------


def test_a_snapshot_keeps_guests_reservations_and_usage() -> None:
    plan = Plan.of([host(0, 0), guest(1, 0)], reservations=(Reservation(2, (2, 3)),))
    c, _ = running([plan, plan], 1, 1, 4)
    bare = snapshot(c)
    assert "usage" not in bare
    c.handle(used(1.0, floats(0.5), floats(NAN), ints(1), floats(0.3)))
    again = restore(json.loads(json.dumps(snapshot(c), allow_nan=False)), c.policy)
    assert list(again.running) == list(c.running)
    assert again.view().reservations == c.view().reservations
    np.testing.assert_array_equal(again.usage.utilisation, floats(0.5, NAN, NAN, NAN))
    assert snapshot(again) == snapshot(c)
    assert not {"reservations", "usage"} & set(snapshot(running([Plan.of([host(0, 0)])], 1)[0]))


def test_a_snapshot_says_who_is_slow_if_anybody_is() -> None:
    c, _ = running([Plan.of([host(0, 0), guest(1, 0)])], 1, 1)
    older = snapshot(c)
    assert "slow_since_s" not in older["books"]["life"]  # as versions without the column wrote it
    np.testing.assert_array_equal(slow_since_s(restore(older, c.policy)), [NAN, NAN])
    c.handle(used(1.0, floats(), floats(), ints(1), floats(1e3)))
    again = restore(json.loads(json.dumps(snapshot(c), allow_nan=False)), c.policy)
    np.testing.assert_array_equal(slow_since_s(again), [NAN, 1.0])
    np.testing.assert_array_equal(slow_since_s(of_active(c)[0]), [NAN, 1.0])


def test_a_controller_of_the_active_jobs_renumbers_reservations_and_usage() -> None:
    plan = Plan.of([host(1, 0), guest(2, 0)], reservations=(Reservation(3, (2, 3)),))
    c, _ = running([Plan.of([host(0, 0)]), plan], 1, 1, 1, 4)
    c.handle(finish(0, 1.0))
    c.handle(decide(1.0))
    c.handle(used(2.0, floats(0.5), floats(), ints(1, 2), floats(0.1, 0.2)))
    small, numbers = of_active(c)
    assert numbers.tolist() == [1, 2, 3]
    assert list(small.running) == [host(0, 0), guest(1, 0)]
    assert small.view().reservations == (Reservation(2, (2, 3)),)
    assert small.usage.jobs.tolist() == [0, 1]
    assert small.usage.step_s.tolist() == [0.1, 0.2]
