"""The live demo of classes: a guaranteed training on an emulated GPU, and an opportunistic one in what it leaves."""

from __future__ import annotations

import importlib.util
import json
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plait.cli.connection import print_table
from plait.cli.experiments.antman_demo.jobs import (
    BURST_GB,
    GPU_GB,
    HOST_GB,
    PATTERN,
    QUANTUM_S,
    SCRIPT,
    Jobs,
    Pair,
    wait_for,
)
from plait.cli.experiments.antman_demo.trouble import WORLD, Burst, Killed, Trouble
from plait.cli.experiments.demonstration import find_examples
from plait.core.errors import MissingExtra, PlaitError
from plait.live.client.client import FINAL, Client
from plait.live.layout import Layout
from plait.live.supervisor.down import stop
from plait.live.supervisor.up import start
from plait.outlook.log_replay import read_rows, replay
from plait.report.files import write_text
from plait.report.html import write_html
from plait.sim.gpu import Mode, table_cell

#: Seconds alone, packed, with the guaranteed job before its guest comes, with both, and of the guest after it.
ALONE_S, PACKED_S, BEFORE_S, SHARED_S, AFTER_S = 4.0, 5.0, 3.0, 40.0, 3.0
#: Seconds of a guest's work that its death costs at most.
CHECKPOINT_S = 2.0
INTRODUCTION = f"""\
One emulated GPU: kernels run in the order of their launch and are never preempted. A guaranteed training makes steps
of 20 kernels of 5 ms and then 100 ms of work on the host, so it leaves half of the GPU idle. An opportunistic training
has kernels of {QUANTUM_S * 1e3:g} ms and wants all it can get. Both are real processes; only the GPU is emulated, with
{GPU_GB} GB of memory. Later the guaranteed training needs {BURST_GB} GB instead of {HOST_GB} for some seconds, and the
demo kills the agent of the node, then the opportunistic training."""


def demonstrate_sharing(out: Path, examples: Path | None) -> None:
    """Measure alone, packed and under the policy `antman`, print and write a report; leaves nothing running."""
    for module in ("starlette", "sqlalchemy", "httpx"):
        if importlib.util.find_spec(module) is None:
            raise MissingExtra(module, "live", "the demo of a running cluster (plait demo --simulate needs nothing)")
    script = find_examples(examples) / SCRIPT
    out.mkdir(parents=True, exist_ok=True)
    print(INTRODUCTION)
    scratch = Path("/dev/shm") if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(prefix="plait-demo-", dir=scratch) as work:
        jobs = Jobs(script, Path(work))
        print("\nThe guaranteed job alone, then both side by side without plait ...", flush=True)
        alone, packed = jobs.apart(ALONE_S, guest=False), jobs.apart(PACKED_S, guest=True)
        print("Both in a cluster with the policy antman ...", flush=True)
        found = run_cluster(jobs)
    rows = [_row("alone", alone, alone, None), _row("packed, without plait", packed, alone, (Mode.PACKED, PACKED_S))]
    rows.append(_row("antman: gate and law", found.shared, alone, (Mode.GATE, SHARED_S)))
    print("\nThe guaranteed job, and the part of its slack that the opportunistic one got")
    heads = ("", ">step", ">slowdown", ">slack used", ">predicted slowdown", ">slack used")
    print_table(heads, rows, "")
    print(f"Predicted by the micro model of one GPU (plait.sim.gpu), {SHARED_S:g} s from a cold start.")
    print(f"\nA burst: a step of the guaranteed job needs {BURST_GB} of {GPU_GB} GB instead of {HOST_GB}")
    heads = ("", ">guaranteed: on the GPU", ">on the host", ">opportunistic: limit", ">has", "action")
    print_table(heads, [look.row() for look in found.burst.looks], "")
    said = sentences(found)
    print("\n".join(said.values()))
    write_text(out / "events-antman.json", json.dumps(found.log))
    answer = replay(list(read_rows(found.log)))
    result = answer.result(trace="demo", world="live", cluster="1 CPU slot with an emulated GPU")
    title = "A guaranteed and an opportunistic training, live"
    write_html([result], out / "antman.html", title=title, settings=said)
    print(f"\nOpen {(out / 'antman.html').resolve()} in a browser: who was on the slot when.")


@dataclass(frozen=True)
class Found:
    """Observations of the cluster: both jobs while they shared, the burst, the kills, how they ended; the log."""

    shared: Pair
    burst: Burst
    killed: Killed
    host: dict[str, Any]
    guest: dict[str, Any]
    log: list[dict[str, Any]]


def sentences(found: Found) -> dict[str, str]:
    """Results of the burst and the kills, by subject."""
    burst, killed = found.burst, found.killed
    return {
        "memory burst": f"{burst.steps_on_host} guaranteed steps had memory on the host, all later ones were on the "
        f"GPU; the guest {_what_it_gave(burst)}.",
        "agent killed": f"The demo killed the agent: when its lease had ended the guest paused for "
        f"{killed.paused_s:.1f} s, until there was another one; guaranteed steps took "
        f"{1e3 * killed.host_step_s:.1f} ms meanwhile.",
        "guest killed": f"The demo killed the guest at step {killed.steps_made:,.0f}; it trained on from step "
        f"{killed.steps_kept:,.0f} in a new process.",
        "killed by plait": _verdict(found),
    }


