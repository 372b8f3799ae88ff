"""`python -m plait.live.agent --home H --node n0 --gpus 4`: run the agent of a node in the foreground."""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
from collections.abc import Sequence

from plait.live.agent.agent import HELD_BACK, Agent, AlreadyRuns, Settings
from plait.live.layout import Layout

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


def main(args: Sequence[str] | None = None) -> int:
    """Exit code 0 when told to end, 3 if the node has an agent already, 2 for wrong options."""
    parser = argparse.ArgumentParser(prog="python -m plait.live.agent", description="The plait agent of one node.")
    parser.add_argument("--home", default=None, help="folder of the cluster (default: PLAIT_HOME or ~/.plait)")
    parser.add_argument("--node", default="n0", help="name of the node")
    parser.add_argument("--gpus", type=int, default=1, help="slots of CPU, where no --cuda is given")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--fake", action="store_true", help="CPU slots (the default)")
    kind.add_argument("--cuda", type=_numbers, default=None, help="numbers of the machine's GPUs, as 0,1")
    parser.add_argument("--rack", type=int, default=0, help="number of the node's rack; gangs are kept together in one")
    parser.add_argument("--gpu-kind", default=None, help="what jobs call its GPUs (default: what the driver says)")
    parser.add_argument("--url", default=None, help="the service (default: read from service.json)")
    parser.add_argument(
        "--stop-jobs", action="store_true",
        help="at SIGTERM the node goes: jobs are checkpointed and go on elsewhere; else they stay here",
    )  # fmt: skip
    parser.add_argument(
        "--on-loan", action="store_true",
        help="end when the service was not there for the lease, so that whoever lent the node gets it back",
    )  # fmt: skip
    parser.add_argument(
        "--parks", action="store_true",
        help="the service is started on this machine: at SIGTERM, if none runs, jobs go on without end",
    )  # fmt: skip
    parser.add_argument("--stop-grace", type=float, default=10.0, help="most seconds for jobs that the agent stops")
    options = parser.parse_args(args)
    if not _NAME.fullmatch(options.node):
        parser.error(f"--node {options.node!r} is no name; letters, digits, dots and dashes, at most 63")
    if options.gpu_kind is not None and not _NAME.fullmatch(options.gpu_kind):
        parser.error(f"--gpu-kind {options.gpu_kind!r} is no name; letters, digits, dots and dashes, at most 63")
    if options.rack < 0:
        parser.error(f"--rack {options.rack}: racks are numbered from 0")
    if options.gpus < 1:
        parser.error(f"--gpus {options.gpus}: a node has at least one")
    if not sys.platform.startswith("linux"):
        parser.error("agents need Linux (pidfd, /proc); run them in a container or virtual machine")
    cuda = options.cuda
    settings = Settings(
        node=options.node,
        gpus=options.gpus if cuda is None else len(cuda),
        cuda=cuda,
        url=options.url,
        stop_jobs=options.stop_jobs,
        stop_grace_s=options.stop_grace,
        on_loan=options.on_loan,
        parks=options.parks,
        rack=options.rack,
        gpu_kind=options.gpu_kind,
    )
    signal.pthread_sigmask(signal.SIG_BLOCK, HELD_BACK)  # who reads agent.json may tell it to end before `run`
    try:
        agent = Agent(Layout.at(options.home), settings)
    except AlreadyRuns as error:
        print(f"plait agent: {error}", file=sys.stderr)
        return 3
    agent.run()
    sys.stderr.flush()
    os._exit(0)  # threads may still wait for answers that nobody needs any more


def _numbers(text: str) -> list[int]:
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of GPU numbers such as 0,1") from None
    if len(set(numbers)) != len(numbers) or min(numbers) < 0:
        raise argparse.ArgumentTypeError(f"{text!r} names a GPU twice, or one below 0")
    return numbers


if __name__ == "__main__":
    sys.exit(main())
