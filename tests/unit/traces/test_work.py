"""Durations of zero, and stage times against the iteration, in every reader alike."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from plait.core.errors import TraceError
from plait.traces.formats.registry import read_trace
from plait.traces.load import load_jobs

FIXTURES = Path(__file__).parent / "fixtures"
CANONICAL = "job_id,submit_s,gpus,duration_s,iterations,iteration_s,storage_s,cpu_s,gpu_s,network_s\n"

#: fixture -> (text in it, what it becomes, whose run time is zero then, seconds of its one iteration)
ZEROS = {
    "muri.csv": ("2,8,5000,30,vgg16,16,7000", "2,8,5000,30,vgg16,16,0", "2", 0.2),
    "muri_testbed.csv": ("60.5,33.0,", "60.5,0.0,", "1", 1.0),
    "tiresias.csv": ("vgg19,164", "vgg19,0", "0", 1.0),
    "helios.csv": ("2020-05-01 10:05:00,2020-05-01 12:05:00", "2020-05-01 10:05:00,2020-05-01 10:05:00", "900001", 1.0),
    "openb_pods.csv": ("Running,100,700,130", "Running,100,700,700", "pod-10", 1.0),
    "spot.csv": ("1,13,A10,8,1,4,0,7200", "1,13,A10,8,1,4,0,0", "1", 1.0),
    "gavel12.trace": ("\t600\t30", "\t0\t30", None, 1.0),
    "philly.json": (
        '"start_time":"2017-10-01 08:05:00","end_time":"2017-10-01 09:05:00"',
        '"start_time":"2017-10-01 08:05:00","end_time":"2017-10-01 08:05:00"',
        "application_1_0001",
        1.0,
    ),
}


@pytest.mark.parametrize("name", ZEROS)
def test_a_run_of_zero_seconds_is_one_iteration_and_noted(name: str, tmp_path: Path) -> None:
    before, after, job, seconds = ZEROS[name]
    text = (FIXTURES / name).read_text()
    assert before in text
    path = tmp_path / name
    path.write_text(text.replace(before, after))
    table, whole = read_trace(path), read_trace(FIXTURES / name)
    assert len(table) == len(whole)
    assert table.meta["rows_dropped"] == whole.meta["rows_dropped"]
    ids = table["job_id"].tolist()
    row = (
        int(np.argmin(table["duration_s"]))
        if job is None
        else next(i for i, own in enumerate(ids) if own.endswith(job))
    )
    assert table["duration_s"][row] == pytest.approx(seconds)
    assert table["duration_kind"][row] != "exact"
    note = [text for text in table.meta["warnings"] if "of 0" in text]
    assert "one iteration (first on line " in "".join(note)
    if table["gpus"][row] > 0:
        jobs = load_jobs(table).jobs
        assert jobs.iterations[jobs.id.tolist().index(ids[row])] == pytest.approx(1.0)


def written(tmp_path: Path, *rows: str) -> Path:
    path = tmp_path / "jobs.csv"
    path.write_text(CANONICAL + "".join(f"{row}\n" for row in rows))
    return path


def test_one_row_of_zero_does_not_cost_a_canonical_trace(tmp_path: Path) -> None:
    table = read_trace(written(tmp_path, "a,0,1,100,,,,,,", "b,1,1,0,,,,,,", "c,2,1,0,50,0.5,,,,"))
    assert table["duration_s"].tolist() == [100.0, 1.0, 0.5]
    assert "2 jobs have a duration of 0 and count as one iteration (first on line 3)" in table.meta["warnings"]
    assert load_jobs(table).jobs.iterations.tolist() == [100.0, 1.0, 1.0]


def test_stages_without_an_iteration_time_give_it(tmp_path: Path) -> None:
    table = read_trace(written(tmp_path, "a,0,1,100,,,0.1,0.2,0.3,0", "b,0,1,100,,4,1,2,3,0", "c,0,1,100,50,,1,2,1,0"))
    assert table["iteration_s"].tolist() == pytest.approx([0.6, 4.0, 2.0])  # the sum; as given; duration / iterations


def test_a_stage_longer_than_its_iteration_is_refused_with_its_row(tmp_path: Path) -> None:
    with pytest.raises(
        TraceError, match=r"jobs.csv:3: column 'gpu_s': a stage longer than its iteration of 1 s .got 5"
    ):
        read_trace(written(tmp_path, "a,0,1,100,100,1,0.5,0.6,0.7,0.8", "b,0,1,100,100,1,0,0,5,0"))
    close = read_trace(written(tmp_path, "a,0,1,107,1000,0.107,0.117,0,0.068,0"))  # Muri's vgg16 as published
    assert close["storage_s"].tolist() == [0.117]
