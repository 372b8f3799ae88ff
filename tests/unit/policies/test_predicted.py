"""Orders by predicted durations: what they learn from, what they know at each moment, and what they are worth."""

import numpy as np
import pytest

from plait.control.controller import Controller
from plait.control.job_store import JobStore
from plait.control.messages import JobFinished, JobSubmitted, Launch, ReplanDue
from plait.core.cluster import Cluster
from plait.core.errors import InputError
from plait.core.jobs import JobBatch, JobSpec
from plait.policies.catalog import knowledge, make_policy
from plait.policies.predicted import predicted_of
from plait.sim.run import simulate
from plait.sim.world import make_world
from plait.traces.load import load_jobs
from plait.traces.synthetic import generate

ORDERS = (
    "srtf",
    "srsf",
    "sjf",
    "muri-s",
    "muri-s:order=lookahead",
    "muri-s:objective=completion",
    "plait",
    "antman:order=srsf",
)


def knowing(policy, knows):
    return f"{policy}{',' if ':' in policy else ':'}knows={knows}"


def recurring(jobs, seed=0, load=1.3):
    return load_jobs(generate("recurring", jobs, 16, load, seed)).jobs


def lives(jobs, policy):
    """The columns of the lives of all jobs in an ideal world."""
    world, one = make_world("ideal"), make_policy(policy)
    return simulate(jobs, Cluster.parse("2x8"), one, world).controller.job_store.columns


@pytest.mark.parametrize("policy", ORDERS)
@pytest.mark.parametrize("knows", ["predicted", "nothing"])
def test_what_jobs_will_take_changes_no_decision_before_they_end(policy, knows):
    policy = knowing(policy, knows)
    before, longer = first_starts(policy)
    assert np.array_equal(before, longer)


