"""Guests in the simulator: who shares GPUs with whom, at which pace, through starts, stops, losses and restarts."""

import json
import math
import os
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from plait.control.controller import Controller
from plait.control.drive import drive
from plait.control.history import History
from plait.control.log import EventLog, read_log
from plait.control.messages import UsageReported
from plait.control.metrics import SHARING, RunResult, measure
from plait.control.replay import replay
from plait.core.arrays import FloatArray
from plait.core.cluster import Cluster
from plait.core.errors import SimulationError
from plait.core.jobs import JobBatch, JobClass, JobSpec
from plait.core.plan import Group, Groups, Member, Plan, Reservation
from plait.core.policy import Usage, View
from plait.core.resources import StageProfile
from plait.report.charts import write_chrome_trace
from plait.report.html import gantt
from plait.report.metrics import METRICS
from plait.sim.contract import CLUSTERS, COSTLY, IDEAL, SmallWorkload, outages, play, random_jobs
from plait.sim.neighbours import GpuNeighbours
from plait.sim.physics import StandardPhysics
from plait.sim.run import simulate, simulator
from plait.sim.world import World

PLAIN = World("plain", "guests contend, nothing else", StandardPhysics(interference=(1.0,), sharing=None))


def only(group: Group, here: set[int]) -> Group:
    return replace(group, members=tuple(member for member in group.members if member.job in here))


@dataclass
class Steady:
    """Runs of these groups those whose job has come, and makes the given reservations."""

    groups: tuple[Group, ...]
    reservations: tuple[Reservation, ...] = ()
    name: str = "steady"

    def decide(self, view: View) -> Plan:
        here = set(view.jobs.number.tolist())
        groups = [only(group, here) for group in self.groups if any(member.job in here for member in group.members)]
        busy = {member.job for group in groups for member in group.members}
        wait = tuple(one for one in self.reservations if one.job in here - busy)
        return Plan.of(groups, reservations=wait)


def host(job: int, *gpus: int) -> Group:
    return Group((Member(job),), gpus)


def guest(job: int, *gpus: int) -> Group:
    return Group((Member(job),), gpus, guest=True)


def busy(name: str, part: float, gpus: int = 1, seconds: float = 100.0, submit_s: float = 0.0) -> JobSpec:
    """A job that keeps its GPUs busy for this part of each iteration of one second."""
    profile = StageProfile.from_sequence([0.0, 0.0, part, 0.0], 1.0)
    return JobSpec(id=name, gpus=gpus, iterations=seconds, submit_s=submit_s, profile=profile)


def run(policy: object, *jobs: JobSpec, cluster: str = "1x4", world: World = PLAIN) -> tuple[RunResult, Controller]:
    histories: list[History] = []

    def observe(controller: Controller) -> History:
        histories.append(History(controller))
        return histories[0]

    batch = JobBatch.of(jobs)
    done = simulate(batch, Cluster.parse(cluster), policy, world, check=True, observe=observe)  # type: ignore[arg-type]
    return measure(done.controller, histories[0]), done.controller


def ends(result: RunResult) -> list[float]:
    return [float(end) for end in result.jobs["end_s"]]


def test_hosts_and_guests_of_a_gpu_contend_and_a_gang_goes_at_the_pace_of_its_worst_gpu() -> None:
    """The guest lies on two hosts, which keep their GPUs busy for 0.8 and 0.5 of the time; it would for 0.4."""
    plan = Steady((host(0, 0), host(1, 1), guest(2, 0, 1)))
    result, _ = run(plan, busy("a", 0.8), busy("b", 0.5), busy("g", 0.4, gpus=2))
    # GPU 0 is asked for 1.2: a and g take 1.2 s an iteration; b has room. Nobody leaves before 100 s.
    assert ends(result) == pytest.approx([120.0, 100.0, 120.0])


def test_who_shares_gpus_speeds_up_at_once_when_another_leaves_also_between_decisions() -> None:
    plan = Steady((host(0, 0), guest(1, 0)))
    jobs = (busy("a", 1.0, seconds=10.0), busy("g", 1.0, seconds=20.0))
    assert ends(run(plan, *jobs)[0]) == pytest.approx([20.0, 30.0])
    assert ends(run(plan, *jobs, world=replace(PLAIN, round_s=360.0))[0]) == pytest.approx([20.0, 30.0])


