"""Commands that the documentation shows are those of the command line: names, options and values are accepted."""

import gzip
import re
import shutil
import sys
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import typer

from documented_code import PAGES, ROOT, SHELL, blocks, spans
from plait.cli import main
from plait.cli.app import app
from sampling import THOROUGH

COMMANDS = [
    pytest.param(words, id=f"{block.where} {' '.join(words[:3])}")
    for page in PAGES
    for block in blocks(page)
    if block.language in SHELL
    for words in block.commands()
    if words[0] == "plait"
]


def parse(words: list[str]) -> None:
    """Let the command line read its words, and run nothing. Raises click's errors for what it refuses."""
    command: Any = typer.main.get_command(app)
    context = command.make_context("plait", list(words))
    while hasattr(command, "resolve_command"):
        name, command, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        context = command.make_context(name, list(rest), parent=context)


def test_the_pages_have_commands() -> None:
    assert len(COMMANDS) > 100


@pytest.mark.parametrize("words", COMMANDS)
def test_the_command_line_accepts_what_the_pages_show(words: list[str]) -> None:
    parse(words[1:])


WRONG = ["sumbit -- python x.py", "simulate t.csv --polcy srtf", "trace generate t.csv --jobs x"]


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_command_would_be_found(wrong: str) -> None:
    with pytest.raises(Exception, match=r"(?i)no such|invalid|valid integer"):
        parse(wrong.split())


def test_scripts_and_targets_exist() -> None:
    targets = (ROOT / "Makefile").read_text(encoding="utf-8")
    for page in PAGES:
        for block in blocks(page):
            for words in block.commands() if block.language in SHELL else ():
                if words[0] == "make":
                    names = [word for word in words[1:] if "=" not in word]
                    assert all(f"\n{name}: " in targets for name in names), f"{block.where}: {words}"
                for word in words:
                    if word.endswith(".py") and word.startswith(("benchmarks/", "examples/", "tests/")):
                        assert (ROOT / word).exists(), f"{block.where}: {word}"


def missing(words: list[str]) -> str:
    """The command, option, target or file of these words that does not exist; an argument may be left out."""
    if words[0] == "plait":
        try:
            parse(words[1:])
        except (Exception, SystemExit) as error:  # also help, and arguments that the sentence leaves out
            text = str(getattr(error, "message", error))
            return text if text.startswith("No such") else ""
    elif words[0] == "make":
        targets = (ROOT / "Makefile").read_text(encoding="utf-8")
        return " ".join(word for word in words[1:] if "=" not in word and f"\n{word}: " not in targets)
    ours = ("benchmarks/", "examples/", "tests/", "docs/")
    return " ".join(word for word in words if word.startswith(ours) and not (ROOT / word).exists())


def test_commands_in_sentences_exist() -> None:
    found = [span for page in PAGES for span in spans(page)]
    assert len(found) > 200
    assert [f"{where} {' '.join(words)}: {lacks}" for where, words in found if (lacks := missing(words))] == []


@pytest.mark.parametrize("wrong", ["plait sumbit", "plait simulate --polcy", "make tset", "python benchmarks/none.py"])
def test_a_wrong_command_in_a_sentence_would_be_found(wrong: str) -> None:
    assert missing(wrong.split())


# -- run ------------------------------------------------------------------------------------------------------------

