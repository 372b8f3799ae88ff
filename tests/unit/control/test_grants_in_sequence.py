"""No sequence of plans and events leaves switch memory with jobs that do not run, or with two that want it alone."""

from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
from grant_cases import CLUSTER, Planned, granted, plan
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_runs import decide, finish, ints, submit

from plait.control import messages
from plait.control.controller import Controller
from plait.control.snapshot import snapshot
from plait.core.cluster import Cluster
from plait.core.errors import PlanError
from plait.core.jobs import Checkpoints, InaRequest, JobSpec, Phase
from plait.core.network_grants import NetworkGrant, clashing
from plait.core.plan import Plan
from plait.core.policy import View
from plait.placement.pinned import keep_running
from sampling import examples, sample
from strategies import grants


def valid(made: Plan, cluster: Cluster, required: set[int], exempt: set[int]) -> bool:
    """The plain reference of the check of grants, pair by pair."""
    assert cluster.network is not None
    runs = set(made.groups.jobs.tolist())
    for one in made.grants:
        if one.job not in runs or one.switch in cluster.network.down:
            return False
        if not one.end <= cluster.network.switch(one.switch).usable:
            return False
    keys = [(one.job, one.switch) for one in made.grants]
    if len(set(keys)) < len(keys) or any(a.clashes(b) for a, b in combinations(made.grants, 2)):
        return False
    return not (runs & required) - {one.job for one in made.grants} - exempt


@given(st.lists(grants(), max_size=8), st.data())
def test_clashing_finds_a_pair_exactly_if_there_is_one(several: list[NetworkGrant], data: st.DataObject) -> None:
    several = [replace(one, job=i) for i, one in enumerate(several)]
    found = list(clashing(several))
    assert all(a.clashes(b) and b.clashes(a) for a, b in found)
    assert bool(found) == any(a.clashes(b) for a, b in combinations(several, 2))


@dataclass
class Drawn:
    """A policy whose plans a test draws."""

    data: st.DataObject
    jobs: int
    name: str = "drawn"
    plan: Plan | None = None
    view: View | None = None

    def decide(self, view: View) -> Plan:
        draw, cluster = self.data.draw, view.cluster
        active = view.jobs.number.tolist()
        free = draw(st.permutations(np.flatnonzero(cluster.node_up[cluster.gpu_node]).tolist()))
        chosen = draw(st.lists(st.sampled_from(active), unique=True, max_size=len(free))) if active else []
        jobs = {job: (gpu,) for job, gpu in zip(chosen, free, strict=False)}
        regions = [draw(grants(job)) for job in jobs if draw(st.booleans())]
        regions = [replace(one, server=-1) for one in regions]
        if draw(st.booleans()):  # as many of them as go together
            fitting: list[NetworkGrant] = []
            for one in regions:
                if valid(plan(jobs, *fitting, one), cluster, set(), set()):
                    fitting.append(one)
            regions = fitting
        self.view, self.plan = view, plan(jobs, *regions)
        return self.plan


OPERATIONS = ("decide", "decide", "decide", "finish", "fail", "cancel", "switch", "node")


@settings(max_examples=examples(450), deadline=None)
@given(st.data())
def test_no_sequence_leaves_memory_with_jobs_that_do_not_run_or_with_two(data: st.DataObject) -> None:
    asked = data.draw(st.lists(st.sampled_from(["auto", "require"]), min_size=1, max_size=6))
    saves = data.draw(st.lists(st.sampled_from(Checkpoints), min_size=len(asked), max_size=len(asked)))
    jobs = [
        JobSpec(id=f"j{i}", iterations=1.0, iteration_s=1.0, ina=InaRequest(mode), checkpoints=save)
        for i, (mode, save) in enumerate(zip(asked, saves, strict=True))
    ]
    required = {i for i, mode in enumerate(asked) if mode == "require"}
    policy = Drawn(data, len(jobs))
    controller = Controller(policy, CLUSTER)
    controller.handle(submit(0, *jobs))
    memory: dict[int, set[NetworkGrant]] = {}  # of the switches, as the commands leave it
    at_s = 0.0
    for name in data.draw(st.lists(st.sampled_from(OPERATIONS), max_size=20)):
        at_s += 1.0
        if name == "decide":
            controller.changed = True
            commands = _decide(controller, policy, required, at_s)
        else:
            commands = [one for event in _events(controller, name, data, at_s) for one in controller.handle(event)]
        for command in granted(commands):
            for job in command.released.tolist():
                del memory[job]  # it had some
            memory |= {
                job: {one for one in command.grants if one.job == job} for job in {g.job for g in command.grants}
            }
        everything = [one for several in memory.values() for one in several]
        phase = controller.job_store.columns["phase"]
        assert all(phase[one.job] == int(Phase.RUNNING) for one in everything)
        assert not any(a.clashes(b) for a, b in combinations(everything, 2))
        assert not any(one.switch in controller.cluster.network.down for one in everything)  # type: ignore[union-attr]
        assert set(everything) == set(controller.grants)
        assert len(everything) == len(controller.grants)


