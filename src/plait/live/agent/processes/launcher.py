"""The one program that has root's rights next to a job: it gives them up and becomes the runner of the job.

    python -S -P -m plait.live.agent.processes.launcher UID runner

Only agents that run as root start it (`plait up --as-owner`). As root it makes the job's control group and opens
it; then it takes the account's user, group and groups, so the runner, its guardian and the job have no other rights.
Nothing that the job can influence is read before that. Limits of the process (setrlimit) stay as the agent's.

The kernel lets no process of the account look into one that has changed its account (it is not dumpable), so the job
cannot take the opened control group from its runner.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module

from plait.live.system import accounts, cgroups, procs

#: The programs that it becomes.
KINDS = ("runner", "merged_runner", "successor_runner")


def main() -> int:
    """Become the account of the first argument, and then the runner of the second."""
    account, kind = accounts.Account.of_number(int(sys.argv[1])), sys.argv[2]
    if kind not in KINDS or account.uid == 0:
        return 2
    cgroups.hold(os.environ[procs.MARK])
    os.chdir("/")
    account.become()
    return int(import_module(f"plait.live.agent.processes.{kind}").main())


if __name__ == "__main__":
    sys.exit(main())
