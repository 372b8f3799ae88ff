"""Gradients through the software switch on loopback: rate a worker, and where the processor time of the switch goes.

    python benchmarks/bench_dataplane.py [--quick]

Two ranks, each a process, sum 16 MiB of whole numbers with dedicated slots and 1 KB of payload; fixed point is not
part of it. The switch, the ranks and this process share the cores of the machine, so the rate depends on how many
there are; the seconds by stage do not.
"""

from __future__ import annotations

import secrets
import statistics
import subprocess
import sys
import time
from typing import Any

import common
import numpy as np
from common import Figure
from small_rank import SmallRank

from plait.live.dataplane.packet_rows import STAGES
from plait.network.protocol.options import preset
from plait.testing.dataplane import Dataplane

QUICK = "--quick" in sys.argv
MIB, RANKS, RUNS = (2 if QUICK else 16), 2, (3 if QUICK else 7)
PAYLOAD, WINDOW = 1024, 512
OPTIONS: dict[str, Any] = {
    "protocol": "switchml",
    "payload_bytes": PAYLOAD,
    "window": WINDOW,
    "rto_s": 0.05,
    "max_timeouts": 1000,
}


def rank_process(port: int, rank: int, token: str, segments: bool) -> None:
    """A rank: it sums once for each line that it reads, and answers with wall and processor seconds and resends."""
    options = preset(**OPTIONS)
    one = SmallRank(("127.0.0.1", port), 1, rank, RANKS, options, bytes.fromhex(token), segments=segments)
    one.region(0, 2 * WINDOW, 0)
    one.hello(60)
    tensor = np.random.default_rng(rank).integers(-(2**20), 2**20, (MIB * 2**20 // PAYLOAD, PAYLOAD // 4))
    tensor = tensor.astype(np.int32)
    print("ready", flush=True)
    for _ in sys.stdin:
        start, cpu = time.perf_counter(), time.process_time()
        found = one.total(tensor)
        wall_s, cpu_s = time.perf_counter() - start, time.process_time() - cpu
        print(wall_s, cpu_s, int(one.workers.state[0]["resent"]), int(found.sum()), flush=True)
    one.close()


def sums(segments: bool) -> list[Figure]:
    """Sum repeatedly through a fresh switch."""
    token = secrets.token_hex(8)
    how = "in batches" if segments else "one by one"
    with Dataplane.start("switch", payload=PAYLOAD, aggregators=2 * WINDOW, one_by_one=not segments) as tor:
        tor.control.register(1, "bench", RANKS, OPTIONS, token)
        tor.control.region(1, 0, 2 * WINDOW, 0)
        words = [sys.executable, __file__, *sys.argv[1:], "--rank", str(tor.address[1]), token, how]
        ranks = [
            subprocess.Popen([*words, str(r)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for r in range(RANKS)
        ]
        for one in ranks:
            assert one.stdout is not None
            assert one.stdout.readline() == "ready\n"
        found = []
        for run in range(RUNS + 1):  # the first one warms up
            if run == 1:
                tor.control.measure()
                before = tor.control.statistics()
            for one in ranks:
                assert one.stdin is not None
                one.stdin.write("\n")
                one.stdin.flush()
            answers = [list(map(float, one.stdout.readline().split())) for one in ranks if one.stdout]
            assert len({answer[3] for answer in answers}) == 1, "all ranks have the same sum"
            if run:
                found.append((max(answer[0] for answer in answers), sum(answer[1] for answer in answers)))
        after = tor.control.statistics()
        for one in ranks:
            one.communicate()
    resent = int(sum(answer[2] for answer in answers))
    return _figures(how, found, before, after, resent)


def _figures(how: str, found: list[tuple[float, float]], before: Any, after: Any, resent: int) -> list[Figure]:
    wall_s = statistics.median(one[0] for one in found)
    gbps = 8 * MIB * 2**20 / wall_s / 1e9
    datagrams = after["jobs"][0]["packets_in"] - before["jobs"][0]["packets_in"]
    batch = datagrams / max(1, after["batches"] - before["batches"])
    stages = after["stages_s"]
    total = sum(stages.values()) / RUNS
    shares = ", ".join(f"{name} {1e3 * stages[name] / RUNS:.1f}" for name in STAGES)
    rank_ms = 1e3 * statistics.median(one[1] for one in found) / RANKS
    what = f"{MIB} MiB, {RANKS} ranks, {how}"
    note = f"{batch:.0f} datagrams a batch, {after['kernel_drops']} dropped by the kernel, {resent} sent again"
    goal = "goal >= 1 Gb/s" if how == "in batches" and not QUICK else ""
    return [
        Figure(f"{what}: rate of a rank", gbps, RUNS, goal=goal, note=note, unit="Gb/s"),
        Figure(f"{what}: processor time of the switch", 1e3 * total, RUNS, note=shares, unit="CPU ms"),
        Figure(f"{what}: processor time of a rank", rank_ms, RUNS, unit="CPU ms"),
    ]


def main() -> None:
    """Measure and print."""
    if "--rank" in sys.argv:
        port, token, how, rank = sys.argv[sys.argv.index("--rank") + 1 :]
        rank_process(int(port), int(rank), token, how == "in batches")
        return
    common.show([*sums(True), *sums(False)])


if __name__ == "__main__":
    main()