def test_a_guest_that_comes_later_slows_who_runs_and_a_stop_of_it_frees_them() -> None:
    class Until(Steady):
        def decide(self, view: View) -> Plan:
            plan, self.view = super().decide(view), view
            if 5.0 <= view.now_s < 11.0:
                return replace(plan, valid_until_s=11.0)
            before = view.now_s < 5.0
            return replace(plan, groups=plan.groups.hosts, valid_until_s=5.0 if before else math.inf)

    # From 5 to 11 s the two share the GPU: the host does 3 s of its 20 s in them.
    plan = Until((host(0, 0), guest(1, 0), host(2, 1)))
    more = (busy("g", 1.0, seconds=500.0), busy("c", 1.0, seconds=30.0))
    with pytest.raises(SimulationError, match="job 'g' "):  # it is never let in again
        run(plan, busy("a", 1.0, seconds=20.0), *more)
    job_store = plan.view.jobs.columns
    assert job_store["end_s"][[0, 2]].tolist() == pytest.approx([23.0, 30.0])
    assert job_store["iterations_done"][1] == pytest.approx(3.0)


def test_a_change_reaches_guests_through_other_guests() -> None:
    """Groups touch in a chain: 0-1, 1-2, 2-3."""
    chain = [host(0, 0), guest(1, 0, 1), host(2, 1), guest(3, 1, 2), host(4, 3)]
    neighbours = GpuNeighbours()
    neighbours.put(Groups.of(chain))
    assert sorted(neighbours.around(np.array([0])).jobs.tolist()) == [0, 1, 2, 3]
    assert neighbours.around(np.array([3])).jobs.tolist() == [4]
    neighbours.leave(1)
    assert sorted(neighbours.around(np.array([0])).jobs.tolist()) == [0]
    assert sorted(neighbours.around(np.array([1])).jobs.tolist()) == [2, 3]
    neighbours.put(Groups.of([Group((Member(2), Member(4, turn=1)), (1,))]))
    assert sorted(map(str, neighbours.around(np.array([2])))) == sorted(
        map(str, [guest(3, 1, 2), Group((Member(2), Member(4, turn=1)), (1,))])
    )
    assert len(neighbours.around(np.array([3]))) == 0


def test_groups_that_took_turns_before_the_first_guest_came_keep_their_pace() -> None:
    together = Group((Member(0), Member(1)), (0,))
    jobs = (busy("a", 1.0, seconds=10.0), busy("b", 1.0, seconds=30.0), busy("g", 0.1, seconds=1.0, submit_s=5.0))
    result, _ = run(Steady((together, guest(2, 1))), *jobs)
    assert ends(result) == pytest.approx([20.0, 40.0, 6.0])


def test_a_promotion_costs_no_restart_and_changes_no_pace() -> None:
    class Promotes(Steady):
        def decide(self, view: View) -> Plan:
            both = [host(0, 0), guest(1, 0)]
            return Plan.of((both, [host(1, 0)], [])[2 - len(view.jobs)])

    world = replace(PLAIN, overheads=COSTLY.overheads)
    result, controller = run(Promotes(()), busy("a", 1.0, seconds=10.0), busy("g", 1.0, seconds=20.0), world=world)
    # Both start for 20 s. At 40 s the host is done and the guest is half done.
    assert ends(result) == pytest.approx([40.0, 50.0])
    assert controller.job_store.columns["starts"][:2].tolist() == [1, 1]


# -- what is measured ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Measured(StandardPhysics):
    """Says how busy GPUs are, as contention has it, and that each job takes 4 GB."""

    def usage(self, truth: JobBatch, groups: Groups, cluster: Cluster, iteration_s: FloatArray) -> Usage:
        gpus = np.full((2, cluster.gpus), np.nan)
        gpus[:, groups.gpus] = 0.0
        for g, group in enumerate(groups):
            for gpu in group.gpus:
                for m in range(groups.first_job[g], groups.first_job[g + 1]):
                    gpus[0, gpu] += truth.stage_s[groups.jobs[m], 2] / iteration_s[m]
                    gpus[1, gpu] += 4e9
        of_job = np.full(len(groups.jobs), 4e9)
        return Usage(*gpus, groups.jobs, iteration_s, of_job, of_job / 4, of_job * 0.0)


