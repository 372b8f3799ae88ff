"""`python -m plait.live.agent --home H --node n0 --gpus 4`: run the agent of a node in the foreground."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Sequence

from plait.core.options import parser
from plait.live.agent.agent import HELD_BACK, Agent, AlreadyRuns
from plait.live.agent.node import AgentOptions
from plait.live.layout import Layout
from plait.live.system import accounts

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


def main(args: Sequence[str] | None = None) -> int:
    """Run the agent; exit code 0 after a signal to end, 3 if the node has an agent already, 2 for invalid options."""
    read = parser(AgentOptions, prog="python -m plait.live.agent", description="The plait agent of one node.")
    options = AgentOptions(**vars(read.parse_args(args)))
    if options.fake and options.cuda is not None:
        read.error("argument --cuda: not allowed with argument --fake")
    if not _NAME.fullmatch(options.node):
        read.error(f"--node {options.node!r} is no name; letters, digits, dots and dashes, at most 63")
    if options.gpu_kind is not None and not _NAME.fullmatch(options.gpu_kind):
        read.error(f"--gpu-kind {options.gpu_kind!r} is no name; letters, digits, dots and dashes, at most 63")
    if options.slot_memory is not None and not 0 < options.slot_memory < 1e6:
        read.error(f"--slot-memory {options.slot_memory:g}: needs a number of GB above 0")
    if options.rack < 0:
        read.error(f"--rack {options.rack}: racks are numbered from 0")
    if options.gpus < 1:
        read.error(f"--gpus {options.gpus}: a node has at least one")
    if not sys.platform.startswith("linux"):
        read.error("agents need Linux (pidfd, /proc); run them in a container or virtual machine")
    if options.as_owner and (why := accounts.refusal()):
        read.error(why)
    try:
        _ = options.devices
    except ValueError as error:
        read.error(f"argument --cuda: {error}")
    signal.pthread_sigmask(signal.SIG_BLOCK, HELD_BACK)  # readers of agent.json may signal it before `run`
    try:
        agent = Agent(Layout.at(options.home), options)
    except AlreadyRuns as error:
        print(f"plait agent: {error}", file=sys.stderr)
        return 3
    agent.run()
    sys.stderr.flush()
    os._exit(0)  # threads may still wait for answers that are no longer needed


if __name__ == "__main__":
    sys.exit(main())
