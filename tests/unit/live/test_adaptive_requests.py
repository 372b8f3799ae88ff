"""Jobs whose batch adapts: what they may ask for, what they say of themselves, what restarts cost them."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from live_cases import Cluster, Node

from plait.cli.commands.explain import explanation_lines
from plait.core.errors import InputError
from plait.core.goodput import BatchLimits, Estimate
from plait.goodput.fixed_batch import fixed_s
from plait.live.agent.pages import PageReader
from plait.live.api import encoded
from plait.live.api.explain import SizeOptions, StageTime
from plait.live.protocol.wire import Adaptive, Profile
from plait.live.scheduler.engine import Engine
from plait.live.scheduler.measured import differs
from plait.live.service.http.bodies import JOB, Invalid, parse
from plait.live.service.warmup import warm_up
from plait.policies import predicted as predictions
from plait.policies.predicted import lives
from plait.runtime.page import Page

Make = Callable[..., Cluster]
BATCH = {"initial": 16, "most": 256, "least_local": 4, "most_local": 32, "accumulation": True}
LIMITS = [16, 256, 4, 32, 1]
THETA = [0.1, 0.01, 0.5, 0.05, 0.2, 0.02, 1.5]
#: At batch 64 = 4 x 16 a step is worth (4 + 1) / (4/4 + 1) = 2.5 at batch 16.
ESTIMATE: list[float | None] = [*THETA, 1.0, 4.0, 2.0, None]


def said(progress: float = 10.0, estimate: list[float | None] | None = None, **more: Any) -> Adaptive:
    return Adaptive(progress, 100.0, 64.0, estimate or ESTIMATE, more.get("limits", LIMITS))


def known(c: Cluster, name: str, job: int = 0) -> Any:
    return c.controller.job_store.columns[name][job]


def count(c: Cluster, kind: str) -> int:
    return c.types().count(kind)


# -- asking ---------------------------------------------------------------------------------------------------


def test_bounds_reach_the_policies_and_the_job(cluster: Make) -> None:
    c = cluster((4,), jobs=[{"batch": BATCH, "max_gpus": 4}, {"batch": {"initial": 8}}, {}])
    specs = [c.controller.job_store.spec(n) for n in range(3)]  # type: ignore[union-attr]
    whole = BatchLimits(initial=16, most=256, least_local=4, most_local=32, accumulation=True)
    fixed = BatchLimits(initial=8, most=8, least_local=1, most_local=8)
    assert [spec.batch for spec in specs] == [whole, fixed, None]
    told = {run.job: run.env.get("PLAIT_BATCH") for run in c.nodes[0].sync().attempts}
    assert json.loads(told[0] or "") == BATCH
    assert json.loads(told[1] or "")["most_local"] == 8
    assert told[2] is None


def test_a_live_job_is_tried_packed_and_spread_and_stays_where_it_is_faster(cluster: Make) -> None:
    """Its steps take 0.1 s on one node and 0.2 s on two; the trial lasts 20 s each way."""
    c = cluster((2, 2), policy="fifo-backfill:placement=trial,trial_s=20")
    c.submit({"gpus": 2, "model": "vgg16"})
    nodes_in_turn: list[int] = []
    for _ in range(90):
        c.pass_s(1.1)
        on = [node for node in c.nodes if 0 in node.jobs()]
        if on and (not nodes_in_turn or nodes_in_turn[-1] != len(on)):
            nodes_in_turn.append(len(on))
        for node in on:
            node.report(0, steps=c.now, held_s=c.now, step_s=0.1 * len(on))
    assert nodes_in_turn == [1, 2, 1]
    assert known(c, "packed_s") == pytest.approx(0.1, rel=0.05)
    assert known(c, "spread_s") == pytest.approx(0.2, rel=0.15), "with reports of the move itself"
    assert known(c, "preemptions") == 2


def test_ranks_know_which_of_them_start_parameter_servers(cluster: Make) -> None:
    c = cluster((2, 2), jobs=[{"gpus": 4, "servers": 3}, {"gpus": 1}])
    told = [run.env.get("PLAIT_SERVERS") for node in c.nodes for run in node.sync().attempts if run.job == 0]
    assert [json.loads(text or "") for text in told] == [[0, 2, 0]] * 4, "two on the first node, one on the other"
    assert known(c, "servers") == 3
    assert known(c, "servers", 1) == 0


@pytest.mark.parametrize(
    ("batch", "says"),
    [
        ({"initial": 16, "most": 8}, "batch: batch size 16 to 8"),
        ({"initial": 16, "most_local": 8}, "allow accumulation"),
        ({"initial": 16, "least_local": 32, "most_local": 64}, "batch: batch size 16 is less than one GPU has to take"),
        ({"initial": 16, "least_local": 32}, "batch: batch of one GPU 32 to 16"),
    ],
)
def test_bounds_that_leave_nothing_are_refused(cluster: Make, batch: dict[str, int], says: str) -> None:
    with pytest.raises(InputError, match=says):
        cluster().submit({"batch": batch})


def test_processes_that_share_a_gpu_do_not_adapt(cluster: Make) -> None:
    with pytest.raises(InputError, match="leave processes_per_gpu out"):
        cluster().submit({"batch": BATCH, "processes_per_gpu": 2})


@pytest.mark.parametrize(
    ("batch", "field"),
    [
        ({"most": 8}, "batch.initial"), ({"initial": 0}, "batch.initial"), ({"initial": "8"}, "batch.initial"),
        ({"initial": 8, "most": True}, "batch.most"), ({"initial": 8, "size": 9}, "batch.size"),
        ({"initial": 8, "accumulation": "yes"}, "batch.accumulation"), (8, "batch"),
    ],
)  # fmt: skip
def test_a_wrong_bound_is_named(batch: Any, field: str) -> None:
    with pytest.raises(Invalid) as refused:
        parse(JOB, {"command": ["true"], "batch": batch})
    assert refused.value.field == field


# -- from the page to the job store ---------------------------------------------------------------------------------


def test_an_agent_reads_what_a_job_says(tmp_path: Path) -> None:
    with Page.create(tmp_path / "page.bin", mapped=True) as page:
        reader = PageReader(tmp_path / "page.bin")
        assert reader.read().adaptive is None
        page.set_limits(BatchLimits(initial=16, most=256, least_local=4, most_local=32, accumulation=True))
        assert reader.read().adaptive == Adaptive(limits=LIMITS)
        page.progress, page.total_progress, page.batch_size = 10.0, 100.0, 64.0
        page.set_goodput([math.nan if x is None else x for x in ESTIMATE])
        assert reader.read().adaptive == said()
        page.progress = page.batch_size = math.inf
        page.floats[496 // 8] = 1.5  # half an example
        assert reader.read().adaptive == Adaptive(0.0, 100.0, None, ESTIMATE)
        reader.close()
        assert reader.read().adaptive is not None


def test_an_estimate_reaches_the_books_when_it_is_news_and_not_too_often(cluster: Make) -> None:
    c = cluster((4,), jobs=[{"batch": BATCH}])
    c.nodes[0].report(0, adaptive=said(), steps=4.0, then_s=1.1)
    np.testing.assert_array_equal(known(c, "goodput"), [*THETA, 1.0, 4.0, 2.0, math.nan])
    decisions = count(c, "ReplanDue")
    news = said(estimate=[*THETA, 2.0, 4.0, 1.0, 7.0])
    c.nodes[0].report(0, adaptive=news, then_s=20.0)
    assert count(c, "GoodputReported") == 1
    c.pass_s(15.0)
    # The most GPUs that it has measured itself on do not become fewer, and what a restart costs it cannot know.
    np.testing.assert_array_equal(known(c, "goodput"), [*THETA, 2.0, 4.0, 2.0, math.nan])
    c.nodes[0].report(0, adaptive=said(estimate=[*THETA, 2.05, 4.0, 2.0, None]), then_s=40.0)
    assert count(c, "GoodputReported") == 2  # hardly any change
    assert count(c, "ReplanDue") == decisions  # policies that use it ask for decisions themselves
    c.restart()
    np.testing.assert_array_equal(known(c, "goodput"), [*THETA, 2.0, 4.0, 2.0, math.nan])


def test_only_adaptive_jobs_are_believed_an_estimate(cluster: Make) -> None:
    c = cluster((4,), jobs=[{}])
    c.nodes[0].report(0, adaptive=said(), steps=4.0, then_s=12.0)
    assert count(c, "GoodputReported") == 0
    assert known(c, "iterations_done") == 4.0
    assert c.engine.jobs([0], c.now)[0].adaptive is None


def test_progress_counts_iterations_at_the_first_batch_and_people_see_steps(cluster: Make) -> None:
    c = cluster((4,), progress_s=1.0, jobs=[{"batch": BATCH, "iterations": 100, "max_gpus": 4}])
    c.nodes[0].report(0, adaptive=said(10.0), steps=4.0, step_s=0.5, then_s=2.2)
    assert known(c, "iterations_done") == 10.0
    (row,) = c.engine.jobs([0], c.now).values()
    adaptive = row.adaptive
    assert adaptive is not None
    assert row.iterations_done == 4.0
    assert (adaptive.progress, adaptive.total_progress, adaptive.batch_size) == (10.0, 100.0, 64.0)
    # A step of 0.5 s is worth 2.5 iterations of 16 examples, and had 4 x 16.
    assert adaptive.goodput == pytest.approx(16 * 2.5 / 0.5)
    assert adaptive.efficiency == pytest.approx(2.5 / 4)
    assert (adaptive.min_gpus, adaptive.max_gpus) == (1, 4)
    assert c.engine.explain(0, c.now).left_s == pytest.approx(90 * 0.2)
    c.nodes[0].report(0, adaptive=said(5.0))  # late words
    c.pass_s(2.2)
    assert known(c, "iterations_done") == 10.0
    c.nodes[0].end(0, then_s=2.2)
    stored = c.stored(0)
    assert (stored.row.state, stored.row.iterations_done, stored.row.iterations) == (
        "finished",
        100.0,
        100,
    )  # the unit its share had before
    assert [attempt.batch_size for attempt in stored.attempts] == [64.0]


def test_an_ended_job_shows_the_size_it_ended_on(cluster: Make) -> None:
    c = cluster((4,), policy="pollux", jobs=[{"batch": BATCH, "gpus": 2, "min_gpus": 1, "max_gpus": 4}])
    c.submit({"gpus": 4}, then_s=1.1)
    held = len(c.engine.state.jobs[0].live.gpus)  # type: ignore[union-attr]
    assert held == 1  # nobody knows yet what more would bring
    c.nodes[0].report(0, adaptive=said(10.0), steps=4.0, then_s=1.1)
    c.nodes[0].end(0, then_s=1.1)
    stored = c.stored(0)
    assert (stored.row.state, stored.row.gpus, stored.row.iterations_done, stored.row.iterations) == (
        "finished",
        held,
        10.0,
        100.0,
    )
    waits = c.stored(1)
    assert waits.row.gpus == 4


def test_explain_compares_no_larger_batch_with_an_iteration_alone(cluster: Make) -> None:
    c = cluster((4,), progress_s=1.0, jobs=[{"batch": BATCH, "max_gpus": 4}])
    stages = [0.0, 0.1, 0.4, 0.0]
    c.nodes[0].report(0, adaptive=said(), step_s=0.5, stage_s=stages, profile=Profile([0.0, 0.1, 0.1, 0.0], 0.2, 30))
    c.pass_s(2.2)
    found = c.engine.explain(0, c.now)
    assert found.stages["gpu"] == StageTime(0.4, None)
    assert found.stages["iteration"] == StageTime(0.5, None)
    assert found.slowdown is None
    told = "\n".join(explanation_lines(found))
    assert "an iteration takes 500.0 ms\n" in told
    assert "alone" not in told


def test_explain_says_what_other_sizes_would_bring(cluster: Make) -> None:
    c = cluster((4, 4), progress_s=1.0, jobs=[{"batch": BATCH, "gpus": 2, "min_gpus": 1, "max_gpus": 8}, {}])
    found = c.engine.explain(0, c.now)
    assert found.sizes == SizeOptions(0, 1, [])
    assert c.engine.explain(1, c.now).sizes is None
    c.nodes[0].report(0, adaptive=said(), step_s=0.5)
    c.engine.set_policy("pollux:interval_s=60", c.now)
    c.pass_s()
    found = c.engine.explain(0, c.now).sizes
    assert 0.0 <= found.next_s <= 60.0
    assert (found.profiled, found.cap) == (2, 4)
    # The oracle of the model's tests: theta, (sqr, var) = (1, 4), M0 = 16, M_max = 256, m in 4 to 32.
    assert [(row.nodes, row.gpus, row.batch_size) for row in found.at[:3]] == [
        (1, 1, 16), (1, 2, 56), (1, 4, 88),
    ]  # fmt: skip
    assert [row.goodput for row in found.at[:3]] == pytest.approx([61.538462, 79.191185, 103.675038])
    assert found.at[3].gpus == 8


def test_a_profile_is_of_the_size_and_the_batch_asked_for(cluster: Make) -> None:
    c = cluster((4,), jobs=[{"batch": BATCH, "model": "m"}])
    profile = Profile([0.0, 0.0, 0.5, 0.0], 0.5, 20)
    c.nodes[0].report(0, adaptive=said(), profile=profile, then_s=1.1)
    assert count(c, "JobProfiled") == 0
    c.nodes[0].report(0, adaptive=Adaptive(10.0, None, 16.0), profile=profile, then_s=11.0)
    assert count(c, "JobProfiled") == 1


@pytest.mark.parametrize(("plan", "local"), [({}, 32), ({"parameters": 10**9, "example_bytes": 10**9}, 4)])
def test_other_bounds_of_the_script_than_those_of_its_plan_are_shown(cluster: Make, plan: Any, local: int) -> None:
    c = cluster(())
    c.nodes.append(Node(c, "n0", 1))
    c.nodes[0].info = replace(c.nodes[0].info, gpu_memory_bytes=20 * 10**9)
    c.pass_s()
    c.submit({"batch": BATCH | plan}, then_s=1.1)
    c.nodes[0].report(0, adaptive=said(limits=[16, 256, 4, local, 1]), then_s=1.1)
    assert c.engine.jobs([0], c.now)[0].adaptive.difference is None
    c.nodes[0].report(0, adaptive=said(limits=[16, 512, 4, 32, 0]), then_s=1.1)
    assert ", accumulation False and not True: it keeps" in c.engine.jobs([0], c.now)[0].adaptive.difference


def test_a_script_that_does_not_adapt_is_told_of(cluster: Make) -> None:
    c = cluster((4,), jobs=[{"batch": BATCH}])
    c.nodes[0].report(0, steps=9.0, then_s=1.1)
    assert c.engine.jobs([0], c.now)[0].adaptive.difference is None
    c.nodes[0].report(0, steps=10.0, then_s=1.1)
    assert "AdaptiveDataLoader" in c.engine.jobs([0], c.now)[0].adaptive.difference


def test_the_service_compiles_what_adaptive_jobs_need_where_the_policy_is_for_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fitted = []
    monkeypatch.setattr("plait.goodput.fit.fit", lambda profile: fitted.append(profile))
    warm_up("fifo")
    assert not fitted
    warm_up("pollux")
    assert len(fitted) == 1


def test_the_service_compiles_what_predicts_jobs_of_unknown_length(monkeypatch: pytest.MonkeyPatch) -> None:
    predicted = []
    monkeypatch.setattr(predictions, "lives", lambda jobs, alike: predicted.append(len(jobs)) or lives(jobs, alike))
    warm_up("plait")
    assert predicted == [2, 1], "before and after one has ended"


@pytest.mark.parametrize(
    "bad",
    [
        Adaptive(math.nan, math.inf, -1.0, [math.nan] * 11, LIMITS), Adaptive(estimate=[1.0] * 3, limits=[1]),
        Adaptive(estimate=[0.0, 0.0, *THETA[2:], 1.0, 4.0, 2.0, None], limits=[0] * 5),
        Adaptive(estimate=[*THETA[:6], 0.5, 1.0, 4.0, 2.0, None], limits=[16, 8, 4, 32, 1]),
        Adaptive(estimate=[None, *THETA[1:], 1.0, 4.0, 2.0, None], limits=[0] * 5),
        Adaptive(estimate=[*THETA, 1e308, 4.0, 2.0, None], limits=[10**30] * 5),
    ],
)  # fmt: skip
def test_nonsense_of_a_job_reaches_nobody(cluster: Make, bad: Adaptive) -> None:
    c = cluster((4,), jobs=[{"batch": BATCH}])
    c.nodes[0].report(0, adaptive=bad, steps=3.0, step_s=0.1, then_s=5.0)
    assert np.isnan(known(c, "goodput")).all()
    assert not c.engine.broken
    encoded(c.engine.jobs([0], c.now)[0])
    assert Engine(c.store, c.engine.fencing, now_s=c.now).state.seq >= c.engine.state.seq


@pytest.mark.parametrize("policy", ["tiresias-l", "pollux"])
@pytest.mark.parametrize(("batch_size", "step_s"), [(5e-324, 0.1), (1e-310, 0.1), (64.0, 1e-310)])
def test_a_batch_or_a_step_that_cannot_be_stops_no_round(
    cluster: Make, policy: str, batch_size: float, step_s: float
) -> None:
    c = cluster((4,), policy=policy, progress_s=1.0, jobs=[{"batch": BATCH}, {"gpus": 2}])
    row = [*THETA, 1.0, 1e30, 2.0, None]
    c.nodes[0].report(0, adaptive=Adaptive(1.0, 100.0, batch_size, row), steps=3.0, step_s=step_s)
    c.nodes[0].report(1, steps=7.0, step_s=1.0, then_s=5.0)
    assert not c.engine.broken
    assert known(c, "iterations_done", 1) == 7
    encoded(c.engine.jobs([0], c.now)[0])
    json.dumps([c.engine.explain(0, c.now), c.engine.state_for_forecast(c.now)()], allow_nan=False, default=str)


@pytest.mark.parametrize(
    ("old", "new", "changed"),
    [
        (math.nan, math.nan, False), (math.nan, 0.0, True), (1.0, 1.04, False), (1.0, 1.06, True), (1.06, 1.0, True),
        (1e-8, 5e-7, False), (0.0, 0.0, False),
    ],
)  # fmt: skip
def test_what_counts_as_news(old: float, new: float, changed: bool) -> None:
    row = np.array([*THETA, 1.0, 4.0, 2.0, 30.0])
    before, after = row.copy(), row.copy()
    before[Estimate.BETA_N], after[Estimate.BETA_N] = old, new
    assert differs(after, before) is changed


# -- restarts ---------------------------------------------------------------------------------------------------


def stopped_and_begun(c: Cluster, stop_s: float, start_s: float) -> None:
    """Everything that is told to stop takes so long for it; what begins then, for its first step."""
    node = c.nodes[0]
    node.obeys = False
    c.pass_s(stop_s)
    node.obeys = True
    c.pass_s(1.0)
    node.report(0, held_s=start_s, first_step_s=start_s, steps=9.0)
    c.pass_s(0.5)


def test_the_share_done_is_known_while_a_job_starts_again(cluster: Make) -> None:
    c = cluster((4,), policy="live_cases_policies:Breathing", progress_s=0.5)
    c.submit({"batch": BATCH, "gpus": 2, "min_gpus": 2, "max_gpus": 4}, then_s=2.0)
    c.nodes[0].report(0, adaptive=said(), steps=4.0, step_s=0.5, held_s=1.0, first_step_s=1.0)
    c.pass_s(5.0)  # longer than a restart makes worth stopping it
    c.submit({"gpus": 2})
    stopped_and_begun(c, 2.0, 1.0)
    attempt = c.engine.state.jobs[0].live
    assert attempt.epoch == 2
    assert attempt.lead.adaptive is None  # it has not said anything yet
    adaptive = c.engine.jobs([0], c.now)[0].adaptive
    assert (adaptive.progress, adaptive.total_progress) == (10.0, 100.0)
    (pace,) = [p for p in c.engine.state_for_forecast(c.now)()["paces"].values() if p["total_steps"]]
    assert pace["total_steps"] == 100.0


@pytest.mark.parametrize("snapshot_weight", [1.0, 2000.0])
def test_restarts_are_measured_and_averaged(cluster: Make, snapshot_weight: float) -> None:
    c = cluster(
        (4,), policy="live_cases_policies:Breathing", estimate_s=0.5, snapshot_weight=snapshot_weight
    )  # fmt: skip
    c.submit({"batch": BATCH, "gpus": 2, "min_gpus": 2, "max_gpus": 4}, then_s=2.0)
    node = c.nodes[0]
    assert len(node.seen) == 4
    node.report(0, held_s=3.0, first_step_s=3.0, adaptive=said(), steps=4.0)
    c.pass_s(1.0)
    assert math.isnan(known(c, "goodput")[Estimate.RESTART_S])  # its first start is none
    c.pass_s(8.0)  # until it has run for twice as long as a restart takes
    c.submit({"gpus": 2})
    stopped_and_begun(c, 4.0, 5.0)
    notes = [json.loads(row.entry) for row in c.store.entries() if row.type == "Restarted"]
    asked = next(row.at_s for row in c.store.entries() if row.type == "StopAsked")
    over = next(json.loads(row.entry)["ended_s"] for row in c.store.entries() if row.type == "AttemptOver")
    assert [n["cost_s"] for n in notes] == [pytest.approx(over - asked + 5.0)]
    first = notes[0]["cost_s"]
    assert known(c, "goodput")[Estimate.RESTART_S] == first
    c.pass_s(5.0)
    assert count(c, "Restarted") == 1  # once a restart, however often it is seen
    c.restart(then_s=2.0)
    assert count(c, "Restarted") == 1
    c.pass_s(20.0)
    c.nodes[0].end(1, then_s=2.0)
    stopped_and_begun(c, 1.0, 2.0)
    second = [json.loads(row.entry)["cost_s"] for row in c.store.entries() if row.type == "Restarted"][1]
    assert known(c, "goodput")[Estimate.RESTART_S] == pytest.approx((first + second) / 2)
    adaptive = c.engine.jobs([0], c.now)[0].adaptive
    assert (adaptive.restarts, adaptive.restart_s) == (2, pytest.approx((first + second) / 2))


def test_waiting_for_gpus_is_no_cost_of_a_restart_and_neither_is_a_failure(cluster: Make) -> None:
    c = cluster((2,), policy="srtf", jobs=[{"gpus": 2, "iterations": 1000, "profile": {"gpu": 1.0}}], then_s=2.0)
    c.nodes[0].report(0, held_s=1.0, first_step_s=1.0)
    c.submit({"gpus": 2, "iterations": 10, "profile": {"gpu": 1.0}}, then_s=60.0)
    assert c.nodes[0].jobs() == {1}
    c.nodes[0].end(1, then_s=3.0)
    assert c.nodes[0].jobs() == {0}
    c.nodes[0].report(0, held_s=1.5, first_step_s=1.5, then_s=2.0)
    (cost_s,) = (json.loads(row.entry)["cost_s"] for row in c.store.entries() if row.type == "Restarted")
    assert 1.5 <= cost_s < 5.0
    c.nodes[0].end(0, 1, then_s=3.0)
    c.nodes[0].report(0, held_s=1.5, first_step_s=1.5, then_s=2.0)
    assert count(c, "Restarted") == 1


def test_an_elastic_job_with_a_fixed_batch_is_measured_at_each_size_and_later_jobs_know_it(cluster: Make) -> None:
    c = cluster((4, 4), policy="optimus:interval_s=60", progress_s=1.0)
    request = {"model": "vgg", "gpus": 4, "min_gpus": 1, "max_gpus": 8, "iterations": 1e6}
    (first,) = c.submit(request, then_s=1.1)
    assert np.isnan(known(c, "goodput")).all()
    lines = "\n".join(explanation_lines(c.engine.explain(first, c.now)))
    assert "as models like the shipped ones, until it has been measured" in lines
    live = c.engine.state.jobs[first].live
    held = len(live.gpus)
    assert held == 8  # the prior: two nodes are faster than one
    for steps in (1.0, 40.0):
        c.nodes[0].report(first, steps=steps, step_s=2.0, held_s=20.0, then_s=12.0)
    row = known(c, "goodput")
    assert float(fixed_s(row[:7], 2, 8)) == pytest.approx(2.0, rel=0.02)
    assert row[Estimate.PROFILED_GPUS] == 8
    reports = count(c, "GoodputReported")
    c.nodes[0].report(first, steps=90.0, step_s=2.05, held_s=40.0, then_s=12.0)
    assert count(c, "GoodputReported") == reports, "hardly any change"
    assert "as it measured itself" in "\n".join(explanation_lines(c.engine.explain(first, c.now)))
    second, other, rigid = c.submit(request, {**request, "model": "bert"}, {"model": "vgg", "gpus": 4}, then_s=1.1)
    c.restart()
    goodput = c.controller.job_store.columns["goodput"]
    np.testing.assert_array_equal(goodput[second][:10], row[:10])
    assert np.isnan(goodput[[other, rigid]]).all()


def test_a_new_job_of_a_model_begins_with_what_others_have_fitted(cluster: Make) -> None:
    c = cluster((4,), policy="pollux", progress_s=1.0)
    request = {"model": "net", "batch": BATCH, "gpus": 1, "max_gpus": 4}
    c.submit(request, then_s=1.1)
    c.nodes[0].report(0, adaptive=said(), steps=4.0, step_s=0.5, then_s=2.0)
    (second,) = c.submit(request, then_s=1.1)
    row = c.controller.job_store.columns["goodput"][second]
    np.testing.assert_array_equal(row[[*range(7), Estimate.PROFILED_GPUS]], [*THETA, 2.0])
    assert np.isnan(row[[Estimate.SQR, Estimate.VAR]]).all(), "its own gradients are not those of another job"
