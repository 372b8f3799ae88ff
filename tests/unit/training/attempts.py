"""One attempt of a job as an agent would start it: folders, environment, page, signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from plait.training.page import Page

ROOT = Path(__file__).resolve().parents[3]
HOOK = ROOT / "src" / "plait" / "training" / "hook"
SCRIPTS = Path(__file__).parent / "scripts"
PREEMPTED = 75


def environment(job: Path, epoch: int, rank: int = 0, world: int = 1, **extra: str) -> dict[str, str]:
    """What the agent gives a rank, whose folder and page are made."""
    run = job / "attempts" / str(epoch) / f"rank{rank}"
    run.mkdir(parents=True, exist_ok=True)
    Page.create(run / "page.bin").close()
    return os.environ | {
        "PLAIT_JOB": job.name,
        "PLAIT_EPOCH": str(epoch),
        "PLAIT_RUN_DIR": str(run),
        "PLAIT_JOB_DIR": str(job),
        "PLAIT_CHECKPOINT_S": "1000",
        "PYTHONPATH": os.pathsep.join([str(HOOK), str(ROOT / "src")]),
        "RANK": str(rank),
        "WORLD_SIZE": str(world),
        "OMP_NUM_THREADS": "1",
        **extra,
    }


class Attempt:
    """A running process with its page."""

    def __init__(
        self, job: Path, epoch: int, script: str, *args: str, rank: int = 0, world: int = 1, **extra: str
    ) -> None:
        """Start `script` (of this folder) with `args`."""
        (job / "EPOCH").parent.mkdir(parents=True, exist_ok=True)
        (job / "EPOCH").write_text(str(epoch))
        env = environment(job, epoch, rank, world, **extra)
        self.page = Page.open(Path(env["PLAIT_RUN_DIR"]) / "page.bin", mapped=False)
        command = [sys.executable, str(SCRIPTS / script), *args]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, env=env, stdout=pipe, stderr=subprocess.STDOUT, text=True)

    def until(self, steps: int, timeout_s: float = 60.0) -> None:
        """Wait for that many steps, or for the end."""
        end_s = time.monotonic() + timeout_s
        while self.page.steps < steps and self.process.poll() is None:
            assert time.monotonic() < end_s, f"no {steps} steps within {timeout_s} s, only {self.page.steps}"
            time.sleep(0.002)

    def send(self, number: signal.Signals) -> None:
        """A signal to the process alone, as the agent's first is."""
        if self.process.poll() is None:
            self.process.send_signal(number)

    def end(self, timeout_s: float = 60.0) -> tuple[int, str]:
        """Exit code and output."""
        output, _ = self.process.communicate(timeout=timeout_s)
        self.page.close()
        return self.process.returncode, output
