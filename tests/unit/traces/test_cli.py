"""The trace commands."""

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from plait.cli.commands.trace import app
from plait.core.errors import InputError, TraceError
from plait.core.jobs import InaRequest, JobClass
from plait.traces.canonical import read_canonical
from plait.traces.load import load_jobs

FIXTURES = Path(__file__).parent / "fixtures"


def run(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def test_convert_show_generate_formats(tmp_path):
    out = tmp_path / "out.csv"
    assert "3 jobs" in run("convert", FIXTURES / "muri.csv", out, "--work", "iterations")
    assert read_canonical(out).meta["options"]["work"] == "iterations"
    assert "dropped 1: never_started" in run("convert", FIXTURES / "helios.csv", out, "--format", "helios")
    text = run("show", out, "--cluster-gpus", 8)
    assert "dropped: suspended" in text
    assert "load on 8 GPUs" in text
    run("generate", tmp_path / "g.csv.gz", "--jobs", 50, "--gpus", 8, "--load", 0.8, "--assign-models", "uniform")
    assert "50" in run("show", tmp_path / "g.csv.gz")
    run("convert", FIXTURES / "tiresias.csv", out, "--assign-models", "uniform")
    assert "philly" in run("formats")


def test_deadlines_classes_and_tenants_are_drawn_for_any_trace(tmp_path):
    made, again, converted = tmp_path / "made.csv", tmp_path / "again.csv", tmp_path / "converted.csv"
    draws = ("--deadlines", "1.5,3", "--opportunistic-share", 0.5, "--tenants", 2, "--seed", 3)
    run("generate", made, "--jobs", 200, *draws)
    table = read_canonical(made)
    assert set(np.round(table["deadline_s"] / table["duration_s"], 3)) == {1.5, 3.0}
    jobs = load_jobs(table).jobs
    assert np.array_equal(jobs.column("deadline_s"), table["deadline_s"])
    assert 60 < (jobs.column("job_class") == JobClass.OPPORTUNISTIC).sum() < 140
    assert 60 < (jobs.column("project") == "tenant-1").sum() < 140
    assert set(jobs.column("project")) == {"tenant-1", "tenant-2"}
    run("generate", again, "--jobs", 200, "--seed", 3)
    run("convert", again, converted, *draws)
    assert np.array_equal(read_canonical(converted)["deadline_s"], table["deadline_s"])
    for column in ("job_class", "project"):
        assert read_canonical(converted)[column].tolist() == table[column].tolist()


def test_traces_have_three_job_classes(tmp_path):
    path = tmp_path / "jobs.csv"
    path.write_text("job_id,submit_s,gpus,duration_s,job_class\na,0,1,10,auto\nb,0,1,10,opportunistic\nc,0,1,10,\n")
    classes = load_jobs(read_canonical(path)).jobs.column("job_class").tolist()
    assert classes == [JobClass.AUTO, JobClass.OPPORTUNISTIC, JobClass.GUARANTEED]
    path.write_text(path.read_text().replace("auto", "spare"))
    with pytest.raises(TraceError, match=r"jobs\.csv:2: .*job_class.*spare.*auto"):
        read_canonical(path)


def test_jobs_of_a_trace_ask_for_aggregation(tmp_path):
    path = tmp_path / "jobs.csv"
    path.write_text('job_id,submit_s,gpus,duration_s,ina\na,0,1,10,"require:memory=64,window=8"\nb,0,1,10,\n')
    asked = load_jobs(read_canonical(path)).jobs.column("ina").tolist()
    assert asked == [InaRequest("require", memory=64, window=8), InaRequest()]


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--deadlines", "soon", "--deadlines is 'soon', needs factors such as 1.2,2,10"),
        ("--deadlines", "0,2", "finite and above 0"),
        ("--opportunistic-share", 1.5, r"must lie in \[0, 1\] \(got 1.5\)"),
        ("--tenants", 0, r"at least 1 tenant \(got 0\)"),
    ],
)
def test_wrong_draws_are_refused_and_write_nothing(tmp_path, option, value, message):
    with pytest.raises(InputError, match=message):
        run("generate", tmp_path / "made.csv", "--jobs", 5, option, value)
    assert list(tmp_path.iterdir()) == []


def test_errors_propagate_and_write_nothing(tmp_path):
    with pytest.raises(InputError, match="did you mean 'muri'"):
        run("convert", FIXTURES / "muri.csv", tmp_path / "o.csv", "--format", "murri")
    with pytest.raises(TraceError, match="strict"):
        run("convert", FIXTURES / "muri.csv", tmp_path / "o.csv", "--strict")
    assert list(tmp_path.iterdir()) == []


def test_habits_are_fitted_written_and_generated_from(tmp_path):
    trace, habits, again = (tmp_path / name for name in ("jobs.csv", "habits.json", "again.csv"))
    run("generate", trace, "--preset", "recurring", "--jobs", 400, "--gpus", 16)
    assert "same_arguments" in run("profile", trace, habits)
    run("generate", again, "--recurring", habits, "--jobs", 300, "--seed", 4)
    table = read_canonical(again)
    assert len(table) == 300
    assert {*np.unique(table["gpus"]).tolist()} <= {1, 2, 4, 8, 16}
    for text, reason in (
        ('{"zipff": 1}', "unknown field 'zipff'"), ('{"crash": 2}', "crash must be from 0 to 1, got 2"),
        ("[]", "no file"), ('{"gangs": []}', "gangs must be"), ('{"zipf": "x"}', "no file of `plait trace profile`"),
    ):  # fmt: skip
        habits.write_text(text)
        with pytest.raises(InputError, match=reason):
            run("generate", again, "--recurring", habits)
    with pytest.raises(InputError, match="cannot read"):
        run("generate", again, "--recurring", tmp_path / "none.json")
