"""Variables that a job gets from its node, independent of the user and the shell that started the agent.

A job's variables are these, then those of its request, then those that the agent sets (`launch.environment`). Nothing
else of the agent's own environment reaches it: no keys, no activated environment, no module of a user's session.
"""

from __future__ import annotations

import fnmatch
import os
import pwd
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from plait.live.system import procs

#: Who and where: of the account and of the machine.
BASE = ("HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "LC_*", "TZ", "TMPDIR", "HOSTNAME")
#: Settings of the node's accelerators and of its network.
DEVICES = ("CUDA_*", "NVIDIA_*", "NCCL_*")
#: Where programs are found unless the request, or `pass-env`, sets another value.
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#: Further names, or patterns such as `SLURM_*`: a variable of the agent, and a file of the home folder, one a line.
VARIABLE, FILE = "PLAIT_PASS_ENV", "pass-env"
#: A name, or a pattern of names.
NAME = re.compile(r"[A-Za-z_*?][A-Za-z0-9_*?]*")


def passed(home: Path, environ: Mapping[str, str]) -> list[str]:
    """Names and patterns that jobs are to get as well, as `plait up --pass-env` and the agent's environment say."""
    try:
        text = (home / FILE).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        text = ""
    return [name for name in f"{text} {environ.get(VARIABLE, '')}".split() if NAME.fullmatch(name)]


def node_environment(environ: Mapping[str, str], more: Iterable[str] = ()) -> dict[str, str]:
    """The variables of an agent that its jobs get: those above and, by name or pattern, `more`.

    The variables by which the service and its store are reached (`procs.PRIVATE`) are never among them.

    >>> node_environment({"HOME": "/h", "USER": "u", "LC_TIME": "C", "AWS_SECRET": "s", "VIRTUAL_ENV": "/v"})["LC_TIME"]
    'C'
    """
    wanted = (*BASE, *DEVICES, *more)
    plain, patterns = set(wanted), [name for name in wanted if "*" in name or "?" in name]
    found = {
        name: value
        for name, value in environ.items()
        if (name in plain or any(fnmatch.fnmatchcase(name, p) for p in patterns)) and name not in procs.PRIVATE
    }
    if "HOME" not in found or "USER" not in found:
        found = _account() | found
    # The default `python` is the one that plait runs with.
    found.setdefault("PATH", os.pathsep.join([str(Path(sys.executable).parent), PATH]))
    return found


def _account() -> dict[str, str]:
    """The account of the agent, where its environment does not name it."""
    try:
        entry = pwd.getpwuid(os.getuid())
    except KeyError:  # a number without a name, as in containers
        return {"HOME": "/"}
    return {"HOME": entry.pw_dir, "USER": entry.pw_name, "LOGNAME": entry.pw_name}