def test_usage_is_reported_where_physics_measures_it_and_nowhere_else() -> None:
    plan = Steady((host(0, 0), guest(1, 0, 1)))
    jobs = JobBatch.of([busy("a", 0.8, seconds=10.0), busy("g", 0.4, gpus=2, seconds=20.0)])
    seen: list[UsageReported] = []
    views: list[View] = []

    class Looks(Steady):
        def decide(self, view: View) -> Plan:
            views.append(view)
            return super().decide(view)

    def observe(controller: Controller) -> object:
        return lambda event, commands: seen.append(event) if isinstance(event, UsageReported) else None

    world = replace(PLAIN, physics=Measured(interference=(1.0,), sharing=None))
    simulate(jobs, Cluster.parse("1x4"), Looks(plan.groups), world, observe=observe)  # type: ignore[arg-type]
    assert [one.at_s for one in seen] == [0.0, 12.0, 22.0]
    np.testing.assert_allclose(seen[1].gpu_utilisation, [0.4, 0.4, 0.0, 0.0])
    np.testing.assert_allclose(seen[1].gpu_memory_bytes, [4e9, 4e9, 0.0, 0.0])
    assert (seen[1].jobs.tolist(), seen[1].step_s.tolist()) == ([1], [1.0])
    np.testing.assert_allclose(views[-1].usage.persistent_bytes, [])
    seen.clear()
    simulate(jobs, Cluster.parse("1x4"), plan, PLAIN, observe=observe)  # type: ignore[arg-type]
    assert seen == []


def test_the_use_of_a_gpu_is_that_of_its_host_when_a_guest_is_stopped() -> None:
    class Pauses(Steady):
        def decide(self, view: View) -> Plan:
            plan = super().decide(view)
            if view.now_s < 5.0:
                return replace(plan, valid_until_s=5.0)
            return replace(plan, groups=plan.groups.hosts, valid_until_s=8.0) if view.now_s < 8.0 else plan

    seen: list[UsageReported] = []

    def observe(controller: Controller) -> object:
        return lambda event, commands: seen.append(event) if isinstance(event, UsageReported) else None

    world = replace(PLAIN, physics=Measured(interference=(1.0,), sharing=None))
    jobs = JobBatch.of([busy("a", 0.8, seconds=20.0), busy("g", 0.4)])
    simulate(jobs, Cluster.parse("1x1"), Pauses((host(0, 0), guest(1, 0))), world, observe=observe)  # type: ignore[arg-type]
    (stopped,) = [one for one in seen if one.at_s == 5.0]
    assert (stopped.gpu_utilisation.tolist(), stopped.gpu_memory_bytes.tolist()) == ([0.8], [4e9])
    assert (stopped.jobs.tolist(), stopped.step_s.tolist()) == ([0], [1.0])
    assert [one.at_s for one in seen[:3]] == [0.0, 5.0, 8.0]


# -- everything at once ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Roulette:
    """Keeps most of what runs and puts others anywhere: as hosts, as guests across hosts, or with reservations.

    What it does depends on the seed and the view alone. A job that waited for 300 s runs alone on the cluster.
    """

    seed: int
    most_guests: int = 2
    name: str = "roulette"

    def decide(self, view: View) -> Plan:
        jobs = view.jobs
        if not len(jobs):
            return Plan.of([])
        rng = np.random.default_rng((self.seed, int(view.now_s * 1000), len(jobs)))
        free = [i for i in range(view.cluster.gpus) if view.cluster.node_up[view.cluster.gpu_node[i]]]
        taken: set[int] = set()
        guests = dict.fromkeys(range(view.cluster.gpus), 0)
        groups: list[Group] = []
        placed: set[int] = set()
        late = bool(jobs.waiting_s.max() > 300.0)

        def put(number: int, gpus: tuple[int, ...], as_guest: bool) -> bool:
            if as_guest and max(guests[gpu] for gpu in gpus) >= self.most_guests:
                return False
            if not as_guest and taken.intersection(gpus):
                return False
            for gpu in gpus:
                guests[gpu] += as_guest
            if not as_guest:
                taken.update(gpus)
            groups.append(Group((Member(number),), gpus, guest=as_guest))
            placed.add(number)
            return True

        stays = jobs.running & ((rng.random(len(jobs)) < (0.0 if late else 0.9)) | view.keeps.rows)
        for row in np.flatnonzero(stays).tolist():
            now = view.running[int(jobs.running_group[row])]
            other_way = rng.random() < 0.2 and not view.keeps.rows[row]
            put(int(jobs.number[row]), now.gpus, now.guest != other_way) or put(
                int(jobs.number[row]), now.gpus, now.guest
            )
        for row in np.lexsort((jobs.number, -jobs.waiting_s)).tolist():
            number, size = int(jobs.number[row]), int(jobs.gpus[row])
            if number in placed or rng.random() < (0.0 if late else 0.3):
                continue
            as_guest = bool(rng.random() < 0.6) and not (late and not groups)
            for kind in range(len(view.cluster.kinds)):
                of_kind = [i for i in free if view.cluster.node_kind[view.cluster.gpu_node[i]] == kind]
                room = [i for i in of_kind if (guests[i] < self.most_guests if as_guest else i not in taken)]
                if len(room) >= size and not (late and groups):
                    put(number, tuple(sorted(rng.choice(room, size, replace=False).tolist())), as_guest)
                    break
        waiting = [n for n in jobs.number.tolist() if n not in placed]
        rest = [i for i in free if i not in taken]
        reservations = []
        for number in waiting[:2]:
            mine = tuple(rest[:2])
            rest = rest[2:]
            if mine:
                reservations.append(Reservation(number, mine))
        until = view.now_s + 30.0
        return Plan.of(groups, dict.fromkeys(waiting, "no luck"), until, tuple(reservations))


