"""Files as people have them: other encodings and dialects, broken rows, clocks that go back, ids given out again."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from plait.cli.commands.trace import app
from plait.core.errors import InputError, TraceError
from plait.outlook.past import past_of
from plait.traces.delimited import read_rows
from plait.traces.files import Source
from plait.traces.formats.registry import read_trace, sniff
from plait.traces.load import load_jobs
from plait.traces.table import natural_key

FIXTURES = Path(__file__).parent / "fixtures"
TABLES = {
    "muri": "muri.csv", "muri_testbed": "muri_testbed.csv", "tiresias": "tiresias.csv", "pollux": "pollux.csv",
    "helios": "helios.csv",
    "openb2023": "openb_pods.csv", "sacct": "sacct.txt",
}  # fmt: skip
HEADERLESS = {"gavel": "gavel10.trace", "synergy": "synergy.csv"}
LISTS = {"philly": "philly.json", "kueue": "kueue.json"}
HEADER = "JobID|JobName|User|Submit|Start|End|State|AllocTRES"


def written(tmp_path, content, name="history"):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def row(name, job="a", user="u1", day=4, hours=2, state="COMPLETED", end=None, gpus=2):
    start, stop = f"2024-03-{day:02d}T10:00:10", end or f"2024-03-{day:02d}T{10 + hours}:00:10"
    return f"{name}|{job}|{user}|2024-03-{day:02d}T10:00:00|{start}|{stop}|{state}|cpu=8,gres/gpu={gpus},node=1"


def history(tmp_path, *rows, **options):
    return read_trace(written(tmp_path, "\n".join([HEADER, *rows, ""])), **options)


@pytest.mark.parametrize(("name", "file"), {**TABLES, **HEADERLESS, **LISTS}.items())
@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_any_encoding_gives_the_same_jobs(name, file, encoding, tmp_path):
    path = written(tmp_path, (FIXTURES / file).read_text().encode(encoding))
    assert read_trace(path, name).equals(read_trace(FIXTURES / file, name))


def test_names_in_latin_1_among_others_in_utf_8_are_read_and_said(tmp_path):
    rows = [row(1, user="ümit").encode(), row(2, user="domänen").encode("latin-1"), row(3, user="€").encode("cp1252")]
    table = read_trace(written(tmp_path, b"\n".join([HEADER.encode(), *rows])))
    assert table["user"].tolist() == ["ümit", "domänen", "€"]
    assert table.meta["warnings"] == ["not UTF-8 throughout (first on line 3): such bytes are read as Windows-1252"]


@pytest.mark.parametrize(("name", "file"), TABLES.items())
def test_lines_in_front_headers_in_between_and_blank_rows_change_nothing(name, file, tmp_path):
    header, *rows = (FIXTURES / file).read_text().splitlines()
    text = "\n".join(["slurm_load: warning: old", "", header, rows[0], header, "", *rows[1:], ""])
    path = written(tmp_path, text)
    table = read_trace(path)
    assert sniff(path).name == name
    assert table.equals(read_trace(FIXTURES / file))
    assert "2 lines in front of the header left out: 'slurm_load: warning: old'" in table.meta["warnings"]


@pytest.mark.parametrize(("name", "file"), sorted({**TABLES, **HEADERLESS}.items()))
def test_a_row_that_cannot_be_read_is_left_out_counted_and_named(name, file, tmp_path):
    lines = (FIXTURES / file).read_text().splitlines()
    path = written(tmp_path, "\n".join([*lines, "no such row", ""]))
    with pytest.raises(TraceError, match=rf"history:{len(lines) + 1}: .*1 of \d+ rows cannot be read, more than 0.01"):
        read_trace(path, name)
    table = read_trace(path, name, unreadable=0.5)
    assert table.equals(read_trace(FIXTURES / file, name))
    assert table.meta["rows_dropped"]["unreadable"] == 1
    assert table.meta["rows_read"] == table.meta["rows_kept"] + sum(table.meta["rows_dropped"].values())
    assert any("cannot be read and are left out; the first: " in text for text in table.meta["warnings"])
    with pytest.raises(TraceError, match="warnings are errors"):
        read_trace(path, name, unreadable=0.5, strict=True)


def test_a_broken_entry_of_a_list_is_left_out(tmp_path):
    jobs = json.loads((FIXTURES / "philly.json").read_text())
    table = read_trace(written(tmp_path, json.dumps([{**jobs[0], "jobid": 3}, *jobs])), unreadable=0.5)
    assert table.equals(read_trace(FIXTURES / "philly.json"))
    found = json.loads((FIXTURES / "kueue.json").read_text())
    broken = json.loads(json.dumps(found["items"][0]).replace("2024", "soon"))
    whole = json.dumps(found | {"items": [broken, {"kind": "Pod"}, *found["items"]]})
    table = read_trace(written(tmp_path, whole), "kueue", unreadable=0.5)
    assert table.equals(read_trace(FIXTURES / "kueue.json"))
    assert table.meta["rows_dropped"]["unreadable"] == 2


def test_wrong_rows_of_a_canonical_trace_are_left_out_up_to_a_hundredth(tmp_path):
    rows = [f"j{i},{i},1,60" for i in range(500)]
    wrong = ["j1,0,1,60", "x,0,1,-5", "y,0,one,60", "z,0,0,60", "w,0,1"]
    path = written(tmp_path, "\n".join(["job_id,submit_s,gpus,duration_s", *rows, *wrong]), "t.csv")
    table = read_trace(path)
    assert (len(table), table.meta["rows_dropped"], table.meta["rows_read"]) == (500, {"unreadable": 5}, 505)
    assert "the first: " in table.meta["warnings"][0]
    with pytest.raises(TraceError, match=r"t\.csv:50\d: .*5 of 505 rows cannot be read, more than 0.009 of them"):
        read_trace(path, unreadable=0.009)


def test_a_stray_quotation_mark_costs_one_row(tmp_path):
    rows = [f"j{i},{i},1,60" for i in range(500)]
    rows[3] = '"j3,3,1,60'
    table = read_trace(written(tmp_path, "\n".join(["job_id,submit_s,gpus,duration_s", *rows]), "t.csv"))
    assert table.meta["rows_dropped"] == {"unreadable": 1}
    assert len(table) == 499
    assert "t.csv:5: not readable as a table" in table.meta["warnings"][0]


@pytest.mark.parametrize("index", ["", "Unnamed: 0"])
def test_an_index_column_of_pandas_is_no_column(index, tmp_path):
    path = written(tmp_path, f"{index},job_id,submit_s,gpus,duration_s\n0,a,0,1,5\n1,b,2,1,5\n")
    assert read_trace(path)["job_id"].tolist() == ["a", "b"]


@pytest.mark.parametrize(
    "text",
    [
        "job_id;submit_s;gpus;duration_s\na;0,5;1;12,25\n",
        "'job_id':'submit_s':'gpus':'duration_s'\n'a':'0.5':'1':'12.25'\n'b':'0.75':'1':'12.25'\n",
        "job_id | submit_s | gpus | duration_s\na | 0.5 | 1 | 12.25\n",
    ],
)
def test_dialects_and_decimal_commas(text, tmp_path):
    table = read_trace(written(tmp_path, text))
    assert (table["job_id"][0], table["submit_s"][0], table["duration_s"][0]) == ("a", 0.5, 12.25)


def test_accounts_that_were_written_as_csv_are_the_same(tmp_path):
    lines = [line.split("|") for line in (FIXTURES / "sacct.txt").read_text().splitlines()]
    text = "\n".join(",".join(f'"{cell}"' for cell in cells) for cells in lines)
    assert read_trace(written(tmp_path, text)).equals(read_trace(FIXTURES / "sacct.txt"))


def test_bars_and_line_breaks_in_names_of_jobs(tmp_path):
    names = ["lr=0.1|wd=0", "two\nlines", "a|b\nc|d|e", "plain"]
    table = history(tmp_path, *(row(i, name) for i, name in enumerate(names)))
    assert table["job_id"].tolist() == ["0", "1", "2", "3"]
    assert table["user"].tolist() == ["u1"] * 4


def test_a_bar_in_one_of_two_columns_is_put_right_if_the_other_columns_are_certain(tmp_path):
    beside, apart = HEADER.replace("|User", "|Comment|User"), HEADER.replace("|User", "|User|Comment")
    table = read_trace(written(tmp_path, f"{beside}\n{row(1, 'a|b|c')}\n"))
    assert table["user"].tolist() == ["u1"]
    bad = f"{apart}\n{row(1, 'a|b').replace('|u1|', '|u1|x|')}\n"
    with pytest.raises(TraceError, match=r"history:2: expected 9 fields, found 10; is there a '\|' in a value\?"):
        read_trace(written(tmp_path, bad))


def test_a_short_row_does_not_take_the_next_one_with_it(tmp_path):
    rows = [row(i) for i in range(300)]
    rows[7] = "7|a|u1"
    table = history(tmp_path, *rows)
    assert (len(table), table.meta["rows_dropped"]) == (299, {"unreadable": 1})
    assert any("is there a line break in a value?" in text for text in table.meta["warnings"])


def test_a_part_of_a_quoted_value_is_no_row_of_its_own(tmp_path):
    path = written(tmp_path, 'a,b,c\n1,2,3\n4,"x\n8,9,10"\n5,6,7\n')
    errors = []
    rows = [list(row.cells) for row in read_rows(Source(path), required=("a", "b", "c"), bad=errors.append)]
    assert rows == [["1", "2", "3"], ["5", "6", "7"]]
    assert [error.problem for error in errors] == ["expected 3 fields, found 2"]


@pytest.mark.parametrize(
    ("state", "meaning"),
    [
        ("LAUNCH_FAILED", "failed"),
        ("RECONFIG_FAIL", "node_fail"),
        ("SPECIAL_EXIT", "failed"),
        ("EVICTED", "unknown"),
        ("+", "unknown"),
    ],
)
def test_states_of_ended_jobs(state, meaning, tmp_path):
    table = history(tmp_path, row(1, state=state))
    assert table["state"].tolist() == [meaning]
    assert table.meta["warnings"] == (
        [f"State {state.rstrip('+')!r} is not known; what became of such a job counts as unknown (1 rows)"]
        if meaning == "unknown"
        else []
    )


@pytest.mark.parametrize("state", ["CONFIGURING", "STOPPED", "SIGNALING", "RUNNING"])
def test_states_of_running_jobs(state, tmp_path):
    table = history(tmp_path, row(1, state=state, end="Unknown"), row(2))
    assert table["state"].tolist() == ["running", "completed"]


def test_jobs_are_told_apart_by_cluster_id_and_submission(tmp_path):
    lines = [HEADER.replace("JobID", "Cluster|JobID")]
    jobs = [("alpha", 4, "ann"), ("beta", 4, "bob"), ("alpha", 9, "ann"), ("beta", 9, "cy")]
    lines += [f"{cluster}|{row(1, day=day, user=user)}" for cluster, day, user in jobs]
    table = read_trace(written(tmp_path, "\n".join(lines)))
    assert table["job_id"].tolist() == ["alpha/1", "beta/1", "alpha/1#2", "beta/1#2"]
    assert [job.get("attempts") for job in table.rows()] == [None, None, 2, None]
    assert table.meta["rows_dropped"] == {}


def test_the_row_of_an_unfinished_attempt_with_the_same_submission_is_replaced(tmp_path):
    table = history(tmp_path, row(1, hours=1), row(1, hours=3))
    assert (table["duration_s"].tolist(), table.meta["rows_dropped"]) == ([10800.0], {"earlier_attempt": 1})


NIGHT = "1|a|u1|2024-10-27T01:00:00|2024-10-27T02:50:00|2024-10-27T02:10:00|COMPLETED|gres/gpu=1"


def test_clocks_that_go_back_need_the_zone(tmp_path):
    table = history(tmp_path, NIGHT, row(2))
    assert table.meta["rows_dropped"] == {"negative": 1}
    assert any("clocks went back? Name the zone" in text for text in table.meta["warnings"])
    table = history(tmp_path, NIGHT, row(2), time_zone="Europe/Berlin")
    assert table["duration_s"].tolist() == [7200.0, 1200.0]
    assert table.meta["time_zone"] == "Europe/Berlin"
    assert table.meta["origin_utc"] == "2024-03-04T09:00:00+00:00"
    with pytest.raises(InputError, match="time zone 'Berlin' is unknown; use a name such as"):
        history(tmp_path, NIGHT, time_zone="Berlin")
    with pytest.raises(InputError, match="format kueue has no option 'time_zone'"):
        read_trace(FIXTURES / "kueue.json", time_zone="UTC")


def test_stamps_of_helios_are_of_the_zone_that_is_named(tmp_path):
    assert read_trace(FIXTURES / "helios.csv", time_zone="+08:00").equals(read_trace(FIXTURES / "helios.csv"))


def test_a_runaway_job_is_left_out_and_named(tmp_path):
    header = f"{HEADER}|Timelimit"
    rows = ["7|a|u1|2021-03-04T10:00:00|2021-03-04T10:00:10|Unknown|RUNNING|gres/gpu=8|1-00:00:00",
            f"{row(8)}|1-00:00:00", f"{row(9, end='Unknown', state='RUNNING')}|02:00:00"]  # fmt: skip
    table = read_trace(written(tmp_path, "\n".join([header, *rows])))
    assert table["job_id"].tolist() == ["8", "9"]
    assert table.meta["rows_dropped"] == {"runaway": 1}
    assert any("job 7 has no end after" in text and "runawayjobs" in text for text in table.meta["warnings"])


def test_a_job_without_end_and_limit_that_outlasts_all_others_is_a_gap(tmp_path):
    endless = "7|a|u1|2024-03-01T10:00:00|2024-03-01T10:00:10|Unknown|RUNNING|gres/gpu=8"
    past = past_of(history(tmp_path, endless, row(8), row(9, day=5)))
    assert any("the longest is job 7, running for 98 h" in gap for gap in past.gaps)
    assert not past_of(history(tmp_path, row(8), row(9, day=5))).gaps


def test_a_history_without_gpus_says_which_setting_records_them(tmp_path):
    table = history(tmp_path, *(row(i).replace("gres/gpu=2,", "") for i in range(3)))
    with pytest.raises(InputError, match=r"simulated: 3 jobs without GPUs; .*AccountingStorageTRES=gres/gpu in slurm"):
        load_jobs(table)
    assert not history(tmp_path, row(1), row(2, gpus=0)).meta["warnings"]


def test_gpus_of_older_versions_are_in_columns_of_their_own(tmp_path):
    text = f"{HEADER}|AllocGRES\n{row(1).replace('gres/gpu=2,', '')}|gpu:a100:4\n"
    job = next(read_trace(written(tmp_path, text)).rows())
    assert (job["gpus"], job["gpu_kinds"], job["cpu_milli"]) == (4, "a100", 8000)


def test_a_history_without_header_has_the_documented_columns_or_those_named(tmp_path):
    header, *rows = (FIXTURES / "sacct.txt").read_text().splitlines()
    assert read_trace(written(tmp_path, "\n".join(rows)), columns=header.split("|")).equals(
        read_trace(FIXTURES / "sacct.txt")
    )
    documented = "\n".join(f"{line}|" for line in rows)  # with the reservation, which the fixture has not
    path = written(tmp_path, documented)
    assert sniff(path).name == "sacct"
    assert read_trace(path).equals(read_trace(FIXTURES / "sacct.txt"))
    with pytest.raises(TraceError, match="a required column is missing"):
        read_trace(path, "sacct", columns=["JobID", "Submit"])


def test_convert_says_what_was_left_out(tmp_path):
    path = written(tmp_path, "\n".join([HEADER, *(row(i) for i in range(20)), "20|broken"]))
    refused = CliRunner().invoke(app, ["convert", str(path), str(tmp_path / "o.csv")])
    assert isinstance(refused.exception, TraceError)
    assert "--unreadable" in str(refused.exception)
    done = CliRunner().invoke(app, ["convert", str(path), str(tmp_path / "o.csv"), "--unreadable", "5%"])
    assert "20 jobs, 1 row dropped" in done.output
    assert "history:22: expected 8 fields, found 2" in done.output
    wrong = CliRunner().invoke(app, ["convert", str(path), str(tmp_path / "o.csv"), "--unreadable", "some"])
    assert "needs a share of rows such as 1% or 0.01" in str(wrong.exception)


def test_what_sacct_cuts_to_a_width_is_refused_with_the_command_that_does_not(tmp_path):
    text = """       JobID              Submit               Start                 End      State  AllocTRES
