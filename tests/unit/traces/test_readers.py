"""Every reader: hand-made fixture -> exact canonical rows, for any order of the input."""

import contextlib
import gzip
import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from plait.core.errors import InputError, TraceError
from plait.traces.formats.alibaba import read_openb_nodes
from plait.traces.formats.registry import FORMATS, read_trace, sniff
from plait.traces.formats.simulators import read_throughputs
from plait.traces.load import cluster_of, load_jobs
from plait.traces.table import TraceTable
from sampling import examples

FIXTURES = Path(__file__).parent / "fixtures"
CASES = json.loads((FIXTURES / "expected.json").read_text())
FILES = {
    "muri": "muri.csv",
    "muri_testbed": "muri_testbed.csv",
    "tiresias": "tiresias.csv",
    "gavel": "gavel10.trace",
    "pollux": "pollux.csv",
    "synergy": "synergy.csv",
    "philly": "philly.json",
    "helios": "helios.csv",
    "alibaba2020": "pai",
    "openb2023": "openb_pods.csv",
    "sacct": "sacct.txt",
    "kueue": "kueue.json",
}
HEADERLESS = {"gavel", "synergy"}
PLAIN = sorted(set(FILES) - {"alibaba2020"})
QUICK = settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def rows_of(table: TraceTable) -> list[dict]:
    return [{k: v for k, v in row.items() if v is not None} for row in table.rows()]


def options_of(case: dict) -> dict:
    return {k: FIXTURES / v if k == "throughputs" else v for k, v in case["options"].items()}


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c['file']}-{'-'.join(c['options'].values())}")
def test_fixture_gives_exactly_these_rows(case):
    table = read_trace(FIXTURES / case["file"], **options_of(case))
    assert table.meta["format"] == case["format"]
    assert table.meta["rows_dropped"] == case["dropped"]
    assert rows_of(table) == case["rows"]
    assert table.meta["rows_read"] == table.meta["rows_kept"] + sum(case["dropped"].values())


def test_every_format_has_a_fixture():
    assert set(FILES) | {"canonical"} == set(FORMATS)


def reordered(text: str, name: str, order: list[int]) -> str:
    if name == "philly":
        jobs = json.loads(text)
        return json.dumps([jobs[i] for i in order if i < len(jobs)])
    if name == "kueue":
        found = json.loads(text)
        return json.dumps(found | {"items": [found["items"][i] for i in order if i < len(found["items"])]})
    lines = text.splitlines(keepends=True)
    head = [] if name in HEADERLESS else [lines.pop(0)]
    return "".join(head + [lines[i] for i in order if i < len(lines)])


@pytest.mark.parametrize("name", PLAIN)
@QUICK
@given(data=st.data())
def test_row_order_does_not_matter(name, data, tmp_path):
    original = FIXTURES / FILES[name]
    order = data.draw(st.permutations(range(8)))
    shuffled = tmp_path / original.name
    shuffled.write_text(reordered(original.read_text(), name, order))
    assert read_trace(shuffled, name).equals(read_trace(original, name))


@pytest.mark.parametrize("name", PLAIN)
@QUICK
@given(data=st.data())
def test_damaged_bytes_give_a_table_or_a_trace_error(name, data, tmp_path):
    raw = bytearray((FIXTURES / FILES[name]).read_bytes())
    kind = data.draw(st.sampled_from(["flip", "cut", "insert", "noise"]))
    at = data.draw(st.integers(0, len(raw) - 1))
    if kind == "flip":
        raw[at] = data.draw(st.integers(0, 255))
    elif kind == "cut":
        del raw[at:]
    elif kind == "insert":
        raw[at:at] = data.draw(st.sampled_from([b"-", b"nan", b"\n", b",", b'"', b"\t", b"\x00", b"1e999", b"\xff"]))
    else:
        raw = bytearray(data.draw(st.binary(max_size=200)))
    damaged = tmp_path / "damaged"
    damaged.write_bytes(bytes(raw))
    for chosen in (name, "auto"):
        with contextlib.suppress(TraceError):
            table = read_trace(damaged, chosen)
            assert table.meta["rows_read"] == table.meta["rows_kept"] + sum(table.meta["rows_dropped"].values())


