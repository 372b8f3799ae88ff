"""An hour of a live cluster: 60 mixed jobs on 8 slots under three policies, paced so that two cores suffice.

    python benchmarks/bench_live_hour.py [--minutes 60] [--seeds 1,2] [--together] [--json FILE] [POLICY ...]

Real service, agent and processes. A job sleeps while one of its slot's four devices (storage, CPU, GPU, network) serves
it, 20 ms at a time, first come, first served, so jobs on one slot contend for devices and not for cores. There are
ten scripts that users start again and again with another length, on 1, 2 or 4 slots; a quarter of the jobs are plain
scripts, three adapt their batch, and one crashes and is retried. `--minutes` scales arrivals and lengths alike.
`--together` runs the policies at the same time, in a home each; otherwise they run in turn, in another order each seed.
Each log is replayed from its beginning and has to make the same decisions, and no job may be lost.
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import common
import numpy as np

from plait.control.metrics import measure
from plait.control.outcomes import fairness, outcomes
from plait.live.api.jobs import FINAL
from plait.live.client.client import Client
from plait.live.store import Store
from plait.outlook.log_replay import replay, stored_rows
from plait.testing.cluster import Cluster

sys.path.insert(0, str(common.ROOT / "tests" / "live"))

from adaptive_world import Paced

JOBS, SLOTS, LOAD = 60, 8, 1.1
#: The baseline comes last.
POLICIES = ("plait:knows=predicted", "tiresias-l", "fifo-backfill")
#: Kind, slots, whether it knows plait, mean seconds in an hour, and how often it is started.
SCRIPTS = (
    ("storage", 1, True, 300, 8), ("cpu", 1, True, 600, 7), ("gpu", 1, True, 450, 8), ("network", 1, True, 500, 6),
    ("gpu", 2, True, 500, 6), ("storage", 2, True, 350, 4), ("gpu", 4, True, 400, 3),
    ("gpu", 1, False, 300, 7), ("cpu", 1, False, 150, 4), ("storage", 2, False, 250, 4),
)  # fmt: skip
ADAPTIVE, EPOCH_S, SIGMA = 3, 4.5, 0.6
#: Milliseconds of an iteration on storage, CPU, GPU and network.
STAGES_MS = {
    "storage": (120, 20, 60, 0),
    "cpu": (20, 120, 60, 0),
    "gpu": (20, 20, 160, 0),
    "network": (20, 20, 60, 100),
}
JOB = """
import fcntl, mmap, os, struct, sys, time
from pathlib import Path
out, marked, crashes, iterations, *stages_ms = Path(sys.argv[1]), *map(int, sys.argv[2:])
rank, place = os.environ["RANK"], f"{os.environ['PLAIT_JOB']}.{os.environ['PLAIT_EPOCH']}.{os.environ['RANK']}"
if marked and rank != "0":  # ranks are not in step: each saves and resumes by itself
    home = Path(os.environ["PLAIT_JOB_DIR"]); own = home / f"rank{rank}"; own.mkdir(exist_ok=True)
    if not (own / "EPOCH").is_symlink():
        (own / "EPOCH").symlink_to(home / "EPOCH")
    os.environ["PLAIT_JOB_DIR"] = str(own)
os.environ.update(RANK="0", WORLD_SIZE="1")
while not (out / place).exists():
    time.sleep(0.05)
slot = (out / place).read_text()

