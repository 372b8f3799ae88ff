"""Start the Python of a job beside the attempt that still runs, and let its script begin later.

A start takes seconds, most of them for imports. At the first step of an attempt rank 0 writes down how it was started
and what it has imported (`record_start`). Before a job moves to other GPUs, its agent starts the same command with
`PLAIT_SUCCESSOR` in its environment: the hook of plait (`hook/sitecustomize.py`) imports those modules, reports that it
is ready, and waits (`wait_for_attempt`). So the script begins when the attempt does, with its modules loaded.

Modules of the script itself are not imported: they may do anything, and belong to the attempt. Nor is anything recorded
for a script that changes its environment, as that may be meant for a module that it imports afterwards.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.machinery
import json
import os
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import plait
from plait.core.files import OWNER_ONLY, replace_file
from plait.runtime.command_line import START_FILE, SUCCESSOR

#: Variables that libraries set by themselves begin so.
_OF_LIBRARIES = ("TORCHINDUCTOR_", "TRITON_", "KMP_", "ACCELERATE_", "PL_", "CUDA_MODULE_LOADING")
_began: tuple[int, dict[str, str]] | None = None


def note_start() -> None:
    """Remember the process and its environment; call it before anything of the script runs."""
    global _began
    _began = os.getpid(), dict(os.environ)


def record_start(job_dir: Path) -> None:
    """Write into a job's folder how this process was started and what it has imported; at its first step.

    Nothing is written for a process that the runner has not started itself, whose script changed the environment, or
    whose modules hide installed ones; what an earlier attempt wrote is removed. A full disk only costs the next start
    its seconds.
    """
    path = job_dir / START_FILE
    with contextlib.suppress(OSError):
        direct = _began is not None and _began[0] == os.getpid() == os.getsid(0)
        if direct and not _changes() and not _hidden_modules():
            # Names of loaded modules that are installed, in the order of their import
            folders = tuple(os.path.join(root, "") for root in _roots())
            modules = dict.fromkeys(
                [
                    *_recorded(path),
                    *[name for name, file in _located() if file.startswith(folders) and name != "sitecustomize"],
                ]
            )
            replace_file(path, json.dumps({"argv": sys.orig_argv, "modules": list(modules)}), mode=OWNER_ONLY)
        else:
            path.unlink(missing_ok=True)


def _recorded(path: Path) -> list[str]:
    """What earlier attempts have imported: those on one GPU need not know what several ranks need."""
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
        record = json.loads(path.read_bytes())
        return [str(name) for name in record["modules"]] if record["argv"] == sys.orig_argv else []
    return []


def _changes() -> list[str]:
    before = _began[1] if _began is not None else {}
    names = before.keys() | os.environ.keys()
    return [name for name in names if before.get(name) != os.environ.get(name) and not name.startswith(_OF_LIBRARIES)]


def _roots() -> list[str]:
    """Folders of the standard library, of installed packages and of plait."""
    library = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib")]
    packages = [folder for folder in sys.path if os.path.basename(folder) in ("site-packages", "dist-packages")]
    return [*library, *packages, str(Path(plait.__file__).parent.parent)]


def _located() -> Iterator[tuple[str, str]]:
    """Name and file of each loaded module that has one, in the order of their import."""
    for name, module in list(sys.modules.items()):
        spec = getattr(module, "__spec__", None)
        if spec is not None and spec.name == name and spec.has_location:
            yield name, str(spec.origin)


def _hidden_modules() -> list[str]:
    """Names of loaded modules of the script that hide installed ones: others may import these where it is not there."""
    roots = _roots()
    folders = tuple(os.path.join(root, "") for root in roots)
    own = [name for name, file in _located() if "." not in name and not file.startswith(folders)]
    return [name for name in own if importlib.machinery.PathFinder.find_spec(name, roots) is not None]


def wait_for_attempt() -> None:
    """Load modules, report that this process is ready, and return when its attempt begins; exits if it never does."""
    go, ready = map(int, os.environ.pop(SUCCESSOR).split())
    os.set_inheritable(go, False)
    os.set_inheritable(ready, False)
    # Import what the last attempt had imported; a module that cannot be is left to the script.
    record = Path(os.environ["PLAIT_JOB_DIR"]) / START_FILE
    for name in json.loads(record.read_bytes())["modules"]:
        with contextlib.suppress(Exception, SystemExit):
            importlib.import_module(name)
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        raise RuntimeError("a module that the job imports uses the GPU at once")
    os.write(ready, b"1")
    os.close(ready)
    with open(go, "rb") as file:
        order = file.read()
    if not order:
        os._exit(0)
    os.environ.update(json.loads(order)["env"])
    note_start()
