"""The controller as a specification: events in, commands out, compared literally."""

from dataclasses import dataclass, field

import numpy as np
import pytest

from plait.control import messages
from plait.control.controller import Controller
from plait.core.cluster import Cluster, Node
from plait.core.errors import PlaitError, PlanError
from plait.core.jobs import JobBatch, JobSpec, Phase
from plait.core.plan import Gate, Group, Member, Plan
from plait.core.policy import View
from plait.policies.catalog import make_policy


@dataclass(frozen=True)
class Fixed:
    """Always the same groups, as long as their jobs are active."""

    groups: tuple[Group, ...]
    valid_until_s: float = float("inf")
    asked: list[float] = field(default_factory=list)

    def decide(self, view: View) -> Plan:
        self.asked.append(view.now_s)
        active = set(view.jobs.number.tolist())
        alive = [g for g in self.groups if all(m.job in active for m in g.members)]
        return Plan.of(alive, valid_until_s=self.valid_until_s)


def group(job: int, *gpus: int) -> Group:
    return Group((Member(job),), gpus)


def controller(policy: object, cluster: str = "2x2") -> Controller:
    return Controller(policy, Cluster.parse(cluster))  # type: ignore[arg-type]


def submit(c: Controller, *specs: JobSpec, at_s: float = 0.0) -> list[dict]:  # type: ignore[type-arg]
    return commands(c, messages.JobSubmitted(at_s, c.job_store.count, JobBatch.of(specs)))


def job(name: str, gpus: int = 1, seconds: float = 10.0, **more: object) -> JobSpec:
    return JobSpec(id=name, gpus=gpus, iterations=seconds, iteration_s=1.0, **more)  # type: ignore[arg-type]


def commands(c: Controller, event: object) -> list[dict]:  # type: ignore[type-arg]
    return [messages.to_json(command) for command in c.handle(event)]  # type: ignore[arg-type]


def numbers(*values: int) -> np.ndarray:  # type: ignore[type-arg]
    return np.array(values, dtype=np.int64)


def progress(at_s: float, number: int, done: float, gpus: int = 1) -> messages.ProgressReported:
    one = np.array([done])
    return messages.ProgressReported(at_s, numbers(number), one, one * gpus, one, np.ones(1))


def test_a_job_is_launched_finishes_and_the_next_one_starts() -> None:
    c = controller(make_policy("fifo"), "1x2")
    assert submit(c, job("a", 2), job("b", 2)) == []
    assert commands(c, messages.ReplanDue(0.0)) == [
        {"type": "Launch", "event": 2, "groups": [{"jobs": [0], "gpus": [0, 1]}]}
    ]
    assert commands(c, messages.JobFinished(10.0, numbers(0), np.array([10.0]))) == []
    assert commands(c, messages.ReplanDue(10.0)) == [
        {"type": "Launch", "event": 4, "groups": [{"jobs": [1], "gpus": [0, 1]}]}
    ]
    assert c.job_store.columns["end_s"][0] == 10.0
    assert Phase(c.job_store.columns["phase"][0]) is Phase.FINISHED


def test_a_shorter_job_takes_the_gpus_of_a_longer_one() -> None:
    c = controller(make_policy("srtf"), "1x2")
    submit(c, job("long", 2, 100.0))
    commands(c, messages.ReplanDue(0.0))
    submit(c, job("short", 2, 5.0, submit_s=1.0), at_s=1.0)
    commands(c, progress(1.0, 0, 1.0, 2))
    assert commands(c, messages.ReplanDue(1.0)) == [
        {"type": "Stop", "event": 5, "jobs": [0], "checkpoint": True, "suspend": False},
        {"type": "Launch", "event": 5, "groups": [{"jobs": [1], "gpus": [0, 1]}]},
    ]
    status = c.view().jobs[0]
    assert (status.phase, status.preemptions, status.pending_since_s) == (Phase.WAITING, 1, 1.0)


def test_an_unchanged_plan_causes_nothing() -> None:
    c = controller(Fixed((group(0, 1),)))
    submit(c, job("a"))
    assert len(commands(c, messages.ReplanDue(0.0))) == 1
    submit(c, job("b"), at_s=1.0)
    assert commands(c, messages.ReplanDue(1.0)) == []


def test_a_policy_is_asked_only_when_something_changed_or_its_plan_ran_out() -> None:
    policy = Fixed((group(0, 1),), valid_until_s=50.0)
    c = controller(policy)
    submit(c, job("a"))
    assert commands(c, messages.ReplanDue(0.0))[-1] == {"type": "Wake", "event": 2, "at_s": 50.0}
    commands(c, messages.ReplanDue(10.0))
    commands(c, messages.ReplanDue(49.0))
    assert policy.asked == [0.0]
    with pytest.raises(PlaitError, match=r"wants to decide again at 50\.0 s, which is not after 50\.0 s"):
        commands(c, messages.ReplanDue(50.0))
    assert policy.asked == [0.0, 50.0]


