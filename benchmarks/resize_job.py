"""The adaptive example with the times of what a stop and a start consist of, for `bench_resize.py`.

    python resize_job.py EXAMPLE MARKS

Each line of MARKS: seconds (CLOCK_BOOTTIME), attempt, rank, what.
"""

import atexit
import os
import runpy
import sys
import time

example, marks = sys.argv[1:3]
#: One file for all marks, opened once: a step takes a millisecond.
out = open(marks, "a", encoding="ascii", buffering=1)  # noqa: SIM115


def mark(what: str) -> None:
    """Add a line."""
    now_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    out.write(f"{now_s:.4f} {os.environ['PLAIT_EPOCH']} {os.environ['RANK']} {what}\n")


mark("script")
atexit.register(mark, "exit")

from torch.optim.optimizer import register_optimizer_step_post_hook  # noqa: E402

import plait.training  # noqa: E402

attach = plait.training.attach


def attached(**state: object) -> object:
    """Attach, and mark that everything of the script before it is done."""
    mark("attach")
    return attach(**state)


plait.training.attach = attached
register_optimizer_step_post_hook(lambda *_: mark("step"))
sys.argv = [example, "--epochs", "1000000"]
runpy.run_path(example, run_name="__main__")