def workload(seed: int, world: World) -> SmallWorkload:
    jobs = random_jobs(seed, 10, 4).replace(cpus=np.zeros(10), memory_bytes=np.zeros(10))
    jobs = jobs.replace(gpu_memory_bytes=np.zeros(10), job_class=np.arange(10) % len(JobClass))
    cluster = CLUSTERS[seed % 4]
    some = SmallWorkload(f"guests on {cluster}", jobs, cluster, world, seed=seed)
    return replace(some, changes=outages(some, seed))


@settings(max_examples=100 if os.environ.get("PLAIT_SLOW") else 4, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([IDEAL, COSTLY, replace(COSTLY, round_s=60.0)]))
@example(2090, COSTLY)  # a repaired plan had two hosts on one GPU
def test_whatever_guests_do_all_invariants_hold_and_a_restored_run_goes_on_the_same(seed: int, world: World) -> None:
    some = workload(seed, world)
    whole = play(Roulette(seed), some)
    assert len(whole.ends()) == len(some.jobs)
    assert any('"guest"' in line for line in whole.lines)
    at = np.random.default_rng(seed).choice(len(whole.lines), size=4, replace=False).tolist()
    parts = play(Roulette(seed), some, restarts=dict.fromkeys(at, lambda: Roulette(seed)))
    assert parts.lines == whole.lines


def test_a_log_with_guests_replays_to_the_same_commands(tmp_path) -> None:  # type: ignore[no-untyped-def]
    some = workload(3, replace(COSTLY, physics=Measured()))
    backend = simulator(some.jobs, some.cluster, some.world, seed=some.seed, node_changes=some.changes)
    controller = Controller(Roulette(3), some.cluster)
    path = tmp_path / "run.jsonl"
    with EventLog(path, policy="roulette", cluster=some.cluster) as log:
        drive(controller, backend, log)
    text = path.read_text()
    assert '"guest":true' in text
    assert "UsageReported" in text
    again, difference = replay(read_log(path), Roulette(3))
    assert difference is None
    assert json.dumps([g.guest for g in again.running]) == json.dumps([g.guest for g in controller.running])


# -- what is shown of it ---------------------------------------------------------------------------------


def shared_day() -> tuple[RunResult, Controller]:
    """A host on GPU 0 for 10 s, a gang that waits with GPUs 1 and 2 reserved, and a guest on 0 and 1.

    At 10 s the host ends and the gang gets its three GPUs, on which the guest stays, at half its pace.
    """

    class Waits(Steady):
        def decide(self, view: View) -> Plan:
            here = set(view.jobs.number.tolist())
            if 0 in here:
                groups, held = [host(0, 0), guest(2, 0, 1)], (Reservation(1, (1, 2)),)
            else:
                groups, held = [g for g in (host(1, 0, 1, 2), guest(2, 0, 1)) if g.members[0].job in here], ()
            return Plan.of(groups, {1: "needs 3 GPUs"}, reservations=held)

    jobs = (busy("a", 0.5, seconds=10.0), busy("b", 1.0, 3, seconds=30.0), busy("g", 0.5, 2, seconds=25.0))
    return run(Waits(()), *jobs)