def test_moving_a_job_stops_it_first() -> None:
    c = controller(Fixed((group(0, 0),)))
    submit(c, job("a"))
    commands(c, messages.ReplanDue(0.0))
    c.policy = Fixed((group(0, 3),))
    c.changed = True
    assert [x["type"] for x in commands(c, messages.ReplanDue(5.0))] == ["Stop", "Launch"]
    assert c.view().jobs[0].starts == 2


def test_company_changes_without_a_restart() -> None:
    c = controller(Fixed((group(0, 0, 1),)))
    submit(c, job("a", 2), job("b", 2))
    commands(c, messages.ReplanDue(0.0))
    together = Group((Member(0), Member(1)), (0, 1), Gate.BARRIER)
    c.policy, c.changed = Fixed((together,)), True
    launch = commands(c, messages.ReplanDue(1.0))
    assert launch == [{"type": "Launch", "event": 3, "groups": [{"jobs": [0, 1], "gpus": [0, 1], "gate": "barrier"}]}]
    c.policy, c.changed = Fixed((Group((Member(0, turn=1), Member(1)), (0, 1), Gate.BARRIER),)), True
    assert [x["type"] for x in commands(c, messages.ReplanDue(2.0))] == ["Adjust"]
    c.policy, c.changed = Fixed((group(0, 0, 1),)), True
    assert [x["type"] for x in commands(c, messages.ReplanDue(3.0))] == ["Stop", "Adjust"]
    assert c.job_store.columns["starts"][:2].tolist() == [1, 1]


def test_a_gang_that_never_fits_is_refused_at_submission() -> None:
    c = controller(make_policy("fifo"))
    assert submit(c, job("wide", 5), job("ok", 4)) == [
        {
            "type": "Refuse",
            "event": 1,
            "jobs": [0],
            "reasons": ["needs 5 GPUs of one kind; the largest gang that fits this cluster is 4"],
        }
    ]
    assert Phase(c.job_store.columns["phase"][0]) is Phase.FAILED
    assert c.active.tolist() == [1]


@pytest.mark.parametrize(
    ("spec", "cluster", "reason"),
    [
        (job("k", 1, gpu_kinds=("h100",)), "1x2:v100", "wants GPU kinds h100; this cluster has v100"),
        (job("m", 3), "1x2:a,1x2:b", "needs 3 GPUs of one kind; the largest gang that fits this cluster is 2"),
        (job("c", 2, cpus=20.0), "2x2+8c", "needs 2 GPUs of one kind, each with 10 CPUs (nodes have up to 8);"),
    ],
)
def test_refusals_say_what_would_fit(spec: JobSpec, cluster: str, reason: str) -> None:
    [refusal] = submit(controller(make_policy("fifo"), cluster), spec)
    assert refusal["reasons"][0].startswith(reason)


def test_failures_are_retried_until_retries_are_used_up() -> None:
    c = controller(make_policy("fifo"))
    submit(c, job("a", retries=1))
    commands(c, messages.ReplanDue(0.0))
    assert commands(c, messages.JobFailed(1.0, numbers(0), "out of memory")) == []
    assert [x["type"] for x in commands(c, messages.ReplanDue(1.0))] == ["Launch"]
    assert commands(c, messages.JobFailed(2.0, numbers(0), "out of memory")) == [
        {"type": "Refuse", "event": 5, "jobs": [0], "reasons": ["out of memory; failed 2 times"]}
    ]
    assert not len(c.active)


def test_a_lost_node_sends_its_gangs_back_to_the_queue() -> None:
    c = controller(make_policy("fifo:placement=first-fit"))
    submit(c, job("wide", 4), job("narrow", 1))
    commands(c, messages.ReplanDue(0.0))
    assert commands(c, messages.NodeLost(3.0, "n1")) == [
        {"type": "Stop", "event": 3, "jobs": [0], "checkpoint": False, "suspend": False}
    ]
    assert c.view().jobs[0].reason == "lost node n1"
    assert commands(c, messages.ReplanDue(3.0)) == []
    commands(c, messages.NodeJoined(9.0, Node("n1", 2)))
    assert [x["type"] for x in commands(c, messages.ReplanDue(9.0))] == ["Launch"]


