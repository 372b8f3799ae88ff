"""late_release.py OUT: a thread named as those of gloo is busy when the script ends; at last it writes the file OUT."""

import sys
import threading
import time
from pathlib import Path

from plait.training import attach
from plait.training.process import GLOO_THREAD


def work() -> None:
    Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text(GLOO_THREAD)
    named.set()
    end_s = time.monotonic() + 0.5
    while time.monotonic() < end_s:
        sum(range(1000))
    Path(sys.argv[1]).touch()
    threading.Event().wait()


state = {"done": 0}
job = attach(state=state)
for _ in job.steps(2):
    state["done"] += 1
named = threading.Event()
threading.Thread(target=work, daemon=True).start()
named.wait()
