"""Run the command line in this process."""

import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from plait.cli import main

HEADER = "job_id,submit_s,gpus,duration_s,duration_kind,state"


@dataclass
class Answer:
    code: int
    out: str
    err: str


class Command:
    """The command line: `plait("simulate", ...)` returns exit code, standard output and error."""

    def __init__(self, capsys) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: object) -> Answer:
        with pytest.raises(SystemExit) as left:
            main([str(a) for a in arguments])
        captured = self._capsys.readouterr()
        return Answer(int(left.value.code or 0), captured.out, captured.err)

    def done(self, *arguments: object) -> Answer:
        """The answer of a command that ends well."""
        answer = self(*arguments)
        assert answer.code == 0, answer
        return answer

    def refused(self, *arguments: object, code: int = 2) -> str:
        """The standard error of a command that ends with this exit code."""
        answer = self(*arguments)
        assert answer.code == code, answer
        return answer.err


@pytest.fixture
def plait(capsys, monkeypatch, tmp_path):
    """The command line in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PLAIT_DEBUG", raising=False)
    monkeypatch.setattr("sys.path", list(__import__("sys").path))
    return Command(capsys)


@pytest.fixture
def small(tmp_path):
    """Twelve jobs in a canonical trace; 2x4 GPUs keep them waiting."""
    rows = [f"j{i},{i * 5},{1 + i % 4},{20 + 13 * (i * 7 % 5)},exact,completed" for i in range(12)]
    path = tmp_path / "small.csv"
    path.write_text("\n".join([HEADER, *rows]) + "\n")
    return path


@pytest.fixture
def published():
    """A function from a name to a published trace; skips the test where they are not."""
    root = Path(os.environ.get("PLAIT_DATA", Path(__file__).parents[3] / ".." / "shared" / "data"))

    def find(name: str) -> Path:
        path = root / name
        if not path.exists():
            pytest.skip(f"needs the published trace {name}; set PLAIT_DATA to the folder that has it")
        return path

    return find