def test_a_cancelled_job_is_stopped_if_it_runs() -> None:
    c = controller(make_policy("fifo"), "1x1")
    submit(c, job("a"), job("b"))
    commands(c, messages.ReplanDue(0.0))
    assert commands(c, messages.JobCancelled(1.0, numbers(0, 1))) == [
        {"type": "Stop", "event": 3, "jobs": [0], "checkpoint": False, "suspend": False}
    ]
    assert not len(c.active)


def test_a_failed_launch_goes_back_to_the_queue() -> None:
    c = controller(make_policy("fifo"))
    submit(c, job("a"))
    commands(c, messages.ReplanDue(0.0))
    commands(c, messages.LaunchFailed(0.5, numbers(0), "no space left on n0"))
    assert c.view().jobs[0].reason == "no space left on n0"
    assert [x["type"] for x in commands(c, messages.ReplanDue(1.0))] == ["Launch"]


def test_departures_do_not_wake_a_settled_plan() -> None:
    c = controller(make_policy("srsf"))
    submit(c, job("a"), job("b"))
    commands(c, messages.ReplanDue(0.0))
    assert c.plan.settled
    commands(c, messages.JobFinished(5.0, numbers(0), np.array([5.0])))
    assert not c.changed


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        ((group(0, 0), group(1, 0)), "job 'b' .* on GPU 0 of node 'n0', which another group"),
        ((group(0, 0), group(0, 1)), "runs job 'a' .* in two places"),
        ((group(0, 0, 1),), "gives job 'a' .* 2 GPUs"),
        ((group(0, 9),), "job 'a' .* on GPU 9; this cluster has GPUs 0 to 3"),
        ((Group((Member(7),), (0,)),), "job number 7, which was never submitted"),
    ],
)
def test_a_wrong_plan_names_policy_job_and_gpu(groups: tuple[Group, ...], words: str) -> None:
    @dataclass(frozen=True)
    class Wrong:
        name: str = "wrong"

        def decide(self, view: View) -> Plan:
            return Plan.of(groups)

    c = controller(Wrong())
    submit(c, job("a"), job("b"))
    with pytest.raises(PlanError, match=f"policy wrong made a plan that .*{words}"):
        commands(c, messages.ReplanDue(0.0))


def test_a_plan_on_a_node_that_is_down_is_refused() -> None:
    c = controller(Fixed((group(0, 2),)))
    submit(c, job("a"))
    commands(c, messages.NodeLost(1.0, "n1"))
    with pytest.raises(PlanError, match="GPU 2 of node 'n1', which is down"):
        commands(c, messages.ReplanDue(1.0))


def test_a_plan_for_an_ended_job_is_refused() -> None:
    @dataclass(frozen=True)
    class Stubborn:
        def decide(self, view: View) -> Plan:
            return Plan.of([group(0, 0)])

    c = controller(Stubborn())
    submit(c, job("a"), job("b"))
    commands(c, messages.ReplanDue(0.0))
    commands(c, messages.JobFinished(1.0, numbers(0), np.array([1.0])))
    with pytest.raises(PlanError, match=r"policy Stubborn .* job 'a' .* already ended"):
        commands(c, messages.ReplanDue(1.0))


def test_time_does_not_go_back() -> None:
    c = controller(make_policy("fifo"))
    commands(c, messages.ReplanDue(5.0))
    with pytest.raises(PlaitError, match="time cannot go back"):
        commands(c, messages.ReplanDue(4.0))


def test_a_job_cannot_end_twice() -> None:
    c = controller(make_policy("fifo"))
    submit(c, job("a"))
    commands(c, messages.ReplanDue(0.0))
    commands(c, messages.JobFinished(1.0, numbers(0), np.array([1.0])))
    with pytest.raises(PlaitError, match=r"job 'a' .* is finished and cannot become finished"):
        commands(c, messages.JobFinished(2.0, numbers(0), np.array([2.0])))
    with pytest.raises(PlaitError, match="is finished and cannot become failed"):
        commands(c, messages.JobFailed(2.0, numbers(0), "late"))


def test_waits_count_for_promotion_only_after_the_first_run() -> None:
    c = controller(Fixed(()))
    submit(c, job("a", seconds=100.0))
    commands(c, messages.ReplanDue(0.0))
    assert c.view().jobs.idled_s.tolist() == [0.0]
    c.policy, c.changed = Fixed((group(0, 0),)), True
    commands(c, messages.ReplanDue(10.0))
    commands(c, progress(14.0, 0, 4.0))
    c.policy, c.changed = Fixed(()), True
    commands(c, messages.ReplanDue(14.0))
    commands(c, messages.ReplanDue(20.0))
    assert c.view().jobs.idled_s.tolist() == [6.0]
    assert c.view().jobs.waiting_s.tolist() == [6.0]
