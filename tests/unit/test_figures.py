"""Measured figures of the pages: each table and each comparison stands below a mark with a command that renews it."""

import doctest
import importlib.util
import re
import shlex
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer

from plait.cli.app import app

ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS = ROOT / "benchmarks"
if not BENCHMARKS.exists():
    pytest.skip("plait is installed without its benchmarks", allow_module_level=True)


def load(name: str) -> ModuleType:
    """A module of the benchmarks, which are no package."""
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


common, figures, run = load("common"), load("figures"), load("run")
PAGES = [pytest.param(page, id=str(page.relative_to(ROOT))) for page in figures.pages()]
COMMANDS = sorted({command for page in figures.pages() for command in figures.commands_of(page)})

#: A cell that begins with a measured value: a decimal fraction, or a number with a unit of measurement.
VALUE = re.compile(r"[*~<>≤≥+−-]*(?:[\d,]*\d\.\d|\d[\d,]* ?(?:%|x\b|times\b|ms\b|CPU s))")
#: A sentence that compares by a measured factor or share; in how-to pages such sentences are mostly settings.
COMPARISON = re.compile(r"\d (?:times|%) (?:as (?!many\b)|longer|shorter|faster|slower|sooner|better|worse|above)")
EXPLAINING = [ROOT / "README.md", BENCHMARKS / "README.md", *(ROOT / "docs" / "explanation").glob("*.md")]


def unmarked(text: str, comparison: re.Pattern[str] = COMPARISON) -> list[str]:
    """Measured figures of a page that no mark is above: rows of tables with two such rows or more, and comparisons."""
    lines, found, inside = text.splitlines(), [], False
    for section in figures.sections(text):
        tables = figures.tables("\n".join(lines[section.begin : section.end]))
        for table in [] if section.command else tables:
            rows = [row for row in table.rows[2:] if any(VALUE.match(cell) for cell in figures.cells(row))]
            if len(rows) > 1:
                found.append(f"line {section.begin + table.line + 1}: a table with measured values: {rows[0]}")
        for number in range(section.begin, section.end):
            inside ^= bool(figures.FENCE.match(lines[number]))
            if not (section.command or inside or lines[number].startswith("|")) and comparison.search(lines[number]):
                found.append(f"line {number + 1}: a measured comparison: {lines[number]}")
    return found


@pytest.mark.parametrize("page", PAGES)
def test_measured_figures_have_a_command(page: Path) -> None:
    """Put `<!-- figures: COMMAND -->` above them (see benchmarks/figures.py), or say why there is none."""
    comparison = COMPARISON if page in EXPLAINING else re.compile("(?!)")
    assert unmarked(page.read_text(encoding="utf-8"), comparison) == []


def test_figures_without_a_mark_are_found() -> None:
    table = "| what | mean |\n|---|---|\n| a | 1.5 |\n| b | 12 % |\n"
    assert len(unmarked(f"# Page\n\n{table}\nIt is 2.4 times as fast.\n")) == 2
    assert unmarked(f"# Page\n\n<!-- figures: python x.py -->\n\n{table}\n## Below\n\nIt is 2.4 times as fast.\n") == []
    assert len(unmarked(f"# Page\n\n## One\n\n<!-- figures: python x.py -->\n\n{table}\n## Other\n\n{table}")) == 1
    assert unmarked("| option | value |\n|---|---|\n| a | 12 |\n| b | 7 |\n") == []


# -- commands ---------------------------------------------------------------------------------------------------------


def check(command: str) -> None:
    """Raise for a command of which program, file, target or an option does not exist."""
    program, *words = shlex.split(command.replace("$PLAIT_DATA", "data"))
    if program == "plait":
        read(words)
    elif program == "make":
        targets = (ROOT / "Makefile").read_text(encoding="utf-8")
        assert all(f"\n{word}: " in targets for word in words if "=" not in word), f"{command}: no such target"
    else:
        assert program == "python", f"{command}: begins with none of python, plait, make"
        file = ROOT / (words[2] if words[:2] == ["-m", "pytest"] else words[0])
        assert file.exists(), f"{command}: {file.name} does not exist"
        source = file.read_text(encoding="utf-8") + (BENCHMARKS / "common.py").read_text(encoding="utf-8")
        for word in words[1:] if words[0] != "-m" else ():
            assert not word.startswith("--") or f'"{word}"' in source, f"{command}: {file.name} has no option {word}"


