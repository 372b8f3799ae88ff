"""Two runs of the same jobs: who gained and who lost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from plait.cli.app import app
from plait.core.errors import InputError
from plait.outlook.page import best, changed, compare_files, pair_page, worst

HEADER = "number,id,user,project,jct_s,state\n"


def table(path: Path, *rows: tuple[str, str, str, float | str, str]) -> Path:
    path.write_text(HEADER + "".join(f"{i},{','.join(map(str, row))}\n" for i, row in enumerate(rows)))
    return path


@pytest.fixture
def runs(tmp_path: Path) -> tuple[Path, Path]:
    a = table(
        tmp_path / "a.csv", ("j0", "ann", "vision", 100, "finished"), ("j1", "ben", "vision", 200, "finished"),
        ("j2", "ben", "speech", 300, "finished"), ("j3", "ann", "speech", 50, "finished"),
        ("j4", "ann", "speech", "", "failed"),
    )  # fmt: skip
    b = table(
        tmp_path / "b.csv", ("j3", "ann", "speech", 50, "finished"), ("j1", "ben", "vision", 500, "finished"),
        ("j2", "ben", "speech", 240, "finished"), ("j0", "ann", "vision", 40, "finished"),
        ("j9", "eve", "", 1, "finished"),
    )  # fmt: skip
    return a, b


def test_jobs_are_matched_by_id_and_the_largest_loss_comes_first(runs: tuple[Path, Path]) -> None:
    pair = compare_files(*runs)
    assert [job.name for job in pair.jobs] == ["j1", "j3", "j0", "j2"]
    assert (pair.gained, pair.lost, pair.left_out) == (2, 1, (1, 1))
    assert [job.name for job in worst(pair)] == ["j1"]
    assert [job.name for job in best(pair)] == ["j2", "j0"]
    assert [(user.name, user.jobs, user.before_s, user.after_s) for user in pair.users] == [
        ("ben", 2, 250.0, 370.0), ("ann", 2, 75.0, 45.0),
    ]  # fmt: skip
    assert pair.figures["mean"].ratio == pytest.approx(830 / 650 - 1)
    assert pair.sentence == (
        "b against a, 4 jobs: mean completion time +27.7%; 2 sooner, 1 later, 1 alike; "
        "left out, not finished in both: 1 and 1."
    )
    assert changed(pair.users[:1]) == []
    assert "j1" in pair_page(pair)


def test_a_run_beside_itself_changes_nobody(runs: tuple[Path, Path]) -> None:
    pair = compare_files(runs[0], runs[0])
    assert (pair.gained, pair.lost, worst(pair), best(pair), changed(pair.users)) == (0, 0, [], [], [])
    assert pair.names == (str(runs[0]), str(runs[0]))


@pytest.mark.parametrize(
    ("content", "error"),
    [
        ("id,jct_s\n", r"b\.csv:1: column state is missing"),
        (f"{HEADER}0,j0,ann,x,soon,finished\n", r"b\.csv:2: column jct_s must be seconds of at least 0, got 'soon'"),
        (f"{HEADER}0,j0,ann,x,1,finished\n1,j0,ann,x,1,finished\n", r"b\.csv:3: job j0 occurs twice"),
        (f"{HEADER}0,j7,ann,x,1,finished\n", "no finished job in common"),
    ],
)
def test_what_is_wrong_with_a_file_is_named(runs: tuple[Path, Path], content: str, error: str) -> None:
    runs[1].write_text(content)
    with pytest.raises(InputError, match=error):
        compare_files(*runs)


def test_the_command_prints_writes_and_leaves_nothing_after_an_error(runs: tuple[Path, Path], tmp_path: Path) -> None:
    page = tmp_path / "gains.html"
    done = CliRunner().invoke(app, ["compare", *map(str, runs), "--report", str(page), "--json", "-"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["by_job"][0]["name"] == "j1"
    assert "b against a" in page.read_text()
    page.unlink()
    runs[1].write_text("")
    assert CliRunner().invoke(app, ["compare", *map(str, runs), "--report", str(page)]).exit_code != 0
    assert not page.exists()
