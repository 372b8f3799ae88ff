"""Small costs that pages state: recording what jobs use, sampling processes, checksums of checkpoints.

python benchmarks/bench_costs.py [--quick]

CPU seconds of this process; no alternatives. `--quick` takes a tenth of the sizes.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from itertools import count, cycle
from pathlib import Path

import common
from common import Figure

from plait.live.agent.monitor import counters
from plait.live.scheduler.explain.resources import JobUsage
from plait.live.service.usage import SAMPLE_S, SERIES, UsageFiles, Usages
from plait.training.state.checkpoint_store import crc_of

SIZE = 0.1 if "--quick" in sys.argv else 1.0


def drawn(job: int, draw: random.Random) -> JobUsage:
    """What a job on one GPU uses at a moment."""
    return JobUsage(job, 1, {name: draw.random() for name in SERIES}, [{"rank": 0}], 1.0, 1.0, 0.0)


def recording(folder: Path) -> Iterator[Figure]:
    """A sample of all running jobs in the service, and writing their full series, once in five minutes."""
    jobs = round(1000 * SIZE)
    usages = Usages(UsageFiles(folder))
    draw = random.Random(1)
    samples = cycle([[drawn(job, draw) for job in range(jobs)] for _ in range(7)])
    clock = (SAMPLE_S * i for i in count(1))

    def take() -> None:
        usages.take(next(clock), next(samples))

    for _ in range(720):
        take()
    yield Figure(f"recording a sample of {jobs:,} jobs", common.cpu_s(take), common.RUNS)
    write = partial(usages.save, 1e6, everything=True)
    yield Figure(f"writing the series of {jobs:,} jobs, 720 points each", common.cpu_s(write, 3), 3)


def sampling() -> Figure:
    """A sample of one rank's processes by an agent."""
    processes = round(100 * SIZE)
    code = "import subprocess, sys; all = [subprocess.Popen(['sleep', '600']) for _ in range(int(sys.argv[1]))]; "
    code += "print('ready', flush=True); sys.stdin.read(); [one.kill() for one in all]"
    command = [sys.executable, "-c", code, str(processes)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        assert parent.stdout.readline() == "ready\n"
        seconds = common.cpu_s(lambda: counters({(1, 1, 0): parent.pid}), 21)
        parent.stdin.close()
    return Figure(f"a sample of a job of {processes} processes, by an agent", seconds, 21)


def checksum(folder: Path) -> Figure:
    """CRC-32 of a file, as of a checkpoint before it is loaded."""
    file = folder / "model.pt"
    size = round(5e8 * SIZE)
    file.write_bytes(os.urandom(size))
    return Figure("checksum of a checkpoint, a GB", common.cpu_s(partial(crc_of, file)) * 1e9 / size, common.RUNS)


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        common.show([*recording(folder), sampling(), checksum(folder)])


if __name__ == "__main__":
    main()
