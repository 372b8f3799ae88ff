"""The interpreter and environment of a submitter: what a job inherits from the shell that submits it.

    python, env = of_submitter(os.environ)              # an activated venv or conda environment, else `python` on PATH
    python, env = of_submitter(os.environ, conda="nlp")

`python` and `python3` in the job are that interpreter, and the job finds programs and libraries where the shell does.
Other variables are passed only on request (`--env NAME`, `--export-all`).
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from plait.core.errors import InputError, suggest

#: Variables that are always passed: where programs, libraries and modules are, and which environment is active.
CARRIED = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV")
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
    env = {name: environ[name] for name in (_exportable(environ) if export_all else CARRIED) if name in environ}
    if conda is not None:
        prefix = conda_prefix(conda, environ)
        env.pop("VIRTUAL_ENV", None)
        env |= {"CONDA_PREFIX": str(prefix), "CONDA_DEFAULT_ENV": conda if "/" not in conda else prefix.name}
        found: Path | None = prefix / "bin" / "python"
    elif python is not None:
        found = _named(python, environ)
        _enter(found, env)
    else:
        found = _activated(environ) or _on_path(environ)
    if found is not None:
        env["PATH"] = _first(str(found.parent), environ.get("PATH", os.defpath))
    return None if found is None else str(found), env


def _exportable(environ: Mapping[str, str]) -> list[str]:
    """Names that --export-all carries."""
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


def _enter(python: Path, env: dict[str, str]) -> None:
    """Let the variables name the environment of this interpreter, and no other."""
    prefix = python.parent.parent
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV"):
        env.pop(name, None)
    if (prefix / "pyvenv.cfg").is_file():
        env["VIRTUAL_ENV"] = str(prefix)
    elif (prefix / "conda-meta").is_dir():
        env |= {"CONDA_PREFIX": str(prefix), "CONDA_DEFAULT_ENV": prefix.name}


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
