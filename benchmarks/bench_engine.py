"""The engine on large traces: 100,000 jobs on 2,504 GPUs, also with guests, and a million on 6,504.

    python benchmarks/bench_engine.py [--quick | --million | --guests | --stretched]

The alternative to runs in rounds is the same engine with a decision at every event, which shows what rounds save. With
guests (`antman`, half of the jobs opportunistic) it is `fifo-backfill` on the same jobs. Policies that are driven
message by message at every event are compared with their own rounds. Speed against the naive reference is in
`bench_naive.py`, at sizes that the reference can handle. `--quick` is a tenth; `--million`, `--guests`,
`--messages` (policies that are driven message by message) and `--stretched` (20,000 jobs beside the loop in C) are
parts.

Runs at every event are also compared with SRSF as a loop in C over all active jobs, where its source is beside the
repository (`../shared/peers/srsf.c`): a file with the number of jobs, their submissions, durations and GPUs and a
number of nodes of 8 GPUs in, its CPU seconds out.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import common
import numpy as np
from common import Figure

from plait import Cluster, JobBatch, load_jobs, make_policy, simulate
from plait.traces.assign import assign_classes, assign_models, assign_tenants
from plait.traces.synthetic import generate

POLICIES = ("srsf", "2d-las")
#: Driven message by message.
FLAT = ("muri-s", "muri-l", "gandiva", "pollux")
EVERY_EVENT, ROUND_S = 0.0, 360.0
PEER = common.ROOT.parent / "shared" / "peers" / "srsf.c"


def warm_up() -> None:
    """Compile and load every kernel that is timed."""
    for policy in POLICIES:
        for round_s in (EVERY_EVENT, ROUND_S):
            common.run(common.jobs(300, 64), "8x8", make_policy(policy), round_s)


def main() -> None:
    """Measure and print."""
    small = "--quick" in sys.argv
    count, nodes, runs = (10_000, 32, 3) if small else (100_000, 313, common.RUNS)
    warm_up()
    if "--million" in sys.argv:
        common.show(million())
        return
    if "--stretched" in sys.argv:
        common.show(beside_c(20_000, 63))
        return
    if "--messages" in sys.argv:
        common.show(message_by_message(200 if small else 2_000))
        return
    figures = []
    if "--guests" not in sys.argv:
        figures += beside_c(5_000 if small else 20_000, 16 if small else 63)
        figures += message_by_message(200 if small else 2_000)
        figures += checked(300 if small else 1_000)
    if "--guests" not in sys.argv and not small:
        figures += beside_c(count, nodes, ("srsf", "2d-las"), ("ideal",))
    figures += with_guests(count, nodes)
    if "--guests" in sys.argv:
        common.show(figures)
        return
    batch = common.jobs(count, 8 * nodes)
    for policy in POLICIES:
        seconds = {
            round_s: common.cpu_s(partial(common.run, batch, f"{nodes}x8", make_policy(policy), round_s), runs)
            for round_s in (ROUND_S, EVERY_EVENT)
        }
        label = f"{count:,} jobs, {8 * nodes:,} GPUs, {policy}"
        rounds, events = seconds[ROUND_S], seconds[EVERY_EVENT]
        goals = ("", "") if small else ("goal <= 5 s", "goal <= 20 s")
        figures.append(Figure(f"{label}, rounds", rounds, runs, events / rounds, "every event", goals[0]))
        figures.append(Figure(f"{label}, every event", events, runs, goal=goals[1]))
    if not small:
        figures += million()
    common.show(figures)


def message_by_message(count: int) -> list[Figure]:
    """Policies outside compiled stretches at every event, on 64 GPUs, beside themselves in rounds.

    Jobs have the profiles of measured models: without profiles Muri forms no groups.
    """
    batch, figures = load_jobs(assign_models(generate("philly", count, 64, 1.0, 1), seed=1)).jobs, []
    for policy in FLAT:
        seconds = []
        for round_s in (ROUND_S, EVERY_EVENT):
            common.run(batch[:150], "8x8", make_policy(policy), round_s, "plait")
            seconds.append(common.cpu_s(partial(common.run, batch, "8x8", make_policy(policy), round_s, "plait"), 1))
        label = f"{count:,} jobs, 64 GPUs, {policy}, world plait, every event"
        figures.append(Figure(label, seconds[1], 1, seconds[0] / seconds[1], "rounds of 360 s"))
    return figures


def beside_c(
    count: int,
    nodes: int,
    policies: Sequence[str] = ("srsf", "srtf", "2d-las", "tiresias-l", "fifo"),
    worlds: Sequence[str] = ("ideal", "plait"),
) -> list[Figure]:
    """Policies at every event beside the loop in C; none where that is not there."""
    if not PEER.exists():
        print(f"{PEER} is not there: the rows beside a loop in C are left out", file=sys.stderr)
        return []
    batch, figures = common.jobs(count, 8 * nodes, preset="philly"), []
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "srsf"
        subprocess.run(["gcc", "-O2", "-w", "-o", str(program), str(PEER), "-lm"], check=True)
        for policy in policies:
            for world in worlds:
                run = partial(common.run, batch, f"{nodes}x8", make_policy(policy), EVERY_EVENT, world)
                run()
                seconds, peer = common.cpu_s(run), loop_in_c(program, batch, nodes)
                label = f"{count:,} jobs, {8 * nodes:,} GPUs, {policy}, world {world}, every event"
                note = f"{seconds / peer:.1f} times the loop in C, goal 3 for srsf"
                figures.append(Figure(label, seconds, common.RUNS, peer / seconds, "srsf as a loop in C", note=note))
    return figures


def loop_in_c(program: Path, batch: JobBatch, nodes: int) -> float:
    """Least CPU seconds of the loop in C on the same jobs, of three runs."""
    data = program.with_name("jobs")
    columns = (batch.submit_s, batch.iterations * batch.iteration_s, batch.gpus.astype(np.int32))
    data.write_bytes(np.int32(len(batch)).tobytes() + b"".join(column.tobytes() for column in columns))
    lines = [subprocess.run([program, data, str(nodes)], check=True, capture_output=True, text=True) for _ in range(3)]
    return min(float(re.findall(r"cpu=([0-9.]+)", line.stdout)[0]) for line in lines)


def checked(count: int) -> list[Figure]:
    """Runs with `--check` beside the same without, once each."""
    batch, figures = load_jobs(assign_models(generate("philly", count, 64, 1.0, 1), seed=1)).jobs, []
    for policy in ("srsf", *FLAT):
        seconds = []
        for check in (False, True):
            run = partial(simulate, cluster=Cluster.parse("8x8"), world=common.world(EVERY_EVENT, "plait"), check=check)
            run(batch[:150], policy=make_policy(policy))
            seconds.append(common.cpu_s(partial(run, batch, policy=make_policy(policy)), 1))
        label = f"{count:,} jobs, 64 GPUs, {policy}, every event, --check"
        figures.append(Figure(label, seconds[1], 1, seconds[0] / seconds[1], "without", "goal <= 2 x as long"))
    return figures


def with_guests(count: int, nodes: int) -> list[Figure]:
    """Half of the jobs opportunistic and all of measured models, in rounds, once a policy after a small run of it."""
    table = assign_models(generate("philly", count, 8 * nodes, 1.0, 1), seed=1)
    table = assign_tenants(assign_classes(table, seed=1, opportunistic=0.5), seed=1, tenants=2)
    batch, seconds = load_jobs(table).jobs, {}
    for policy in ("antman", "fifo-backfill"):
        common.run(batch[:600], f"{nodes}x8", make_policy(policy), ROUND_S)
        seconds[policy] = common.cpu_s(partial(common.run, batch, f"{nodes}x8", make_policy(policy), ROUND_S), 1)
    label = f"{count:,} jobs, {8 * nodes:,} GPUs, antman with guests, rounds"
    ratio, goal = seconds["fifo-backfill"] / seconds["antman"], "goal <= 8 s" if count == 100_000 else ""
    note = f"fifo-backfill {seconds['fifo-backfill']:.3f} s, so {1 / ratio:.1f} times as long"
    return [Figure(label, seconds["antman"], 1, ratio, "fifo-backfill", goal, note)]


def million() -> list[Figure]:
    """A million jobs, once a policy in rounds, and once at every event, with the peak memory of this process."""
    figures = []
    batch = common.jobs(1_000_000, 6504)
    for policy, round_s, how, goal in (
        ("srsf", ROUND_S, "rounds", 60),
        ("2d-las", ROUND_S, "rounds", 60),
        ("srsf", EVERY_EVENT, "every event", 120),
    ):
        seconds = common.cpu_s(partial(common.run, batch, "813x8", make_policy(policy), round_s), 1)
        note = f"peak memory {common.peak_gb():.2f} GB, goal <= 2 kB a job"
        label = f"1,000,000 jobs, 6,504 GPUs, {policy}, {how}"
        figures.append(Figure(label, seconds, 1, goal=f"goal <= {goal} s", note=note))
    return figures


if __name__ == "__main__":
    main()