class Device:
    def __init__(self, name):
        self.fd = os.open(out / f"device-{slot}-{name}", os.O_RDWR | os.O_CREAT)
        os.ftruncate(self.fd, 8)
        self.free = mmap.mmap(self.fd, 8)
        self.mine_s = 0.0

    def serve(self, ms):
        for _ in range(ms // 20):
            fcntl.flock(self.fd, fcntl.LOCK_EX)
            now_s = time.monotonic()
            ready_s = self.mine_s if now_s - self.mine_s < 0.005 else now_s
            self.mine_s = max(ready_s, struct.unpack("d", self.free)[0]) + 0.02
            self.free[:] = struct.pack("d", self.mine_s)
            fcntl.flock(self.fd, fcntl.LOCK_UN)
            time.sleep(max(self.mine_s - time.monotonic(), 0.0))

devices = [Device(i) for i in range(4)]

def iteration(stage):
    for i, ms in enumerate(stages_ms):
        if ms:
            with stage(i):
                devices[i].serve(ms)

if marked:
    from plait.core.resources import Resource
    from plait.training import attach
    state = {"done": 0}
    job = attach(state=state)
    for step in job.steps(iterations):
        if crashes and step == iterations // 3 and os.environ["PLAIT_EPOCH"] == "1":
            raise RuntimeError("crashes once")
        iteration(lambda i: job.stage(Resource(i)))
        state["done"] += 1
else:
    from contextlib import nullcontext
    for step in range(iterations):
        iteration(nullcontext)
"""


@dataclass(frozen=True)
class Submitted:
    """A job: when it comes, how long it takes alone on its slots, in seconds, and its request."""

    at_s: float
    alone_s: float
    request: dict[str, Any]


def submissions(seed: int, minutes: float, folder: Path) -> list[Submitted]:
    """The jobs in the order of their arrival; the same for every policy."""
    rng, scale, drawn = random.Random(seed), minutes / 60, list[tuple[float, dict[str, Any]]]()
    for number, (kind, slots, marked, mean_s, count) in enumerate(SCRIPTS):
        script = folder / f"{kind}-{number}.py"
        script.write_text(JOB)
        for i in range(count):
            seconds = mean_s * rng.lognormvariate(-(SIGMA**2) / 2, SIGMA) * scale
            iterations = max(round(seconds / (sum(STAGES_MS[kind]) / 1e3)), 5)
            words = (folder, int(marked), int(number == 0 and i == 1), iterations, *STAGES_MS[kind])
            request = {"command": [sys.executable, str(script), *map(str, words)], "gpus": slots, "retries": 2}
            drawn.append((seconds, {**request, "workdir": str(folder), "name": f"{kind}-{number}"}))
    for _ in range(ADAPTIVE):
        epochs = max(round(60 * scale), 2)
        drawn.append((epochs * EPOCH_S, {**Paced(0.0, epochs, True, 1, 4).request(folder, 5.0), "name": "adaptive"}))
    rng.shuffle(drawn)
    gap_s = sum(alone_s * request["gpus"] for alone_s, request in drawn) / (LOAD * SLOTS * len(drawn))
    at_s, jobs = 0.0, []
    for alone_s, request in drawn:
        jobs.append(Submitted(at_s, alone_s, request))
        at_s += rng.expovariate(1.0 / gap_s)
    return jobs


def run(policy: str, seed: int, minutes: float) -> dict[str, float]:
    """Figures of one policy: seconds, counts, and CPU seconds of the service."""
    with tempfile.TemporaryDirectory() as name:
        folder, home = Path(name) / "out", Path(name) / "home"
        folder.mkdir()
        jobs = submissions(seed, minutes, folder)
        options = {"policy": policy, "round": 2.0 * minutes / 60 + 1.0}
        with Cluster(home, nodes=1, slots=SLOTS, options=options) as cluster, cluster.client() as client:
            begin, names, placed = time.monotonic(), list[str](), dict[str, int]()
            while len(names) < len(jobs) or any(row.state not in FINAL for row in client.jobs(limit=10 * JOBS)):
                while len(names) < len(jobs) and begin + jobs[len(names)].at_s <= time.monotonic():
                    names.append(client.submit([jobs[len(names)].request])[0].id)
                _place(client, placed, folder)
                cluster.maintain()
                time.sleep(0.25)
            ended = [client.job(one) for one in names]
            assert cluster.service is not None
            words = Path(f"/proc/{cluster.service.pid}/stat").read_text().rpartition(")")[2].split()
            service_s = (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
        assert all(job.state == "finished" for job in ended), [(j.id, j.state, j.reason) for j in ended]
        store = Store.open(home.resolve() / "plait.db")
        again = replay(stored_rows(store))
        store.close()
    assert again.difference is None, str(again.difference)
    assert again.state.controller is not None
    assert again.history is not None
    result, store_ = measure(again.state.controller, again.history), again.state.controller.job_store
    alone_s = np.array([job.alone_s for job in jobs])
    rho = fairness(replace(outcomes(store_, result.timeline), duration_s=alone_s), result.timeline)
    found = {ours: float(result.summary[theirs]) for ours, theirs in FIGURES.items()}
    found |= {"mean fairness": float(rho.mean()), "worst fairness": float(rho.max())}
    for slots in (1, 2, 4):
        waits = [job.started_s - job.created_s for job in ended if job.gpus == slots and job.started_s is not None]
        found[f"wait of {slots}, s"] = float(np.mean(waits))
    timeline = result.timeline
    found["jobs that shared"] = float(len(np.unique(timeline.span_job[timeline.span_company > 1])))
    return {**found, "service, CPU s": service_s}


#: Columns of the table, and what they are called in a summary of the simulator.
FIGURES = {
    "mean JCT, s": "avg_jct_s", "p99 JCT, s": "p99_jct_s", "makespan, s": "makespan_s",
    "stopped": "preemptions", "lost work, s": "lost_work_s",
}  # fmt: skip
#: Of these the table has ratios to the baseline.
RATIOS = ("mean JCT, s", "p99 JCT, s", "makespan, s", "mean fairness", "worst fairness")


def _place(client: Client, placed: dict[str, int], folder: Path) -> None:
    """Tell ranks of new attempts their slots: the devices of a slot are files."""
    for row in client.jobs(limit=10 * JOBS):
        if row.state in ("starting", "running") and placed.get(row.id) != row.epoch:
            places = client.job(row.id).places
            for place in places or ():
                part = folder / f"{row.id}.{row.epoch}.{place.rank}.part"
                part.write_text(str(place.gpu))
                part.rename(part.with_suffix(""))
            if places:
                placed[row.id] = row.epoch


def table(rows: Mapping[str, Sequence[Mapping[str, float]]]) -> str:
    """A row a policy: means over seeds; ratios are to the last policy, of the same seed."""
    heads = [
        *RATIOS,
        "stopped",
        "lost work, s",
        *(f"wait of {slots}, s" for slots in (1, 2, 4)),
        "jobs that shared",
        "service, CPU s",
    ]
    lines = ["| policy | " + " | ".join(heads) + " |", "|---|" + "---:|" * len(heads)]
    baseline = list(rows.values())[-1]
    for policy, found in rows.items():
        cells = []
        for head in heads:
            cell = f"{np.mean([one[head] for one in found]):.{2 if 'fairness' in head else 0}f}"
            if head in RATIOS and found is not baseline:
                ratio = np.mean([one[head] / base[head] for one, base in zip(found, baseline, strict=True)])
                cell += f" ({ratio:.2f})"
            cells.append(cell)
        lines.append(f"| `{policy}` | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main(words: Sequence[str]) -> None:
    """Run all, print the table."""
    given = dict(zip(words, [*words[1:], ""], strict=True))
    minutes, seeds = float(given.get("--minutes", 60)), [int(s) for s in given.get("--seeds", "1").split(",")]
    values = {given[option] for option in ("--minutes", "--seeds", "--json") if option in given}
    policies = [word for word in words if not word.startswith("--") and word not in values] or list(POLICIES)
    found: dict[str, list[dict[str, float]]] = {policy: [] for policy in policies}
    for turn, seed in enumerate(seeds):
        order = policies[turn % len(policies) :] + policies[: turn % len(policies)]
        with ThreadPoolExecutor(len(order) if "--together" in words else 1) as pool:
            for policy, row in zip(order, pool.map(partial(run, seed=seed, minutes=minutes), order), strict=True):
                found[policy].append(row)
    print(f"{common.machine()}; {JOBS} jobs, {SLOTS} slots, {minutes:g} minutes, seeds {seeds}\n")
    print(table(found))
    if "--json" in given:
        Path(given["--json"]).write_text(json.dumps({"minutes": minutes, "seeds": seeds, "policies": found}, indent=1))


if __name__ == "__main__":
    main(sys.argv[1:])
