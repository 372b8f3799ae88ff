"""A loop whose script handles SIGTERM itself and ends with 0; leaving.py KIND ORDER: see test_untorched.py."""

import os
import signal
import sys
import time

kind, order = sys.argv[1:3]
told = []


def leave(*_):
    print("told", flush=True)
    told.append(1)
    if kind == "exits":
        sys.exit(0)


if kind != "plain" and order == "before":
    signal.signal(signal.SIGTERM, leave)

from plait.training import attach  # noqa: E402

state = {"t": 0}
job = attach(state=state)
for step in job.steps(5):
    state["t"] = step
    if step == 1 and kind != "plain" and order == "after":
        signal.signal(signal.SIGTERM, leave)
    if step == (4 if order == "late" else 2):
        print("ready", flush=True)
        while not (told or os.path.exists(sys.argv[3])):
            time.sleep(0.005)
        if told:
            break
if order == "late":  # an evaluation
    while not os.path.exists(sys.argv[3] + ".evaluated"):
        time.sleep(0.005)
