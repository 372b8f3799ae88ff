"""Packets of in-network aggregation: events per CPU second beside the naive simulator, and when the simulator is ready.

    python benchmarks/bench_packets.py [--quick]

The naive simulator, of dictionaries and one heap of all packets, is that of the tests. Ready: CPU seconds of a process
that simulates a few packets, less those of one that only imports the simulator.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from dataclasses import replace

import common
from common import Figure

sys.path += [str(common.ROOT / "tests"), str(common.ROOT / "tests" / "unit" / "network")]

from naive_packets import NaivePackets

from plait.network.packets.run import simulate
from plait.network.packets.scenario import MIB, PacketJob, Scenario, one_switch
from plait.network.protocol.options import preset

QUICK = "--quick" in sys.argv
_IMPORT = "from plait.network.packets.run import simulate; from plait.network.packets.scenario import *"
_FEW = "; simulate(one_switch([PacketJob(workers=2, tensors=(5000,))], 64))"


def scenario(protocol: str, aggregators: int, mib: float) -> Scenario:
    """Eight jobs of eight workers."""
    options = preset(protocol, window=245, payload_bytes=248)
    jobs = [PacketJob(options, 8, (round(mib * MIB),), priority=10 + j) for j in range(8)]
    return one_switch(jobs, aggregators, seed=1)


def rate(protocol: str, aggregators: int) -> Figure:
    """Million events per CPU second, and over those of the naive simulator on fewer packets."""
    small = scenario(protocol, aggregators, 0.02)
    found = simulate(replace(small, log=10**6))
    naive_s = common.cpu_s(lambda: NaivePackets(small).run(), 1)
    large = scenario(protocol, aggregators, 0.5 if QUICK else 4.0)
    events = simulate(large)
    ours_s = common.cpu_s(lambda: simulate(large), 3)
    speed = events.events / ours_s
    note = (
        f"{events.worker_packets / ours_s / 1e6:.2f} M worker packets/s, {events.events:,} events, state "
        f"{events.state_bytes / MIB:.1f} MiB"
    )
    what = f"{protocol}, {aggregators:,} aggregators"
    ratio = speed / (found.events / naive_s)
    goal = "goal >= 2 M events/s"
    return Figure(what, speed / 1e6, 3, ratio, "the naive simulator", goal, note, "M events/CPU s")


def _process_s(code: str, cache: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "NUMBA_CACHE_DIR": cache},
                   stderr=subprocess.DEVNULL)  # fmt: skip
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def ready() -> list[Figure]:
    """CPU seconds until the first packets are simulated: with an empty cache on disk, and after."""
    with tempfile.TemporaryDirectory() as cache:
        imports = _process_s(_IMPORT, cache)
        first = _process_s(_IMPORT + _FEW, cache) - imports
        later = [_process_s(_IMPORT + _FEW, cache) - imports for _ in range(3)]
    return [
        Figure("ready for the first time", first, 1, goal="goal <= 10 s", note="compiles all kernels"),
        Figure("ready after that", sorted(later)[1], 3, first / sorted(later)[1], "the first time", "goal < 1 s"),
    ]


def main() -> None:
    """Measure and print."""
    common.show([rate("switchml", 4096), rate("atp", 1024), rate("esa", 1024), *ready()])


if __name__ == "__main__":
    main()
