"""The kernels of the preemption rule against the rule as it is written, one job at a time."""

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from plait.core.jobs import Checkpoints
from plait.core.preemption_kernels import CLOCK_S, keep, stop_losses
from plait.placement.pinned import elsewhere

COLUMNS = (
    "running_group", "checkpoints", "run_s", "saved_run_s", "restart_s", "last_start_s", "keep_until_s", "iterations",
    "iterations_done", "iteration_s",
)  # fmt: skip
#: Few values, so that times meet and limits are reached exactly.
SECONDS = st.sampled_from([0.0, 5.0, 10.0, 20.0, 30.0, 45.0])
NOW_S = 50.0

one_job = st.fixed_dictionaries(
    {
        "running_group": st.sampled_from([-1, 0, 1]),
        "checkpoints": st.sampled_from([int(kind) for kind in Checkpoints]),
        "run_s": SECONDS,
        "saved_run_s": SECONDS,
        "restart_s": SECONDS | st.just(math.nan),
        "last_start_s": SECONDS,
        "keep_until_s": SECONDS | st.sampled_from([-math.inf, 50.0, 60.0, math.inf]),
        "iterations": st.sampled_from([10.0, 20.0, 100.0, math.nan]),
        "iterations_done": st.sampled_from([0.0, 9.0, 25.0]),
        "iteration_s": st.sampled_from([0.5, 1.0, math.nan]),
    }
)
Job = dict[str, float]


def loss_of(job: Job) -> float:
    """What stopping a job now loses: the work since its last checkpoint and a restart; all of it without one."""
    if job["running_group"] < 0:
        return 0.0
    restart_s = 0.0 if math.isnan(job["restart_s"]) else job["restart_s"]
    since_checkpoint_s = max(job["run_s"] - job["saved_run_s"], 0.0)
    return {
        Checkpoints.NEVER: math.inf,
        Checkpoints.PERIODIC: restart_s + since_checkpoint_s,
        Checkpoints.ON_STOP: restart_s,
    }[Checkpoints(int(job["checkpoints"]))]


def stays_until(job: Job, may_lose_work: bool, runs_for: float, finishes: bool) -> float:
    """When a job may be stopped, by the reasons that there are to keep it; -inf if there is none."""
    if job["running_group"] < 0:
        return -math.inf
    reasons = [-math.inf]
    if job["keep_until_s"] > NOW_S + CLOCK_S:  # somebody holds it
        reasons.append(job["keep_until_s"])
    loss = loss_of(job)
    if loss == math.inf:
        return max(reasons) if may_lose_work else math.inf
    if loss > 0 and job["last_start_s"] + runs_for * loss > NOW_S + CLOCK_S:  # it has not run for long enough
        periodic = job["checkpoints"] == Checkpoints.PERIODIC  # the loss changes with its next checkpoint
        reasons.append(NOW_S + max(loss, 1.0) if periodic else job["last_start_s"] + runs_for * loss)
    left_s = (job["iterations"] - job["iterations_done"]) * job["iteration_s"]
    if finishes and loss > 0 and -loss < left_s <= loss:  # it ends sooner than a stop costs
        reasons.append(NOW_S + left_s + loss)
    return max(reasons)


def columns_of(jobs: list[Job]) -> dict[str, np.ndarray]:
    whole = ("running_group", "checkpoints")
    return {
        name: np.array([job[name] for job in jobs], dtype=np.int64 if name in whole else np.float64) for name in COLUMNS
    }


@given(jobs=st.lists(one_job, min_size=1, max_size=5), data=st.data())
def test_losses_and_who_is_kept_are_as_the_rule_says(jobs: list[Job], data: st.DataObject) -> None:
    rule = data.draw(st.tuples(st.booleans(), st.sampled_from([0.0, 1.0, 2.0]), st.booleans()))
    number = np.array(data.draw(st.lists(st.sampled_from(range(len(jobs))), unique=True)), dtype=np.int64)
    c = columns_of(jobs)
    losses = stop_losses(number, *(c[name] for name in COLUMNS[:5]))
    assert losses.tolist() == [loss_of(jobs[i]) for i in number]

    rows, until_s = np.zeros(len(number), dtype=bool), np.full(len(number), -math.inf)
    lasting = np.zeros(len(number), dtype=bool)
    keep(number, NOW_S, *rule, *(c[name] for name in COLUMNS), rows, until_s, lasting)
    expected = [stays_until(jobs[i], *rule) for i in number]
    assert rows.tolist() == [until > NOW_S for until in expected]
    assert until_s.tolist() == [until if until > NOW_S else -math.inf for until in expected]
    plain = [jobs[i]["running_group"] >= 0 and jobs[i]["checkpoints"] == Checkpoints.NEVER for i in number]
    assert lasting.tolist() == [one and not rule[0] for one in plain]


def packed(groups: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    """GPUs of groups one after the other, and where each begins."""
    gpus = np.array([gpu for group in groups for gpu in group], dtype=np.int64)
    return gpus, np.cumsum([0, *map(len, groups)])


some_gpus = st.lists(st.sampled_from(range(3)), unique=True, min_size=1)


@given(
    now=st.lists(some_gpus, min_size=1, max_size=4),
    then=st.lists(some_gpus, max_size=4),
    data=st.data(),
)
def test_who_is_elsewhere_has_other_gpus_or_none(now: list[list[int]], then: list[list[int]], data: st.DataObject):
    jobs = data.draw(
        st.lists(st.tuples(st.sampled_from(range(len(now))), st.sampled_from(range(-1, len(then)))), min_size=1)
    )
    running_group, group_of = (np.array(column, dtype=np.int64) for column in zip(*jobs, strict=True))
    asked = np.array(data.draw(st.lists(st.sampled_from(range(len(jobs))), unique=True)), dtype=np.int64)
    gpus, first_gpu = packed(then)
    now_gpus, now_first = packed(now)
    moved = elsewhere(asked, group_of, gpus, first_gpu, running_group, now_gpus, now_first)
    in_plan = [then[g] if g >= 0 else None for g in group_of]
    assert moved.tolist() == [row for row in asked.tolist() if in_plan[row] != now[running_group[row]]]
