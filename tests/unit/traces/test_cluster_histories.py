"""What Slurm and Kueue print of their past: what is particular to each."""

import json
from pathlib import Path

import pytest
import yaml

from plait.core.errors import TraceError
from plait.traces.formats.registry import read_trace, sniff

FIXTURES = Path(__file__).parent / "fixtures"
SACCT = (FIXTURES / "sacct.txt").read_text()
KUEUE = (FIXTURES / "kueue.json").read_text()


def written(tmp_path, text, name="history"):
    path = tmp_path / name
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("JobID|User", "User|JobIDs", "column 'JobID': a required column is missing"),
        ("gres/gpu=4,gres/gpu:a100=4", "gres/gpu", "'gres/gpu' is no resource"),
        ("2024-03-01T08:10:00", "yesterday", "column 'Start': not a time stamp"),
        ("1-00:00:00", "a day", "column 'Timelimit': not a time limit"),
        ("Submit|", "Submitted|", "column 'Submit': a required column is missing"),
    ],
)
def test_sacct_errors_name_the_place(old, new, message, tmp_path):
    with pytest.raises(TraceError, match=message):
        read_trace(written(tmp_path, SACCT.replace(old, new, 1)), "sacct")


def test_sacct_with_trailing_bars_and_seconds_since_1970_is_the_same(tmp_path):
    barred = "".join(f"{line}|\n" for line in SACCT.splitlines())
    assert read_trace(written(tmp_path, barred)).equals(read_trace(FIXTURES / "sacct.txt"))
    stamps = {line.split("|")[i] for line in SACCT.splitlines()[1:] for i in (5, 6, 7, 8)} - {"Unknown"}
    text = SACCT
    for stamp in stamps:
        hours, minutes, seconds = (int(part) for part in stamp[11:].split(":"))
        text = text.replace(stamp, str(1709251200 + 3600 * hours + 60 * minutes + seconds))
    assert read_trace(written(tmp_path, text)).equals(read_trace(FIXTURES / "sacct.txt"))


def test_sacct_takes_gpus_of_the_request_where_nothing_was_allocated(tmp_path):
    lines = SACCT.splitlines()
    text = "\n".join([lines[0], lines[1].replace("billing=64,cpu=32,gres/gpu=4,gres/gpu:a100=4,mem=256G,node=1", "")])
    row = next(read_trace(written(tmp_path, text)).rows())
    assert (row["gpus"], row.get("gpu_kinds")) == (4, None)


ODD = """JobID|Submit|Start|End|State|AllocTRES|NNodes|Timelimit
3+0|0900000000|0900000600|0900003600|COMPLETED|gres/gpu:a100=8,gres/gpu=8|1|30:00
3+1|0900000000|0900000600|0900003900|COMPLETED|gres/gpu:a100=4,gres/gpu=4|2|45
3+1.0|0900000000|0900000600|0900003600|COMPLETED|gres/gpu=4|2|
4_[5-9%2]|0900000000|Unknown|Unknown|PENDING||1|01:00:00
5_2|0900000000|0900000600|Unknown|RUNNING|gpu:h100:2(IDX:0-1)|1|1-00
"""


def test_sacct_components_are_one_job_and_odd_forms_are_read(tmp_path):
    table = read_trace(written(tmp_path, ODD))
    whole, running = table.rows()
    assert [whole[name] for name in ("job_id", "gpus", "nodes", "gpu_kinds", "duration_s", "observed_end_s")] == [
        "3", 12, 3, "a100", 3300, 3900,
    ]  # fmt: skip
    assert (running["job_id"], running["gpus"], running["gpu_kinds"]) == ("5_2", 2, "h100")
    assert (whole["x_time_limit_s"], running["x_time_limit_s"]) == (1800, 86400)
    assert table.meta["rows_dropped"] == {"component": 1, "never_started": 1, "step": 1}


def test_sacct_without_gpus_says_how_to_print_them(tmp_path):
    with pytest.raises(
        TraceError, match=r"column 'AllocTRES': a column with the GPUs of the jobs is missing.*sacct -a"
    ):
        read_trace(written(tmp_path, ODD.replace("AllocTRES", "AllocCPUS")))


def test_workloads_in_yaml_are_the_same_as_in_json(tmp_path):
    items = json.loads(KUEUE)["items"]
    expected = read_trace(FIXTURES / "kueue.json")
    for text in (yaml.safe_dump(json.loads(KUEUE)), yaml.safe_dump_all(items)):
        path = written(tmp_path, text)
        assert sniff(path).name == "kueue"
        assert read_trace(path).equals(expected)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"nvidia.com/gpu": "8"', '"nvidia.com/gpu": "many"', "workload ml/job-train-1: is no quantity"),
        ('"nvidia.com/gpu": "8"', '"nvidia.com/gpu": "500m"', "workload ml/job-train-1: must ask for a whole number"),
        ("2024-03-01T08:06:00Z", "soon", "condition Admitted is not a time stamp"),
        ('"kind": "Workload"', '"kind": "Pod"', "expected a Workload of Kueue"),
        ('"items": [', '"items": 3, "others": [', "expected a list of Workloads"),
    ],
)
def test_kueue_errors_name_the_workload(old, new, message, tmp_path):
    with pytest.raises(TraceError, match=message):
        read_trace(written(tmp_path, KUEUE.replace(old, new, 1)), "kueue")


def test_a_workload_that_is_not_admitted_yet_asks_by_its_pods(tmp_path):
    items = json.loads(KUEUE)["items"]
    del items[0]["status"]["admission"]
    row = next(read_trace(written(tmp_path, json.dumps({"items": items}))).rows())
    assert (row["gpus"], row["project"]) == (8, "ml")
