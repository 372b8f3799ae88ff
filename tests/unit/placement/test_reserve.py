"""GPUs are held for the first waiting job while jobs in its way may not be stopped."""

import json

import numpy as np
import pytest

from plait.control import controller as controllers
from plait.control.controller import Controller
from plait.control.history import History
from plait.control.messages import JobCancelled, JobFinished, JobSubmitted, NodeLost, NodeSuspected, ReplanDue
from plait.control.metrics import measure
from plait.control.snapshot import restore, snapshot
from plait.core.cluster import Cluster
from plait.core.jobs import Checkpoints, JobBatch, JobSpec
from plait.core.plan import Group, Member, Plan
from plait.core.policy import Policy, View
from plait.core.preemption import FREELY
from plait.placement import reserve
from plait.policies.catalog import make_policy
from plait.policies.quotas import Quotas, WithinQuotas
from plait.sim.contract import IDEAL, SmallWorkload, play
from plait.sim.run import Step, simulate

PLAIN, ON_STOP = Checkpoints.NEVER, Checkpoints.ON_STOP
#: Policies of each kind: preempting, sharing, with slices, rounds and leases of their own, and without preemption.
KINDS = ["tiresias-l", "muri-l", "srsf", "gandiva", "fifo-backfill", "drf", "sia:interval_s=300", "plait"]


def job(name: str, seconds: float | None, gpus: int = 1, at_s: float = 0.0, **more: object) -> JobSpec:
    """A plain job unless `more` says otherwise; of unknown length without `seconds`."""
    fields = {"iterations": seconds, "iteration_s": None if seconds is None else 1.0, "checkpoints": PLAIN} | more
    return JobSpec(id=name, submit_s=at_s, gpus=gpus, **fields)  # type: ignore[arg-type]


def on(cluster: str, policy: str | Policy, *specs: JobSpec) -> Controller:
    """A controller with these jobs, submitted at 0 s, after its first decision."""
    c = Controller(make_policy(policy) if isinstance(policy, str) else policy, Cluster.parse(cluster))
    submit(c, 0.0, *specs)
    return c


def submit(c: Controller, at_s: float, *specs: JobSpec) -> None:
    c.handle(JobSubmitted(at_s, c.job_store.count, JobBatch.of(specs)))
    c.handle(ReplanDue(at_s))


def end(c: Controller, at_s: float, *names: str) -> None:
    jobs = np.array([number(c, name) for name in names], dtype=np.int64)
    c.handle(JobFinished(at_s, jobs, np.full(len(jobs), at_s)))
    c.handle(ReplanDue(at_s))


def number(c: Controller, name: str) -> int:
    return next(n for n in range(c.job_store.count) if c.job_store.spec(n).id == name)


def where(c: Controller) -> dict[str, tuple[int, ...]]:
    return {c.job_store.spec(member.job).id: group.gpus for group in c.running for member in group.members}


def held(c: Controller) -> dict[str, tuple[int, ...]]:
    return {c.job_store.spec(one.job).id: one.gpus for one in c.reservations}


def reason(c: Controller, name: str) -> str:
    return c.waiting_reason(number(c, name)) or ""


WIDE = job("wide", 10.0, gpus=2, priority=5.0)


def narrow_and_wide(policy: str, **wide: object) -> Controller:
    """Two GPUs: `a` and `b` run, `wide` waits for both, and `c` for one; `a` ends at 12 s."""
    c = on("1x2", policy, job("a", None), job("b", None))
    submit(c, 2.0, job("wide", None, gpus=2, priority=5.0, **wide), job("c", None))
    end(c, 12.0, "a")
    return c


@pytest.mark.parametrize("policy", KINDS)
def test_a_gpu_that_becomes_free_is_held_for_the_first_of_the_queue(policy: str) -> None:
    c = narrow_and_wide(policy)
    assert where(c) == {"b": (1,)}
    assert held(c) == {"wide": (0,)}
    end(c, 25.0, "b")
    assert where(c) == {"wide": (0, 1)}
    assert held(c) == {}


