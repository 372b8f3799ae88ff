"""Every policy of the catalog keeps every promise; every way to break one is noticed and named."""

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from plait.control import controller
from plait.core.jobs import JobTable
from plait.core.plan import Group, Member, Plan
from plait.core.policy import Policy, View
from plait.goodput import batch
from plait.goodput.jobs import COLUMNS, GoodputJobs
from plait.placement import Scheme, place
from plait.policies.catalog import CATALOG, make_policy
from plait.sim import training
from plait.sim.contract import CONTRACTS, check_policy

VARIANTS = (
    "fifo-backfill:reserve_after_s=100",
    "fifo-backfill:knows=predicted",
    "yarn-cs:shares=2/1",
    "yarn-cs:preempt=on",
    "srsf:min_run_s=300",
    "srsf:quantum_s=50",
    "2d-las:quantum_s=60",
    "tiresias-l:knob=2",
    "muri-s:max_jobs=2,merge=always",
    "muri-s:max_jobs=3,guard=off,turns=worst,placement=skew",
    "muri-s:objective=speedup,method=greedy,interference=off,idle_slots=off",
    "muri-s:method=consecutive,learn=on",
    "muri-s:method=auto,guard=0.1,order=attained,quantum_s=60",
    "muri-l:improve=on,quantum_s=60",
    "muri-l:order=discretised,method=exact",
    "muri-l:order=themis",
    "tiresias-l:thresholds=600/3000,knob=1,guard=off",
    "tiresias-l:thresholds=600/3000,within=running_first",
    "tiresias-l:thresholds=300,knob=4,floor_s=10,dimensions=1,within=submit",
    "tiresias-g:thresholds=600/3000,every=3",
    "themis:lease_s=100",
    "themis:independent=queue",
    "gandiva:packing=off",
    "gandiva:slice_s=200,migration=off",
    "pollux:exact=on,interval_s=120",
    "pollux:exact=auto,patience_s=300,p=1",
    "pollux:group=interleave",
    "optimus:interval_s=300",
    "sia:p=0.5,speeds=a100=2/v100=1",
)
#: rows that take seconds a decision, and how they do not
CHEAP = {"pollux-ga": "pollux-ga:generations=3,population=20,interval_s=300", "sia": "sia:interval_s=300"}
#: more than one world of random jobs for each policy; every contract for each policy and each variant, where by default
#: policies meet every second one in turn, and variants every fifth
THOROUGH = os.environ.get("PLAIT_SLOW") == "1"
NAMES = [contract.name for contract in CONTRACTS]
CASES = [
    (policy, contract)
    for policies, one_in in ((CATALOG, 2), (VARIANTS, 5))
    for i, policy in enumerate(policies)
    for j, contract in enumerate(NAMES)
    if THOROUGH or (i + j) % one_in == 0
]
PLACEMENTS = [*(s.name.lower().replace("_", "-") for s in Scheme), "skew", "gpu-balance", "flow-balance"]
PLACEMENTS += ["least-fragmentation", "level-links", "trial,trial_s=60"]
PLACED = [
    f"{name}:placement={place}"
    for i, name in enumerate(("fifo", "srsf", "2d-las", "drf"))
    for j, place in enumerate(PLACEMENTS)
    if (THOROUGH or (i + j) % 2 == 0) and (name, place[:5]) != ("drf", "trial")  # it moves no job for a trial
]


@pytest.fixture(scope="module", autouse=True)
def remembered() -> Iterator[None]:
    """Simulated jobs choose their batch once for equal arguments: all policies meet the same jobs, several times each.

    What they choose depends on these arguments alone and is tested in tests/unit/goodput; here it would take half of
    the time.
    """
    known: dict[Any, Any] = {}

    def once(function: Callable[..., Any]) -> Callable[..., Any]:
        def ask(jobs: GoodputJobs, *where: list[int], **more: int) -> Any:
            key = (function, *(getattr(jobs, name).tobytes() for name in COLUMNS), *map(tuple, where), *more.values())
            if key not in known:
                known[key] = function(jobs, *where, **more)
            return known[key]

        return ask

    with pytest.MonkeyPatch.context() as patch:
        for function in (batch.best_batch_each, batch.goodput):
            patch.setattr(training, function.__name__, once(function))
        yield


@pytest.mark.parametrize(("policy", "contract"), CASES)
def test_policy_keeps(policy: str, contract: str) -> None:
    for seed in (0, 1, 2, 3) if THOROUGH else (0,) if policy in CATALOG else (3,):
        for result in check_policy(lambda: make_policy(CHEAP.get(policy, policy)), seed=seed, only=[contract]):
            assert result.ok, result.detail


@pytest.mark.parametrize("policy", PLACED)
def test_placement_keeps(policy: str) -> None:
    some = ["finishes", "nameless", "restarts", "survives-nodes"]
    broken = [result for result in check_policy(lambda: make_policy(policy), seed=2, only=some) if not result.ok]
    assert not broken


def test_contracts_have_names_and_one_line_each() -> None:
    assert len({c.name for c in CONTRACTS}) == len(CONTRACTS)
    assert all(c.doc and "\n" not in c.doc for c in CONTRACTS)
    assert [r.name for r in check_policy(lambda: make_policy("fifo"))] == [c.name for c in CONTRACTS]