def _what_it_gave(burst: Burst) -> str:
    before, later = burst.looks[0], burst.looks[-1]
    if later.action == "pause":
        return "paused"
    if later.guest.gpu_gb > before.guest.gpu_gb - 0.05:
        return f"kept {later.guest.gpu_gb:.1f} GB, its minimum"
    return f"shrank from {before.guest.gpu_gb:.1f} to {later.guest.gpu_gb:.1f} GB and went on"


def _verdict(found: Found) -> str:
    """Whether any job was stopped, or ended otherwise than by itself; the guest was killed once by the demo."""
    trouble = [
        f"{job['name']} {job['state']}, stopped for others {job['preemptions']} times, failed {job['failures']} times"
        for job, kills in ((found.host, 0), (found.guest, 1))
        if (job["state"], job["preemptions"], job["failures"]) != ("finished", 0, kills)
    ]
    if trouble:
        return f"Not as promised: {'; '.join(trouble)}."
    return "plait killed and stopped no job: both ended by themselves."


def run_cluster(jobs: Jobs) -> Found:
    """One cluster from beginning to end: the guaranteed job, its guest, a burst, two kills."""
    home = Path(tempfile.mkdtemp(prefix="plait-demo-"))
    layout = Layout(home.resolve())
    try:
        options = {"nodes": 1, "gpus-per-node": 1, "policy": "antman", "round": 1.0, "slot-memory": GPU_GB}
        with start(layout, options) as service:
            host = submit(service, "guaranteed", jobs.command(WORLD, guest=False), jobs.folder)
            _wait(service, host, lambda job: (job.get("iterations_done") or 0) * PATTERN.step_s >= BEFORE_S)
            guest = submit(service, "opportunistic", jobs.command(WORLD, guest=True), jobs.folder)
            _wait(service, guest, lambda job: job["state"] == "running")
            begin_s = time.monotonic()
            watch(service, host, guest, jobs, begin_s)
            shared = jobs.pair(WORLD, begin_s, begin_s + SHARED_S)
            print("A burst of memory, then the agent and the guest are killed ...", flush=True)
            trouble = Trouble(service, layout, jobs, host, guest)
            burst = trouble.burst()
            killed = Killed(*trouble.kill_agent(), *trouble.kill_guest())
            jobs.stop(guest=False).touch()
            _wait(service, host, lambda job: job["state"] in FINAL)
            time.sleep(AFTER_S)
            jobs.stop(guest=True).touch()
            _wait(service, guest, lambda job: job["state"] in FINAL)
            log = list(service.all_events())
            return Found(shared, burst, killed, service.job(host), service.job(guest), log)
    finally:
        stop(layout, stop_jobs=True, patience_s=5.0)
        shutil.rmtree(home, ignore_errors=True)


def submit(service: Client, job_class: str, command: list[str], folder: Path) -> str:
    """A job of that class; its id."""
    job = {"name": job_class, "class": job_class, "command": command, "workdir": str(folder), "retries": 1}
    job |= {"checkpoint_s": CHECKPOINT_S}
    return service.submit([job])[0]["id"]


def watch(service: Client, host: str, guest: str, jobs: Jobs, begin_s: float) -> None:
    """Print how both are doing every five seconds, while they share."""
    while (passed := time.monotonic() - begin_s) < SHARED_S:
        time.sleep(min(5.0, SHARED_S - passed))
        now_s = time.monotonic()
        pair = jobs.pair(WORLD, max(now_s - 5.0, begin_s), now_s)
        said = service.job(guest)
        sharing = said.get("sharing") or {}
        share, limit_gb = sharing.get("share") or 0.0, (sharing.get("limit_bytes") or 0) / 1e9
        print(
            f"  {now_s - begin_s:4.0f} s   guaranteed step {1e3 * pair.step_s:5.1f} ms   opportunistic: share "
            f"{share:.2f}, {pair.slack_share:4.0%} of the slack, limit {limit_gb:4.1f} GB",
            flush=True,
        )
        for job in (service.job(host), said):
            if job["state"] in ("failed", "cancelled"):
                raise PlaitError(f"{job['name']} {job['state']}; plait demo gives up")


def _wait(service: Client, job: str, done: Any, least_s: float = 60.0) -> None:
    def over() -> bool:
        return bool(done(found := service.job(job))) or found["state"] in ("failed", "cancelled")

    if not wait_for(over, least_s) or not done(found := service.job(job)):
        raise PlaitError(f"{found['name']} is {found['state']} after {least_s:g} s; this machine is too busy or slow")


def _row(name: str, found: Pair, alone: Pair, predicted: tuple[Mode, float] | None) -> list[str]:
    row = [name, f"{1e3 * found.step_s:.1f} ms", f"{found.step_s / alone.step_s:.3f}"]
    if predicted is None:
        return [*row, "-", "-", "-"]
    slowdown, slack = table_cell(PATTERN, QUANTUM_S, predicted[0], predicted[1], (1, 2, 3))
    return [*row, f"{found.slack_share:.2f}", f"{slowdown:.3f}", f"{slack:.2f}"]
