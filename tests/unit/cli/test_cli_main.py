"""The command line as a whole: help, version, errors, exit codes, what it imports."""

import subprocess
import sys

import pytest
import typer

import plait as package
from plait.cli import app


def python(*arguments, **options):
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=False, timeout=600, **options
    )


def test_version_and_help(plait):
    assert plait("--version").out == f"plait {package.__version__}\n"
    text = plait("--help").out
    for command in ("simulate", "sweep", "tune", "reproduce", "policies", "policy", "cite", "worlds", "trace"):
        assert command in text
    assert "Exit codes" in text
    assert "--placement" in plait("simulate", "--help").out


@pytest.mark.parametrize("command", ["simulate", "explain", "submit"])
def test_help_loads_nothing_heavy(command):
    code = (
        "import sys; from plait.cli import main\n"
        f"try: main([{command!r}, '--help'])\n"
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
    assert hint in plait.refused(*arguments)


def test_exit_codes(plait, monkeypatch, small):
    def raises(error):
        def fail(request):
            raise error

        monkeypatch.setattr("plait.cli.experiments.simulation.answer", fail)
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
    done = python("-c", "from plait.cli import console; console()", "cite", "nope", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("plait: error: unknown policy 'nope'")


@pytest.mark.parametrize(
    ("before", "after", "code", "output"),
    [
        ("import atexit; atexit.register(print, 'called')", "console()", 0, "called"),
        ("import atexit", "console()", 0, ""),
        ("sys.stdout = None", "console()", 0, ""),
        ("", "try: main()\nexcept SystemExit: sys.exit(7)", 7, ""),
    ],
)
def test_the_end_of_the_process_keeps_what_others_do_at_it(before, after, code, output, tmp_path):
    text = f"import sys\n{before}\nfrom plait.cli import console, main\n{after}"
    done = python("-c", text, "--version", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (code, "")
    assert output in done.stdout


def test_a_simulation_loads_no_other_policy_and_no_network(tmp_path):
    trace = tmp_path / "t.csv"
    trace.write_text("job_id,submit_s,gpus,duration_s\na,0,1,60\nb,5,2,90\n")
    heavy = "'scipy.linalg', 'plait.network', 'plait.policies.pollux', 'plait.policies.antman', 'plait.grouping.group'"
    run = python(
        "-c",
        "import sys; from plait.cli import main\n"
        f"try: main(['simulate', {str(trace)!r}, '--cluster', '1x8', '-p', 'srsf', '--json', '/dev/null'])\n"
        f"except SystemExit: print([m for m in ({heavy}) if m in sys.modules])",
    )
    assert run.stdout.strip().endswith("[]"), run.stdout + run.stderr


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
    names = list(typer.main.get_command(app.app).commands)
    for name in names:
        assert plait(name, "--help").code == 0


def test_help_lines_of_the_list_are_those_of_the_commands():
    for name, entry in typer.main.get_command(app.app).lazy.entries.items():
        command = typer.main.get_command(app.app).commands[name]
        assert entry.line == command.get_short_help_str(1000), name
        assert entry.short_help(20) == command.get_short_help_str(20), name
        assert command.rich_help_panel == entry.panel


def leaves(command, path):
    """All commands below one that have none below them, with what is typed for them."""
    below = getattr(command, "commands", {})
    yield from (leaf for name in below for leaf in leaves(below[name], [*path, name]))
    if not below:
        yield path, command


def test_defaults_and_texts_are_what_typer_would_make_of_them():
    seen = 0
    for path, command in leaves(typer.main.get_command(app.app), []):
        context = command.make_context(path[-1], [], resilient_parsing=True)
        for param in command.get_params(context):
            quick, slow = param.process_value, param.process_value.args[1]
            default = param.get_default(context)
            if not param.required:
                assert quick(context, default) == slow(context, default), (path, param.name)
                assert type(quick(context, default)) is type(slow(context, default)), (path, param.name)
                seen += 1
            source = type(context.get_parameter_source(param.name))
            context.set_parameter_source(param.name, source.COMMANDLINE)
            for text in ("a b", "", "3"):
                value = [text, text] if param.multiple or param.nargs == -1 else text
                assert outcome(quick, context, value) == outcome(slow, context, value), (path, param.name)
    assert seen > 200


def outcome(process, context, value):
    try:
        return process(context, value)
    except Exception as error:
        return type(error), str(error)


@pytest.mark.parametrize("words", [["ls", "--home", "nowhere"], ["submit", "--help"], ["wait", "j-1"]])
def test_a_short_command_loads_what_it_needs(words, tmp_path):
    code = (
        "import sys; from plait.cli import main\n"
        f"try: main({words!r})\n"
        "except SystemExit: print(sorted(m for m in ('numpy', 'pydantic', 'plait.cli.experiments.simulation', "
        "'plait.cli.commands.doctor') if m in sys.modules))"
    )
    done = python("-c", code, cwd=tmp_path, env={"PLAIT_HOME": str(tmp_path), "PATH": ""})
    assert done.stdout.splitlines()[-1] == "[]", done.stderr