# -- wrong policies ----------------------------------------------------------------------------------------------

Spoil = Callable[[View, Plan], Plan]


@dataclass(frozen=True)
class Wrong:
    """FIFO with backfill, until something is spoilt."""

    spoil: Spoil
    name: str = "wrong"

    def decide(self, view: View) -> Plan:
        return self.spoil(view, place(view, np.arange(len(view.jobs))))


def rows(plan: Plan) -> list[Group]:
    return list(plan.groups)


def gpu_twice(view: View, plan: Plan) -> Plan:
    groups = rows(plan)
    small = [g for g in groups if len(g.gpus) == 1]
    if len(small) < 2:
        return plan
    return Plan.of([g if g is not small[1] else replace(g, gpus=small[0].gpus) for g in groups])


def one_gpu_short(view: View, plan: Plan) -> Plan:
    return Plan.of([replace(g, gpus=g.gpus[:-1]) if len(g.gpus) > 1 else g for g in rows(plan)])


def too_many_gpus(view: View, plan: Plan) -> Plan:
    groups = rows(plan)
    free = sorted(set(range(view.cluster.gpus)) - {gpu for g in groups for gpu in g.gpus})
    if not groups or not free:
        return plan
    return Plan.of([replace(groups[0], gpus=tuple(sorted((*groups[0].gpus, free[0])))), *groups[1:]])


def ended_job(view: View, plan: Plan) -> Plan:
    """Goes on with the first job for ever."""
    if 0 in view.jobs.number or not len(view.jobs):
        return plan
    return Plan.of([Group((Member(0),), (0,))])


def unknown_job(view: View, plan: Plan) -> Plan:
    return Plan.of([*rows(plan)[:-1], Group((Member(12345),), (0,))])


def no_such_gpu(view: View, plan: Plan) -> Plan:
    return Plan.of([replace(g, gpus=tuple(gpu + 1000 for gpu in g.gpus)) for g in rows(plan)])


def dead_node(view: View, plan: Plan) -> Plan:
    if all(view.cluster.up):
        return plan
    down = view.cluster.up.index(False)
    gpus = range(int(view.cluster.first_gpu[down]), int(view.cluster.first_gpu[down + 1]))
    moved = [replace(g, gpus=tuple(gpus[: len(g.gpus)])) for g in rows(plan) if len(g.gpus) <= len(gpus)]
    return Plan.of(moved[:1])


def the_past(view: View, plan: Plan) -> Plan:
    return replace(plan, valid_until_s=view.now_s - 1)


def right_now(view: View, plan: Plan) -> Plan:
    return replace(plan, valid_until_s=view.now_s)


def not_a_number(view: View, plan: Plan) -> Plan:
    return replace(plan, valid_until_s=float("nan"))


def forgets_job_3(view: View, plan: Plan) -> Plan:
    return Plan.of([g for g in rows(plan) if g.members[0].job != 3], reasons={3: "nobody likes it"})


def forgets_job_3_awake(view: View, plan: Plan) -> Plan:
    return replace(forgets_job_3(view, plan), valid_until_s=view.now_s + 10)


def thrashes(view: View, plan: Plan) -> Plan:
    """Another job first every second: nobody gets through its start-up."""
    order = np.roll(np.arange(len(view.jobs)), int(view.now_s))
    return replace(place(view, order), valid_until_s=view.now_s + 1)


def runs_nothing(view: View, plan: Plan) -> Plan:
    return Plan.of([])


def job_in_two_places(view: View, plan: Plan) -> Plan:
    groups = rows(plan)
    return Plan.of([*groups[:1], *groups[:1], *groups[2:]])


def raises(view: View, plan: Plan) -> Plan:
    raise ZeroDivisionError("oops")


def writes_the_job_store(view: View, plan: Plan) -> Plan:
    view.jobs.columns["priority"][view.jobs.number] += 1.0
    return plan


def reads_ids(view: View, plan: Plan) -> Plan:
    order = sorted(range(len(view.jobs)), key=lambda row: hash_of(view.jobs, row))
    return place(view, np.array(order, dtype=np.int64))


def hash_of(jobs: JobTable, row: int) -> int:
    return sum(map(ord, jobs[row].spec.id)) % 7


def blocks_wide_gangs(view: View, plan: Plan) -> Plan:
    return Plan.of([g for g in rows(plan) if len(g.gpus) < 8])


def never_again(view: View, plan: Plan) -> Plan:
    """A job that lost its GPUs once is not started again."""
    starts = dict(zip(view.jobs.number.tolist(), view.jobs.starts.tolist(), strict=True))
    running = set(view.jobs.number[view.jobs.running].tolist())
    return Plan.of([g for g in rows(plan) if g.members[0].job in running or not starts[g.members[0].job]])


