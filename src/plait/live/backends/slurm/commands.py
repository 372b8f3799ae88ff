"""Slurm's commands: requests, their parsed answers, and errors.

Answers are read as JSON, whose shape differs between releases: 22.05 writes `"job_state": "RUNNING"` and `"time_limit":
2`, 23.11 and later `"job_state": ["RUNNING"]` and `{"set": true, "infinite": false, "number": 2}`.
"""

from __future__ import annotations

import getpass
import json
import math
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from plait.core.errors import InputError, PlaitError
from plait.live.backends.fitting import PENDING, RUNNING
from plait.live.system import procs

COMMANDS = ("sbatch", "squeue", "scancel", "sinfo")
#: Most seconds for a command; slurmctld may be restarting or busy.
PATIENCE_S = 30.0

ENDING, OVER = "ending", "over"
_STATES = {
    "PENDING": PENDING, "CONFIGURING": PENDING, "REQUEUED": PENDING, "REQUEUE_HOLD": PENDING, "REQUEUE_FED": PENDING,
    "SPECIAL_EXIT": PENDING, "RESV_DEL_HOLD": PENDING, "RUNNING": RUNNING, "SUSPENDED": RUNNING, "STOPPED": RUNNING,
    "RESIZING": RUNNING, "SIGNALING": RUNNING, "COMPLETING": ENDING, "STAGE_OUT": ENDING,
}  # fmt: skip


class SlurmError(PlaitError):
    """A command of Slurm failed, did not answer, or printed something unreadable."""


@dataclass(frozen=True)
class Job:
    """A job of Slurm. `state` is one of ours, `word` Slurm's own; times are seconds since 1970, `end_s` may be inf."""

    id: int
    state: str
    word: str
    reason: str = ""
    node: str = ""
    start_s: float = 0.0
    end_s: float = math.inf


class SlurmCli:
    """Calls the Slurm of this machine; `env` replaces the environment of the commands."""

    def __init__(self, env: Mapping[str, str] | None = None) -> None:
        source = os.environ if env is None else env
        # sbatch hands on its environment: passwords are the service's, and an allocation has secrets of its own.
        self._env = {k: v for k, v in source.items() if k not in (*procs.PRIVATE, "PLAIT_HOME")}

    def check(self, partition: str | None) -> None:
        """Raise InputError unless the commands are there, slurmctld answers, and the partition exists."""
        missing = [name for name in COMMANDS if shutil.which(name, path=self._env.get("PATH")) is None]
        if missing:
            raise InputError(
                f"--backend slurm needs Slurm's commands; {', '.join(missing)} is not in PATH of this machine: "
                "run it where you would run sbatch"
            )
        try:
            there = sorted(set(self.ask("sinfo", "--noheader", "--format=%R").split()))
        except SlurmError as error:
            raise SlurmError(
                f"Slurm does not answer on this machine: {error}; try again when this works: sinfo"
            ) from error
        if partition is not None and (unknown := [name for name in partition.split(",") if name not in there]):
            raise InputError(f"no partition {unknown[0]!r} in this Slurm; there are: {', '.join(there) or 'none'}")

    def jobs(self, name: str) -> list[Job]:
        """Our own jobs of this name, including recently ended ones (Slurm's MinJobAge)."""
        return read_jobs(self.ask("squeue", "--json", "--states=all", f"--name={name}"), name, getpass.getuser())

    def submit(self, script: str, words: Sequence[str]) -> int:
        """Submit a batch script; the number of its job."""
        said = self.ask("sbatch", "--parsable", *words, given=script)
        number = said.strip().splitlines()[-1].partition(";")[0] if said.strip() else ""
        if not number.isdigit():
            raise SlurmError(f"sbatch answered {said.strip()[:200]!r}, not the number of a job")
        return int(number)

    def cancel(self, jobs: Sequence[int]) -> None:
        """End jobs: waiting ones at once, running ones in Slurm's way (TERM, and KILL after KillWait)."""
        if jobs:
            self.ask("scancel", *map(str, jobs))

    def notify(self, jobs: Sequence[int]) -> None:
        """SIGTERM to the agent of running jobs and to nothing else, as Slurm does ahead of the time limit."""
        if jobs:
            self.ask("scancel", "--batch", "--signal=TERM", *map(str, jobs))

    def ask(self, *words: str, given: str = "") -> str:
        """Run a command; return its output. Raises `SlurmError` with the command and its message."""
        shown = " ".join(words)
        try:
            done = subprocess.run(
                words, env=self._env, input=given, capture_output=True, text=True, errors="replace",
                timeout=PATIENCE_S, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise SlurmError(
                f"{shown}: no answer in {PATIENCE_S:g} s; is slurmctld running? try: scontrol ping"
            ) from None
        except OSError as error:
            raise SlurmError(f"{shown}: cannot be run: {error.strerror}") from error
        if done.returncode:
            said = (done.stderr.strip() or done.stdout.strip()).splitlines()
            raise SlurmError(f"{shown}: {said[-1] if said else f'ended with {done.returncode} and printed nothing'}")
        return done.stdout


def read_jobs(text: str, name: str, user: str) -> list[Job]:
    """The jobs of a user with this name in what `squeue --json` printed, oldest first. Raises `SlurmError`."""
    try:
        found = json.loads(text)["jobs"]
        jobs = [_job(one) for one in found if one.get("name") == name and one.get("user_name") in (None, "", user)]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SlurmError(f"squeue --json answered what cannot be read ({error!r}): {text.strip()[:120]!r}") from error
    return sorted(jobs, key=lambda job: job.id)


def _job(one: Mapping[str, Any]) -> Job:
    words = one["job_state"]
    words = [words] if isinstance(words, str) else list(words)
    states = [_STATES.get(str(word).upper(), OVER) for word in words]
    state = ENDING if ENDING in states else states[0]
    end_s = _number(one.get("end_time"))
    return Job(
        id=int(one["job_id"]),
        state=state,
        word=str(words[0]),
        reason=_text(one.get("state_reason")),
        node=_text(one.get("nodes")) or _text(one.get("batch_host")),
        start_s=_number(one.get("start_time")) or 0.0,
        end_s=math.inf if state == PENDING or not end_s else end_s,
    )


def _number(value: object) -> float | None:
    """A number, plain or in the form that tells whether it is set."""
    if isinstance(value, Mapping):
        if not value.get("set", True) or value.get("infinite"):
            return None
        value = value.get("number")
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _text(value: object) -> str:
    return value if isinstance(value, str) and value not in ("None", "(null)") else ""
