"""The canonical table: reading, writing and reading again is the identity; mistakes are named where they
are."""

import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from plait.core.errors import InputError, TraceError
from plait.traces.canonical import read_canonical, sidecar_path, write_canonical
from plait.traces.load import load_jobs
from plait.traces.schema import JOB_COLUMNS, STAGES, Column
from plait.traces.table import TraceTable
from plait.traces.validate import checked_table
from sampling import examples
from strategies import ina_requests

QUICK = settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
ENDINGS = (".csv", ".csv.gz", ".parquet")


def cells(column: Column) -> st.SearchStrategy:
    if column.enum:
        value: st.SearchStrategy = st.sampled_from(column.enum)
    elif column.name == "ina":
        value = ina_requests().map(str)
    elif column.kind == "string":
        value = TEXT
    elif column.is_integer:
        value = st.integers(int(column.minimum or 0), int(column.maximum or 2**31 - 1))
    else:
        low = 1e-6 if column.positive else column.minimum
        value = st.floats(low if low is not None else -1e9, 1e8, allow_nan=False)
    return st.none() | value if column.nullable else value


@st.composite
def tables(draw: st.DrawFn) -> TraceTable:
    ids = draw(st.lists(TEXT, unique=True, max_size=6))
    columns = {}
    for column in JOB_COLUMNS:
        if column.nullable and draw(st.booleans()):
            continue
        values = [draw(cells(column)) for _ in ids]
        if column.kind == "string":
            columns[column.name] = np.array(values, dtype=object)
        else:
            columns[column.name] = np.array([np.nan if v is None else v for v in values], dtype=float)
    columns["job_id"] = np.array(ids, dtype=object)
    columns["duration_kind"] = np.full(len(ids), "derived", dtype=object)
    columns["x_note"] = np.array([draw(st.none() | TEXT) for _ in ids], dtype=object)
    columns["x_number"] = np.array([draw(st.floats(allow_infinity=False)) for _ in ids], dtype=float)
    for name in ("gpu_milli", "min_gpus", "max_gpus", *STAGES, "duration_s"):
        columns.pop(name, None)
    columns["duration_s"] = np.full(len(ids), 77.125)
    columns["cpu_milli"] = np.full(len(ids), 4000.0)  # so that jobs without GPUs are CPU jobs
    return checked_table(columns)


@QUICK
@given(table=tables(), ending=st.sampled_from(ENDINGS))
def test_write_and_read_is_the_identity(table, ending, tmp_path):
    path = tmp_path / f"jobs{ending}"
    write_canonical(table, path)
    again = read_canonical(path)
    assert again.equals(table)
    written = path.read_bytes(), sidecar_path(path).read_bytes()
    write_canonical(again, path)
    assert (path.read_bytes(), sidecar_path(path).read_bytes()) == written


@QUICK
@given(
    raw=st.binary(max_size=120),
    ending=st.sampled_from(ENDINGS),
    magic=st.sampled_from([b"", b"PAR1", b"\x1f\x8b"]),
)
def test_fuzzed_bytes_are_a_trace_error_or_a_whole_table(raw, ending, magic, tmp_path):
    path = tmp_path / f"fuzz{ending}"
    path.write_bytes(magic + raw)
    with pytest.raises(TraceError):
        read_canonical(path)


HEADER = "job_id,submit_s,gpus,duration_s"


def read_text(tmp_path, text, **options):
    path = tmp_path / "jobs.csv"
    path.write_text(text)
    return read_canonical(path, **options)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "jobs.csv:1: the file is empty"),
        ("job_id,submit_s\na,1\n", "column 'gpus': a required column is missing"),
        (f"{HEADER},duraton_s\na,0,1,5,5\n", "column 'duraton_s': unknown column; did you mean 'duration_s'"),
        (f"{HEADER},colour\na,0,1,5,red\n", "jobs.csv:1: column 'colour': unknown column; a column of your own"),
        (f"{HEADER}\na,0,1,5\nb,0,0,5\n", "jobs.csv:3: column 'gpus': a job without GPUs"),
        (f"{HEADER}\na,0,1\n", "jobs.csv:2: expected 4 fields, found 3"),
        (f"{HEADER}\na,0,1,5\nb,0,1,-5\n", "jobs.csv:3: column 'duration_s': must be more than 0 .got -5.0."),
        (f"{HEADER}\na,0,1,5\na,0,1,5\n", "jobs.csv:3: column 'job_id': duplicate id .*line 2"),
        (f"{HEADER}\na,0,nan,5\n", "column 'gpus': must be a finite number"),
        (f"{HEADER}\na,0,,5\n", "column 'gpus': a value is needed"),
        (f"{HEADER}\na,-1,1,5\n", "column 'submit_s': must be at least 0"),
        (f"{HEADER}\na,0,-1,5\n", "column 'gpus': must be at least 0"),
        (f"{HEADER}\na,0,1.5,5\n", "column 'gpus': must be a whole number"),
        (f"{HEADER}\n,0,1,5\n", "column 'job_id': a value is needed"),
        (f"{HEADER},state\na,0,1,5,complete\n", "column 'state': unknown value .*did you mean 'completed'"),
        (f"{HEADER},gpu_milli\na,0,2,5,500\n", "only goes with gpus = 1"),
        (f"{HEADER},gpu_milli\na,0,1,5,1001\n", "must be at most 1000"),
        (f"{HEADER},gpu_s\na,0,1,5,1\n", "all four or none"),
        (f"{HEADER},storage_s,cpu_s,gpu_s,network_s\na,0,1,5,0,0,0,0\n", "at least one stage"),
        (
            f"{HEADER},duration_kind,iterations,iteration_s\na,0,1,5,exact,10,1\n",
            "disagrees with the iterations",
        ),
        (f"{HEADER},min_gpus,max_gpus\na,0,1,5,4,2\n", "more than max_gpus"),
        (f"{HEADER},ina\na,0,1,5,\nb,0,1,5,req\n", "jobs.csv:3: column 'ina': not a .*'req'.*ina.mode is 'req'"),
        (f'{HEADER}\n"a,0,1,5\n', "not readable as a table"),
        (f"{HEADER},gpus\na,0,1,5,1\n", "occurs twice"),
    ],
)
def test_mistakes_are_named_where_they_are(text, message, tmp_path):
    with pytest.raises(TraceError, match=message):
        read_text(tmp_path, text)


