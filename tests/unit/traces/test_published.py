"""Statistics of the published traces, where their files lie beside the checkout (or in PLAIT_DATA)."""

import os
from pathlib import Path

import numpy as np
import pytest

from plait.traces.canonical import read_canonical, write_canonical
from plait.traces.formats.registry import read_trace
from plait.traces.table import size_counts

DATA = Path(os.environ.get("PLAIT_DATA") or Path(__file__).parents[4] / "shared" / "data")

pytestmark = pytest.mark.skipif(
    not DATA.is_dir(),
    reason="the published traces are not here: put them in ../shared/data or set PLAIT_DATA",
)


@pytest.mark.parametrize(
    ("file", "sizes", "span_h", "gpu_hours", "median", "mean", "longest"),
    [
        ("muri/trace1.csv", [536, 5, 423, 465, 40, 25], 3004.9, 383_327, 14_392.5, 250_452, 4_628_239),
        ("muri/trace3.csv", [134, 22, 34, 691, 3, 108], 2268.3, 116_690, 3391.5, 46_865, 927_475),
        ("muri/cluster_trace.csv", [36, 15, 19, 287, 3, 40], 651.3, 61_344, 2223.5, 57_153, 603_739),
        ("tiresias/60_job.csv", [30, 10, 10, 10], 0.49, 7.4, 125, 178.4, 1800),
    ],
)
def test_statistics(file, sizes, span_h, gpu_hours, median, mean, longest):
    table = read_trace(DATA / file)
    assert list(size_counts(table).values()) == sizes
    assert table.span_s / 3600 == pytest.approx(span_h, abs=0.06)
    assert table.gpu_s / 3600 == pytest.approx(gpu_hours, abs=0.5 if gpu_hours > 100 else 0.05)
    assert np.median(table["duration_s"]) == median
    assert table["duration_s"].mean() == pytest.approx(mean, abs=0.5)
    assert table["duration_s"].max() == longest


def test_loads_and_ids_of_the_muri_traces():
    trace1, trace3 = read_trace(DATA / "muri/trace1.csv"), read_trace(DATA / "muri/trace3.csv")
    assert trace1.load(64) == pytest.approx(2.42, abs=0.005)
    assert trace3.load(64) == pytest.approx(0.82, abs=0.005)
    at_once = read_trace(DATA / "muri/trace3_pr.csv")
    assert at_once["job_id"].tolist() == [str(i) for i in range(992)]
    assert at_once["submit_s"].max() == 0
    assert len(at_once.meta["warnings"]) == 1
    assert set(read_trace(DATA / "muri/job_type_1.csv")["model"]) == {"bert", "gpt2"}
    ratio = trace1["iterations"] * trace1["iteration_s"] / trace1["duration_s"]
    assert 0.86 <= ratio.min() <= ratio.max() <= 1.0 + 1e-12
    typo = read_trace(DATA / "muri/cluster_trace.csv").meta["warnings"]
    assert typo == ["resnet18 on 32 GPUs with stages 103/17/13 ms: probably a typing error, kept unchanged (5 rows)"]


@pytest.mark.parametrize(
    ("policy", "starts"),
    [("SRTF", 8.5), ("SRSF", 10.0), ("Muri-S", 23.9), ("tiresias", 15.6), ("themis", 9.0), ("Muri-L", 22.9)],
)
def test_testbed_logs_are_runs_of_the_cluster_trace(policy, starts):
    log = read_trace(DATA / f"muri/testbed/{policy}-job.csv")
    workload = read_trace(DATA / "muri/cluster_trace.csv")
    assert log["attempts"].mean() == pytest.approx(starts, abs=0.06)
    assert log.meta["warnings"] == []
    for name in ("job_id", "gpus", "duration_s"):
        assert log[name].tolist() == workload[name].tolist()


def test_gavel_and_pollux():
    msr = read_trace(DATA / "gavel/msr-ed69ec.trace")
    assert (len(msr), msr["submit_s"].min(), msr["submit_s"].max()) == (951, 0, 6_555_771)
    assert size_counts(msr) == {1: 951}
    assert len(set(msr["x_job_type"])) == 26
    testbed = read_trace(DATA / "gavel/max_min_fairness.trace")
    assert size_counts(testbed) == {1: 59, 2: 19, 4: 18}
    assert (testbed["submit_s"].max(), len(set(testbed["x_job_type"]))) == (46_317, 8)
    workload = read_trace(DATA / "pollux/workload-6.csv")
    models, counts = np.unique(workload["model"].astype(str), return_counts=True)
    shares = dict(zip(models.tolist(), counts.tolist(), strict=True))
    assert shares == {"bert": 15, "cifar10": 67, "deepspeech2": 16, "imagenet": 3, "ncf": 54, "yolov3": 5}
    assert (workload["submit_s"].min(), workload["submit_s"].max()) == (53, 28_189)


def test_openb():
    pods = DATA / "openb2023/openb_pod_list_default.csv"
    table = read_trace(pods, nodes=DATA / "openb2023/openb_node_list_gpu_node.csv")
    assert table.meta["rows_read"] == 8152
    assert table.meta["rows_dropped"] == {"never_started": 897}
    assert (table["state"] == "running").sum() == 34
    assert np.median(table["duration_s"][table["x_phase"] == "Running"]) == 839
    assert (len(table.nodes["gpus"]), table.nodes["gpus"].sum()) == (1213, 6212)


@pytest.mark.parametrize("ending", [".csv", ".parquet"])
def test_published_traces_survive_a_round_trip(ending, tmp_path):
    for file in ("muri/trace1.csv", "gavel/msr-ed69ec.trace", "openb2023/openb_pod_list_default.csv"):
        table = read_trace(DATA / file)
        write_canonical(table, tmp_path / f"t{ending}")
        assert read_canonical(tmp_path / f"t{ending}").equals(table)