@pytest.mark.parametrize("name", PLAIN)
def test_gzip_bom_and_crlf_change_nothing(name, tmp_path):
    original = FIXTURES / FILES[name]
    expected = read_trace(original, name)
    raw = original.read_bytes()
    for label, content in {
        "gzip": gzip.compress(raw),
        "bom": b"\xef\xbb\xbf" + raw,
        "crlf": raw.replace(b"\n", b"\r\n"),
    }.items():
        copy = tmp_path / label
        copy.write_bytes(content)
        assert read_trace(copy, name).equals(expected), label


@pytest.mark.parametrize("name", PLAIN)
def test_truncated_gzip_empty_and_foreign_files_are_errors(name, tmp_path):
    raw = gzip.compress((FIXTURES / FILES[name]).read_bytes())
    for content in (
        raw[:-9],
        raw[: len(raw) // 2],
        b"",
        b"\n",
        b"\x00\x01\x02",
        "a,b\n1,ü\n".encode("latin-1"),
    ):
        path = tmp_path / "bad"
        path.write_bytes(content)
        for chosen in (name, "auto"):
            with pytest.raises(TraceError, match="bad"):
                read_trace(path, chosen)


@pytest.mark.parametrize("name", sorted(set(PLAIN) - HEADERLESS - {"philly", "sacct", "kueue"}))
def test_a_missing_column_is_named_and_an_extra_one_is_no_harm_or_named(name, tmp_path):
    original = FIXTURES / FILES[name]
    header, *lines = original.read_text().splitlines()
    extra = tmp_path / "extra.csv"
    extra.write_text("\n".join([header + ",note", *(line + ",hello" for line in lines)]))
    if name in {"muri", "tiresias", "pollux"}:  # formats that do not vary
        with pytest.raises(TraceError, match=r"extra.csv:1: column 'note': unknown column"):
            read_trace(extra, name)
    else:
        assert read_trace(extra, name).equals(read_trace(original, name))
    first, rest = header.split(",", 1)
    missing = tmp_path / "missing.csv"
    missing.write_text("\n".join([rest, *(line.split(",", 1)[1] for line in lines)]))
    column = {"muri_testbed": "time"}.get(name, first)
    if column == "time":
        return  # not a column the reader needs
    with pytest.raises(TraceError, match=f"column '{column}': a required column is missing"):
        read_trace(missing, name)


@pytest.mark.parametrize("mark", [";", "\t", "|", ":", " "])
def test_the_delimiter_is_found_by_the_header(mark, tmp_path):
    path = tmp_path / "other.csv"
    path.write_text((FIXTURES / "muri.csv").read_text().replace(",", mark))
    assert read_trace(path, "muri").equals(read_trace(FIXTURES / "muri.csv"))
    assert sniff(path).name == "muri"


@pytest.mark.parametrize("name", sorted(FILES))
def test_formats_are_told_apart(name):
    assert sniff(FIXTURES / FILES[name]).name == name


def test_unknown_names_get_a_suggestion():
    with pytest.raises(InputError, match="did you mean 'tiresias'"):
        read_trace(FIXTURES / "tiresias.csv", "tiresas")
    with pytest.raises(InputError, match="did you mean 'work'"):
        read_trace(FIXTURES / "muri.csv", wrok="duration")
    with pytest.raises(InputError, match="did you mean 'iterations'"):
        read_trace(FIXTURES / "muri.csv", work="iteration")
    with pytest.raises(TraceError, match="no such file"):
        read_trace(FIXTURES / "absent.csv")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("50001", "-50001", r"bad.csv:2: column 'duration_s': must be more than 0"),
        ("50001", "many", r"bad.csv:2: column 'duration': must be a finite number \(got 'many'\)"),
        ("50001", "1_000", "must be a finite number"),
        ("50001", "NaN", "must be a finite number"),
        ("10,1,", "10,1.5,", "column 'num_gpu': must be a whole number"),
        ("10,1,", "10,-1,", "column 'num_gpu': a job of this trace needs at least one GPU"),
        ("10,1,", "2,1,", "duplicate id .*first seen on line 2"),
        ("dqn", "dqm", "did you mean 'dqn'"),
        ("0,1\n", "0,2\n", "column 'priority': unknown value"),
        ("50001", "4000000000000000", None),
    ],
)
def test_muri_errors_name_the_place(old, new, message, tmp_path):
    path = tmp_path / "bad.csv"
    path.write_text((FIXTURES / "muri.csv").read_text().replace(old, new, 1))
    if message is None:
        return
    with pytest.raises(TraceError, match=message):
        read_trace(path)