def test_a_hand_written_file_needs_three_columns_and_keeps_its_own(tmp_path):
    table = read_text(tmp_path, "\ufeffgpus,job_id,submit_s,x_rank,x_colour\r\n1,10,5,3,red\r\n0,9,5,,\r\n")
    assert table["job_id"].tolist() == ["9", "10"]
    assert table["state"].tolist() == ["unknown", "unknown"]
    assert table.row(1) | {"x_rank": 3.0, "x_colour": "red"} == table.row(1)
    assert table.meta["filters"] == ["sorted by submit_s, job_id"]
    assert np.isnan(table["duration_s"]).all()


def test_a_sidecar_that_disagrees_is_a_warning(tmp_path):
    path = tmp_path / "jobs.csv"
    write_canonical(read_text(tmp_path, f"{HEADER}\na,0,1,5\nb,0,1,5\n"), path)
    path.write_text("\n".join(path.read_text().splitlines()[:-1]) + "\n")
    assert read_canonical(path).meta["warnings"] == ["the sidecar counts 2 jobs, the file has 1"]
    sidecar_path(path).write_text("{")
    with pytest.raises(TraceError, match="the sidecar is not JSON"):
        read_canonical(path)


@pytest.mark.parametrize("ending", ENDINGS)
def test_nodes_travel_with_the_jobs(ending, tmp_path):
    jobs = {"job_id": np.array(["a"], object), "submit_s": np.array([0.0]), "gpus": np.array([1])}
    nodes = {
        "node_id": np.array(["n0", "n1"], object),
        "gpus": np.array([8, 4]),
        "gpu_kind": np.array(["V100", None], object),
    }
    table = checked_table(jobs, nodes=nodes)
    write_canonical(table, tmp_path / f"t{ending}")
    assert read_canonical(tmp_path / f"t{ending}").equals(table)


def test_nothing_is_left_behind_when_writing_fails(tmp_path):
    table = read_text(tmp_path, f"{HEADER}\na,0,1,5\n")
    broken = TraceTable({**table.columns, "x_note": np.array(["\ud800"], dtype=object)}, table.meta)
    with pytest.raises(InputError, match="UTF-8"):
        write_canonical(broken, tmp_path / "out.csv")
    with pytest.raises(InputError, match="ending"):
        write_canonical(table, tmp_path / "out.xlsx")
    with pytest.raises(TraceError, match="cannot be written"):
        write_canonical(table, tmp_path / "absent" / "out.csv")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["jobs.csv"]


def test_truncated_parquet_is_a_trace_error(tmp_path):
    path = tmp_path / "jobs.parquet"
    write_canonical(read_text(tmp_path, f"{HEADER}\na,0,1,5\n"), path)
    raw = path.read_bytes()
    path.write_bytes(raw[: len(raw) // 2])
    with pytest.raises(TraceError, match="not readable as Parquet"):
        read_canonical(path)


def test_load_and_unknown_columns(tmp_path):
    table = read_text(tmp_path, f"{HEADER},gpu_milli\na,0,2,30,\nb,10,1,20,500\n")
    assert table.gpu_s == 70.0
    assert table.load(7) == pytest.approx(2 / 7)  # b is submitted at the end of the busy period
    with pytest.raises(InputError, match="did you mean 'gpus'"):
        table["gpu"]
    assert json.loads(json.dumps(table.row(0)))["gpus"] == 2


def test_gradient_bytes_reach_the_jobs(tmp_path):
    path = tmp_path / "jobs.csv"
    path.write_text("job_id,submit_s,gpus,duration_s,gradient_bytes\na,0,8,60,5e8\nb,1,8,60,\n")
    found = load_jobs(read_canonical(path)).jobs.column("gradient_bytes")
    assert np.array_equal(found, [5e8, np.nan], equal_nan=True)
