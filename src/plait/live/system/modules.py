"""Processes of a home folder found by their command lines, whatever became of the files that name them."""

from __future__ import annotations

import os
from pathlib import Path

from plait.live.layout import DEFAULT_HOME, FIRST, SECOND
from plait.live.system import procs
from plait.live.system.procs import Process

SERVICE, AGENT, KEEPER, STANDBY = (
    "plait.live.service", "plait.live.agent", "plait.live.supervisor.keeper", "plait.live.supervisor.standby",
)  # fmt: skip


def of_home(home: Path, module: str) -> list[Process]:
    """Processes of this user that run `python -m <module>` for a home folder, except the caller itself."""
    found = []
    for pid in procs.pids():
        if pid == os.getpid():
            continue
        words = command_line(pid)
        if _module(words) == module and _home(pid, words) == home and (process := Process.of(pid)) is not None:
            found.append(process)
    return found


def services(home: Path, name: str) -> list[Process]:
    """Services of a home and of one name, as `plait.live.service` names itself by its options."""
    found = of_home(home, SERVICE)
    return [process for process in found if _service_name(command_line(process.pid)) == name]


def _service_name(words: list[str]) -> str:
    return option(words, "name") or (SECOND if "--standby" in words else FIRST)


def command_line(pid: int) -> list[str]:
    """The words of a process's command; empty if it has ended or is not this user's."""
    try:
        path = Path(f"/proc/{pid}")
        if path.stat().st_uid != os.getuid():
            return []
        return (path / "cmdline").read_bytes().decode(errors="surrogateescape").split("\0")[:-1]
    except OSError:
        return []


def option(words: list[str], name: str) -> str | None:
    """The value of `--name VALUE` or `--name=VALUE` in a command; None if it is not there."""
    for i, word in enumerate(words):
        if word == f"--{name}" and i + 1 < len(words):
            return words[i + 1]
        if word.startswith(f"--{name}="):
            return word.partition("=")[2]
    return None


def _module(words: list[str]) -> str | None:
    return words[words.index("-m") + 1] if "-m" in words[:-1] else None


def _home(pid: int, words: list[str]) -> Path | None:
    given = option(words, "home")
    if given is None:
        variables = procs.environment(pid)
        given = variables.get("PLAIT_HOME") or DEFAULT_HOME.replace("~", variables.get("HOME", "~"))
    try:
        return (Path(os.readlink(f"/proc/{pid}/cwd")) / given).resolve()
    except OSError:
        return None
