"""A job by hand, without torch: reports steps to its page, keeps to its limits at once, and goes on where it was.

page_job.py OUT STEPS: a step takes 10 ms of which half is GPU work; it ends after STEPS steps (after those that it has
made, once there is a file OUT/hurry-JOB), and saves how far it is when it is told to stop and every 20 steps. A guest
makes steps only while it has a lease and a share, and that share of them.
"""

import os
import signal
import sys
import time
from pathlib import Path

from plait.runtime.page import JobState, Page, Saves
from plait.sharing.directive import Action, StepStats

out, steps = Path(sys.argv[1]), int(sys.argv[2])
saved = Path(os.environ["PLAIT_JOB_DIR"], f"steps-{os.environ['RANK']}")
page = Page.open(Path(os.environ["PLAIT_RUN_DIR"], "page.bin"))
signal.signal(signal.SIGTERM, lambda *_: None)
number = int(saved.read_text()) if saved.exists() else 0
page.saves, page.state = Saves.YES, JobState.RUNNING
page.first_step_monotonic = time.monotonic()
STEP_S, BYTES = 0.01, 1_000_000_000


def save() -> None:
    part = saved.with_suffix(f".{os.getpid()}")
    part.write_text(str(number))
    part.replace(saved)
    page.checkpoint_steps, page.checkpoint_time = float(number), time.time()


while number < steps and not (out / f"hurry-{os.environ['PLAIT_JOB']}").exists():
    page.paced_monotonic = time.monotonic()
    told = page.directive
    page.set_reached(told.limit_number, told.memory_limit_bytes or float("inf"))
    if page.stop:
        save()
        sys.exit(75)
    until = page.share_until
    if until and (until < time.monotonic() or told.share <= 0 or told.action is not Action.RUN):
        time.sleep(STEP_S)
        continue
    time.sleep(STEP_S / (told.share if until else 1.0))
    number += 1
    page.add_step(
        StepStats(
            number, STEP_S, {"gpu": STEP_S / 2, "cpu": STEP_S / 2}, device_peak_bytes=BYTES, quantum_s=0.001,
            device_reserved_bytes=BYTES, device_persistent_bytes=BYTES // 2,
        )
    )  # fmt: skip
    page.steps, page.step_s, page.last_step_monotonic = float(number), STEP_S, time.monotonic()
    page.busy_s = (0.0, number * STEP_S / 2, number * STEP_S / 2, 0.0)
    if number % 20 == 0:
        save()
(out / f"{os.environ['PLAIT_JOB']}-e{os.environ['PLAIT_EPOCH']}-r{os.environ['RANK']}.bin").write_bytes(b"the end")
