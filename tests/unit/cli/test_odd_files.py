"""Files and options that break programs are refused with a sentence; plait works without its package of papers."""

from __future__ import annotations

import configparser
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

import plait as package
import plait_papers
from plait.cli import lazy
from plait.cli.app import app
from plait.core.errors import InputError, PlaitError
from plait.live.protocol import job_file
from plait.live.service.main import main

BIG, HEX = "9" * 4301, "0x" + "f" * 4000
DEEP = "[" * 3000 + "]" * 3000
JOBS = {
    "json": [
        f'{{"command": ["a"], "gpus": {BIG}}}', '{"command": ["a"], "gpus": Infinity}',
        '{"command": ["a"], "gpus": NaN}',
        '{"command": ["a"], "iterations": 1e999}', '{"command": ["a"], "iterations": 1' + "0" * 400 + "}", DEEP,
        '{"command": ' + DEEP + "}", '{"a":' * 3000 + "1" + "}" * 3000, "", "\0",
    ],
    "toml": [
        f'command = ["a"]\ngpus = {BIG}', f'command = ["a"]\ngpus = {HEX}', f'command = ["a"]\nclass = {HEX}',
        f"name = {HEX}", 'command = ["a"]\niterations = inf', 'command = ["a"]\niterations = nan', "command = " + DEEP,
        "x." * 3000 + "y = 1", "",
    ],
    "yaml": [
        f"command: [a]\ngpus: {BIG}", f"command: [a]\ngpus: {HEX}", f"command: [a]\nmemory: {BIG}G",
        "command: [a]\nmemory: 1e999", "command: [a]\niterations: .inf", "command: [a]\ngpus: .nan", "command: " + DEEP,
        DEEP, "- " * 3000 + "a", "", "\0", "a: &a [*a]", "command: &a [*a]", "command: [a]\ndeadline_s: 2020-01-01",
        "command: [a]\ngpus: 9999-99-99", "? [a]\n: b", "!!python/object:os.system x", "command: [a]\n1: 2", "<<: 1",
    ],
}  # fmt: skip


@pytest.mark.parametrize("kind", JOBS)
def test_a_job_file_of_any_content_is_refused_with_a_sentence_that_names_it(kind: str, tmp_path: Path) -> None:
    file = tmp_path / f"job.{kind}"
    for text in JOBS[kind]:
        file.write_text(text)
        with pytest.raises(InputError, match=f"job.{kind}") as caught:
            job_file.read_jobs(file)
        assert len(str(caught.value)) < 1000, text[:50]


@pytest.mark.parametrize(
    "words",
    [
        ["submit", "--memory", f"{BIG}G", "--", "a"],
        ["submit", "--memory", "1e999", "--", "a"],
        ["submit", "--batch-size", "3", "--local-batch", f"{BIG}..{BIG}", "--", "a"],
        ["simulate", "t.csv", "--policy", "fifo", "--cluster", f"{BIG}x4"],
        ["simulate", "t.csv", "--policy", "fifo", "--cluster", f"4x{BIG}"],
        ["simulate", "t.csv", "--policy", "fifo", "--cluster", "99999999999x999999999"],
        ["simulate", "t.csv", "--policy", "fifo", "--cluster", "1x1," * 3000 + "infx1"],
    ],
    ids=lambda words: " ".join(words)[:40],
)
def test_options_that_no_machine_can_hold_are_refused(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PLAIT_HOME", str(tmp_path))
    (tmp_path / "t.csv").write_text("job_id,submit_time,duration,num_gpus,model\nj,0,10,1,a\n")
    answer = CliRunner().invoke(app, words)
    assert isinstance(answer.exception, PlaitError), repr(answer.exception)[:300]


@pytest.mark.parametrize("option", ["round", "lost", "lease", "grace", "settle"])
@pytest.mark.parametrize("value", ["inf", "nan"])
def test_a_service_refuses_times_that_are_none(
    option: str, value: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--home", str(tmp_path), f"--{option}", value]) == 2
    assert f"--{option} is {value}" in capsys.readouterr().err


PROJECT = Path(plait_papers.__file__).parents[2] / "pyproject.toml"


def test_a_checkout_registers_what_an_installation_would():
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    beside = PROJECT.parent / "src" / "plait_papers.dist-info"
    text = configparser.ConfigParser(delimiters="=")
    text.read(beside / "entry_points.txt")
    assert {group: dict(text[group]) for group in text.sections()} == project["entry-points"]
    assert f"Version: {project['version']}\n" in (beside / "METADATA").read_text(encoding="utf-8")
    assert project["version"] == package.__version__
    assert project["dependencies"] == [f"plait[sim]=={project['version']}"]


def test_without_the_package_the_command_names_it(plait, monkeypatch):
    assert "reproduce" in plait("--help").out
    monkeypatch.setattr(lazy, "entry_points", lambda group: [])
    answer = plait("reproduce", "muri", "--data", "x")
    assert answer.code == 2
    assert "in plait: pip install ./papers, in a checkout of plait, adds it" in answer.err.replace("\n", " ")
    assert "reproduce" not in plait("--help").out
    assert plait("worlds").code == 0
