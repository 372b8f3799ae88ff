"""The trace commands."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from plait.cli.commands.trace import app
from plait.core.errors import InputError, TraceError
from plait.traces.canonical import read_canonical

FIXTURES = Path(__file__).parent / "fixtures"


def run(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def test_convert_show_generate_formats(tmp_path):
    out = tmp_path / "out.csv"
    assert "3 jobs" in run("convert", FIXTURES / "muri.csv", out, "--work", "iterations")
    assert read_canonical(out).meta["options"]["work"] == "iterations"
    assert "dropped 1: never_started" in run("convert", FIXTURES / "helios.csv", out, "--format", "helios")
    text = run("show", out, "--cluster-gpus", 8)
    assert "dropped: suspended" in text
    assert "load on 8 GPUs" in text
    run("generate", tmp_path / "g.csv.gz", "--jobs", 50, "--load", 0.8, "--assign-models", "uniform")
    assert "50" in run("show", tmp_path / "g.csv.gz")
    run("convert", FIXTURES / "tiresias.csv", out, "--assign-models", "uniform")
    assert "philly" in run("formats")


def test_errors_propagate_and_write_nothing(tmp_path):
    with pytest.raises(InputError, match="did you mean 'muri'"):
        run("convert", FIXTURES / "muri.csv", tmp_path / "o.csv", "--format", "murri")
    with pytest.raises(TraceError, match="strict"):
        run("convert", FIXTURES / "muri.csv", tmp_path / "o.csv", "--strict")
    assert list(tmp_path.iterdir()) == []
