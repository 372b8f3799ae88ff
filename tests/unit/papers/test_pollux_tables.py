"""The artifact's world of Pollux: its loop, jobs, baselines and tables, and files that are not right."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.core.errors import InputError, SimulationError
from plait_papers.pollux.baselines import Optimus, iteration_s, most_gpus, packed, remaining
from plait_papers.pollux.clock import Allocation, Shape, crowded_nodes, fill, placement_of, run
from plait_papers.pollux.jobs import Job, fixed_batch
from plait_papers.pollux.settings import make_rule, read_setting
from plait_papers.pollux.tables import APPLICATIONS, Measured, application, canonical
from plait_papers.pollux.workload import load, read_jobs
from plait_papers.pollux.world import simulate
from pollux_files import step_s, write_measurements, write_workload


@pytest.fixture
def cifar(tmp_path):
    return Measured(write_measurements(tmp_path, "cifar10"), APPLICATIONS["cifar10"])


def test_a_ring_reads_the_same_from_everywhere():
    assert {canonical(p) for p in ((1, 4, 2), (4, 2, 1), (2, 0, 1, 4), (2, 1, 4))} == {(1, 4, 2)}
    assert canonical((2, 4, 1)) == (1, 2, 4)
    assert canonical(()) == ()


def test_measured_placements_are_interpolated_over_the_batch(cifar):
    for placement, local in (((1,), 32), ((4, 3), 100), ((3, 4), 128), ((1, 1, 4, 2), 700), ((4, 4, 4, 4), 2048)):
        assert cifar.step(placement, local) == pytest.approx(step_s(placement, local), rel=1e-9)


def test_other_placements_lie_between_measured_points(cifar):
    """The formula is linear over nodes >= 2, GPUs and batch, so that any triangulation finds it."""
    for nodes, gpus, local in ((5, 12, 200), (16, 64, 128), (10, 30, 60), (16, 16, 32)):
        placement = (gpus - nodes + 1,) + (1,) * (nodes - 1)
        assert cifar.step(placement, local) == pytest.approx(step_s(placement, local), rel=1e-6)
    assert cifar.step((4,) * 8 + (1,) * 12, 128) == cifar.step((4,) * 9 + (2,) + (1,) * 6, 128)  # 20 nodes are as 16


@pytest.mark.parametrize(("placement", "local"), [((1,), 31), ((1,), 2049), ((4,) * 17, 128), ((4,) * 16, 3000)])
def test_nothing_is_extrapolated(cifar, placement, local):
    with pytest.raises(SimulationError, match=f"no step time of cifar10 for {local} examples on each of"):
        cifar.step(placement, local)


def test_training_runs(cifar):
    assert cifar.progress[:3] == (0.0, 200.0, 400.0)
    assert len(cifar.progress) == 101
    assert cifar.noise(128, 7) == (1.0, 8.0)
    assert cifar.noise(384, 0) == pytest.approx((1.0, 2.5))
    assert cifar.noise(4096, 99) == (1.0, 105.0)
    assert cifar.iterations(192, 1) == pytest.approx(np.mean([400 + 1, 200 + 1]))
    for batch in (127, 4097):
        with pytest.raises(SimulationError, match="batches of 128 to 4096"):
            cifar.noise(batch, 0)


def test_limits_are_those_of_the_paper():
    assert application("yolov3").most_local == 8
    assert APPLICATIONS["ncf"].batches == (256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
    with pytest.raises(InputError, match="did you mean 'cifar10'"):
        application("cifar")


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        (
            "placements.csv",
            "placement,",
            "place,",
            "placements.csv:1: column 'placement': a required column is missing",
        ),
        ("placements.csv", "\n1,32,", "\n1x,32,", "placements.csv:2: column 'placement': must be one digit a node"),
        ("placements.csv", "\n1,128,", "\n1,32,", "placements.csv:3: column 'local_bsz': the placement has this"),
        ("scalability.csv", "\n6,6,32", "\n6,0,32", "scalability.csv:2: column 'num_replicas': must be more than 0"),
        ("validation-256.csv", "\n401,", "\n201,", "validation-256.csv:3: column 'progress': must be more than in"),
        ("validation-256.csv", "\n201,", "\nnan,", "validation-256.csv:2: column 'progress': must be a finite number"),
        ("validation-512.csv", None, None, "validation-512.csv: cannot be read"),
    ],
)
def test_a_damaged_file_is_named(tmp_path, file, old, new, message):
    path = write_measurements(tmp_path, "cifar10") / "cifar10" / file
    if old is None:
        path.unlink()
    else:
        path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(InputError) as error:
        Measured(tmp_path, APPLICATIONS["cifar10"])
    assert message in str(error.value)


def test_too_few_epochs(tmp_path):
    path = write_measurements(tmp_path, "bert") / "bert" / "validation-12.csv"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    with pytest.raises(InputError, match="bert takes 2 epochs, the file has 1"):
        Measured(tmp_path, APPLICATIONS["bert"])


# -- workloads -------------------------------------------------------------------------------------------------------


def test_a_workload_in_file_order(tmp_path):
    path = write_workload(tmp_path / "w.csv", (90, "ncf", 1, 32768), (10, "bert", 4, 48), (10, "bert", 1, 12))
    jobs = read_jobs(path)
    assert [(j.name, j.submit_s, j.gpus, j.batch) for j in jobs] == [
        ("ncf-0", 90, 1, 32768),
        ("bert-1", 10, 4, 48),
        ("bert-2", 10, 1, 12),
    ]
    assert len(read_jobs(path, 2)) == 2
    workload = load(path, write_measurements(tmp_path / "data", "ncf", "bert"))
    assert len(workload) == 3
    assert set(workload.measured) == {"ncf", "bert"}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (",bert,", ",bart,", "w.csv:3: column 'application': unknown value (got 'bart'); did you mean 'bert'?"),
        ("batch_size", "batch", "w.csv:1: column 'batch_size': a required column is missing"),
        ("bert-1,10", "bert-1,soon", "w.csv:3: column 'time': must be a finite number (got 'soon')"),
        ("bert-1,10", "bert-1,-1", "w.csv:3: column 'time': must not be negative"),
        ("bert,4", "bert,0", "w.csv:3: column 'num_replicas': a job of this trace needs at least one GPU"),
        (",48", ",400", "w.csv:3: column 'batch_size': bert was measured with batches of 12 to 384 (got '400')"),
        ("bert-1", "ncf-0", "w.csv:3: column 'name': another job has this name"),
    ],
)
def test_mistakes_in_a_workload(tmp_path, old, new, message):
    path = write_workload(tmp_path / "w.csv", (0, "ncf", 1, 32768), (10, "bert", 4, 48))
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(InputError) as error:
        read_jobs(path)
    assert message in str(error.value)


def test_measurements_that_are_not_there(tmp_path):
    path = write_workload(tmp_path / "w.csv", (0, "ncf", 1, 32768), (10, "bert", 4, 48))
    with pytest.raises(InputError, match=r"no folder .*nowhere; give --data the folder that has bert, cifar10"):
        load(path, tmp_path / "nowhere")
    with pytest.raises(InputError, match=r"no folder .*bert with the measurements of bert; give --data"):
        load(path, write_measurements(tmp_path / "data", "ncf"))
    path.write_text(path.read_text().splitlines()[0] + "\n")
    with pytest.raises(InputError, match="the workload has no jobs"):
        read_jobs(path)
    with pytest.raises(InputError, match="jobs must be at least 1"):
        read_jobs(path, 0)


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