#: Commands that need neither a service nor anything that is not in the folder that `folder` makes.
ALONE = {"simulate", "sweep", "trace", "network", "policy", "policies", "tune", "cite", "worlds", "advise"}
#: Of those: commands that need a service, servers of their own, published data or minutes.
NOT_HERE = {
    ("policy", "set"): "needs a service",
    ("policy", "show"): "needs a service",
    ("trace", "export"): "needs a service",
    ("network", "switch"): "serves until it is ended; tests/unit/live/dataplane runs it",
    ("network", "server"): "serves until it is ended; tests/unit/live/dataplane runs it",
    ("network", "status"): "needs a service or a switch",
    ("network", "bench"): "starts processes for a minute; tests/live runs it",
    ("tune", "tiresias-l"): "needs 200 jobs and a minute; tests/unit/cli runs it",
    ("network", "simulate"): "follows every packet for half a minute; tests/unit/cli runs it with fewer",
}
#: Files of published evaluations, which are not part of plait.
PUBLISHED = ("workload-6.csv", "muri-artifact")
FEW = "12"
#: Few jobs cannot keep a cluster busy.
LOAD_OF_FEW = "0.1"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files that pages speak of: traces, failures, a history, a cluster, example policies."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", list(sys.path))
    monkeypatch.setenv("HOME", str(tmp_path))
    run(["trace", "generate", "trace.csv", "--jobs", "60", "--gpus", "64", "--assign-models", "uniform"])
    head, *rows = (tmp_path / "trace.csv").read_text().splitlines()
    projects = [f"{row},{('vision', 'speech')[i % 2]}" for i, row in enumerate(rows)]
    (tmp_path / "trace.csv").write_text("\n".join([f"{head},project", *projects]) + "\n")
    (tmp_path / "demo-out").mkdir()
    for name in ("jobs.csv", "trace3.csv", "t.csv", "demo-out/jobs.csv"):
        shutil.copy("trace.csv", name)
    (tmp_path / "jobs.csv.gz").write_bytes(gzip.compress((tmp_path / "jobs.csv").read_bytes()))
    (tmp_path / "failures.csv").write_text("at_s,node,state\n3600,n0,down\n7200,n0,up\n")
    (tmp_path / "march.txt").write_text(history())
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    for module in (ROOT / "examples").glob("*.py"):
        shutil.copy(module, tmp_path)
    return tmp_path


def history() -> str:
    """What `sacct -X -P` prints of sixty jobs, four an hour, none of which waited for more than ten seconds."""
    head = "JobID|User|Account|Partition|QOS|Submit|Eligible|Start|End|State|AllocTRES|ReqTRES|NNodes|Timelimit|"
    head += "Reservation"
    begin, rows = datetime(2024, 3, 1), [head]
    for i in range(60):
        submit = begin + timedelta(minutes=15 * i)
        times = (submit, submit, submit + timedelta(seconds=10), submit + timedelta(hours=2))
        tres = f"cpu=8,gres/gpu={1 + i % 4}"
        stamps = "|".join(f"{time:%Y-%m-%dT%H:%M:%S}" for time in times)
        rows.append(f"{i}|ann|vision|gpu|normal|{stamps}|COMPLETED|{tres}|{tres}|1|1-00:00:00|")
    return "\n".join(rows) + "\n"


def run(words: list[str]) -> None:
    """Run a command in this process; an exit code other than 0 fails the test."""
    with pytest.raises(SystemExit) as left:
        main(words)
    assert not left.value.code, f"plait {' '.join(words)}: exit code {left.value.code}"


def smaller(words: list[str]) -> list[str]:
    """The same command over fewer jobs, with `~` as the shell replaces it."""
    words = [{"0..4": "0"}.get(word, word).replace("~", str(Path.home())) for word in words]
    if words[0] in ("simulate", "sweep") or words[:2] == ["trace", "generate"]:
        if "--jobs" in words:
            words[words.index("--jobs") + 1] = FEW
            if "--load" in words:
                words[words.index("--load") + 1] = LOAD_OF_FEW
        elif words[0] == "simulate":
            words += ["--jobs", FEW]
    return words


def runs_here(words: list[str]) -> bool:
    """Whether the command needs nothing but files of the folder, and, unless PLAIT_SLOW is set, seconds."""
    slow = words[0] in ("advise", "sweep") or words[:2] == ["policy", "check"]  # other tests run these, too
    if not THOROUGH and (slow or "pollux" in words):
        return False
    return (
        words[0] in ALONE and tuple(words[:2]) not in NOT_HERE and not any(word.startswith(PUBLISHED) for word in words)
    )


RUNNABLE = {
    page: found
    for page in PAGES
    if (
        found := [
            words[1:]
            for block in blocks(page)
            if block.language in SHELL
            for words in block.commands()
            if words[0] == "plait" and len(words) > 1 and runs_here(words[1:])
        ]
    )
}


@pytest.mark.parametrize("page", RUNNABLE, ids=lambda page: page.stem)
def test_the_commands_of_a_page_run(page: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in re.findall(r"^```toml\n(.*?)^```", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE):
        (folder / "cluster.toml").write_text(name)
    for words in RUNNABLE[page]:
        run(smaller(words))
