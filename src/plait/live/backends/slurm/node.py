"""The program of an allocation's batch script: makes the node's secret, and keeps an agent while it is wanted.

python -m plait.live.backends.slurm.node --home H --stop-grace 60 (--slots 4 | --cuda)
"""

from __future__ import annotations

import os
import re
import secrets
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from plait.core.options import option, parse, words
from plait.live.agent.agent import HELD_BACK
from plait.live.agent.node import AgentOptions
from plait.live.agent.processes.node_environment import VARIABLE
from plait.live.layout import Layout, make_private, write_secret
from plait.live.system import procs

#: Kept of Slurm's variables. The others describe a job of one task, which libraries of training believe at once.
_KEPT = ("SLURM_JOB_ID", "SLURM_CONF", "SLURM_CLUSTER_NAME", "SLURMD_NODENAME")


#: The file in a node's folder that marks its agent as in an allocation of ours.
MARK = "slurm"


@dataclass(frozen=True)
class NodeOptions:
    """The options that the batch script of an allocation passes: its node has slots or GPUs."""

    home: str = option("Folder of the service, on a file system that all nodes share")
    stop_grace_s: float = option("Longest grace period of jobs that the agent stops, seconds")
    slots: int | None = option("Number of CPU slots", default=None)
    cuda: bool = option("Use the GPUs that Slurm gave to the allocation", default=False)


def node_name(host: str, job: int) -> str:
    """Name of the node of an allocation: the host, so that users recognise it, and the job, so that it is new.

    >>> node_name("gpu-7.example.org", 42)
    'gpu-7-42'
    """
    short = re.sub(r"[^A-Za-z0-9_-]", "", host.partition(".")[0]).lstrip("_-")[:40] or "node"
    return f"{short}-{job}"


class Keeper:
    """Keeps one agent: starts another when it is killed, and ends when the agent ends by itself or on a signal.

    Processes of an agent that was killed come here, not to init, where Slurm would not find them any more; the next
    agent reattaches to them.
    """

    #: Deaths within so many seconds of the start, and how many of them in a row are too many.
    SOON_S, MOST = 10.0, 5

    def __init__(self, command: Sequence[str]) -> None:
        self.command, self.pid, self.leaving = list(command), 0, False

    def run(self) -> int:
        """Until the agent is not to be started again; its exit code."""
        procs.prctl(procs.PR_SET_CHILD_SUBREAPER, 1)
        for number in (signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, self._leave)
        soon = 0
        while True:
            began = time.monotonic()
            self.pid = os.posix_spawn(self.command[0], self.command, os.environ, setsigmask=HELD_BACK)
            if self.leaving:
                self._tell()
            code = self._wait()
            soon = soon + 1 if time.monotonic() - began < self.SOON_S else 0
            if code in (0, 2, 3) or soon >= self.MOST:
                return code
            if not self.leaving:  # else the jobs that it left are stopped by the next one, at once
                time.sleep(min(soon, 3))

    def _wait(self) -> int:
        """The exit code of the agent, and an end to all orphans meanwhile."""
        while True:
            pid, status = os.waitpid(-1, 0)
            if pid == self.pid:
                self.pid = 0
                return os.waitstatus_to_exitcode(status)

    def _leave(self, _number: int, _frame: object) -> None:
        self.leaving = True
        self._tell()

    def _tell(self) -> None:
        if self.pid:
            os.kill(self.pid, signal.SIGTERM)


def main() -> None:
    """Keep the agent; if it cannot be kept, write why to the log of the allocation."""
    options = parse(NodeOptions, None, description=__doc__)
    if (options.slots is None) != options.cuda:
        sys.exit("give either --slots N or --cuda")
    layout, host = Layout.at(options.home), os.environ.get("SLURMD_NODENAME") or os.uname().nodename
    job = os.environ.get("SLURM_JOB_ID", "")
    if not job.isdigit():
        sys.exit("SLURM_JOB_ID is not set: this is run by the batch script of an allocation, not by hand")
    if not (layout.home / "slurm").is_dir():
        sys.exit(f"{layout.home} of the service is not on {host}: all nodes need the home folder under the same path")
    given = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    if options.cuda and not re.fullmatch(r"\d+(,\d+)*", given):
        sys.exit(f"Slurm gave no GPUs on {host}: CUDA_VISIBLE_DEVICES is {given!r}; see gres.conf, or use --fake")
    name = node_name(host, int(job))
    folder = make_private(layout.node(name))
    (folder / MARK).touch()
    if not (folder / "enrol").exists():
        write_secret(folder / "enrol", "plait_" + secrets.token_urlsafe(32))  # the service finds it here
    log = os.open(folder / "agent.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    for variable in [key for key in os.environ if key.startswith("SLURM") and key not in _KEPT]:
        del os.environ[variable]
    os.environ[VARIABLE] = " ".join([os.environ.get(VARIABLE, ""), *_KEPT])  # jobs may query Slurm about it
    settings = {
        "home": layout.home, "node": name, "gpus": options.slots, "cuda": given if options.cuda else None,
        "stop-jobs": True, "stop-grace": options.stop_grace_s, "on-loan": True,
    }  # fmt: skip
    command = [sys.executable, "-m", "plait.live.agent", *words(AgentOptions, settings)]
    sys.exit(Keeper(command).run())


if __name__ == "__main__":
    main()