def test_both_jobs_are_told_for_whom_and_how_long() -> None:
    c = narrow_and_wide("tiresias-l")
    assert reason(c, "wide") == (
        "needs 2 GPUs; waits until b has ended or may be stopped (1 GPU reserved for it: n0:0)"
    )
    assert reason(c, "c") == (
        "needs 1 GPU; free ones are held for wide, which is ahead of it and waits until b has ended or may be stopped"
    )


def test_a_reason_names_three_jobs_and_counts_the_rest() -> None:
    c = on("1x6", "srsf", *(job(name, None) for name in "abcdef"))
    submit(c, 2.0, job("wide", None, gpus=6, priority=5.0), job("g", None))
    end(c, 3.0, "a")
    assert reason(c, "wide").startswith(
        "needs 6 GPUs; waits until b, c, d and 2 other jobs have ended or may be stopped"
    )


def test_the_jobs_in_the_way_are_named_once_for_all_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    """A status and a snapshot read the reasons of all waiting jobs."""
    c = on("8x8", "fifo-backfill", *(job(f"r{i}", None) for i in range(56)))
    submit(c, 1.0, job("wide", None, gpus=16, priority=5.0), *(job(f"w{i}", None) for i in range(100)))
    asked: list[int] = []
    named = reserve._name
    monkeypatch.setattr(reserve, "_name", lambda view, row: asked.append(row) or named(view, row))
    reasons = dict(c.plan.reasons)
    assert len(asked) <= len(reasons) + reserve.NAMED
    assert sum("held for wide" in text for text in reasons.values()) == 100


