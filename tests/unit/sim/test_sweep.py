"""Grids that can be stopped and taken up again; cases over processes."""

import fcntl
import json
import os
import signal
import struct
import sys
import threading
import time
from functools import partial

import pytest

from plait.core.cluster import Cluster
from plait.core.errors import InputError, SimulationError
from plait.core.jobs import JobBatch
from plait.sim.studies.cases import Case, RemoteError, over_processes, parse_range, policy_text, run_case
from plait.sim.studies.sweep import Grid, finished, sweep
from plait.sim.world import make_world


def grid(**more):
    options = {"policies": ("fifo", "srsf"), "worlds": (make_world("ideal"),), "clusters": ("2x4",), "jobs": 30, **more}
    return Grid(**options)


def test_results_are_in_the_order_of_the_grid_whatever_the_processes(tmp_path):
    many = grid(loads=(0.5, 1.2), seeds=(0, 1), clusters=("2x4", "1x8"))
    one = [summary for _, summary in sweep(many, tmp_path / "one")]
    for _ in sweep(many, tmp_path / "two", processes=2):
        pass
    assert list(finished(many, tmp_path / "two").values()) == one
    assert [s["cell"] for s in one] == [cell.key for cell in many.cells()]
    assert len({s["cell"] for s in one}) == 16


def test_stopping_loses_nothing_and_going_on_does_the_rest(tmp_path):
    small = grid(seeds=(0, 1))
    run = sweep(small, tmp_path)
    first, _ = next(run)
    run.close()
    assert list(finished(small, tmp_path)) == [first.key]
    rest = [cell.key for cell, _ in sweep(small, tmp_path)]
    assert rest == [cell.key for cell in small.cells()[1:]]
    assert list(sweep(small, tmp_path)) == []


def test_a_line_cut_off_is_done_again(tmp_path):
    small = grid()
    list(sweep(small, tmp_path))
    path = tmp_path / "results.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    assert len(finished(small, tmp_path)) == 1
    assert [cell.policy for cell, _ in sweep(small, tmp_path)] == ["srsf"]
    assert len(path.read_text().splitlines()) == 2


@pytest.mark.parametrize(
    "other",
    [{"jobs": 31}, {"seeds": (1,)}, {"worlds": (make_world("plait"),)}, {"placement": "spread"}, {"labels": {"a": 1}}],
)
def test_a_folder_of_another_grid_is_refused(tmp_path, other):
    list(sweep(grid(), tmp_path))
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    with pytest.raises(InputError, match="belongs to another grid"):
        list(sweep(grid(**other), tmp_path))
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


def test_a_changed_trace_is_another_grid(tmp_path):
    trace = tmp_path / "t.csv"
    trace.write_text("job_id,submit_s,gpus,duration_s,duration_kind\na,0,1,10,exact\nb,4,1,10,exact\n")
    small = grid(trace=str(trace), loads=(None, 0.1))
    loads = [summary["load"] for _, summary in sweep(small, tmp_path / "out")]
    assert loads == [pytest.approx(1 / 8), pytest.approx(1 / 8), *2 * [pytest.approx(0.1, rel=1e-3)]]
    trace.write_text("job_id,submit_s,gpus,duration_s,duration_kind\na,0,1,10,exact\nb,4,1,11,exact\n")
    with pytest.raises(InputError, match="sha256 was"):
        list(sweep(small, tmp_path / "out"))


def test_folders_that_are_not_a_sweep(tmp_path):
    (tmp_path / "results.jsonl").write_text("hello\n")
    with pytest.raises(InputError, match=r"no manifest.json"):
        list(sweep(grid(), tmp_path))
    (tmp_path / "manifest.json").write_text("hello")
    with pytest.raises(InputError, match="not JSON"):
        list(sweep(grid(), tmp_path))
    (tmp_path / "manifest.json").write_text(json.dumps(grid().manifest()))
    with pytest.raises(InputError, match=r"results.jsonl:1: not a result"):
        list(sweep(grid(), tmp_path))
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="cannot use the folder"):
        list(sweep(grid(), tmp_path / "file" / "out"))