def first_starts(policy, jobs=50):
    """First starts up to that of one of the last jobs, and the same if all that end later take three times as long."""
    batch = recurring(jobs)
    batch = batch.replace(submit_s=batch.submit_s / 10)  # most of them wait
    columns = lives(batch, policy)
    first_s, end_s = columns["first_start_s"][:jobs].copy(), columns["end_s"][:jobs]
    until_s = np.sort(first_s)[jobs * 2 // 3]
    iterations = np.where(end_s > until_s, 3.0 * batch.iterations, batch.iterations)
    longer_s = lives(batch.replace(iterations=iterations), policy)["first_start_s"][:jobs]
    return np.minimum(first_s, until_s), np.minimum(longer_s, until_s)


@pytest.mark.parametrize(
    ("policy", "knows"),
    [("srtf:knows=predicted,deadlines=on", "exact"), ("fifo:deadlines=true", "exact"),
     ("fifo:deadlines=off", "nothing"), ("muri-l", "nothing"), ("muri-l:order=remaining", "exact"),
     ("muri-l:order=lookahead", "exact"),
     ("muri-l:order=themis", "exact"), ("muri-s:order=discretised", "nothing"), ("muri-s:order=themis", "exact"),
     ("muri-s:order=lookahead,knows=nothing", "nothing"), ("antman", "exact"), ("antman:order=fifo", "exact"),
     ("antman:backfill=off", "nothing"), ("antman:knows=nothing", "nothing"), ("antman:knows=predicted", "nothing"),
     ("antman:order=srsf,backfill=off", "exact"), ("antman:order=srsf,knows=predicted", "predicted"),
     ("mine:Policy", "")],
)  # fmt: skip
def test_policies_are_compared_by_what_their_options_use_of_durations(policy, knows):
    if knows:
        make_policy(policy)
    assert knowledge(policy) == knows


def test_exact_knowledge_does_look_ahead():
    before, longer = first_starts("srtf:knows=exact")
    assert not np.array_equal(before, longer)


@pytest.mark.parametrize(
    ("policy", "orders"),
    [("muri-s:order=themis", "remaining, lookahead"), ("muri-s:order=discretised", "remaining, lookahead")],
)  # fmt: skip
def test_orders_that_are_not_by_duration_take_no_knowledge_of_it(policy, orders):
    with pytest.raises(InputError, match=f"knows=predicted is for orders by duration: {orders}"):
        make_policy(f"{policy},knows=predicted")


def controller(policy, specs):
    one = Controller(make_policy(policy), Cluster.parse("1x1"))
    one.handle(JobSubmitted(0.0, 0, JobBatch.of(specs)))
    return one


def launched(commands):
    return [job for c in commands if isinstance(c, Launch) for job in c.groups.jobs.tolist()]


@pytest.mark.parametrize("policy", ["plait", "srsf:knows=predicted"])
def test_a_job_of_unknown_duration_goes_by_runs_of_its_script(policy):
    scripts = ["long.py", "short.py"] * 3

    def spec(i, name):
        return JobSpec(id=f"j{i}", user="ada", like=(f"{name} 1", name))

    one = controller(policy, [spec(i, name) for i, name in enumerate(scripts)])
    at_s = 0.0
    while len(one.active):
        (job,) = launched(one.handle(ReplanDue(at_s)))
        took_s = 36_000.0 if scripts[job] == "long.py" else 60.0
        at_s += took_s
        one.job_store.columns["run_s"][job] = took_s
        one.handle(JobFinished(at_s, np.array([job]), np.array([at_s])))
    one.handle(JobSubmitted(at_s, 6, JobBatch.of([spec(6, "long.py"), spec(7, "short.py")])))
    assert launched(one.handle(ReplanDue(at_s))) == [7]


def test_a_stated_duration_goes_before_a_prediction():
    specs = [JobSpec(id="stated", iterations=20.0, iteration_s=1.0), JobSpec(id="unknown")]
    one = controller("plait", specs[::-1])
    assert one.active[one.policy.ranked(one.view())].tolist() == [1, 0]


@pytest.mark.parametrize("around", ["", "quota=*=8", "ina=atp", "ina=atp,quota=*=8"])
def test_the_prediction_of_a_wrapped_policy_is_found(around):
    view = controller("srsf", [JobSpec(id="a", user="ada")]).view()
    for policy, predicts in (("plait:knows=predicted", True), ("srtf:knows=predicted", True), ("srtf", False)):
        made = make_policy(f"{policy}{',' if ':' in policy else ':'}{around}".rstrip(":,"))
        found = predicted_of(made, view.jobs, 0)
        assert (found is not None) == predicts, policy


@pytest.mark.parametrize("policy", ["srtf:knows=predicted", "plait:knows=nothing"])
def test_jobs_of_one_kind_do_not_stop_one_another(policy):
    specs = [JobSpec(id=f"j{i}", submit_s=0.0, gpus=8, iterations=4000.0, iteration_s=1.0) for i in range(8)]
    columns = lives(JobBatch.of(specs), policy)
    assert columns["preemptions"][:8].sum() <= 8


def test_prediction_is_between_exact_knowledge_and_none():
    mean_s = dict.fromkeys(("exact", "predicted", "nothing"), 0.0)
    for knows in mean_s:
        columns = lives(recurring(200), f"srsf:knows={knows}")
        mean_s[knows] = (columns["end_s"] - columns["submit_s"])[:200].mean()
    assert mean_s["exact"] < mean_s["predicted"] < mean_s["nothing"]


def test_policies_that_know_nothing_learn_one_distribution_of_all_jobs():
    scripts = [f"{i}.py" for i in range(12)]
    specs = [JobSpec(id=name, user="ada", like=(name, name)) for name in scripts]
    one, other = (controller(f"plait:knows={knows}", specs) for knows in ("nothing", "predicted"))
    for each in (one, other):
        each.job_store.columns["run_s"][0] = 36_000.0
        each.handle(ReplanDue(0.0))
        each.handle(JobFinished(36_000.0, np.array([0]), np.array([36_000.0])))
        each.handle(JobSubmitted(36_000.0, 12, JobBatch.of([JobSpec(id="again", user="ada", like=("0.py", "0.py"))])))
    assert one.active[one.policy.ranked(one.view())].tolist()[-1] == 12, "submitted last, so last of equals"
    for each, ranks in ((one, 1), (other, 2)):
        view = each.view()
        keys = each.policy.order(view).keys[0][~view.jobs.running]
        assert len(set(keys.tolist())) == ranks


def test_kinds_are_equal_in_every_store():
    spec = JobSpec(id="a", user="ada", model="vgg", gpus=2, like=("train.py 1", "train.py"))
    rows = []
    for other in ("b", "c"):
        store = JobStore()
        store.append(JobBatch.of([JobSpec(id=other, user=other), spec]), 0.0)
        rows.append(store.columns["kinds"][1].tolist())
    assert rows[0] == rows[1]
    assert len({*rows[0]}) == 6
    assert 0 not in rows[0]


def test_backfill_takes_a_running_job_of_unknown_duration_to_end_last():
    controller = Controller(make_policy("fifo-backfill:knows=exact"), Cluster.parse("1x8"))
    for at_s, specs in (
        (0.0, [JobSpec(id="unknown", gpus=4), JobSpec(id="known", gpus=3, iterations=100, iteration_s=1.0)]),
        (1.0, [JobSpec(id="head", gpus=4, iterations=10, iteration_s=1.0),
               JobSpec(id="long", gpus=1, iterations=1000, iteration_s=1.0)]),
    ):  # fmt: skip
        controller.handle(JobSubmitted(at_s, 2 * int(at_s), JobBatch.of(specs)))
        controller.handle(ReplanDue(at_s))
    assert sorted(controller.plan.groups.jobs.tolist()) == [0, 1], "the first in line starts when the known job ends"


def test_backfill_delays_the_first_in_line_by_no_estimate():
    def spec(i, work_s, gpus, submit_s):
        return JobSpec(id=f"j{i}", submit_s=submit_s, gpus=gpus, min_gpus=gpus, max_gpus=gpus, iterations=work_s,
                       iteration_s=1.0)  # fmt: skip

    jobs = [spec(0, 100.0, 2, 0.0), spec(1, 50.0, 4, 1.0), spec(2, 200.0, 2, 2.0), spec(3, 90.0, 1, 3.0),
            spec(4, 90.0, 1, 4.0)]  # fmt: skip
    starts = {}
    for knows in ("nothing", "exact"):
        policy = make_policy(f"fifo-backfill:knows={knows}")
        run = simulate(JobBatch.of(jobs), Cluster.parse("1x4"), policy, make_world("ideal"))
        starts[knows] = run.controller.job_store.columns["first_start_s"][:5].tolist()
    assert starts["nothing"] == [0.0, 202.0, 2.0, 100.0, 100.0]
    assert starts["exact"] == [0.0, 100.0, 150.0, 3.0, 4.0], "j2 would delay j1, j3 and j4 end before it"
    with pytest.raises(InputError, match="reserve_after_s goes with knows=nothing"):
        make_policy("fifo-backfill:knows=predicted,reserve_after_s=100")


@pytest.mark.parametrize(
    ("policy", "known"),
    [("fifo-backfill", "nothing"), ("fifo-backfill:knows=predicted", "predicted"),
     ("fifo-backfill:knows=exact", "exact"), ("fifo-backfill:ina=inalloc/margin=1.2", "exact"),
     ("fifo:ina=atp", "nothing")],
)  # fmt: skip
def test_backfill_and_switch_memory_state_what_they_know(policy, known):
    assert knowledge(policy) == known