@pytest.mark.parametrize("policy", KINDS)
def test_a_stream_of_narrow_jobs_delays_a_wide_one_by_what_ran_before_it(policy: str) -> None:
    stream = [job(f"n{i:02d}", 25.0, at_s=8.0 * (i // 2)) for i in range(60)]
    wide = job("wide", 10.0, gpus=4, at_s=12.0, priority=5.0)
    specs = sorted([*stream, wide], key=lambda spec: spec.submit_s)
    played = play(make_policy(policy), SmallWorkload("stream", JobBatch.of(specs), Cluster.parse("2x2")))
    started_s = played.controller.job_store.columns["first_start_s"][specs.index(wide)]
    assert started_s == 33.0  # the last of the jobs that ran at 12 s began at 8 s


def test_what_is_held_is_a_figure_of_the_run() -> None:
    jobs = JobBatch.of([job("a", 12.0), job("b", 25.0), job("wide", 10.0, gpus=2, at_s=2.0, priority=5.0),
                        job("c", 40.0, at_s=2.0)])  # fmt: skip
    histories: list[History] = []

    def observe(controller: Controller) -> Step:
        histories.append(History(controller))
        return histories[0]

    run = simulate(jobs, Cluster.parse("1x2"), make_policy("srsf"), IDEAL, observe=observe)
    summary = measure(run.controller, histories[0], trace="t", policy="srsf", seed=0).summary
    assert summary["reserved_idle_gpu_h"] == pytest.approx(13.0 / 3600)


def test_a_job_that_is_known_to_end_in_time_starts_on_held_gpus() -> None:
    c = on("1x2", "tiresias-l", job("a", 12.0), job("b", 100.0))
    submit(c, 2.0, WIDE, job("too-long", 101.0), job("short", 99.0))
    end(c, 12.0, "a")
    assert held(c) == {"wide": (0,)}  # the policy proposes the one that came first
    c.handle(JobCancelled(13.0, np.array([number(c, "too-long")])))
    c.handle(ReplanDue(13.0))
    assert where(c) == {"b": (1,), "short": (0,)}


def test_where_nobody_knows_when_a_job_ends_none_that_stays_starts_before_it() -> None:
    c = on("1x2", "tiresias-l", job("a", 12.0), job("b", None))
    submit(c, 2.0, WIDE, job("short", 1.0))
    end(c, 12.0, "a")
    assert where(c) == {"b": (1,)}


def test_a_job_that_can_be_stopped_uses_held_gpus_where_the_policy_preempts() -> None:
    for policy, starts in (("srsf", True), ("srsf:min_run_s=60", False), ("fifo-backfill", False)):
        c = on("1x2", policy, job("a", None), job("b", None))
        submit(c, 2.0, job("wide", None, gpus=2, priority=5.0), job("attached", None, checkpoints=ON_STOP))
        end(c, 12.0, "a")
        assert ("attached" in where(c)) is starts, policy
        end(c, 25.0, "b")
        assert "wide" in where(c), policy


def test_nothing_is_held_where_all_jobs_may_be_stopped() -> None:
    specs = [job("a", None, checkpoints=ON_STOP), job("b", None, checkpoints=ON_STOP)]
    c = on("1x2", "fifo-backfill", *specs)
    submit(c, 2.0, job("wide", None, gpus=2, checkpoints=ON_STOP), job("c", None, checkpoints=ON_STOP))
    end(c, 12.0, "a")
    assert where(c) == {"b": (1,), "c": (0,)}


def test_nothing_is_held_where_policies_stop_freely() -> None:
    c = Controller(make_policy("fifo-backfill"), Cluster.parse("1x2"), FREELY)
    submit(c, 0.0, job("a", None), job("b", None))
    submit(c, 2.0, job("wide", None, gpus=2), job("c", None))
    end(c, 12.0, "a")
    assert "c" in where(c)


def test_nothing_is_held_for_a_job_that_cannot_run_on_the_nodes_that_are_up() -> None:
    c = on("2x2", "tiresias-l", *(job(name, None) for name in "abcd"))
    submit(c, 2.0, job("wide", None, gpus=4, priority=5.0), job("e", None))
    end(c, 3.0, "a")
    assert held(c) == {"wide": (0,)}
    c.handle(NodeLost(4.0, "n1"))
    c.handle(ReplanDue(4.0))
    assert held(c) == {}
    assert set(where(c)) == {"b", "c"}  # c was on the lost node, and comes before e


def test_a_job_behind_one_that_can_never_run_there_has_gpus_held_for_it() -> None:
    c = on("2x2", "tiresias-l", *(job(name, None) for name in "abcd"))
    submit(c, 2.0, job("widest", None, gpus=4, priority=9.0), job("wide", None, gpus=2, priority=5.0), job("e", None))
    c.handle(NodeLost(4.0, "n1"))
    c.handle(ReplanDue(4.0))
    end(c, 5.0, "a")
    assert held(c) == {"wide": (0,)}


def test_gpus_are_held_where_the_job_may_run() -> None:
    c = on("1x2:v100,1x2:a100", "tiresias-l", *(job(name, None) for name in "abcd"))
    submit(c, 2.0, job("wide", None, gpus=2, priority=5.0, gpu_kinds=("a100",)), job("e", None), job("f", None))
    end(c, 3.0, "a", "c")
    assert where(c)["e"] == (0,)
    assert held(c) == {"wide": (2,)}


def test_gpus_are_held_on_the_node_that_is_free_first() -> None:
    c = on("2x2", "tiresias-l", job("a", 500.0), job("b", 500.0), job("c", 50.0), job("d", 50.0))
    submit(c, 2.0, job("wide", None, gpus=2, priority=5.0), job("e", None), job("f", None))
    end(c, 3.0, "a", "c")
    assert held(c) == {"wide": (2,)}
    assert where(c)["e"] == (0,)


def test_a_start_on_held_gpus_is_made_elsewhere_if_there_is_room() -> None:
    c = on("2x4", "tiresias-l", job("a", None, gpus=3), job("b", 9.0, gpus=3))
    assert where(c) == {"a": (0, 1, 2), "b": (4, 5, 6)}
    submit(c, 2.0, job("wide", None, gpus=4, priority=5.0), job("e", None), job("f", None))
    assert held(c) == {"wide": (7,)}
    assert where(c)["e"] == (3,)
    assert "f" not in where(c)


def test_wide_jobs_start_one_after_the_other() -> None:
    c = on("1x2", "tiresias-l", job("a", None), job("b", None))
    submit(c, 2.0, job("one", None, gpus=2, priority=5.0), job("two", None, gpus=2, priority=5.0), job("c", None))
    end(c, 3.0, "a")
    assert held(c) == {"one": (0,)}
    end(c, 4.0, "b")
    submit(c, 5.0, job("d", None))
    end(c, 6.0, "one")
    assert where(c) == {"two": (0, 1)}


def test_a_job_with_a_higher_priority_takes_held_gpus() -> None:
    c = narrow_and_wide("tiresias-l")
    submit(c, 13.0, job("urgent", None, priority=9.0))
    assert where(c) == {"b": (1,), "urgent": (0,)}


def test_nothing_is_held_for_a_job_beyond_the_quota_of_its_project() -> None:
    policy = WithinQuotas(make_policy("tiresias-l"), Quotas.parse("big=1"))
    c = on("1x2", policy, job("a", None), job("b", None))
    submit(c, 2.0, job("wide", None, gpus=2, priority=5.0, project="big"), job("c", None))
    end(c, 12.0, "a")
    assert where(c) == {"b": (1,), "c": (0,)}


def test_gpus_are_held_of_the_kind_that_a_quota_leaves() -> None:
    policy = WithinQuotas(make_policy("tiresias-l"), Quotas.parse("big@v100=0/big@a100=2"))
    c = on("1x2:v100,1x2:a100", policy, *(job(name, None) for name in "abcd"))
    submit(c, 2.0, job("wide", None, gpus=2, priority=5.0, project="big"), job("e", None), job("f", None))
    end(c, 3.0, "a", "c")
    assert held(c) == {"wide": (2,)}
    assert where(c)["e"] == (0,)


class NarrowFirst:
    """Names GPUs by itself, gives no order, and starts the narrowest jobs first."""

    def decide(self, view: View) -> Plan:
        jobs = view.jobs
        groups = [group for group in view.running if group.members[0].job in jobs.number]
        free = set(range(view.cluster.gpus)) - {gpu for group in groups for gpu in group.gpus}
        for row in np.lexsort((jobs.number, jobs.gpus)).tolist():
            if not jobs.running[row] and jobs.gpus[row] <= len(free):
                gpus = tuple(sorted(free)[: jobs.gpus[row]])
                free -= set(gpus)
                groups.append(Group((Member(int(jobs.number[row])),), gpus))
        return Plan.of(groups)


def test_a_policy_without_an_order_has_that_of_priority_and_submission() -> None:
    c = on("1x2", NarrowFirst(), job("a", None), job("b", None))
    submit(c, 2.0, job("wide", None, gpus=2, priority=5.0), job("c", None))
    end(c, 12.0, "a")
    assert where(c) == {"b": (1,)}
    assert held(c) == {"wide": (0,)}


class Joining:
    """The first waiting narrow job joins the group of the first running one."""

    def joined(self, groups: list[Group], member: Member) -> list[Group]:
        return [Group((*groups[0].members, member), groups[0].gpus), *groups[1:]]

    def decide(self, view: View) -> Plan:
        jobs, groups = view.jobs, list(view.running)
        new = [n for n, g, r in zip(jobs.number.tolist(), jobs.gpus, jobs.running, strict=True) if g == 1 and not r]
        if new and groups:
            groups = self.joined(groups, Member(new[0]))
        elif not groups:
            groups = [Group((Member(number),), (at,)) for at, number in enumerate(new[:2])]
        return Plan.of(groups)


class Hosting(Joining):
    """Likewise, as guests."""

    guests = 1

    def joined(self, groups: list[Group], member: Member) -> list[Group]:
        return [*groups, Group((member,), groups[0].gpus, guest=True)]


@pytest.mark.parametrize("policy", [Joining(), Hosting()])
def test_no_plain_job_joins_one_in_the_way_of_the_first(policy: Policy) -> None:
    c = on("1x2", policy, job("a", None), job("b", None))
    submit(c, 2.0, job("c", None))
    assert where(c)["c"] == (0,)
    submit(c, 3.0, job("wide", None, gpus=2, priority=5.0), job("d", None))
    assert set(where(c)) == {"a", "b", "c"}


class Swaps:
    """Stops the running job that can be stopped for a plain one behind the first of the queue."""

    preempts = True

    def decide(self, view: View) -> Plan:
        ids = {view.jobs.spec(row).id: int(view.jobs.number[row]) for row in range(len(view.jobs))}
        last = "c" if "c" in ids else "attached"
        groups = [Group((Member(ids[name]),), (at,)) for at, name in enumerate(["b", last]) if name in ids]
        order = [ids[name] for name in ("b", "wide", "c", "attached") if name in ids]
        return Plan(Plan.of(groups).groups, order=np.array(order, dtype=np.int64))


def test_a_job_continues_that_was_to_be_stopped_for_a_start_that_is_held_back() -> None:
    c = on("1x2", Swaps(), job("b", None), job("attached", None, checkpoints=ON_STOP))
    submit(c, 2.0, job("wide", None, gpus=2, priority=5.0), job("c", None))
    assert where(c) == {"b": (0,), "attached": (1,)}


def test_the_schedule_of_jobs_that_may_all_be_stopped_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    specs = [job(f"j{i}", float(rng.integers(5, 90)), int(rng.choice([1, 1, 2, 4])), 5.0 * i, checkpoints=ON_STOP)
             for i in range(40)]  # fmt: skip
    workload = SmallWorkload("attached", JobBatch.of(specs), Cluster.parse("2x4"))
    policies = ("fifo-backfill", "tiresias-l", "muri-l")
    lines = [play(make_policy(policy), workload).lines for policy in policies]
    monkeypatch.setattr(controllers, "hold_back", lambda view, plan, preempts: plan)
    assert lines == [play(make_policy(policy), workload).lines for policy in policies]


@pytest.mark.parametrize("policy", KINDS)
def test_gpus_stay_held_while_a_node_that_the_first_needs_is_silent(policy: str) -> None:
    c = on("2x1", policy, job("a", None), job("b", None))
    submit(c, 2.0, job("wide", None, gpus=2, priority=5.0), job("c", None))
    end(c, 12.0, "a")
    (free,) = held(c)["wide"]
    silent = c.cluster.nodes[1 - free].id  # where b runs
    c.handle(NodeSuspected(13.0, silent, suspect=True))
    c.handle(ReplanDue(13.0))
    again = restore(json.loads(json.dumps(snapshot(c))), c.policy)
    assert again.silent == {silent}
    for one in (c, again):
        assert (held(one), where(one).keys()) == ({"wide": (free,)}, {"b"})
    b_responds = f"b has ended or may be stopped, and node {silent} responds again"
    assert reason(c, "wide") == f"needs 2 GPUs; waits until {b_responds} (1 GPU reserved for it: n{free}:0)"
    c.handle(NodeSuspected(16.0, silent, suspect=False))
    end(c, 16.0, "b")
    assert where(c).keys() == {"wide"}


def test_gpus_are_held_for_a_job_that_waits_for_a_silent_node_alone_until_it_is_lost() -> None:
    c = on("2x1", "fifo-backfill", job("a", None, gpus=2))
    silent = c.cluster.nodes[0].id
    c.handle(NodeSuspected(1.0, silent, suspect=True))
    end(c, 2.0, "a")
    submit(c, 3.0, job("wide", None, gpus=2, priority=5.0), job("c", None))
    assert (held(c), where(c)) == ({"wide": (1,)}, {})
    assert reason(c, "wide").startswith(f"needs 2 GPUs; waits until node {silent} responds again")
    c.handle(NodeLost(20.0, silent))
    c.handle(ReplanDue(20.0))
    assert (held(c), where(c)) == ({}, {"c": (1,)})


def test_a_job_for_which_nodes_that_are_up_suffice_waits_for_no_silent_one() -> None:
    c = on("3x1", "fifo-backfill", job("a", None), job("b", None))
    silent = next(c.cluster.nodes[i].id for i in range(3) if (i,) not in where(c).values())
    c.handle(NodeSuspected(1.0, silent, suspect=True))
    submit(c, 2.0, job("wide", None, gpus=2, priority=5.0), job("c", None))
    end(c, 3.0, "a")
    assert len(held(c)["wide"]) == 1
    assert "responds" not in reason(c, "wide")


def test_a_job_for_which_silent_nodes_suffice_waits_for_nobody_to_end() -> None:
    c = on("3x1", "fifo-backfill", job("b", None))
    (busy,) = where(c)["b"]
    free = [i for i in range(3) if i != busy]
    for i in free:
        c.handle(NodeSuspected(1.0, c.cluster.nodes[i].id, suspect=True))
    submit(c, 2.0, job("wide", None, gpus=2, priority=5.0))
    assert reason(c, "wide").startswith(f"needs 2 GPUs; waits until node n{free[0]} and node n{free[1]} respond again")
