"""Guests in a live cluster: assigned beside hosts, promoted where they run, sent back to the queue, measured."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from live_cases import Cluster, Node

from plait.control.job_store import JobStore
from plait.core.errors import InputError
from plait.core.jobs import JobBatch
from plait.core.policy import has_guests
from plait.live.api.cluster import Gpus
from plait.live.api.jobs import Neighbour, SharingOfJob
from plait.live.protocol.wire import GpuMean, Memory, NodeInfo, Run, Seen, Sharing, Usage
from plait.live.scheduler.explain.guests import shown
from plait.policies.catalog import CATALOG, make_policy

Make = Callable[..., Cluster]
OPPORTUNISTIC = {"class": "opportunistic", "profile": {"gpu": 0.1, "cpu": 0.1}}
HALF = {"profile": {"gpu": 0.1, "cpu": 0.1}}
GB = 1e9


def runs(node: Node) -> dict[int, Run]:
    return {run.job: run for run in node.answer.attempts}


def events(c: Cluster, kind: str) -> list[dict[str, Any]]:
    return [json.loads(row.entry) for row in c.store.entries() if row.type == kind]


def attempt_of(c: Cluster, job: int) -> Any:
    return c.engine.state.jobs[job].live


@pytest.fixture
def shared(cluster: Make) -> Cluster:
    """One GPU: a guaranteed job that uses half of it, and its guest."""
    c = cluster((1,), policy="antman", jobs=[HALF], then_s=2.2)
    c.submit(OPPORTUNISTIC, then_s=2.2)
    return c


def test_a_guest_is_assigned_to_the_gpu_of_its_host(shared: Cluster) -> None:
    host, guest = runs(shared.nodes[0])[0], runs(shared.nodes[0])[1]
    assert (host.gpus, guest.gpus) == ([0], [0])
    assert (host.group.guest, guest.group.guest) == (False, True)
    assert host.group.id != guest.group.id
    assert (shared.state(0), shared.state(1)) == ("running", "running")
    gpus = shared.engine.status(shared.now).gpus
    assert gpus == Gpus(total=1, held=1, free=0, wanted=2, shared=1, reserved_idle=0)
    assert shared.engine.nodes(shared.now)[0].gpu_jobs == [["j-0", "j-1"]]


def test_a_service_that_starts_again_assigns_the_same(shared: Cluster) -> None:
    before = runs(shared.nodes[0])
    shared.restart()
    shared.nodes[0].sync()
    assert runs(shared.nodes[0]) == before
    shared.pass_s(2.2)
    assert runs(shared.nodes[0]) == before
    assert [attempt_of(shared, job).guest for job in (0, 1)] == [False, True]


def test_a_guest_outlives_its_host_and_starts_no_second_time(shared: Cluster) -> None:
    shared.nodes[0].end(0, then_s=3.2)
    assert (shared.state(0), shared.state(1)) == ("finished", "running")
    assert runs(shared.nodes[0])[1].epoch == 1
    assert shared.engine.explain(1, shared.now).summary.startswith(
        "runs as a guest on n0:0, where no guaranteed job is, because its class is opportunistic"
    )


def test_a_guest_of_class_auto_becomes_a_host_where_it_runs(cluster: Make) -> None:
    c = cluster((1,), policy="antman", jobs=[HALF], then_s=2.2)
    c.submit({**HALF, "class": "auto"}, then_s=2.2)
    before = runs(c.nodes[0])[1]
    assert before.group.guest
    assert "its class is auto" in c.engine.explain(1, c.now).summary
    c.nodes[0].end(0, then_s=3.2)
    after = runs(c.nodes[0])[1]
    assert after == replace(before, group=replace(before.group, guest=False, version=before.group.version + 1))
    assert [row["job"] for row in events(c, "AttemptBegan")] == [0, 1]
    assert not attempt_of(c, 1).guest
    assert c.engine.explain(1, c.now).sharing is None


def test_a_guest_on_its_way_out_holds_up_nobody(shared: Cluster) -> None:
    """A left group that is a guest shares GPUs as guests do; agents start others beside it."""
    shared.nodes[0].obeys = False
    shared.engine.cancel(1, shared.now)
    left = {run.job: run for run in shared.engine.observe(shared.nodes[0].observed(), shared.now).attempts}[1]
    assert (left.group.id, left.group.guest, left.stop) == ("left-1-1", True, True)
    shared.nodes[0].obeys = True


def test_a_guest_without_room_goes_back_to_the_queue_and_never_fails(shared: Cluster) -> None:
    why = "its GPU memory does not fit next to j-0"
    for epoch in range(1, 26):  # more often than exits that ask for a new start are allowed
        key = (1, epoch, 0)
        shared.nodes[0].seen[key] = replace(
            shared.nodes[0].seen[key],
            memory=Memory(9 * GB, 4 * GB),
            sharing=Sharing(True, action="checkpoint", leaves=why),
        )
        shared.pass_s(4.4)
        assert attempt_of(shared, 1).epoch == epoch + 1
    assert [row["why"] for row in events(shared, "StopAsked")] == ["yields"] * 25
    assert {row["outcome"] for row in events(shared, "AttemptOver")} == {"preempted"}
    assert {row["reason"] for row in events(shared, "LaunchFailed")} == {why}
    assert shared.engine.state.jobs[1].requeues == 0
    assert runs(shared.nodes[0])[0].epoch == 1
    # Its agent knows at once what it needs, and lets it wait rather than start; later news make no new assignment.
    before = runs(shared.nodes[0])[1]
    assert before.device_bytes == 4 * GB
    shared.nodes[0].report(1, memory=Memory(9 * GB, 5 * GB), sharing=None, then_s=2.2)
    assert runs(shared.nodes[0])[1] == before


def test_explain_says_whose_guest_it_is_at_which_share_and_where_it_would_be_alone(cluster: Make) -> None:
    c = cluster((1, 1), policy="antman:limit=0.9", jobs=[HALF, HALF], then_s=2.2)
    c.submit(OPPORTUNISTIC, then_s=2.2)
    where = "n0" if 2 in runs(c.nodes[0]) else "n1"
    node, host = c.nodes[int(where[1])], f"j-{next(job for job in runs(c.nodes[int(where[1])]) if job != 2)}"
    node.report(2, sharing=Sharing(True, 0.35, 0.0, "run", [int(host[2:])]))
    c.pass_s(0.6)
    found = c.engine.explain(2, c.now)
    assert found.sharing == SharingOfJob(
        guest=True, beside=[Neighbour(host, f"{where}:0", False)], share=0.35, limit_bytes=None, action="run",
        throttled=None, duty=None, law=None,
    )  # fmt: skip
    start = f"runs as a guest of {host} on {where}:0 at share 0.35, because its class is opportunistic; "
    assert found.summary == start + "no GPU is idle"
    other = next(n for n in c.nodes if n is not node)
    other.end(next(iter(other.jobs())))
    c.pass_s(2.2)
    assert c.engine.explain(2, c.now).summary == f"{start}would be alone on {other.info.id}:0"
    assert "runs at full speed; what it leaves goes to j-2" in c.engine.explain(int(host[2:]), c.now).summary
    assert c.engine.jobs([2], c.now)[2].sharing.share == 0.35
    assert shown(c.engine.context, attempt_of(c, 2)) == found.sharing


def test_a_throttled_guest_is_shown_with_its_share_and_what_it_got(shared: Cluster) -> None:
    def said(share: float, throttled: str = "cgroup", duty: float | None = 0.34) -> str:
        shared.nodes[0].report(1, sharing=Sharing(True, share, 0.0, "run", [0], throttled=throttled, duty=duty))
        shared.pass_s(0.6)
        return str(shared.engine.explain(1, shared.now).summary)

    start = "runs as a guest of j-0 on n0:0 at share 0.35"
    ran = "throttled by the cgroup freezer: it ran for 0.34 of the last 10 s"
    assert said(0.35).startswith(f"{start}, {ran}, because its class is opportunistic; ")
    found = shared.engine.explain(1, shared.now).sharing
    assert (found.share, found.throttled, found.duty) == (0.35, "cgroup", 0.34)
    assert said(0.35, "signals", None).startswith(f"{start}, throttled by stop signals, because")
    for strange in ("dance", "not", "CGROUP"):
        assert said(0.35, strange, 7.0).startswith(f"{start}, because")
    held = said(0.0, duty=0.0)
    assert held.startswith("is frozen as a guest of j-0 on n0:0 by the cgroup freezer (share 0.00), because j-0 has ")
    shared.pass_s(shared.engine.options.suspect_s + 2.0, silent=["n0"])  # nobody knows any more which share it has
    text = str(shared.engine.explain(1, shared.now).summary)
    paused = "and is paused if the agent of n0 is gone (it has not reported lately)"
    assert text.startswith(f"runs as a guest of j-0 on n0:0, {paused}, because its class is opportunistic")
    assert shared.engine.explain(1, shared.now).sharing.share is None


def test_a_throttled_guest_without_steps_stands_still_only_if_it_is_frozen(shared: Cluster) -> None:
    for duty, steps in ((0.34, []), (0.0, [30.0])):
        shared.nodes[0].report(1, held_s=30.0, sharing=Sharing(True, 0.35, throttled="cgroup", duty=duty), then_s=11.0)
        usage = shared.engine.state.controller.usage
        assert (usage.step_s.tolist() if usage is not None else []) == steps


def test_a_guest_whose_stop_waits_for_its_first_step_can_be_shown(cluster: Make) -> None:
    c = cluster((2,), policy="live_cases_policies:Open", jobs=[{}, {}, {}, {}, {}], then_s=2.2)
    assert {number: run.group.guest for number, run in runs(c.nodes[0]).items()} == {0: False, 2: True, 4: True}
    groups = c.engine.state.groups  # as once the plan has dropped it, until it has made a step
    del groups.of_job[2], groups.by_job[2]
    groups._note_shared()
    assert attempt_of(c, 2).stop is None
    rows = c.engine.jobs(range(5), c.now)
    assert [number for number in range(5) if rows[number].sharing is not None] == [0, 4]
    assert [c.engine.explain(number, c.now).state for number in (0, 2, 4)] == ["running"] * 3


def test_what_agents_measure_is_in_the_view_and_the_log_does_not_grow_by_it(shared: Cluster) -> None:
    node = shared.nodes[0]
    node.report(0, step_s=0.2, memory=Memory(9 * GB, 4 * GB, 1 * GB))
    node.report(1, step_s=0.4)
    node.usage = Usage(means=[GpuMean(0.5, 12 * GB)])
    shared.pass_s(11.0)
    usage = shared.engine.state.controller.view().usage
    assert (usage.utilisation.tolist(), usage.memory_bytes.tolist()) == ([0.5], [12 * GB])
    assert (usage.jobs.tolist(), usage.step_s.tolist()) == ([0, 1], [0.2, 0.4])
    assert (usage.peak_bytes[0], usage.persistent_bytes[0], usage.spill_bytes[0]) == (9 * GB, 4 * GB, 1 * GB)
    assert np.isnan(usage.peak_bytes[1])
    before = len(events(shared, "UsageReported"))
    for _ in range(30):  # noise is no news
        node.usage = Usage(means=[GpuMean(0.52, 12.1 * GB)])
        shared.pass_s(2.2)
    assert len(events(shared, "UsageReported")) == before
    node.usage = Usage(means=[GpuMean(0.9, 12.1 * GB)])
    node.report(1, step_s=0.8)
    shared.pass_s(12.0)
    last = events(shared, "UsageReported")[-1]
    assert (len(events(shared, "UsageReported")), last["gpu_utilisation"], last["jobs"]) == (before + 1, [0.9], [1])
    assert shared.engine.state.controller.view().usage.utilisation.tolist() == [0.9]


SCRIPT, MATE = {"profile": {"cpu": 0.2, "gpu": 0.1}}, {"profile": {"gpu": 0.2, "cpu": 0.1}, "gpu_memory": 20 * GB}


def one_gpu(cluster: Make, policy: str = "plait") -> tuple[Cluster, Node]:
    c = cluster((), policy=policy)
    node = Node(c, "n0", 1)
    node.info, c.nodes = replace(node.info, gpu_memory_bytes=80 * GB), [node]
    return c, node


@pytest.mark.parametrize(
    ("mates", "used", "together"),
    [
        ([MATE], ((30, 2, 0), (45, 30, 31.5), (20, 60, 31.5)), [0, 1]),
        ([], ((70, 20, 21), (60, 60, 63), (9, 30, 63)), [0]),
    ],
)
def test_a_gpu_shows_what_a_job_needs_from_a_minute_on_while_it_has_always_been_alone(mates, used, together, cluster):
    c, node = one_gpu(cluster)
    c.submit(SCRIPT, *mates)
    for seconds, used_gb, known_gb in used:  # of 60 GB a mate may have 25 GB
        node.usage = Usage(means=[GpuMean(0.5, used_gb * GB)])
        c.pass_s(seconds)
        assert c.controller.job_store.columns["gpu_memory_bytes"][0] == known_gb * GB
        assert len(runs(node)) == 1 + (known_gb > 0) * len(mates)
    c.submit(*([] if mates else [MATE]), then_s=5)
    assert sorted(runs(node)) == together


@pytest.mark.parametrize(("again", "together"), [("python a.py", 2), ("python a.py 2", 1)])
def test_a_later_run_of_a_measured_command_shares_at_once(again: str, together: int, cluster: Make) -> None:
    c, node = one_gpu(cluster)
    c.submit({**SCRIPT, "command": ["python", "a.py"]})
    node.usage = Usage(means=[GpuMean(0.5, 20 * GB)])
    c.pass_s(70)
    node.end(0)
    store = JobStore.from_json(json.loads(json.dumps(c.controller.job_store.to_json())))
    assert list(store.peaks.values()) == [pytest.approx(23.1 * GB)]
    store.update(np.array([0]), JobBatch.of([replace(store.spec(0), gpus=2, max_gpus=2)]))
    assert store.columns["gpu_memory_bytes"][0] == 0, "on more GPUs it may need less on each, on fewer more"
    *_, waits = c.submit({**SCRIPT, "command": again.split()}, MATE, {"command": again.split()}, then_s=5)
    assert len(runs(node)) == together
    assert ("; 23.1 GB of GPU" in str(c.engine.explain(waits, c.now).predicted)) is (together == 2)


@pytest.mark.parametrize("before", ["antman", "tiresias-l"])
def test_a_policy_that_shares_gpus_learns_at_once_what_jobs_need_that_ran_before(before: str, cluster: Make) -> None:
    c, node = one_gpu(cluster, before)
    c.submit(SCRIPT, MATE, then_s=5)
    node.report(0, memory=Memory(30 * GB, 25 * GB), steps=5.0, step_s=0.3)
    c.pass_s(20)
    c.engine.set_policy("plait", c.now)
    c.pass_s(20)
    assert sorted(runs(node)) == [0, 1]
    assert "because the policy expects more progress of these jobs together" in c.engine.explain(1, c.now).summary


def test_a_guest_that_gets_nothing_is_seen_to_stand_still(shared: Cluster) -> None:
    shared.nodes[0].report(1, held_s=30.0)  # it has not made one step yet
    shared.pass_s(11.0)
    assert shared.engine.state.controller.view().usage.step_s.tolist() == [30.0]
    shared.nodes[0].report(1, step_s=0.1, held_s=60.0, last_step_s=10.0, then_s=11.0)
    assert shared.engine.state.controller.view().usage.step_s.tolist() == [50.0]


@pytest.mark.parametrize("utilisation", [float("nan"), float("inf"), -1.0, 2.0])
def test_figures_that_cannot_be_are_not_known(shared: Cluster, utilisation: float) -> None:
    shared.nodes[0].report(
        0, memory=Memory(float("inf"), -1.0), sharing=Sharing(share=7.0, action="dance", beside=[-1])
    )
    shared.nodes[0].usage = Usage(means=[GpuMean(utilisation, 1e300)])
    shared.pass_s(12.0)
    lead = attempt_of(shared, 0).lead
    assert (lead.memory, lead.sharing) == (Memory(), Sharing(share=0.0))
    assert shared.engine.state.controller.usage is None or np.isnan(shared.engine.state.controller.usage.utilisation[0])


@pytest.mark.parametrize("policy", ["fifo", "tiresias-l"])
def test_policies_without_guests_hear_nothing_of_usage(cluster: Make, policy: str) -> None:
    c = cluster((1,), policy=policy, jobs=[HALF], then_s=2.2)
    c.nodes[0].report(0, step_s=0.2, memory=Memory(9 * GB))
    c.nodes[0].usage = Usage(means=[GpuMean(0.5, 12 * GB)])
    c.pass_s(22.0)
    assert "UsageReported" not in c.types()


def test_a_paced_guest_teaches_no_profile(cluster: Make) -> None:
    from plait.live.protocol.wire import Profile

    c = cluster((1,), policy="antman", jobs=[{}], then_s=1.2)
    c.nodes[0].report(0, profile=Profile([0.0, 0.1, 0.1, 0.0], 0.2, 40), step_s=0.2, then_s=2.2)
    c.submit({"class": "opportunistic", "command": ["other"]}, then_s=2.2)
    assert c.state(1) == "running"
    c.nodes[0].report(1, profile=Profile([0.0, 0.1, 5.0, 0.0], 5.0, 40), step_s=5.0, then_s=2.2)
    assert [row["job"] for row in events(c, "ProfileRecorded")] == [0]


def test_a_guest_starts_where_hosts_fill_all_gpus_and_memory_of_slots_counts(cluster: Make) -> None:
    c = cluster((), policy="antman")
    node = Node(c, "n0", 1)
    node.info = NodeInfo("n0", 1, "cpu-slot", gpu_memory_bytes=16 * GB)
    c.nodes.append(node)
    c.pass_s(0.6)
    c.submit({**HALF, "gpu_memory": 8 * GB}, then_s=2.2)
    c.submit({**OPPORTUNISTIC, "gpu_memory": 9 * GB}, then_s=2.2)
    assert c.state(1) == "waiting"
    assert "short of memory" in c.engine.explain(1, c.now).summary
    c.submit({**OPPORTUNISTIC, "gpu_memory": 4 * GB}, then_s=2.2)
    assert c.state(2) == "running"


def test_quotas_of_projects_are_for_guaranteed_jobs(cluster: Make) -> None:
    c = cluster((4,), policy="antman")
    c.engine.set_project("small", gpu_quota=1, weight=1.0, now_s=c.now)
    small = {**HALF, "project": "small"}
    with pytest.raises(InputError, match="quota of project small is 1"):
        c.submit({**small, "gpus": 2})
    c.submit(small, small, {**small, "gpus": 2, "class": "opportunistic"}, {**small, "class": "auto"}, then_s=2.2)
    assert [c.state(n) for n in range(4)] == ["running", "waiting", "running", "running"]
    assert [attempt_of(c, n).guest for n in (0, 2, 3)] == [False, True, True]
    assert "the quota of project small is used up" in c.engine.explain(1, c.now).summary
    c.nodes[0].end(0, then_s=3.2)
    assert c.state(1) == "running"


@pytest.mark.parametrize("policy", ["2d-las:quota=default=2", "antman:quota=default=2", "antman:quota=default@gpu=2"])
def test_a_job_above_a_quota_of_the_policy_is_refused_when_it_is_submitted(cluster: Make, policy: str) -> None:
    c = cluster((4,), policy=policy)
    c.pass_s(60.0)
    with pytest.raises(InputError, match=r"needs 3 .*GPUs; the quota of project default is 2; raise it to 3, or"):
        c.submit({**HALF, "gpus": 3})
    c.submit({**HALF, "gpus": 2}, then_s=2.2)
    assert c.state(0) == "running"
    if policy.startswith("antman"):
        c.submit({**HALF, "gpus": 3, "class": "opportunistic"})
        c.engine.set_project("default", gpu_quota=3, weight=1.0, now_s=c.now)
        c.submit({**HALF, "gpus": 3})  # the quota of the project overrides the policy's


@pytest.mark.parametrize(
    ("policy", "says"),
    [
        ("antman:quota=smal=4", r"quota smal=4: no job is of project 'smal'; did you mean 'small'"),
        ("antman:quota=small@v100=4", r"quota small@v100=4: no GPU is a 'v100'"),
        ("fifo:quota=small@v100=4", r"quota small@v100=4: no GPU is a 'v100'"),
        ("antman:quota=small=-4", "is no quota"),
    ],
)
def test_quotas_of_what_is_not_there_are_refused(cluster: Make, policy: str, says: str) -> None:
    c = cluster((1,), policy="antman")
    c.engine.set_project("small", gpu_quota=1, weight=1.0, now_s=c.now)
    with pytest.raises(InputError, match=says):
        c.engine.set_policy(policy, c.now)
    c.engine.set_policy("antman:quota=small@gpu=4/default=2", c.now)


@pytest.mark.parametrize(
    ("job", "says"),
    [
        ({"class": "lucky"}, "class is 'lucky', needs guaranteed, opportunistic or auto"),
        ({"class": "opportunistic", "gpus": 9}, "needs 9 GPUs"),
    ],
)
def test_guests_that_cannot_be_are_refused_when_they_are_submitted(
    cluster: Make, job: dict[str, Any], says: str
) -> None:
    c = cluster((1,), policy="antman", settle_s=0.0)
    c.pass_s(1.1)
    with pytest.raises(InputError, match=says):
        c.submit(job)


def test_forecasts_play_guests_forward(cluster: Make) -> None:
    from plait.outlook.queue import foresee

    c = cluster((1,), policy="antman", jobs=[{**HALF, "iterations": 100}], then_s=2.2)
    c.submit({**OPPORTUNISTIC, "iterations": 100}, {**OPPORTUNISTIC, "iterations": 100}, then_s=4.2)
    found = foresee(json.loads(json.dumps(c.engine.state_for_forecast(c.now)())), 0).honest.etas
    assert {number: eta.start is None for number, eta in found.items()} == {0: True, 1: True, 2: False}
    assert found[1].end.middle_s < found[2].end.middle_s


def test_a_plan_with_too_many_guests_is_refused_in_words(cluster: Make) -> None:
    c = cluster((1,), policy="live_cases_policies:Open")
    for _ in range(20):
        c.submit({})
    c.pass_s(2.2)
    assert "a GPU takes at most 8 guests" in c.engine.status(c.now).policy_error


def test_some_policy_of_the_catalogue_has_guests() -> None:
    assert [name for name in sorted(CATALOG) if has_guests(make_policy(name))] == ["antman", "plait"]


def test_explain_says_that_a_host_reports_no_steps(shared: Cluster) -> None:
    shared.nodes[0].report(0, steps=0.0, step_s=None)
    shared.nodes[0].report(1, sharing=Sharing(True, 0.0, 0.0, "run", [0]), then_s=0.6)
    why = "because j-0 has reported no steps, and leaves it nothing before that;"
    assert why in summary(shared, 1)
    shared.nodes[0].report(1, sharing=Sharing(True, 0.0, 1.0, "pause", [0]), then_s=0.6)
    assert why in summary(shared, 1)
    shared.nodes[0].report(0, steps=5.0, step_s=0.5, then_s=0.6)
    assert "because j-0 needs the memory;" in summary(shared, 1)
    shared.nodes[0].report(1, sharing=Sharing(True, 0.0, 0.0, "run", [0]), then_s=0.6)
    assert "because the steps of j-0 are being measured without it," in summary(shared, 1)


def test_guests_are_no_reason_why_a_guaranteed_job_waits(shared: Cluster) -> None:
    shared.submit({}, OPPORTUNISTIC, then_s=2.2)
    ahead = {job: [one.id for one in shared.engine.explain(job, shared.now).blockers] for job in (2, 3)}
    assert ahead == {2: ["j-0"], 3: ["j-1", "j-0"]}


def summary(c: Cluster, job: int) -> str:
    return str(c.engine.explain(job, c.now).summary)


def test_what_a_guest_waits_for_its_host_is_no_cost_of_a_start(shared: Cluster) -> None:
    node, record = shared.nodes[0], shared.engine.state.record
    node.report(0, first_step_s=7.0, steps=9.0, saves="yes", held_s=901.0)
    node.report(1, first_step_s=900.0, steps=1.0, saves="yes", held_s=901.0)
    shared.pass_s(0.6)
    controller = shared.engine.state.controller
    host, guest = controller.job_store.columns["restart_s"][:2].tolist()
    assert host >= 7.0
    assert guest < 60.0
    for job in (0, 1):
        node.end(job)
    shared.pass_s(1.2)
    assert [start_s >= 900.0 for start_s in record.starts_s] == [False]


def test_a_guest_that_waits_for_its_first_step_may_be_moved(cluster: Make) -> None:
    """Beside a host that never leaves it anything, it goes elsewhere once there is something better."""
    c = cluster((1, 1), policy="antman:stall_s=100", jobs=[HALF, {"profile": {"gpu": 0.1}}], then_s=2.2)
    here, other = (c.nodes if 0 in runs(c.nodes[0]) else c.nodes[::-1])[:2]
    here.obeys = False
    c.submit(OPPORTUNISTIC, then_s=2.2)
    here.seen[2, 1, 0] = Seen(2, 1, 0, "running", pid=102)
    here.obeys = True

    def stalls(since_s: int) -> None:
        for held_s in range(since_s, since_s + 200, 50):
            here.report(2, held_s=float(held_s), saves="no_boundary")
            c.pass_s(50.0)

    stalls(0)
    assert 2 in runs(here), "the other GPU is full"
    assert c.engine.explain(2, c.now).stops.unbegun
    other.end(1)
    stalls(200)
    assert (2 in runs(here), 2 in runs(other)) == (False, True)
