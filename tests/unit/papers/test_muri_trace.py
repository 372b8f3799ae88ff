"""Reading the artifact's traces: what is taken how, and what is refused where."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from artifact_jobs import job, trace_of

from artifact_traces import rows, write_trace
from plait.core.errors import InputError
from plait_papers.muri.artifact.engine import run
from plait_papers.muri.artifact.trace import read

HEADER = (
    "job_id,num_gpu,submit_time,iterations,model_name,batch_size,duration,interval,iteration_time,"
    "resource_time_0,resource_time_1,resource_time_2,priority"
)
LATE = "0,8,1534000,1463,vgg16,16,281000,28000,214,82,75,66,1"
EARLY = "1,32,0,10956,gpt2,4,5095000,91000,514,0.7,414,216,0"
OTHER = "2,4,1534000,5,lenet,4,1000,0,200,1,2,3,0"


def written(folder: Path, *lines: str) -> Path:
    path = folder / "trace.csv"
    path.write_text("\n".join([HEADER, *lines]) + "\n")
    return path


def test_columns_in_seconds_sorted_by_submission(tmp_path: Path) -> None:
    trace = read(written(tmp_path, LATE, EARLY, OTHER))
    assert trace.row.tolist() == [1, 0, 2]  # the file's order among equal times
    assert trace.model == ("gpt2", "vgg16", "lenet")
    assert trace.submit_s.tolist() == [0, 1534, 1534]
    assert trace.iteration_s.tolist() == [514 * 1.015 / 1000, 214 * 1.015 / 1000, 200 * 1.015 / 1000]
    assert (trace.data_s[0], trace.gpu_s[0], trace.network_s[0]) == (0.7 / 1000, 0.414, 0.216)
    assert trace.iterations.tolist() == [10956, 1463, 5]
    assert trace.duration_s.tolist() == [5095, 281, 1]
    assert trace.priority.tolist() == [0, 1, 0]
    assert trace.overhead_s.tolist() == [10, 9, 10]  # 10 for a model nobody measured


def test_only_the_first_rows(tmp_path: Path) -> None:
    path = written(tmp_path, LATE, EARLY, "not a job")
    assert read(path, 2).row.tolist() == [1, 0]
    with pytest.raises(InputError, match=r"trace.csv:4: expected 13 fields, found 1"):
        read(path)
    with pytest.raises(InputError, match="jobs must be at least 1, got 0"):
        read(path, 0)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (",8,", ",12,", "column 'num_gpu': no start overhead for this many GPUs .got '12'.; known: 1, 2, 4, 8, 16, 32"),
        (",8,", ",64,", "column 'num_gpu': no start overhead"),
        (",1463,", ",0,", "column 'iterations': must be more than 0"),
        (",214,", ",-1,", "column 'iteration_time': must not be negative"),
        (",75,", ",x,", "column 'resource_time_1': must be a finite number"),
        (",66,1", ",66,2", "column 'priority': unknown value"),
        ("1534000", "", "column 'submit_time': a value is needed here"),
    ],
)
def test_bad_cells_are_named(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(InputError, match=f"trace.csv:3: {message}"):
        read(written(tmp_path, EARLY, LATE.replace(old, new, 1)))


def test_a_job_that_uses_nothing_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"trace\.csv:3: column 'resource_time_0': at least one of the three stages"):
        read(written(tmp_path, EARLY, LATE.replace(",82,75,66,", ",0,0,0,")))


def test_files_that_are_no_trace(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"trace\.csv: the trace has no jobs"):
        read(written(tmp_path))
    with pytest.raises(InputError, match="cannot be read"):
        read(tmp_path / "none.csv")
    other = tmp_path / "other.csv"
    other.write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match=r"other\.csv:1: column 'job_id': a required column is missing"):
        read(other)


def test_other_stage_times_for_the_same_jobs() -> None:
    trace = trace_of(job(), job(submit_s=3))
    noisy = dataclasses.replace(trace, data_s=trace.data_s + 0.5)
    assert noisy.data_s.tolist() == [0.5, 0.5]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"gpus": np.array([8])}, "column gpus has 1 jobs, row has 2"),
        ({"submit_s": np.array([3.0, 0.0])}, "must be sorted by submit_s"),
        ({"iterations": np.array([1.0, 0.0])}, "iterations of a job must be more than 0, got 0"),
        ({"gpus": np.array([8, 3])}, "no start overhead for a job on 3 GPUs; known: 1, 2, 4, 8, 16, 32"),
    ],
)
def test_columns_that_cannot_be(change: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises(InputError, match=message):
        dataclasses.replace(trace_of(job(), job(submit_s=3)), **change)


def test_antman_names_a_guaranteed_job_of_one_stage(tmp_path: Path) -> None:
    lines = rows(6)
    fields = lines[2].split(",")
    fields[9:12] = ["0", "120", "0"]
    fields[12] = "0"
    lines[2] = ",".join(fields)
    trace = read(write_trace(tmp_path / "t.csv", lines))
    with pytest.raises(InputError, match="cannot run row 2: a guaranteed job needs at least two stages"):
        run(trace, "antman")
    assert len(run(trace, "srtf").end_s) == 6