def test_times_in_the_wrong_unit_are_suspected(tmp_path):
    lines = (FIXTURES / "tiresias.csv").read_text()
    thousandfold = tmp_path / "ms.csv"
    thousandfold.write_text(lines.replace("164", "164000000").replace("147", "147000000"))
    assert "milliseconds?" in read_trace(thousandfold).meta["warnings"][0]
    with pytest.raises(TraceError, match="milliseconds"):
        read_trace(thousandfold, strict=True)
    thousandfold.write_text(lines.replace("164", "1640000000").replace("147", "1470000000"))
    with pytest.raises(TraceError, match="over ten years"):
        read_trace(thousandfold)


def test_gavel_field_counts_and_throughputs(tmp_path):
    path = tmp_path / "nine.trace"
    path.write_text("\t".join("123456789") + "\n")
    with pytest.raises(TraceError, match="expected 7, 10 or 12 tab-separated fields, found 9"):
        read_trace(path, "gavel")
    with pytest.raises(InputError, match="did you mean 'v100'"):
        read_trace(FIXTURES / "gavel10.trace", throughputs=FIXTURES / "throughputs.json", kind="v10")
    evil = tmp_path / "evil.json"
    evil.write_text('{"v100": {"__import__(\'os\')": {"null": 1}}}')
    with pytest.raises(TraceError, match="expected"):
        read_throughputs(evil)


def test_openb_variants_without_times_say_so(tmp_path):
    path = tmp_path / "multigpu.csv"
    path.write_text("name,cpu_milli,memory_mib,num_gpu,gpu_milli\na,1,1,1,1\n")
    with pytest.raises(TraceError, match="arrivals must be generated"):
        read_trace(path)


def test_a_list_of_nodes():
    nodes = read_openb_nodes(FIXTURES / "openb_nodes.csv")
    assert nodes["gpus"].tolist() == [2, 0]
    assert nodes["gpu_kind"].tolist() == ["P100", None]


def test_a_tiresias_trace_brings_its_cluster_file(tmp_path):
    cluster = tmp_path / "cluster.csv"
    cluster.write_text("num_switch,num_node_p_switch,num_gpu_p_node,num_cpu_p_node,mem_p_node\n2,3,8,64,256\n")
    table = read_trace(FIXTURES / "tiresias.csv", nodes=cluster)
    assert table.nodes["rack"].tolist() == ["s0"] * 3 + ["s1"] * 3
    assert [node.gpus for node in cluster_of(table).nodes] == [8] * 6
    cluster.write_text("num_switch,num_node_p_switch,num_gpu_p_node,num_cpu_p_node,mem_p_node\n")
    with pytest.raises(TraceError, match="has no cluster row"):
        read_trace(FIXTURES / "tiresias.csv", nodes=cluster)


def test_a_misspelt_application_of_pollux_is_an_error_and_a_foreign_one_a_job_without_duration(tmp_path):
    head = "time,name,application,num_replicas,batch_size\n"
    file = tmp_path / "jobs.csv"
    file.write_text(head + "0,a,cifar10,1,128\n5,b,cifra10,1,128\n", encoding="utf-8")
    with pytest.raises(TraceError, match=r"jobs.csv:3: column 'application': unknown value .*did you mean 'cifar10'"):
        read_trace(file)
    file.write_text(head + "0,a,cifar10,1,128\n5,b,llama,1,128\n", encoding="utf-8")
    work = load_jobs(read_trace(file))
    assert (len(work.jobs), work.dropped, work.first_dropped) == (1, {"no_duration": 1}, {"no_duration": "b"})
