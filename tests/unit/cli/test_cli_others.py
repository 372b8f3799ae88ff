"""`plait policies`, `policy check`, `cite`, `worlds`, `sweep` and `tune` as a user meets them."""

import configparser
import csv
import importlib.util
import json
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
from plait.policies.catalog import CATALOG


def test_policies(plait):
    text = plait("policies").out
    assert all(name in text for name in CATALOG)
    assert "placement" in text
    assert max(len(line) for line in text.splitlines()) <= 240
    assert not any(line.endswith(" ") for line in text.splitlines())
    rows = {row["name"]: row for row in json.loads(plait("policies", "--json").out)}
    assert rows["fifo"]["preempts"] == rows["drf"]["preempts"] == "no"
    assert rows["srsf"]["preempts"] == rows["themis"]["preempts"] == "yes"
    assert rows["yarn-cs"]["preempts"] == "with preempt=on"
    assert rows["sjf"]["knows"] == "duration"
    assert "thresholds" in rows["tiresias-l"]["options"]


def test_worlds(plait):
    assert "measured start overheads" in plait("worlds").out
    assert [w["name"] for w in json.loads(plait("worlds", "--json").out)] == [
        "plait",
        "ideal",
        "pollux",
        "muri-artifact",
        "pollux-artifact",
    ]
    assert "2D-LAS" in plait("worlds").out


def test_cite(plait):
    assert plait("cite", "tiresias-l").out.startswith("@inproceedings{gu2019tiresias")
    assert "nothing to cite" in plait("cite", "fifo").out
    unknown = plait("cite", "tiresas-l")
    assert (unknown.code, "did you mean" in unknown.err) == (2, True)


@pytest.mark.skipif(importlib.util.find_spec("plait.sim.contract") is None, reason="needs the contract suite")
def test_policy_check(plait, tmp_path):
    good = plait.done("policy", "check", "srsf")
    assert "BROKEN" not in good.out
    assert "keeps all" in good.out
    (tmp_path / "broken_for_cli.py").write_text(
        "from plait.core.plan import NO_GROUPS, Plan\n"
        "class Idle:\n    def decide(self, view):\n        return Plan(NO_GROUPS)\n"
    )
    bad = plait("policy", "check", "broken_for_cli:Idle")
    assert bad.code == 4
    assert "BROKEN" in bad.out
    assert "breaks" in bad.err
    assert plait("policy", "check", "srfs").code == 2


def sweep(plait, *more):
    return plait("sweep", "out", "--jobs", 40, "-c", "2x4", "-p", "fifo,srsf", "--processes", 1, *more)


def test_sweep_goes_on_where_it_was(plait):
    options = ("--load", "0.8,1.2", "--seed", "0..1", "--json", "a.json", "--csv", "a.csv", "--report", "a.html")
    first = sweep(plait, *options)
    assert first.code == 0, first.err
    results = json.loads(Path("a.json").read_text())
    assert [(r["trace"], r["policy"], r["seed"]) for r in results[:3]] == [
        ("philly:40 at load 0.8", "fifo", 0),
        ("philly:40 at load 0.8", "fifo", 1),
        ("philly:40 at load 0.8", "srsf", 0),
    ]
    assert [r["load"] for r in results] == pytest.approx([0.8] * 4 + [1.2] * 4, rel=1e-3)
    assert len(list(csv.DictReader(Path("a.csv").read_text().splitlines()))) == 8
    page = Path("a.html").read_text()
    assert page.count("<svg") == 6
    assert "philly:40 at load 1.2, cluster 2x4, world plait" in page

    lines = Path("out/results.jsonl").read_text().splitlines(keepends=True)
    Path("out/results.jsonl").write_text("".join(lines[:5]) + lines[5][:40])  # stopped in the middle of a line
    again = sweep(plait, *options[:4], "--json", "-")
    assert "5 of 8 runs are in out already" in again.err
    repeated = json.loads(again.out)
    assert [{**r, "wall_s": 0} for r in repeated] == [{**r, "wall_s": 0} for r in results]


def test_sweep_refuses_another_grid(plait):
    assert sweep(plait, "--seed", 0).code == 0
    other = sweep(plait, "--seed", 1)
    assert other.code == 2
    assert "belongs to another grid (seeds was [0], now [1])" in other.err