def read(words: list[str]) -> None:
    """Let the command line read its words, and run nothing."""
    at: Any = typer.main.get_command(app)
    context = at.make_context("plait", list(words))
    while hasattr(at, "resolve_command"):
        name, at, rest = at.resolve_command(context, [*context._protected_args, *context.args])
        context = at.make_context(name, list(rest), parent=context)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_command_exists(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("muri", "pollux"):
        (tmp_path / "data" / name).mkdir(parents=True)
    check(command)


@pytest.mark.parametrize(
    "wrong",
    ["python benchmarks/bench_none.py", "python benchmarks/bench_sharing.py --none", "make none",
     "plait reproduce none", "plait reproduce antman --studdy load", "bash x.sh"],
)  # fmt: skip
def test_a_command_that_does_not_exist_is_found(wrong: str) -> None:
    with pytest.raises(Exception, match=r"(?i)none|no such|begins with"):
        check(wrong)


# -- pages ------------------------------------------------------------------------------------------------------------

PAGE = """# Page

<!-- figures: python a.py -->

| what | mean |
|---|---|
| a | 1.0 |

Text.

| other | mean |
|---|---|
| a | 2.0 |

## Second

<!-- figures: python b.py -->

| what | mean |
|---|---|
| b | 3.0 |
"""


def test_a_table_is_replaced_by_the_one_with_its_header_that_its_command_prints() -> None:
    printed = "made of 3 runs\n\n| what | mean |\n|---|---:|\n| a | 4.0 |\n| aa | 5.0 |\n\n12 CPU s\n"
    new = figures.renewed(PAGE, {"python a.py": printed})
    assert new == PAGE.replace("|---|---|\n| a | 1.0 |", "|---|---:|\n| a | 4.0 |\n| aa | 5.0 |")
    assert figures.renewed(PAGE, {"python c.py": printed}) == PAGE
    assert figures.renewed(PAGE, {"python a.py": "no table"}) == PAGE


def test_a_table_is_put_below_a_mark_that_has_none() -> None:
    empty = "# Page\n\n<!-- figures: python a.py -->\n\nText.\n"
    new = figures.renewed(empty, {"python a.py": "| what | mean |\n|---|---|\n| a | 4.0 |\n"})
    assert new == empty.replace("-->\n", "-->\n\n| what | mean |\n|---|---|\n| a | 4.0 |\n")
    assert figures.renewed(new, {"python a.py": "| what | mean |\n|---|---|\n| a | 4.0 |\n"}) == new


def test_commands_run_once_and_a_failed_one_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "README.md"
    page.write_text(PAGE.replace("b.py", "a.py"), encoding="utf-8")
    (tmp_path / "a.py").write_text(
        "open('runs', 'a').write('x'); print('| what | mean |\\n|---|---|\\n| c | 9.0 |')", encoding="utf-8"
    )
    monkeypatch.setattr(figures, "ROOT", tmp_path)
    monkeypatch.setattr(figures, "OUT", tmp_path / "out")
    assert figures.main([str(page)]) == 0
    assert page.read_text(encoding="utf-8").count("| c | 9.0 |") == 2
    assert (tmp_path / "runs").read_text() == "x"
    assert "| c | 9.0 |" in (tmp_path / "out" / "python-a-py.txt").read_text(encoding="utf-8")
    before = page.read_text(encoding="utf-8")
    (tmp_path / "a.py").write_text("print('| what | mean |\\n|---|---|\\n| d | 1.0 |'); raise SystemExit(3)")
    assert figures.main([str(page)]) == 1
    assert page.read_text(encoding="utf-8") == before
    assert "python a.py" in capsys.readouterr().out
    assert figures.main(["--list", str(page)]) == 0


def test_small_seconds_are_shown_in_smaller_units() -> None:
    assert doctest.testmod(common).failed == 0
    assert common.markdown([figure("a", 2.0)])[2] == "| a | 1.000 CPU s | 2.00 x | another | median of 3 |"


# -- ratios of make bench ---------------------------------------------------------------------------------------------


def figure(what: str, ratio: float, unit: str = "CPU s") -> Any:
    return common.Figure(what, 1.0, 3, ratio, "another", unit=unit)


def test_only_ratios_of_cpu_seconds_are_compared() -> None:
    rows = [figure("a", 4.0), figure("b", float("nan")), figure("c", 2.0, "s"), figure("d", 3.0, "CPU ms")]
    assert run.ratios(rows) == {"a | another": 4.0, "d | another": 3.0}
    assert run.slower({"a": 3.0, "b": 3.2, "new": 1.0}, {"a": 4.0, "b": 4.0, "old": 9.0}) == {"a": pytest.approx(4 / 3)}


def bench(monkeypatch: pytest.MonkeyPatch, ratios: list[float], *options: str) -> int:
    """Run `make bench` of one script whose successive runs have these ratios; its exit code."""
    rows = iter(ratios)
    monkeypatch.setattr(run, "SCRIPTS", {"Some": ["bench_some.py"]})
    monkeypatch.setattr(run, "measured", lambda script, options: [figure("a", next(rows))])
    monkeypatch.setattr(sys, "argv", ["run.py", *options])
    return int(run.main())


def ratio_of(size: str) -> Any:
    return run.recorded(size)["bench_some.py"]["ratios"]["a | another"]


def test_a_slower_row_fails_only_if_it_is_slower_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    readme = tmp_path / "README.md"
    table = "| what | measured | ratio | against | how |\n|---|---|---|---|---|\n| old | 1 | | | |\n"
    head = "| script | commit | date | machine |\n|---|---|---|---|\n| old | 0 | 0 | 0 |\n"
    mark = "<!-- figures: python benchmarks/bench_some.py --markdown -->"
    readme.write_text(f"# B\n\n<!-- figures: make bench -->\n\n{head}\n## Some\n\n{mark}\n\n{table}", encoding="utf-8")
    monkeypatch.setattr(run, "README", readme)
    monkeypatch.setattr(run, "RATIOS", tmp_path / "ratios.json")
    assert bench(monkeypatch, [4.0]) == 0
    assert "| a | 1.000 CPU s | 4.00 x | another | median of 3 |" in readme.read_text(encoding="utf-8")
    assert "| old | 0 | 0 | 0 |" not in readme.read_text(encoding="utf-8")
    assert bench(monkeypatch, [2.0, 3.9]) == 0, "slower once: noise"
    assert ratio_of("full") == 2.0
    assert bench(monkeypatch, [8.0]) == 0
    assert bench(monkeypatch, [4.0, 5.0]) == 1
    assert "bench_some.py: a | another: 1.60 times slower than the last ratio" in capsys.readouterr().out
    assert ratio_of("full") == 8.0, "the slower one is not written"
    assert bench(monkeypatch, [4.0, 5.0], "--accept") == 0
    assert ratio_of("full") == 4.0


def test_quick_runs_report_what_is_slower_and_do_not_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run, "RATIOS", tmp_path / "ratios.json")
    assert bench(monkeypatch, [4.0], "--quick") == 0
    assert run.recorded("quick") == {}, "only written with --accept"
    assert bench(monkeypatch, [4.0], "--quick", "--accept") == 0
    assert bench(monkeypatch, [2.0, 2.0], "--quick") == 0
    assert "2.00 times slower" in capsys.readouterr().out
    assert run.recorded("full") == {}


def test_every_script_of_the_benchmarks_has_its_table() -> None:
    marks = set(figures.commands_of(run.README))
    scripts = [script for scripts in run.SCRIPTS.values() for script in scripts]
    assert [script for script in scripts if f"python benchmarks/{script} --markdown" not in marks] == []


def test_every_benchmark_is_in_the_list_of_scripts() -> None:
    listed = set(re.findall(r"^\| `(bench_\w+\.py)` \|", run.README.read_text(encoding="utf-8"), flags=re.MULTILINE))
    assert listed == {path.name for path in BENCHMARKS.glob("bench_*.py")}
