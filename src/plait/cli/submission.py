"""From the command line of `plait submit` to requests: files, options, the environment, checks before sending."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, time, timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from plait.cli.connection import HomeOption, JsonFlag
from plait.core.errors import InputError, suggest
from plait.core.options import declared, option, same
from plait.live import trackers
from plait.live.agent.processes.node_environment import node_environment
from plait.live.protocol.arrays import members, parse_matrix
from plait.live.protocol.job import Batch, Job, JobField, key_of
from plait.live.protocol.job_file import check, ina_fields, parse_seconds, read_jobs, read_text
from plait.live.protocol.requests import check_sizes
from plait.live.protocol.runnable import missing

#: The group of options that are bounds of the batch of a job.
_BATCH = "batch"
#: Fields that need more than the value of an option: folders and images are resolved here.
_SETTLED = ("workdir", "container")


@dataclass(frozen=True)
class Asked:
    """The options of `plait submit`; None or False if not given."""

    command: Annotated[
        list[str] | None, typer.Argument(metavar="[--] COMMAND...", help="The program and its arguments.")
    ] = None
    file: Path | None = option("File of one or several jobs: YAML, TOML or JSON", default=None, short="f")
    gpus: int | None = same(Job, "gpus")
    min_gpus: int | None = same(Job, "min_gpus")
    max_gpus: int | None = same(Job, "max_gpus")
    nodes: int | None = same(Job, "nodes")
    gpus_per_node: int | None = same(Job, "gpus_per_node")
    exclusive: bool = same(Job, "exclusive")
    gpu_kinds: list[str] | None = same(Job, "gpu_kinds")
    batch_size: int | None = same(Batch, "initial", group=_BATCH)
    max_batch_size: int | None = same(Batch, "most", group=_BATCH)
    local_batch: str | None = option("Adaptive jobs: minimum and maximum examples per GPU, e.g. 32..1024", default=None)
    accumulation: bool = same(Batch, "accumulation", group=_BATCH)
    name: str | None = same(Job, "name")
    job_class: str | None = same(Job, "job_class")
    model: str | None = same(Job, "model")
    iterations: float | None = same(Job, "iterations")
    env: list[str] | None = option(
        "Environment variable NAME=VALUE, or NAME with its value here", default=None, short="e"
    )
    python: str | None = option(
        "Python interpreter or folder of a virtual environment", default=None, unset="this shell's"
    )
    conda: str | None = option("Conda environment, by name or folder", default=None)
    container: str | None = same(Job, "container")
    export_all: bool = option("Pass all variables of this shell", default=False)
    node_env: bool = option("Pass no variables of this shell", default=False)
    workdir: Path | None = same(Job, "workdir", unset="this one")
    output: str | None = same(Job, "output")
    retries: int | None = same(Job, "retries")
    gpu_memory: str | None = same(Job, "gpu_memory")
    cpus: float | None = same(Job, "cpus")
    memory: str | None = same(Job, "memory")
    deadline_s: float | None = same(Job, "deadline_s")
    time_limit_s: str | None = same(Job, "time_limit_s")
    signal_s: str | None = same(Job, "signal_s")
    hold: bool = same(Job, "hold")
    begin_s: str | None = same(Job, "begin_s")
    after: list[str] | None = same(Job, "after")
    after_any: list[str] | None = same(Job, "after_any")
    after_fail: list[str] | None = same(Job, "after_fail")
    notify: list[str] | None = same(Job, "notify")
    array: str | None = same(Job, "array")
    matrix: list[str] | None = option(
        "Array: a job for each combination of values, e.g. lr=0.1,0.01 seed=1,2", default=None
    )
    tags: list[str] | None = same(Job, "tags")
    ina: str | None = same(Job, "ina")
    servers: int | None = same(Job, "servers")
    gradient_bytes: str | None = same(Job, "gradient_bytes")
    checkpoint_s: float | None = same(Job, "checkpoint_s")
    merge: bool = same(Job, "merge")
    wait_for_nodes: bool = same(Job, "wait_for_nodes")
    project: str | None = same(Job, "project")
    priority: float | None = same(Job, "priority")
    what_if: bool = option("Submit nothing; show when it would start and end, and what would be sooner", default=False)
    wait: bool = option("Wait for the end; exit code 1 if a job fails", default=False, short="w")
    show_schema: bool = option("Print the JSON Schema of job files and exit", default=False, flag="schema")
    home: HomeOption = None
    as_json: JsonFlag = False

    def __post_init__(self) -> None:
        if self.show_schema:
            return
        ways = {
            "--python": self.python, "--conda": self.conda, "--container": self.container,
            "--node-env": self.node_env or None,
        }  # fmt: skip
        said = [name for name, value in ways.items() if value is not None]
        if len(said) > 1:
            raise InputError(f"{' and '.join(said)} exclude each other: each sets where the job's programs come from")
        if self.what_if and self.wait:
            raise InputError("--what-if and --wait exclude each other: nothing is submitted that one could wait for")
        if self.export_all and self.node_env:
            raise InputError("--export-all and --node-env exclude each other")
        if self.file is None and not self.command:
            raise InputError("nothing to submit; write plait submit -- python train.py, or plait submit -f job.yaml")

    @property
    def given(self) -> dict[str, Any]:
        """The fields of a job that the options set; sizes in bytes, durations in seconds."""
        said: dict[str, Any] = {}
        for one in _FIELDS:
            value = getattr(self, one.name)
            if value is not None and value is not False and value != ():
                key = key_of(one)
                said[key] = (
                    parse_begin(value)
                    if key == "begin_s"
                    else read_text(key, value, f"--{one.word}")
                    if isinstance(value, str)
                    else value
                )
        if self.ina is not None:
            said["ina"] = ina_fields(self.ina, "--ina: ")
        if self.matrix:
            said["matrix"] = parse_matrix(self.matrix)
        return said

    @property
    def batch(self) -> dict[str, Any]:
        """The given bounds of the batch."""
        return batch_bounds(self.batch_size, self.max_batch_size, self.local_batch, self.accumulation)


#: Options that are fields of a job, as they are.
_FIELDS = tuple(
    one
    for one in declared(Asked)
    if isinstance(one.option, JobField) and one.option.group != _BATCH and one.name not in _SETTLED
)


def parse_begin(text: str, now: datetime | None = None, option: str = "--begin") -> float:
    """Seconds until a time of day, a date with time, or the end of a duration; `InputError` for anything else.

    >>> parse_begin("18:00", datetime(2026, 11, 27, 19, 0)), parse_begin("2h")
    (82800.0, 7200.0)
    >>> parse_begin("tomorrow 09:00", datetime(2026, 11, 27, 8, 0))
    90000.0
    """
    now = now or datetime.now()
    try:
        if re.fullmatch(r"\d{1,2}:\d\d(:\d\d)?", text):
            at = datetime.combine(now.date(), time.fromisoformat(text.rjust(5 if len(text) < 6 else 8, "0")))
            at += timedelta(days=at <= now)
        elif match := re.fullmatch(r"tomorrow +(\d{1,2}:\d\d)", text):
            at = datetime.combine(now.date() + timedelta(days=1), time.fromisoformat(match[1].rjust(5, "0")))
        elif "T" in text or re.match(r"\d{4}-", text):
            at = datetime.fromisoformat(text)
            now = now.astimezone(at.tzinfo) if at.tzinfo else now
        else:
            if (seconds := parse_seconds(text, option)) <= _LATEST_S:
                return seconds
            at = now - timedelta(seconds=1)
    except (ValueError, InputError):
        at = now - timedelta(seconds=1)
    seconds = at.timestamp() - now.timestamp()  # of two dates without a zone the difference would ignore summer time
    if not 0 < seconds <= _LATEST_S:
        raise InputError(
            f"{option} is {text[:80]!r}; write a time to come, e.g. 18:00, 'tomorrow 09:00', 2026-12-24T18:00 or 2h, "
            "within 30 years"
        )
    return seconds


def requests_of(asked: Asked, environ: Mapping[str, str], *, here: bool) -> list[dict[str, Any]]:
    """The jobs of a file or of a command, with the options applied; `InputError` for an invalid one.

    `here`: the jobs run on this machine, so folders, programs and scripts are checked before submission.
    """
    given = asked.given
    if (asked.name or "").isdecimal():  # elsewhere -n is a number of tasks
        raise InputError(f"--name is {asked.name!r}, a number; write a name, or -g {asked.name} for so many GPUs")
    if asked.workdir is not None:
        given["workdir"] = str(asked.workdir.expanduser().resolve())
    if batch := asked.batch:
        given["batch"] = batch
    command = list(asked.command or ())
    jobs: list[dict[str, Any]] = [{"command": command}] if asked.file is None else read_jobs(asked.file)
    if asked.file is not None and command:
        jobs = [{**job, "command": command} for job in jobs]
    pairs = asked.env or ()
    out = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not name or (not equals and name not in environ):
            raise InputError(f"--env {pair!r}: write NAME=VALUE, or the NAME of a variable that is set here")
        if name in out:
            raise InputError(f"--env {name} is given twice; give it once")
        out[name] = value if equals else environ[name]
    variables = out
    python, shell = (None, {}) if asked.node_env else _of_shell(asked, environ)
    ready = []
    for i, job in enumerate(jobs, start=1):
        where = "plait submit" if asked.file is None else f"{asked.file}: job {i}" if len(jobs) > 1 else str(asked.file)
        merged = {**job, **given}
        if "batch" in given:
            merged["batch"] = {**(job.get("batch") or {}), **given["batch"]}
        _find_folder(merged)
        _settle(merged, asked, python, shell, variables)
        if "batch" in given and "initial" not in merged["batch"]:
            raise InputError(f"{where}: --batch-size is missing; the other bounds of the batch need it")
        ready.append(check(merged, where))
        check_sizes(ready[-1], where, {*given, *(f"batch.{n}" for n in given.get("batch", {}))}, asked.file is None)
        if here:
            check_runnable(next(members(ready[-1], 0)), where)
    return ready


def as_submitted_here(job: Mapping[str, Any], where: str, environ: Mapping[str, str], *, here: bool) -> dict[str, Any]:
    """A job that another program wants to submit, as `plait submit` would from this folder and environment.

    `where` begins the error of an invalid one, `here` as in `requests_of`. Raises `InputError`.
    """
    ready = check(dict(job), where)
    asked = Asked(command=ready["command"])
    _find_folder(ready)
    _settle(ready, asked, *_of_shell(asked, environ), {})
    check_sizes(ready, where, (), False)
    if here:
        check_runnable(next(members(ready, 0)), where)
    return ready


def _find_folder(job: dict[str, Any]) -> None:
    """Make the folder of a job absolute; this one if it names none."""
    job["workdir"] = str((Path.cwd() / job.get("workdir", "")).expanduser().resolve())


def _of_shell(asked: Asked, environ: Mapping[str, str]) -> tuple[str | None, dict[str, str]]:
    return of_submitter(environ, python=asked.python, conda=asked.conda, export_all=asked.export_all)


def _settle(
    job: dict[str, Any], asked: Asked, python: str | None, shell: Mapping[str, str], variables: Mapping[str, str]
) -> None:
    """Set interpreter and variables of a job from options, its file and the shell; in a container only named ones."""
    if asked.container is not None:
        job["container"] = asked.container
    if job.get("container"):
        image = Path(job["workdir"], job["container"]).expanduser()
        if image.exists():
            job["container"] = str(image.resolve())
        job.pop("python", None)
        own = {name: value for name, value in shell.items() if name.startswith(trackers.VARIABLES)}
        carried = of_submitter(dict(shell), export_all=True)[1] if asked.export_all else own
        drop = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "HOME", "SHELL", "VIRTUAL_ENV", "CONDA_PREFIX")
        shell = {name: value for name, value in carried.items() if name not in drop}
    elif python is not None:
        if asked.python is not None or asked.conda is not None:
            job["python"] = python
        else:
            job.setdefault("python", python)
            if job["python"] != python:  # the file names another one, which comes with its own folder
                shell = of_submitter(dict(shell), python=job["python"])[1] if os.path.exists(job["python"]) else shell
    env = {**shell, **job.get("env", {}), **variables}
    if env:
        job["env"] = env


#: Options of `plait submit` that training scripts rarely have, and whether a value follows.
_RARE = (
    "gpus", "min_gpus", "max_gpus", "gpu_memory", "cpus", "retries", "deadline_s", "time_limit_s", "job_class",
    "priority", "project", "ina", "servers", "gradient_bytes", "conda", "container", "node_env", "export_all",
    "wait_for_nodes", "merge", "array", "matrix", "nodes", "gpus_per_node", "exclusive", "gpu_kinds",
)  # fmt: skip
_OWN = {"-g": True} | {f"--{one.word}": one.type is not bool for one in declared(Asked) if one.name in _RARE}


def misplaced(command: Sequence[str], typed: Sequence[str]) -> str:
    """Return a warning if the user's command contains options of `plait submit`; "" if not, or after a `--`.

    `command`: the words of the user's command; `typed`: all words after `plait submit`.

    >>> misplaced(["python", "x.py", "-g", "2"], ["python", "x.py", "-g", "2"])
    '-g 2 went to python x.py; options of plait submit come before the command'
    """
    before = typed[: len(typed) - len(command)]
    if list(before[-1:]) == ["--"]:
        return ""
    found = [i for i, word in enumerate(command) if i and word.partition("=")[0] in _OWN]
    if not found:
        return ""
    words = [" ".join(command[i : i + 1 + ("=" not in command[i] and _OWN[command[i]])]) for i in found]
    return (
        f"{', '.join(words)} went to {' '.join(command[: found[0]])}; options of plait submit come before the command"
    )


def batch_bounds(initial: int | None, most: int | None, local: str | None, accumulation: bool) -> dict[str, Any]:
    """The bounds of the batch that the options give, by field of `Batch`.

    `initial`, `most`: first and largest batch size; `local`: range of examples per GPU, as `32..1024`; `accumulation`:
    whether a step may take several passes. Raises `InputError` if `local` is not a range.
    """
    bounds: list[int | None] = [None, None]
    if local is not None:
        match = re.fullmatch(r"\s*([0-9]{1,18})\s*\.\.\s*([0-9]{1,18})\s*", local)
        if match is None:
            raise InputError(
                f"--local-batch is {local[:80]!r}; write the minimum and the maximum examples of one GPU: 32..1024"
            )
        bounds = [int(match[1]), int(match[2])]
    said = {"initial": initial, "most": most, "least_local": bounds[0], "most_local": bounds[1]}
    found: dict[str, Any] = {name: value for name, value in said.items() if value is not None}
    return {**found, "accumulation": True} if accumulation else found


# -- what cannot run ---------------------------------------------------------------------------------------


def runs_here(home: str | None, environ: Mapping[str, str]) -> bool:
    """Whether the service of this home folder and its nodes are on this machine."""
    from plait.live.client.client import read_service_file
    from plait.live.layout import Layout
    from plait.live.system.procs import boot_id, read_json

    if environ.get("PLAIT_URL"):
        return False
    layout = Layout.at(home)
    record, options = read_service_file(layout) or {}, read_json(layout.options_file()) or {}
    return record.get("boot") == boot_id() and options.get("backend", "local") == "local"


def check_runnable(job: Mapping[str, Any], where: str) -> None:
    """Raise `InputError` for a job whose folder, program or script is not there."""
    if (found := missing(job, node_environment({})["PATH"])) is not None:
        raise InputError(f"{where}: {found.reason}")


#: Variables that are always passed, as are those of experiment trackers: where programs, libraries and modules are, and
#: which environment is active.
CARRIED = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV")
#: The latest beginning that the service takes, seconds from now.
_LATEST_S = 1e9
#: Never passed, even with --export-all: variables of the shell, the terminal or the service (PLAIT_*).
_OF_THE_SHELL = frozenset(
    ("_", "PWD", "OLDPWD", "SHLVL", "TERM", "COLUMNS", "LINES", "PS1", "DISPLAY", "SSH_AUTH_SOCK", "SSH_CLIENT",
     "SSH_CONNECTION", "SSH_TTY", "PGPASSWORD", "NOTIFY_SOCKET", "LISTEN_FDS", "LISTEN_PID")
)  # fmt: skip
#: Default folders of conda and similar tools, below the home folder.
_ROOTS = (
    "miniconda3", "anaconda3", "miniforge3", "mambaforge", "micromamba", "mamba", "opt/miniconda3", "opt/anaconda3",
)  # fmt: skip


def of_submitter(
    environ: Mapping[str, str], *, python: str | None = None, conda: str | None = None, export_all: bool = False
) -> tuple[str | None, dict[str, str]]:
    """The interpreter (None where there is none) and the variables for a job that is submitted in this environment.

    `python`: another interpreter, by path or name, or the folder of its environment. `conda`: the name or folder of a
    conda environment. Raises `InputError` for a missing one.
    """
    carried = [*CARRIED, *(name for name in environ if name.startswith(trackers.VARIABLES))]
    env = {name: environ[name] for name in (_exportable(environ) if export_all else carried) if name in environ}
    if conda is not None:
        prefix = conda_prefix(conda, environ)
        env.pop("VIRTUAL_ENV", None)
        env |= {"CONDA_PREFIX": str(prefix), "CONDA_DEFAULT_ENV": conda if "/" not in conda else prefix.name}
        found: Path | None = prefix / "bin" / "python"
    elif python is not None:
        found = _named(python, environ)
        # Let the variables name the environment of this interpreter, and no other.
        folder = found.parent.parent
        for variable in ("VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV"):
            env.pop(variable, None)
        if (folder / "pyvenv.cfg").is_file():
            env["VIRTUAL_ENV"] = str(folder)
        elif (folder / "conda-meta").is_dir():
            env |= {"CONDA_PREFIX": str(folder), "CONDA_DEFAULT_ENV": folder.name}
    else:
        found = _activated(environ) or _on_path(environ)
    if found is not None:
        env["PATH"] = _first(str(found.parent), environ.get("PATH", os.defpath))
    return None if found is None else str(found), env


def _exportable(environ: Mapping[str, str]) -> list[str]:
    return [
        name
        for name, value in environ.items()
        if name not in _OF_THE_SHELL and not name.startswith(("PLAIT_", "BASH_FUNC_")) and "\0" not in value
    ]


def _activated(environ: Mapping[str, str]) -> Path | None:
    """The interpreter of the environment that was activated, if any."""
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        if environ.get(name) and _runs(python := Path(environ[name]) / "bin" / "python"):
            return python
    return None


def _on_path(environ: Mapping[str, str]) -> Path | None:
    for name in ("python", "python3"):
        found = shutil.which(name, path=environ.get("PATH", os.defpath))
        if found:
            path = Path(found).absolute()
            return _behind(path, environ) if path.parent.name == "shims" else path
    return None


def _behind(shim: Path, environ: Mapping[str, str]) -> Path:
    """The interpreter that a shim of pyenv, asdf or mise starts in this folder; the shim itself if unknown."""
    words = [str(shim), "-c", "import sys; print(sys.executable)"]
    try:
        done = subprocess.run(words, env=dict(environ), capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return shim
    path = Path(done.stdout.strip())
    return path if path.is_absolute() and _runs(path) else shim


def _named(python: str, environ: Mapping[str, str]) -> Path:
    """The interpreter of --python: a program, the folder of an environment, or a name on PATH."""
    path = Path(python).expanduser()
    if path.is_dir():
        path = path / "bin" / "python"
    elif "/" not in python:
        found = shutil.which(python, path=environ.get("PATH", os.defpath))
        if found is None:
            raise InputError(f"--python {python!r}: no such program on PATH; give the path of an interpreter")
        path = Path(found)
    path = Path(os.path.abspath(path))  # a link stays: a virtual environment's python is one
    if not _runs(path):
        raise InputError(
            f"--python {python!r}: {path} cannot be run; give an interpreter, or the folder of a virtual environment"
        )
    return path


def conda_prefix(name: str, environ: Mapping[str, str]) -> Path:
    """The folder of a conda environment, by name or folder; `InputError` naming the existing ones."""
    if "/" in name:
        prefix = Path(os.path.abspath(Path(name).expanduser()))
        if _runs(prefix / "bin" / "python"):
            return prefix
        raise InputError(f"--conda {name!r}: there is no {prefix / 'bin' / 'python'}; is it a conda environment?")
    known: dict[str, Path] = {}
    for found, prefix in _environments(environ):
        if _runs(prefix / "bin" / "python"):
            known.setdefault(found, prefix)
    if name in known:
        return known[name]
    if not known:
        raise InputError(f"--conda {name!r}: no conda environment was found; give its folder: --conda /path/to/env")
    raise InputError(f"--conda: no environment {name!r}; {suggest(name, sorted(known), 'give its folder')}")


def _environments(environ: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    """Conda environments as (name, folder), whether they exist or not, in the order of lookup."""
    home = Path(environ.get("HOME") or Path.home())
    roots: list[Path] = []
    for variable, up in (("CONDA_EXE", 2), ("MAMBA_EXE", 2), ("MAMBA_ROOT_PREFIX", 0), ("CONDA_ROOT", 0)):
        if environ.get(variable):
            path = Path(environ[variable])
            roots.append(path.parents[up - 1] if up else path)
    if environ.get("CONDA_PREFIX"):
        prefix = Path(environ["CONDA_PREFIX"])
        roots.append(prefix.parent.parent if prefix.parent.name == "envs" else prefix)
    roots += [home / root for root in _ROOTS]
    for folder in (environ.get("CONDA_ENVS_PATH") or environ.get("CONDA_ENVS_DIRS") or "").split(os.pathsep):
        if folder:
            yield from ((path.name, path) for path in _folders(Path(folder)))
    for root in dict.fromkeys(roots):
        yield "base", root
        yield from ((path.name, path) for path in _folders(root / "envs"))
    yield from ((path.name, path) for path in _folders(home / ".conda" / "envs"))
    try:
        listed = (home / ".conda" / "environments.txt").read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        listed = []
    yield from ((Path(line).name, Path(line)) for line in listed if line.strip())


def _folders(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.is_dir())
    except OSError:
        return []


def _first(folder: str, path: str) -> str:
    """A search path with a folder at its front, once."""
    return os.pathsep.join([folder, *(part for part in path.split(os.pathsep) if part and part != folder)])


def _runs(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)