------------ ------------------- ------------------- ------------------- ---------- ----------
100          2024-03-04T10:00:00 2024-03-04T10:00:10 2024-03-04T12:00:10  COMPLETED billing=8+
"""
    with pytest.raises(TraceError, match=r"cut to a fixed width; print them whole with -P: sacct -a -X -P"):
        read_trace(written(tmp_path, text))


# Numbers of any length in files get a sentence, or their place in the order of ids.

LONG = "7" * 5000


def test_ids_of_digits_are_ordered_by_value_whatever_their_length() -> None:
    ids = ["10", "9", LONG, "010", "2", "job-10", "job-9", "a" + LONG, "a1", "0", "00", LONG[:-1] + "8"]
    ordered = ["0", "00", "2", "9", "010", "10", LONG, LONG[:-1] + "8", "a1", "a" + LONG, "job-9", "job-10"]
    assert sorted(ids, key=natural_key) == ordered
    assert sorted(set(ids), key=natural_key) == ordered


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.jsonl", '{"job_id": "1", "submit_s": 0, "gpus": ' + LONG + ', "duration_s": 5}'),
        ("b.json", '[{"job_id": "1", "submit_s": 0, "gpus": ' + LONG + "}]"),
        ("c.csv", f"job_id,submit_s,gpus,duration_s\n{LONG},0,1,5\n{LONG}1,0,{LONG},5\n"),
    ],
)
def test_a_trace_with_a_number_of_thousands_of_digits_is_read_or_refused(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(InputError) as refused:
        read_trace(path)
    assert name in str(refused.value)
    assert len(str(refused.value)) < 1000