def test_figures_count_each_gpu_once_and_say_what_was_reserved_and_used() -> None:
    result, _ = shared_day()
    # The guest: 10 s at its own pace, then 22.5 s for the other 15; the gang 22.5 s likewise, then 15 s alone.
    assert ends(result) == pytest.approx([10.0, 47.5, 32.5])
    t = result.timeline
    assert t.group_guest.tolist().count(True) == 1
    assert list(zip(t.reserved_gpu.tolist(), t.reserved_job.tolist(), t.reserved_to_s.tolist(), strict=True)) == [
        (1, 1, 10.0),
        (2, 1, 10.0),
    ]
    figures = result.summary
    assert set(SHARING) == {m.key for m in METRICS} & set(figures) & set(SHARING)
    assert figures["reserved_idle_gpu_h"] == pytest.approx(20.0 / 3600)
    assert figures["reserved_idle_used_gpu_h"] == pytest.approx(10.0 / 3600)
    assert figures["guest_gpu_h"] == pytest.approx(65.0 / 3600)
    held = 2 * 10.0 + 3 * 37.5
    assert figures["gpu_utilisation"] == pytest.approx(held / (4 * 47.5))
    assert result.series["gpus_held"].max() == pytest.approx(3.0)


def test_runs_without_guests_have_none_of_these_figures() -> None:
    result, _ = run(Steady((host(0, 0),)), busy("a", 0.5))
    assert not set(SHARING) & set(result.summary)
    assert (len(result.timeline.group_guest), len(result.timeline.reserved_gpu)) == (0, 0)
    assert "guest" not in gantt(result.timeline, ["a"], 10, 0.0)


def test_free_gpus_beside_guests_are_fragments_once() -> None:
    """A guest beside a host on one GPU of a node of four: three are free, and one job waits for four."""
    jobs = (busy("a", 0.4, seconds=10.0), busy("g", 0.4, seconds=10.0), busy("w", 1.0, 4, seconds=10.0))

    class Last(Steady):
        def decide(self, view: View) -> Plan:
            plan = super().decide(view)
            return plan if len(view.jobs) > 1 else Plan.of([host(2, 0, 1, 2, 3)] if len(view.jobs) else [])

    result, _ = run(Last((host(0, 0), guest(1, 0))), *jobs)
    assert result.summary["fragmentation"] == pytest.approx(1.0)
    assert result.summary["gpu_utilisation"] == pytest.approx((10.0 + 40.0) / 80.0)


def test_reports_mark_guests(tmp_path) -> None:  # type: ignore[no-untyped-def]
    result, _ = shared_day()
    bars = gantt(result.timeline, ["a", "b", "g"], 10, 0.0)
    assert [bars["names"][job] for job, flag in zip(bars["job"], bars["guest"], strict=True) if flag] == ["g"]
    write_chrome_trace(result, tmp_path / "run.json")
    events = json.loads((tmp_path / "run.json").read_text())["traceEvents"]
    marked = {(event["name"], event["tid"]) for event in events if event.get("args", {}).get("as a guest")}
    assert marked == {("g", 5), ("g", 6)}
    assert {"name": "GPU 1, guests"} in [event.get("args") for event in events]


def test_the_reason_of_a_waiting_job_names_the_gpus_reserved_for_it() -> None:
    said: list[str | None] = []

    class Asks(Steady):
        def decide(self, view: View) -> Plan:
            return replace(super().decide(view), reasons={1: "needs 3 GPUs"})

    def observe(controller: Controller) -> object:
        return lambda event, commands: said.append(controller.waiting_reason(1))

    plan = Asks((host(0, 0),), (Reservation(1, (1, 2)),))
    with pytest.raises(SimulationError, match=r"'b' \(number 1\): needs 3 GPUs \(2 GPUs reserved for it: n0:1, n1:0\)"):
        simulate(
            JobBatch.of([busy("a", 1.0), busy("b", 1.0, 3)]),
            Cluster.parse("2x2"),
            plan,
            PLAIN,
            observe=observe,  # type: ignore[arg-type]
        )
    assert "needs 3 GPUs (2 GPUs reserved for it: n0:1, n1:0)" in said
