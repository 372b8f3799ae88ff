"""Numbers of any length in files get a sentence, or their place in the order of ids."""

from __future__ import annotations

from pathlib import Path

import pytest

from plait.core.errors import InputError
from plait.traces.formats.registry import read_trace
from plait.traces.table import natural_key

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
