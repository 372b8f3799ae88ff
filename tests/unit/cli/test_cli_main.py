"""The command line as a whole: help, version, errors, exit codes, what it imports."""

import subprocess
import sys

import pytest

import plait as package
from plait.cli import app


def python(*arguments, **options):
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=False, timeout=60, **options
    )


def test_version_and_help(plait):
    assert plait("--version").out == f"plait {package.__version__}\n"
    text = plait("--help").out
    for command in ("simulate", "sweep", "tune", "reproduce", "policies", "policy", "cite", "worlds", "trace"):
        assert command in text
    assert "Exit codes" in text
    assert "--placement" in plait("simulate", "--help").out


def test_help_loads_nothing_heavy():
    code = (
        "import sys; from plait.cli import main\n"
        "try: main(['simulate', '--help'])\n"
        "except SystemExit: print(sorted(m for m in ('numpy', 'numba', 'rich.console', 'jinja2') if m in sys.modules))"
    )
    assert python("-c", code).stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["simulat"], "simulate"),
        (["simulate", "t.csv", "--polcy", "x"], "--policy"),
        (["trace", "shwo"], "show"),
    ],
)
def test_unknown_commands_and_options_suggest_the_nearest(plait, arguments, hint):
    answer = plait(*arguments)
    assert answer.code == 2
    assert hint in answer.err


def test_exit_codes(plait, monkeypatch, small):
    def raises(error):
        def fail(request):
            raise error

        monkeypatch.setattr("plait.cli.runs.answer", fail)
        return plait("simulate", small)

    from plait.core.errors import InputError, PlanError, SimulationError

    assert raises(InputError("wrong")).err == "plait: error: wrong\n"
    assert raises(InputError("wrong")).code == 2
    assert raises(PlanError("bad plan")).code == 4
    assert raises(SimulationError("stuck")).code == 4
    assert raises(KeyboardInterrupt()).code == 130
    unexpected = raises(ValueError("odd"))
    assert unexpected.code == 1
    assert "unexpected ValueError: odd; run again with PLAIT_DEBUG=1" in unexpected.err
    assert "Traceback" not in unexpected.err


def test_debug_shows_where(monkeypatch):
    from plait.cli import main
    from plait.core.errors import InputError

    monkeypatch.setenv("PLAIT_DEBUG", "1")
    with pytest.raises(InputError):
        main(["cite", "nothing"])


def test_entry_point_of_the_process(tmp_path):
    done = python("-c", "from plait.cli import main; main()", "cite", "nope", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("plait: error: unknown policy 'nope'")


def test_public_names():
    assert package.__all__ == sorted(package.__all__, key=lambda n: n if not n.startswith("_") else "_" + n)
    for name in package.__all__:
        assert getattr(package, name) is not None
    assert set(package.__all__) <= set(dir(package))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = package.nothing
    lazy = python("-c", "import sys, plait; print('numpy' in sys.modules); from plait import Plan, View, place")
    assert lazy.stdout == "False\n"
    assert lazy.returncode == 0


def test_every_command_has_help(plait):
    import typer

    names = list(typer.main.get_command(app.app).commands)
    for name in names:
        assert plait(name, "--help").code == 0
