"""Whether folder, program and script of a job are there: checked before a job is stored, by client and service."""

import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from plait.core.errors import InputError
from plait.live.protocol.requests import command_of
from plait.runtime.command_line import parse_script

#: Programs whose first argument is a script, as that of an interpreter is.
_SHELLS = ("sh", "bash", "dash", "zsh", "ksh")
#: Characters of a file's name at most, and files of a folder that are compared with a wrong name.
_LONGEST, _MOST_NAMES = 255, 2000


class Missing(NamedTuple):
    """Why a job cannot run, and the field of the job that is wrong."""

    field: str
    reason: str


def missing(job: Mapping[str, Any], path: str | None) -> Missing | None:
    """Return the first of folder, image, program and script that is not there; None if all are.

    `job`: the fields of a job. `path`: folders of programs, separated by `:`, for a job that sets no PATH; None if its
    nodes may have other files than this machine. Then only what holds on every node is checked: a job without workdir
    runs in an empty folder of its own.
    """
    folder = job.get("workdir") or ""
    if folder and not os.path.isabs(folder):
        reason = f"{folder!r} does not begin with /; give the whole path of a folder on the nodes"
        return Missing("workdir", reason)
    if folder and path is not None and not os.path.isdir(folder):
        return Missing("workdir", f"the folder {folder} is not there; give another workdir, or make it")
    if image := job.get("container"):
        here = "://" not in image and image.endswith((".sif", ".img"))
        if here and path is not None and not os.path.exists(os.path.join(folder, image)):
            return Missing("container", f"the image {image} is not there; pull it first, or name one of a registry")
        return None
    argv = command_of(job)
    program, script = argv[0], _script(argv)
    for name in (program if "/" in program else None, script):
        if name is not None and not folder and not os.path.isabs(name):
            reason = f"without workdir the job runs in an empty folder of its own, where {name!r} is not"
            return Missing("workdir", f"{reason}; give the folder of {name!r} as workdir, or its whole path")
    if path is None:
        return None
    why = _program(program, job, folder, path)
    if why is None and script is not None and not os.path.exists(os.path.join(folder, script)):
        # Why a script that is not there cannot run, with the next name in its folder.
        if os.path.isabs(script):
            at, todo = "", "give the path of the file"
        else:
            at, todo = f" in {folder}, where the job runs", "give another workdir, or the path of the file"
        where, word = os.path.split(script)
        near = _near(word, _names(os.path.join(folder, where)))
        hint = f" (did you mean {os.path.join(where, near)!r}?)" if near else ""
        why = f"no file {script!r}{at}{hint}; {todo}"
    return None if why is None else Missing("command", why)


#: How files are run or submitted, by their suffix.
_RUNS = {
    ".sh": "a script runs as: bash", ".py": "a script runs as: python",
    **dict.fromkeys((".toml", ".yaml", ".yml", ".json"), "a job file is submitted with: plait submit -f"),
}  # fmt: skip


def _program(program: str, job: Mapping[str, Any], folder: str, path: str) -> str | None:
    """Why the program of a command cannot be started; None if it can."""
    if "/" in program:
        file = str(Path(folder, program))
        if not os.path.exists(file):
            return f"no program {program!r} (looked for {file})"
        if not os.access(file, os.X_OK) or os.path.isdir(file):
            return f"{file} is not executable; run it with its interpreter, or: chmod +x {file}"
        return None
    own = str(Path(sys.executable).parent)
    search = os.pathsep.join([(job.get("env") or {}).get("PATH") or path, own])
    if shutil.which(program, path=search) is not None:
        return None
    runs = _RUNS.get(Path(program).suffix)
    near = None if runs else _near(program, [name for where in search.split(os.pathsep) for name in _names(where)])
    hint = f"did you mean {near!r}? It was" if near else f"{runs} {program}; it was" if runs else "it was"
    if folder and os.path.isfile(os.path.join(folder, program)):
        run = f"python {program}" if program.endswith(".py") else f"./{program}"
        hint = f"{program!r} is a file of {folder}, which runs as: {run}. As a program it was"
    return f"command not found: {program!r}; {hint} looked for in {search}"


def _script(argv: Sequence[str]) -> str | None:
    """The script that the command's interpreter runs, if it is known."""
    if Path(argv[0]).name in _SHELLS:
        return argv[1] if len(argv) > 1 and not argv[1].startswith(("-", "+")) else None
    try:
        script = parse_script(argv)
    except InputError:  # no Python, or with options such as -c
        return None
    return None if script.module else script.target


def _near(name: str, names: Sequence[str]) -> str | None:
    found = get_close_matches(name, names, n=1, cutoff=0.6) if len(name) <= _LONGEST else []
    return found[0] if found else None


def _names(folder: str) -> list[str]:
    """Names in a folder, of a huge one some: comparing takes time, and users may call this often."""

    def read() -> Iterator[str]:
        with os.scandir(folder) as entries:
            yield from (entry.name for entry in entries)

    try:
        return list(islice(read(), _MOST_NAMES))
    except (OSError, ValueError):
        return []
