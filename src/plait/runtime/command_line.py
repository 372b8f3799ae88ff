"""Parse a Python command line, so that a process of merged jobs can run the script as a thread."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

from plait.core.errors import InputError

#: In the environment of a process that waits before its script: the descriptors of the pipe that starts the script and
#: of the one that reports that it is ready.
SUCCESSOR = "PLAIT_SUCCESSOR"
#: A file of a job's folder: how the job was started, and which modules it imported; see `plait.training.successor`.
START_FILE = "start.json"
#: Options of the interpreter that may be the same for all members of a process.
_PLAIN, _WITH_VALUE = ("-u", "-B", "-O", "-OO", "-q", "-b", "-bb"), ("-W", "-X")
_PYTHON = re.compile(r"python(\d+(\.\d+)*t?)?")


@dataclass(frozen=True)
class Script:
    """`python [options] script.py args` or `python [options] -m module args`; `args` without the script's own name."""

    python: str
    options: tuple[str, ...]
    module: bool
    target: str
    args: tuple[str, ...]

    @property
    def folder(self) -> str:
        """First entry of sys.path for this script: its folder as written, "" for a module."""
        return "" if self.module else os.path.dirname(self.target)


def parse_script(command: Sequence[str]) -> Script:
    """Parse a Python command; raises `InputError` for one that cannot run as a thread of another process.

    >>> parse_script(["python", "-u", "src/train.py", "--lr", "1"]).args
    ('--lr', '1')
    """
    words = list(command)
    if not words or not _PYTHON.fullmatch(os.path.basename(words[0])):
        raise InputError(
            f"merge needs a command `python script.py ...`, got {' '.join(words[:3])!r}; or leave merge out"
        )
    options: list[str] = []
    at = 1
    while at < len(words) and words[at].startswith("-"):
        word = words[at]
        if word == "-m" and at + 1 < len(words):
            return Script(words[0], tuple(options), True, words[at + 1], tuple(words[at + 2 :]))
        if word in _PLAIN:
            options.append(word)
        elif word in _WITH_VALUE and at + 1 < len(words):
            options += [word, words[at + 1]]
            at += 1
        elif not (word[:2] in _WITH_VALUE and len(word) > 2):
            raise InputError(
                f"merge cannot have the option {word} of {words[0]}; options that can be: {' '.join(_PLAIN)} -W -X -m"
            )
        else:
            options.append(word)
        at += 1
    if at >= len(words):
        raise InputError(f"merge needs a script or -m MODULE after {words[0]}; or leave merge out")
    return Script(words[0], tuple(options), False, words[at], tuple(words[at + 1 :]))
