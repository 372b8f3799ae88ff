"""The loop of the artifact's world, its jobs and its two baselines, on measurements made from formulas."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.core.errors import InputError, SimulationError
from plait_papers.pollux.baselines import Optimus, iteration_s, most_gpus, packed, remaining
from plait_papers.pollux.clock import Allocation, Shape, crowded_nodes, fill, placement_of, run
from plait_papers.pollux.jobs import Job, fixed_batch
from plait_papers.pollux.settings import make_rule, read_setting
from plait_papers.pollux.tables import APPLICATIONS
from plait_papers.pollux.world import simulate
from pollux_files import step_s


class Scripted:
    """Allocations by round, from a list; the last one stays."""

    kind = Job

    def __init__(self, *rounds: dict[int, Allocation]) -> None:
        self.rounds = list(rounds)
        self.seen: list[tuple[float, list[int], dict[int, Allocation]]] = []

    def decide(
        self, now_s: float, jobs: Sequence[Job], allocations: Mapping[int, Allocation]
    ) -> Mapping[int, Allocation]:
        self.seen.append((now_s, [j.number for j in jobs], dict(allocations)))
        answer = self.rounds.pop(0) if len(self.rounds) > 1 else self.rounds[0]
        return {j.number: answer[j.number] for j in jobs if j.number in answer}


BERT = (0, "bert", 1, 12)
"""2 epochs of 200 iterations (401 in the end: the smallest file counts), each at 12 examples."""


def test_whatever_changes_the_list_of_nodes_is_a_restart(workload):
    """Also the same nodes in another order; the delay is set, not added, and stopping counts as nothing."""
    script = [{0: (0, 1)}, {0: (1, 0)}, {0: (1, 0)}, {}, {0: (1, 0)}]
    done = run(workload((0, "cifar10", 2, 128)), Scripted(*script), Shape())
    assert done.restarts.tolist() == [2]
    long = run(workload((0, "cifar10", 2, 128)), Scripted(script[0]), Shape())
    assert done.end_s[0] == pytest.approx(long.end_s[0] + 2 * 30 + 60, abs=2)


def test_the_longer_the_interval_the_later_the_start(workload):
    rule = Scripted({0: (0,)})
    done = run(workload((130, "bert", 1, 12)), rule, Shape(interval_s=50))
    assert done.first_start_s.tolist() == [150]
    assert [seen[0] for seen in rule.seen][:2] == [150, 200]


def test_time_without_jobs_is_skipped_and_counted(workload):
    rule = Scripted({0: (0,), 1: (0,)})
    done = run(workload((6e9, "bert", 1, 12), BERT), rule, Shape())
    assert done.first_start_s.tolist() == [6e9, 60]
    assert done.rounds == 10**8 + math.ceil((done.end_s[0] - 6e9) / 60)
    assert rule.seen[-1][1] == [0]


def test_interference_takes_speed_from_distributed_jobs_on_one_node(workload):
    jobs = [(0, "bert", 2, 12)] * 3
    apart, together = {0: (0, 1), 1: (2, 3), 2: (4, 4)}, {0: (0, 1), 1: (1, 2), 2: (1, 1)}

    def ends(allocation, **shape):
        return run(workload(*jobs), Scripted(allocation), Shape(**shape)).end_s.tolist()

    alone = ends(apart)
    assert ends(together) == ends(apart, interference=0.5) == alone
    slowed = ends(together, interference=0.5)
    assert slowed[2] == alone[2]
    # For a part of the time only: the others leave.
    assert all(90 + 1.9 * (a - 90) <= s <= 92 + 2 * (a - 90) for s, a in zip(slowed[:2], alone[:2], strict=True))
    assert crowded_nodes({0: (0, 1), 1: (1, 2), 2: (1, 1), 3: (7,)}) == {1}


def test_the_batch_of_a_workload_in_passes():
    bert, ncf, yolo = (APPLICATIONS[name] for name in ("bert", "ncf", "yolov3"))
    assert fixed_batch(bert, 12, 1) == (12, 0)
    assert fixed_batch(bert, 13, 1) == (7, 1)  # one GPU with more than the initial batch: at least two passes
    assert fixed_batch(ncf, 32768, 1) == (16384, 1)
    assert fixed_batch(bert, 384, 4) == (12, 7)
    assert fixed_batch(bert, 100, 3) == (12, 2)
    assert fixed_batch(yolo, 512, 63) == (4, 1)  # 9 examples are two passes of 5, cut to 512 in all


@given(st.sampled_from(sorted(APPLICATIONS)), st.integers(1, 64), st.floats(0, 1))
def test_no_batch_is_larger_than_allowed(name, gpus, share):
    model = APPLICATIONS[name]
    batch = model.initial + round(share * (model.most - model.initial))
    local, passes = fixed_batch(model, batch, gpus)
    assert local * gpus * (passes + 1) <= model.most
    assert 0 < local <= model.most_local
    exact = -(-batch // gpus) * gpus <= model.most
    assert not exact or local * gpus * (passes + 1) >= min(batch, model.most // (gpus * (passes + 1)) * gpus)


def test_taking_gpus():
    free = [1, 4, 2, 4]
    assert fill(7, free) == (1, 1, 1, 1, 3, 3, 3)
    assert free == [1, 0, 2, 1]
    assert placement_of((1, 1, 3)) == (2, 1)
    assert fill(3, free) == (2, 2, 0)
    with pytest.raises(SimulationError, match="wants 5 GPUs where only 1 are free"):
        fill(5, free)


def test_tiresias_refuses_a_job_that_never_fits(workload):
    w = workload((0, "bert", 65, 384))
    with pytest.raises(InputError, match=r"job bert-0 wants num_replicas 65, the cluster has 64 GPUs"):
        make_rule(read_setting("tiresias"), w)
    assert make_rule(read_setting("tiresias:nodes=17"), w)


def test_optimus_gives_gpus_where_they_save_most(workload):
    w = workload((0, "ncf", 1, 32768), (0, "cifar10", 1, 2048), (0, "bert", 1, 12), (0, "bert", 1, 384))
    jobs = [Job(i, s, w.measured[s.application.name]) for i, s in enumerate(w.jobs)]
    assert [most_gpus(j) for j in jobs] == [1, 64, 3, 64]
    held = Optimus(Shape()).decide(60, jobs, {})
    counts = {number: len(nodes) for number, nodes in held.items()}
    assert counts[0] == 1
    assert counts[2] <= 3

    def gain(number, count):
        job = jobs[number]
        return (iteration_s(job, count) - iteration_s(job, count + 1)) * remaining(job)

    for number in (1, 3):  # one GPU more would save nothing, or there is none
        assert sum(counts.values()) == 64 or gain(number, counts[number]) <= 0
        assert all(gain(number, k) > 0 for k in range(1, counts[number]))
    again = Optimus(Shape()).decide(120, jobs, held)
    assert again == held
    few = Optimus(Shape(nodes=1)).decide(60, jobs[1:], {})
    assert sum(map(len, few.values())) == 4


def test_more_jobs_than_gpus(workload):
    """One GPU each in the order of the file, none for the last; all finish in the end."""
    w = workload(*[(0, "bert", 1, 12)] * 9)
    jobs = [Job(i, s, w.measured[s.application.name]) for i, s in enumerate(w.jobs)]
    assert sorted(Optimus(Shape(nodes=2)).decide(60, jobs, {})) == list(range(8))
    for policy in ("tiresias:nodes=2", "optimus:nodes=2"):
        done = simulate(w, read_setting(policy))
        assert (done.end_s > 0).all()
        assert (done.first_start_s > 60).sum() == 1


def test_times_of_optimus(workload):
    w = workload((0, "bert", 1, 12), (0, "bert", 1, 384))
    small, large = (Job(i, s, w.measured["bert"]) for i, s in enumerate(w.jobs))
    assert packed(11) == (4, 4, 3)
    assert packed(4) == (4,)
    step, sync = step_s((1,), 6)
    assert iteration_s(small, 1) == pytest.approx(step + (step - sync))  # always two passes on one GPU
    step, sync = step_s((4, 4, 4), 10)  # 11 would be 396 examples in all
    assert iteration_s(large, 12) == pytest.approx(step + 2 * (step - sync))
    assert remaining(small) == pytest.approx(201)
    small.epoch = 1
    assert remaining(small) == 1


def test_ended_is_told(workload):
    told: list[int] = []
    simulate(workload(*[(300 * i, "bert", 2, 24) for i in range(5)]), read_setting("tiresias"), told.append)
    assert sum(told) == 5


def test_a_configuration_that_was_not_measured_is_named(workload):
    with pytest.raises(SimulationError, match="job bert-0 at 60 s: no step time of bert for 1 examples on each of 12"):
        simulate(workload((0, "bert", 12, 12)), read_setting("tiresias"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("srtf", "no policy 'srtf'; known: tiresias, optimus, pollux, pollux-ga"),
        ("tiresia", "did you mean 'tiresias'?"),
        ("tiresias:interval", "'interval' is not option=value"),
        ("tiresias:interval=0", "interval must be a whole number of seconds, at least 1, got '0'"),
        ("tiresias:interval=1.5", "at least 1, got '1.5'"),
        ("tiresias:interference=1", "a share from 0 to 0.99, got '1'"),
        ("optimus:nodes=x", "a whole number, at least 1, got 'x'"),
        ("optimus:nodes=2,nodes=3", "'nodes' is given twice"),
        ("optimus:seed=3", "optimus has no option 'seed' in world pollux-artifact; known: interval"),
    ],
)
def test_settings_that_are_refused(text, message):
    with pytest.raises(InputError) as error:
        read_setting(text)
    assert message in str(error.value)
