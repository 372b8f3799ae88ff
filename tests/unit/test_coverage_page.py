"""The page of coverage names files and tests that exist, and counts every row."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "explanation" / "coverage.md").read_text(encoding="utf-8")
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if re.match(r"\| \d", line)]


def test_the_page_has_a_row_for_each_mechanism_experiment_and_figure() -> None:
    numbers = [int(row[0]) for row in ROWS]
    assert numbers == [*range(1, 38), *range(1, 32), *range(1, 45), *range(1, 48), *range(1, 16)]
    assert {row[2] for row in ROWS} <= {"exists", "exists, beyond the paper", "partly", "missing"}
    assert all(len(row) == 6 for row in ROWS)


def test_files_and_tests_on_the_page_exist() -> None:
    for row in ROWS:
        for name in re.findall(r"`((?:src|papers|tests|benchmarks|docs|examples)/[^` ]+)`", " ".join(row)):
            file, _, test = name.partition("::")
            assert (ROOT / file).is_file(), f"row {row[0]} ({row[1]}) names {file}, which is not there"
            text = (ROOT / file).read_text(encoding="utf-8")
            assert not test or re.search(rf"def {test}\b", text), f"row {row[0]} ({row[1]}) names {name}"


def test_what_exists_is_shown_and_what_does_not_says_so() -> None:
    for number, mechanism, status, files, shown, figure in ROWS:
        if status.startswith("exists"):
            assert all((files, shown)), f"row {number} ({mechanism}) exists, but nothing shows it"
        if status == "partly":
            assert figure, f"row {number} ({mechanism}) does not name what is missing"