def test_sweep_over_a_trace(plait, small):
    answer = plait.done(
        "sweep", "out", "--trace", small, "-c", "2x4", "-p", "srsf", "--load", "0.5", "--seed", 0, "--json", "-"
    )
    (result,) = json.loads(answer.out)
    assert result["load"] == pytest.approx(0.5, rel=1e-3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--preset", "phily"], "did you mean 'philly'?"),
        (["--load", "heavy"], "is not a list of numbers"),
        (["--load", "-1"], "load must be more than 0"),
        (["-p", "srsff"], "did you mean 'srsf'?"),
        (["-p", "srsf,srsf"], "lists each of its policies once"),
        (["-c", "2by4"], "cannot read cluster"),
        (["--trace", "nowhere.csv"], "no such file"),
        (["--jobs", "0"], "jobs must be at least 1"),
        (["--world", "idael"], "did you mean 'ideal'?"),
    ],
)
def test_bad_sweeps(plait, tmp_path, options, message):
    answer = plait("sweep", "out", "--json", "r.json", *options)
    assert (answer.code, message in answer.err) == (2, True), answer.err
    assert list(tmp_path.iterdir()) == []


def test_tune(plait, tmp_path):
    plait("trace", "generate", "t.csv", "--jobs", 220, "--gpus", 8, "--load", 1.2)
    answer = plait.done("tune", "tiresias-l:knob=8", "t.csv", "-c", "2x4", "--only", "within", "--json", "fit.json")
    fit = json.loads(Path("fit.json").read_text())
    assert fit["jobs_first"] == fit["jobs_second"] == 110
    assert fit["verdict"] in answer.out
    assert answer.out.splitlines()[-1] == f"--policy {fit['policy'] if fit['worth_it'] else fit['default']}"
    printed = plait("tune", "tiresias-l:knob=8", "t.csv", "-c", "2x4", "--only", "within", "--json", "-")
    assert json.loads(printed.out) == fit


def test_bad_tunes(plait, small):
    few = plait("tune", "tiresias-l", small)
    assert (few.code, "12 jobs that fit the cluster are too few" in few.err) == (2, True)
    other = plait("tune", "drf", small)
    assert (other.code, "policy drf has nothing to fit" in other.err) == (2, True)


def test_a_narrow_terminal_shows_fewer_figures(plait, small, monkeypatch):
    from plait.cli.render import console as module

    class Narrow(module.Printer):
        def fits(self, what):
            return len(what.columns) <= 5

    monkeypatch.setattr(module, "Printer", Narrow)
    answer = plait("simulate", small, "-c", "2x4")
    head = next(line for line in answer.out.splitlines() if "policy" in line)
    assert [name in head for name in ("Avg JCT", "Makespan", "Slowdown", "Preemptions")] == [True, True, False, False]
    assert "a wider terminal shows more figures" in answer.err


def commands(group: object, path: str = "") -> list[tuple[str, object]]:
    """All commands and groups below one, by what is typed for them."""
    found: list[tuple[str, object]] = []
    for name, command in getattr(group, "commands", {}).items():
        found += [(f"{path} {name}".strip(), command), *commands(command, f"{path} {name}".strip())]
    return found


def test_no_summary_is_cut_at_80_columns(plait, monkeypatch):
    from typer.main import get_command

    from plait.cli.app import app

    monkeypatch.setenv("COLUMNS", "80")
    known = commands(get_command(app))
    assert len(known) > 40
    for path, command in [("", get_command(app)), *known]:
        if path and not getattr(command, "commands", None):
            continue
        shown = plait(*path.split(), "--help").out
        for name, below in commands(command):
            if " " in name or getattr(below, "hidden", False):
                continue
            (line,) = [line for line in shown.splitlines() if line.split()[:1] == [name] and line.startswith("  ")]
            assert line.split(None, 1)[1] == below.get_short_help_str(limit=1000), (path, name)
            assert len(line) <= 80


def test_a_reason_for_which_many_contracts_break_is_said_once(plait, tmp_path):
    (tmp_path / "bad.py").write_text(
        "class Bad:\n    def decide(self, view):\n        raise ValueError('no such thing')\n"
    )
    answer = plait("policy", "check", "bad:Bad")
    assert answer.code == 4
    broken = [line for line in answer.out.splitlines() if line.startswith("BROKEN")]
    assert len(broken) == 2
    assert "at 0.0 s: ValueError: no such thing" in broken[0]
    assert broken[1].startswith("BROKEN repeats, pure, ")
    assert broken[1].endswith(": 12 contracts more, all by: ValueError: no such thing")
    assert "-0.0" not in answer.out
    assert "breaks 13 of 14 contracts" in answer.err


# -- files and options that break programs are refused with a sentence; plait works without its package of papers ---


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
    assert "in plait: pip install ./papers, in a checkout of plait, adds it" in plait.refused(
        "reproduce", "muri", "--data", "x"
    ).replace("\n", " ")
    assert "reproduce" not in plait("--help").out
    assert plait("worlds").code == 0
