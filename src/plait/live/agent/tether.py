"""`python -m plait.live.agent.tether PARENT PROGRAM ...`: become a program that does not outlive its agent.

The kernel ends it when the agent's thread that started it ends, so that no switch is left without an agent that frees
the memory that jobs leave in it. PARENT is the pid of the agent.
"""

from __future__ import annotations

import os
import signal
import sys

from plait.live.system import procs


def main(argv: list[str]) -> None:
    """Replace this process by the program, with the signals open that the agent has blocked."""
    procs.prctl(procs.PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(argv[0]):
        return  # it ended before the kernel knew
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGINT, signal.SIGUSR1})
    os.execv(argv[1], argv[1:])


if __name__ == "__main__":
    main(sys.argv[1:])
