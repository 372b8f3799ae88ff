"""Starts scripts in copies of a process that has imported torch already: an attempt then takes tenths of a second.

Its arguments are more imports to do once.

Reads a JSON line a script: {"script", "args", "env", "folder", "finalise"}, the last whether its interpreter ends as
others do, or at once when the script has. The copy writes its pid to folder/pid, its output to
folder/output, its exit code to folder/code.
"""

import contextlib
import ctypes
import json
import os
import runpy
import signal
import sys
from pathlib import Path

import numpy  # noqa: F401
import torch
import torch.distributed
import torch.utils.data


def end_with_parent():
    """Nothing goes on when the tests have been killed: the kernel kills this process when its parent has ended."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def play(order):
    """Become the script."""
    out = os.open(Path(order["folder"]) / "output", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ.clear()
    os.environ.update(order["env"])
    sys.argv = [order["script"], *order["args"]]
    sys.path.insert(0, str(Path(order["script"]).parent))  # as Python does
    code = 0
    try:
        runpy.run_path(order["script"], run_name="__main__")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    import atexit

    if not order["finalise"]:
        atexit._run_exitfuncs()
    sys.stdout.flush()
    if order["finalise"]:
        raise SystemExit(code)  # up to the end of this file, and through the interpreter's own end
    os._exit(code)


def main():
    """Until there are no more orders."""
    torch.set_num_threads(1)
    model = torch.nn.Linear(2, 2)  # one step, so that what torch imports late is there too
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.zeros(1, 2)).sum().backward()
    optimizer.step()
    for line in sys.argv[1:]:
        with contextlib.suppress(ImportError):
            exec(line, {})
    for line in sys.stdin:
        order = json.loads(line)
        if os.fork():
            continue
        end_with_parent()
        folder = Path(order["folder"])
        pid = os.fork()
        if not pid:
            end_with_parent()
            play(order)
        (folder / "pid.new").write_text(str(pid))
        (folder / "pid.new").rename(folder / "pid")
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        (folder / "code.new").write_text(str(code))
        (folder / "code.new").rename(folder / "code")
        os._exit(0)


main()