def test_two_sweeps_do_not_write_to_one_folder(tmp_path):
    with open(tmp_path / "results.jsonl", "ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(InputError, match="another sweep is writing"):
            list(sweep(grid(), tmp_path))


# -- cases -----------------------------------------------------------------------------------------------


def jobs(*gpus):
    n = len(gpus)
    return JobBatch({"id": [f"j{i}" for i in range(n)], "submit_s": [0.0] * n, "gpus": list(gpus),
                     "iterations": [5.0] * n, "iteration_s": [1.0] * n})  # fmt: skip


def test_a_case_counts_its_jobs_and_keeps_its_labels():
    told = []
    case = Case("t", jobs(1, 2, 9), "srsf", Cluster.parse("1x4"), make_world("ideal"), 7, labels={"load": 0.5})
    ticks = iter([1.0, 3.5])
    result = run_case(case, clock=lambda: next(ticks), ended=told.append)
    assert sum(told) == 3
    summary = result.to_json()
    assert {k: summary[k] for k in ("trace", "policy", "world", "seed", "cluster", "load", "wall_s")} == {
        "trace": "t", "policy": "srsf", "world": "ideal", "seed": 7, "cluster": "1x4", "load": 0.5, "wall_s": 2.5,
    }  # fmt: skip
    assert (summary["refused"], summary["finished"]) == (1, 2)
    assert run_case(case).to_json()["wall_s"] is None


def test_a_log_of_a_run_that_failed_is_not_left(tmp_path):
    case = Case("t", jobs(1), "fifo", Cluster.parse("1x4"), make_world("ideal"), log=str(tmp_path / "l.jsonl"))
    run_case(case)
    assert (tmp_path / "l.jsonl").exists()
    (tmp_path / "l.jsonl").unlink()

    def broken(n):
        raise SimulationError("no")

    with pytest.raises(SimulationError):
        run_case(case, ended=broken)
    assert list(tmp_path.iterdir()) == []


def double(x):
    if x == "bad":
        raise SimulationError("bad item")
    if x == "die":
        os._exit(3)
    return x * 2


def test_over_processes():
    assert list(over_processes(double, [1, 2, 3], 1)) == [(0, 2), (1, 4), (2, 6)]
    assert sorted(over_processes(double, [1, 2, 3, 4, 5], 2)) == [(i, 2 * i + 2) for i in range(5)]
    with pytest.raises(RemoteError, match="bad item") as caught:
        list(over_processes(double, [1, "bad", 3], 2))
    assert caught.value.exit_code == 4
    with pytest.raises(SimulationError, match="a worker process died"):
        list(over_processes(double, ["die", 1], 2))
    with pytest.raises(InputError, match="processes must be at least 1"):
        list(over_processes(double, [1], 0))


def test_policy_text():
    assert policy_text("srsf", None) == "srsf"
    assert policy_text("srsf", "spread") == "srsf:placement=spread"
    assert policy_text("srsf:placement=skew", "random", 3) == "srsf:placement=skew,placement=random,seed=3"
    assert policy_text("srsf:seed=9", "random", 3) == "srsf:seed=9,placement=random"
    assert policy_text("mod:Name", "spread") == "mod:Name"


@pytest.mark.parametrize("text", ["x", "3..1", "-1", "1..x", "0..99999", ""])
def test_bad_ranges(text):
    with pytest.raises(InputError):
        parse_range(text, "seed")


def _die_while_sending(folder, item):
    if item:
        while not (folder / "ready").exists():
            time.sleep(0.01)
        raise ValueError("an error elsewhere")
    frame = sys._getframe()
    while "result_queue" not in frame.f_locals:
        frame = frame.f_back
    pipe = frame.f_locals["result_queue"]._writer.fileno()

    def send_half(*_):
        os.write(pipe, struct.pack("!i", 100) + b"half of it")
        os._exit(1)

    signal.signal(signal.SIGTERM, send_half)
    (folder / "ready").touch()
    time.sleep(600)


def test_an_error_ends_workers_that_are_sending_a_result(tmp_path):
    errors = []

    def run():
        try:
            list(over_processes(partial(_die_while_sending, tmp_path), [0, 1], 2))
        except ValueError as error:
            errors.append(str(error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(120.0)  # longer than any machine takes: without an end of the pipe it waits for ever
    assert errors == ["an error elsewhere"]