def _decide(controller: Controller, policy: Drawn, required: set[int], at_s: float) -> list[messages.Command]:
    """Decide; a plan is refused exactly if it is wrong, and repairs make no right plan wrong."""
    before = snapshot(controller)
    had = {one.job for one in controller.grants}
    try:
        commands = list(controller.handle(decide(at_s)))
    except PlanError:
        commands = []
        refused = True
    else:
        refused = False
    view, proposed = policy.view, policy.plan
    assert proposed is not None
    kept = set(view.jobs.number[view.keeps.rows].tolist()) - had
    assert refused == (not valid(keep_running(view, proposed), view.cluster, required, kept))
    if valid(proposed, view.cluster, required, kept):
        assert not refused
    if refused:
        changed = ("now_s", "events", "competing")
        assert {k: v for k, v in snapshot(controller).items() if k not in (*changed, "books")} == {
            k: v for k, v in before.items() if k not in (*changed, "books")
        }
    return commands


def _events(controller: Controller, name: str, data: st.DataObject, at_s: float) -> list[messages.Event]:
    runs = np.flatnonzero(controller.job_store.columns["phase"][: controller.job_store.count] == int(Phase.RUNNING))
    if name == "switch":
        switch = data.draw(st.sampled_from(["leaf0", "leaf1"]))
        down = switch in controller.cluster.network.down  # type: ignore[union-attr]
        return [messages.SwitchJoined(at_s, switch) if down else messages.SwitchLost(at_s, switch)]
    if name == "node":
        node = data.draw(st.sampled_from(controller.cluster.nodes))
        up = controller.cluster.up[controller.cluster.index(node.id)]
        return [messages.NodeLost(at_s, node.id) if up else messages.NodeJoined(at_s, node)]
    if not len(runs):
        return []
    job = int(data.draw(st.sampled_from(runs.tolist())))
    if name == "finish":
        return [finish(job, at_s)]
    return [
        messages.JobFailed(at_s, ints(job), "crashed") if name == "fail" else messages.JobCancelled(at_s, ints(job))
    ]


def _right_plan(rng: np.random.Generator, jobs: list[JobSpec], held: tuple[NetworkGrant, ...] = ()) -> Plan:
    """A plan for some of these jobs with as many grants as go together; those that get none wait if they must."""
    chosen, gpus = rng.permutation(len(jobs))[: rng.integers(1, len(jobs) + 1)], rng.permutation(8)
    several: list[NetworkGrant] = []
    for job in chosen.tolist():
        for switch in ("leaf0", "leaf1"):
            if rng.random() < 0.6:
                size, mode = int(rng.integers(2, 30)), str(rng.choice(["dedicated", "hybrid_region", "hybrid_region"]))
                alone = mode == "dedicated" or rng.random() < 0.3
                new = NetworkGrant(job, switch, int(rng.integers(0, 64 - size)), size, mode, exclusive=alone)  # type: ignore[arg-type]
                if not any(new.clashes(other) for other in several):
                    several.append(new)
    have = {one.job for one in several}
    runs = [job for job in chosen.tolist() if job in have or not jobs[job].ina.required]
    return plan({job: (int(gpu),) for job, gpu in zip(runs, gpus, strict=False)}, *several)


def test_a_plan_that_is_repaired_for_jobs_that_stay_is_right_if_it_was() -> None:
    rng = np.random.default_rng(0x6A17)
    waited = fell_back = 0
    for _ in range(sample(150, 3000)):
        jobs = [
            JobSpec(
                id=f"j{i}", iterations=1.0, iteration_s=1.0,
                checkpoints=Checkpoints.NEVER if rng.random() < 0.5 else Checkpoints.ON_STOP,
                ina=InaRequest("require" if rng.random() < 0.4 else "auto"),
            )
            for i in range(6)
        ]  # fmt: skip
        first, then = _right_plan(rng, jobs), _right_plan(rng, jobs)
        controller = Controller(Planned([first, then]), CLUSTER)
        controller.handle(submit(0, *jobs))
        controller.handle(decide(0.0))
        controller.changed, before = True, controller.grants
        commands = controller.handle(decide(1.0))  # which is not refused
        now, there = ({m.job: g.gpus for g in made.groups for m in g.members} for made in (first, controller.plan))
        wanted = {member.job: group.gpus for group in then.groups for member in group.members}
        for job, gpus in there.items():
            if gpus != wanted.get(job):  # it stays
                assert gpus == now[job]
                assert {g for g in controller.grants if g.job == job} == {g for g in before if g.job == job}
            if gpus != now.get(job):  # it starts or moves
                assert {g for g in controller.grants if g.job == job} <= set(then.grants)
        late = {one.job for one in then.grants} & there.keys() - {one.job for one in controller.grants}
        assert all(job in controller.plan.network_notes for job in late)
        fell_back += len(late - {job for command in granted(commands) for job in command.released.tolist()})
        waited += sum(jobs[job].ina.required and job not in there and wanted.keys() >= {job} for job in range(6))
    assert waited > 10
    assert fell_back > 10
