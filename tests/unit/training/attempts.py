"""One attempt of a job as an agent would start it: folders, environment, page, signals."""

from __future__ import annotations

import atexit
import functools
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from plait.runtime.page import Page

ROOT = Path(__file__).resolve().parents[3]
HOOK = ROOT / "src" / "plait" / "training" / "hook"
SCRIPTS = Path(__file__).parent / "scripts"
PREEMPTED = 75


def free_port() -> int:
    """A port nobody listens on just now."""
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        return int(made.getsockname()[1])


def environment(job: Path, epoch: int, rank: int = 0, world: int = 1, **extra: str) -> dict[str, str]:
    """What the agent gives a rank, whose folder and page are made."""
    run = job / "attempts" / str(epoch) / f"rank{rank}"
    run.mkdir(parents=True, exist_ok=True)
    Page.create(run / "page.bin").close()
    (job / "EPOCH").write_text(str(epoch))
    return os.environ | {
        "PLAIT_JOB": job.name,
        "PLAIT_EPOCH": str(epoch),
        "PLAIT_RUN_DIR": str(run),
        "PLAIT_JOB_DIR": str(job),
        "PLAIT_CHECKPOINT_S": "1000",
        "PYTHONPATH": os.pathsep.join([str(HOOK), str(ROOT / "src")]),
        "RANK": str(rank),
        "WORLD_SIZE": str(world),
        "LOCAL_RANK": str(rank),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "OMP_NUM_THREADS": "1",
        **extra,
    }


class Forker:
    """Starts scripts in copies of one process with torch in it."""

    def __init__(self, *imports: str) -> None:
        """Start that process; `imports`: more that its copies need, as statements."""
        env = os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
        env["MKL_CBWR"] = "COMPATIBLE"  # the same last bits wherever in memory a tensor comes to lie
        command = [sys.executable, str(SCRIPTS / "forker.py"), *imports]
        self.process = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, text=True)

    def start(
        self, job: Path, epoch: int, script: str | Path, *args: str, finalise: bool = False, **extra: object
    ) -> Attempt:
        """An attempt of a script of `scripts`, or any; `finalise`: to the interpreter's end; `extra`: `environment`."""
        env = environment(job, epoch, **extra)  # type: ignore[arg-type]
        folder = Path(env["PLAIT_RUN_DIR"])
        order = {"script": str(SCRIPTS / script), "args": list(args), "env": env, "folder": str(folder)}
        order["finalise"] = finalise
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        return Attempt(folder)

    def gang(self, job: Path, epoch: int, script: str | Path, *args: str, world: int, **extra: object) -> list[Attempt]:
        """All ranks of an attempt, which find one another."""
        extra["MASTER_PORT"] = str(free_port())
        return [self.start(job, epoch, script, *args, rank=rank, world=world, **extra) for rank in range(world)]

    def close(self) -> None:
        self.process.stdin.close()
        self.process.kill()  # it may still import; its copies end with it
        self.process.wait(10)


@functools.cache
def the_forker(*imports: str) -> Forker:
    """One for all test modules: importing torch is what takes the time."""
    made = Forker(*imports)
    atexit.register(made.close)
    return made


class Attempt:
    """A script that runs in the folder of a rank."""

    def __init__(self, folder: Path) -> None:
        """Look at it from outside, as the agent does."""
        self.folder = folder
        self.page = Page.open(folder / "page.bin", mapped=False)

    def _wait(self, what: str, timeout_s: float = 60.0) -> int:
        end_s = time.monotonic() + timeout_s
        while not (self.folder / what).exists():
            assert time.monotonic() < end_s, f"no {what} in {self.folder} within {timeout_s} s"
            time.sleep(0.002)
        return int((self.folder / what).read_text())

    @property
    def ended(self) -> bool:
        return (self.folder / "code").exists()

    def until(self, steps: int, timeout_s: float = 60.0) -> None:
        end_s = time.monotonic() + timeout_s
        while self.page.steps < steps and not self.ended:
            assert time.monotonic() < end_s, f"no {steps} steps within {timeout_s} s, only {self.page.steps}"
            time.sleep(0.002)

    def says(self, what: str, timeout_s: float = 60.0) -> None:
        end_s = time.monotonic() + timeout_s
        while not (self.folder / "output").exists() or what not in (self.folder / "output").read_text():
            assert time.monotonic() < end_s, f"never said {what!r} within {timeout_s} s"
            time.sleep(0.002)

    def send(self, number: signal.Signals) -> None:
        """A signal to the process alone, as the agent's first is."""
        pid = self._wait("pid")
        if not self.ended:
            os.kill(pid, number)

    def end(self, timeout_s: float = 60.0) -> tuple[int, str]:
        """Exit code (minus the signal) and output."""
        code = self._wait("code", timeout_s)
        return code, (self.folder / "output").read_text()

    def ends(self, expected: int = 0) -> str:
        """Its output; an assertion shows it if the exit code is not the expected one."""
        code, output = self.end()
        assert code == expected, output
        return output


def steps_saved(job: Path, *, marked: bool = True) -> list[int]:
    found = (job / "checkpoints").glob("step-*")
    return sorted(int(p.name[5:15]) for p in found if (p / "COMMITTED").exists() == marked)


def same_weights(one: Path, other: Path) -> bool:
    """Whether two files of torch have bitwise equal contents."""
    import torch

    def same(a: object, b: object) -> bool:
        if isinstance(a, torch.Tensor):
            return isinstance(b, torch.Tensor) and torch.equal(a, b)
        if isinstance(a, dict) and isinstance(b, dict):
            return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
        if isinstance(a, list | tuple) and isinstance(b, list | tuple):
            return len(a) == len(b) and all(map(same, a, b))
        return a == b

    return same(torch.load(one, weights_only=False), torch.load(other, weights_only=False))