@pytest.mark.parametrize(
    ("spoil", "breaks", "words"),
    [
        (gpu_twice, "finishes", r"policy wrong made a plan that puts job 'j\d+' .* on GPU \d+ of node 'n\d', which an"),
        (
            one_gpu_short,
            "finishes",
            r"policy wrong made a plan that gives job 'j\d+' .* GPUs, which is not the requested size",
        ),
        (
            too_many_gpus,
            "finishes",
            r"policy wrong made a plan that gives job 'j\d+' .* GPUs, which is not the requested size",
        ),
        (job_in_two_places, "finishes", r"policy wrong made a plan that runs job 'j\d+' .* in two places at once"),
        (ended_job, "finishes", r"policy wrong made a plan that runs job 'j000' .* already ended"),
        (unknown_job, "finishes", r"policy wrong made a plan that names job number 12345, which was never submitted"),
        (no_such_gpu, "finishes", r"policy wrong made a plan that puts job 'j\d+' .* on GPU 1\d\d\d; this cluster has"),
        (dead_node, "survives-nodes", r"policy wrong made a plan that puts job 'j\d+' .* on GPU \d+ of node 'n\d', wh"),
        (the_past, "finishes", r"policy wrong wants to decide again at .* not after"),
        (right_now, "finishes", r"policy wrong wants to decide again at .* not after"),
        (not_a_number, "finishes", r"policy wrong wants to decide again at nan s"),
        (forgets_job_3, "finishes", r"jobs can never finish under policy wrong.*\n.*'j003'.*: nobody likes it"),
        (forgets_job_3_awake, "finishes", r"no job made progress|'j003'"),
        (runs_nothing, "finishes", r"12 jobs can never finish under policy wrong"),
        (runs_nothing, "admits", r"policy wrong runs nothing at .* s, and job 'j\d+' .* would fit"),
        (raises, "finishes", r"ZeroDivisionError: oops"),
        (writes_the_job_store, "pure", r"policy wrong changed priority of what it was shown at"),
        (reads_ids, "nameless", r"a run under other job ids differs at step"),
        (blocks_wide_gangs, "feeds-all", r"'wide'"),
        (blocks_wide_gangs, "starves-nobody", r"policy wrong has let job 'wide0' .* wait, the first of its queue"),
        (never_again, "survives-nodes", r"jobs can never finish under policy wrong"),
        (never_again, "survives-failures", r"jobs can never finish under policy wrong"),
    ],
)
def test_a_wrong_policy_is_found_out(spoil: Spoil, breaks: str, words: str) -> None:
    (result,) = check_policy(lambda: Wrong(spoil), only=[breaks])
    assert not result.ok

    assert re.search(words, result.detail), result.detail
    assert "seed 0" in result.detail


def test_a_policy_that_thrashes_is_held_by_the_preemption_rule() -> None:
    """Nobody would get through its start-up; the rule lets each job run for longer than its stop costs."""
    (result,) = check_policy(lambda: Wrong(thrashes), only=["rounds"])
    assert result.ok, result.detail


@dataclass(frozen=True)
class Impatient:
    """FIFO with backfill, and a bound on waiting that it does not keep."""

    longest_wait_s: float = 600.0
    name: str = "impatient"

    def decide(self, view: View) -> Plan:
        return place(
            view, np.arange(len(view.jobs)) if len(view.jobs) < 9 else np.argsort(view.jobs.gpus, kind="stable")
        )


def test_a_patience_that_is_not_kept_is_found_out() -> None:
    (result,) = check_policy(Impatient, only=["keeps-patience"])
    assert not result.ok
    assert re.search(r"the wide job waited \d+\.\d s, and policy impatient promises 600.0 s", result.detail)


@pytest.mark.parametrize("policy", ["tiresias-l", "fifo-backfill", "sia:interval_s=300"])
def test_without_gpus_held_for_it_the_first_of_the_queue_starves(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller, "hold_back", lambda view, plan, preempts: plan)
    (result,) = check_policy(lambda: make_policy(policy), only=["starves-nobody"])
    assert re.search(r"let job 'wide0' .* the 4 jobs that ran when it became first had ended at", result.detail)


@dataclass
class Remembers:
    seen: set[int] = field(default_factory=set)

    def decide(self, view: View) -> Plan:
        self.seen |= set(view.jobs.number.tolist())
        return place(view, np.argsort(view.jobs.number * (-1) ** len(self.seen), kind="stable"))


@dataclass
class Counts:
    """Plans differently each time it is asked."""

    asked: int = 0

    def decide(self, view: View) -> Plan:
        self.asked += 1
        return place(view, np.roll(np.arange(len(view.jobs)), self.asked))


@pytest.mark.parametrize("make", [Remembers, Counts])
def test_memory_outside_the_view_is_found_out(make: Callable[[], Policy]) -> None:
    found = {result.name: result for result in check_policy(make, only=["pure", "restarts"])}
    assert not found["pure"].ok
    assert "about the same view at" in found["pure"].detail
    assert not found["restarts"].ok
    assert "differs at step" in found["restarts"].detail


LUCK = np.random.default_rng(5)


class Lucky:
    def decide(self, view: View) -> Plan:
        return place(view, LUCK.permutation(len(view.jobs)))


def test_luck_is_found_out() -> None:
    (result,) = check_policy(Lucky, only=["repeats"])
    assert not result.ok
