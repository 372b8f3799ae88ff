"""Tables of the artifact's world, and files that are not right."""

from __future__ import annotations

import numpy as np
import pytest

from plait.core.errors import InputError, SimulationError
from plait_papers.pollux.tables import APPLICATIONS, Measured, application, canonical
from plait_papers.pollux.workload import load, read_jobs
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
