"""The live demo of classes: a guaranteed training on an emulated GPU, and an opportunistic one in what it leaves."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plait.cli.connection import print_table
from plait.cli.experiments.demonstration import demo_cluster, find_examples, need_modules
from plait.core.errors import PlaitError
from plait.core.files import write_text
from plait.live.api.jobs import WholeJob
from plait.live.client.client import FINAL, Client
from plait.live.layout import Layout
from plait.live.supervisor.options import remembered_backend
from plait.live.system import procs
from plait.outlook.log_replay import read_rows, replay
from plait.report.html import write_html
from plait.runtime.page import Page
from plait.sim.gpu import PATTERNS, Mode, table_cell

SCRIPT = "shared_gpu.py"
PATTERN = PATTERNS["20x5 then 100 host"]
QUANTUM_S, QUANTA = 0.004, 10
#: Memory of the GPU, of a step of each job, and of a step of the guaranteed one in a burst.
GPU_GB, HOST_GB, GUEST_GB, BURST_GB = 32, 8, 3, 27


@dataclass(frozen=True)
class Sample:
    """Work of a job until a time: steps, and seconds of kernels; GB of its last step on the GPU and on the host."""

    at_s: float
    steps: float
    served_s: float
    gpu_gb: float = 0.0
    host_gb: float = 0.0


@dataclass(frozen=True)
class Pair:
    """Both jobs over one stretch of time: the mean guaranteed step, and the part of the slack the other one got."""

    step_s: float
    slack_share: float


class Jobs:
    """The two jobs, by command line."""

    def __init__(self, script: Path, folder: Path) -> None:
        """They run in `folder`, where the emulated GPUs and their records are."""
        self.script, self.folder, self._number = script, folder, 0

    def command(self, world: str, *, guest: bool) -> list[str]:
        """Of one of them, on the GPU of a world. It runs until the file `stop` is there."""
        kernels, kernel_s, host_s = (QUANTA, QUANTUM_S, 0.0) if guest else (20, 0.005, 0.1)
        burst = ["--burst", str(self.burst), "--burst-gb", str(BURST_GB)]
        return [
            sys.executable, str(self.script), "--gpu", str(self.folder / f"{world}.gpu"), "--kernels", str(kernels),
            "--kernel-ms", str(kernel_s * 1e3), "--host-ms", str(host_s * 1e3), "--steps", str(10**9),
            "--memory-gb", str(GUEST_GB if guest else HOST_GB), *([] if guest else burst),
            "--stop", str(self.stop(guest=guest)), "--record", str(self.record(world, guest=guest)),
        ]  # fmt: skip

    def record(self, world: str, *, guest: bool) -> Path:
        """Where a job of a world writes how far it is."""
        return self.folder / f"{world}-{_role(guest)}.txt"

    def stop(self, *, guest: bool) -> Path:
        """The file that ends one of the jobs."""
        return self.folder / f"stop-{_role(guest)}"

    @property
    def burst(self) -> Path:
        """The file with which the guaranteed job needs more memory."""
        return self.folder / "burst"

    def apart(self, seconds: float, *, guest: bool) -> Pair:
        """Run them as ordinary processes, without plait."""
        self._number += 1
        world = f"apart-{self._number}"
        began: list[subprocess.Popen[bytes]] = []
        try:
            roles = (False, True)[: 1 + guest]
            began += [subprocess.Popen(self.command(world, guest=role), cwd=self.folder) for role in roles]
            for role in roles:
                self._until(self.record(world, guest=role), began)
            at_s = time.monotonic()
            time.sleep(seconds)
        finally:
            for process in began:
                process.kill()
                process.wait()
        return self.pair(world, at_s, at_s + seconds)

    def pair(self, world: str, from_s: float, to_s: float) -> Pair:
        """Work of both in that time, by their records."""
        host = ends(read(self.record(world, guest=False)), from_s, to_s)
        guest = ends(read(self.record(world, guest=True)), from_s, to_s)
        step_s = (host[1].at_s - host[0].at_s) / max(host[1].steps - host[0].steps, 1)
        took = (host[1].served_s - host[0].served_s) / max(host[1].at_s - host[0].at_s, 1e-9)
        got = (guest[1].served_s - guest[0].served_s) / max(to_s - from_s, 1e-9)
        return Pair(step_s, got / max(1.0 - took, 1e-9))

    @staticmethod
    def _until(record: Path, processes: list[subprocess.Popen[bytes]]) -> None:
        def ended() -> bool:
            return any(process.poll() is not None for process in processes)

        if not wait_for(lambda: len(read(record)) >= 2 or ended(), 60) or ended():
            raise PlaitError(f"{SCRIPT} does not run here; it wrote nothing to {record}")


def wait_for(true: Callable[[], object], seconds: float) -> bool:
    """Look until that is so, at most for so long; whether it became so."""
    end_s = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end_s:
            return False
        time.sleep(0.02)
    return True


def read(record: Path) -> list[Sample]:
    """The samples of a record so far; a line that is being written is left out."""
    try:
        lines = record.read_text().split("\n")[:-1]
    except OSError:
        return []
    return [Sample(*map(float, line.split())) for line in lines]


def ends(samples: list[Sample], from_s: float, to_s: float) -> tuple[Sample, Sample]:
    """The first and the last sample of a time; twice nothing where there is none."""
    inside = [one for one in samples if from_s - 0.6 <= one.at_s <= to_s] or [Sample(from_s, 0.0, 0.0)]
    return inside[0], inside[-1]


def _role(guest: bool) -> str:
    return "guest" if guest else "host"


WORLD = "live"
#: Seconds of the burst at least, of the guest's pause before another agent is started, for anything to happen at most.
BURST_S, PAUSED_S, PATIENCE_S = 5.0, 1.0, 40.0


@dataclass(frozen=True)
class Memory:
    """Both jobs at a time: GB on the GPU and on the host of the guaranteed one; GB and limit of the other one."""

    when: str
    host: Sample
    guest: Sample
    limit_gb: float | None
    action: str

    def row(self) -> list[str]:
        """As a line of the table."""
        limit = "-" if self.limit_gb is None else f"{self.limit_gb:.1f} GB"
        guest = [limit, f"{self.guest.gpu_gb:.1f} GB", self.action]
        return [self.when, f"{self.host.gpu_gb:.1f} GB", f"{self.host.host_gb:.1f} GB", *guest]


@dataclass(frozen=True)
class Burst:
    """A burst of the guaranteed job: before, in its first step, later; steps partly on the host."""

    looks: tuple[Memory, ...]
    steps_on_host: int


@dataclass(frozen=True)
class Killed:
    """Jobs after the kill of the agent, then of the guest. Steps of the guest: had made, continued at."""

    paused_s: float
    host_step_s: float
    steps_made: float
    steps_kept: float


class Trouble:
    """The cluster while both jobs run in it."""

    def __init__(self, service: Client, layout: Layout, jobs: Jobs, host: str, guest: str) -> None:
        self._service, self._layout, self._jobs, self._host, self._guest = service, layout, jobs, host, guest

    def burst(self) -> Burst:
        """Let steps of the guaranteed job need more memory until the GPU serves them, then no longer."""
        before = self._look("before")
        begin_s = time.monotonic()
        self._jobs.burst.touch()
        self._wait(lambda: self._spilled(begin_s), "the burst")
        first = self._spilled(begin_s)[0]
        at_first = Memory("in its first step", first, self._last(guest=True), before.limit_gb, before.action)
        self._wait(lambda: (last := self._last(guest=False)).gpu_gb >= BURST_GB and not last.host_gb, "memory for it")
        time.sleep(max(BURST_S - (time.monotonic() - begin_s), 0.0))
        later = self._look(f"{time.monotonic() - begin_s:.0f} s later")
        self._jobs.burst.unlink()
        self._wait(lambda: self._last(guest=False).gpu_gb <= HOST_GB, "the end of the burst")
        return Burst((before, at_first, later), len(self._spilled(begin_s)))

    def kill_agent(self) -> tuple[float, float]:
        """Kill the agent, start another one once the guest has paused, wait until that lets the guest run.

        For how long the guest could not run, and the mean guaranteed step meanwhile; seconds.
        """
        backend = remembered_backend(self._layout)
        begin_s, agent = time.monotonic(), backend.list_nodes()[0].pid
        assert agent is not None, "the node is up"
        os.kill(agent, signal.SIGKILL)
        time.sleep(0.1)  # it renews nothing any more
        paused_s = self._lease()
        self._wait(lambda: time.monotonic() > paused_s, "the end of the guest's lease")
        time.sleep(PAUSED_S)
        backend.start()
        self._wait(lambda: self._lease() > time.monotonic(), "another agent")
        end_s = time.monotonic()
        first, last = ends(read(self._jobs.record(WORLD, guest=False)), begin_s, end_s)
        return end_s - paused_s, (last.at_s - first.at_s) / max(last.steps - first.steps, 1)

    def kill_guest(self) -> tuple[float, float]:
        """Kill the process of the guest and wait until it trains again: steps it had made, and where it continued."""
        runner: Any = procs.read_json(self._attempt() / "runner.json")
        os.kill(int(runner["child"]), signal.SIGKILL)
        made = self._last(guest=True)
        self._wait(lambda: self._last(guest=True).at_s > made.at_s + 1.0, "the guest again")
        again = next(one for one in read(self._jobs.record(WORLD, guest=True)) if one.at_s > made.at_s)
        return made.steps, again.steps

    def _attempt(self) -> Path:
        job = self._service.job(self._guest)
        return self._layout.rank(job.number, job.epoch, 0)

    # -- looks ---------------------------------------------------------------------------------------------------

    def _look(self, when: str) -> Memory:
        sharing = self._service.job(self._guest).sharing
        limit, action = (None, None) if sharing is None else (sharing.limit_bytes, sharing.action)
        limit_gb = None if limit is None else limit / 1e9
        return Memory(when, self._last(guest=False), self._last(guest=True), limit_gb, action or "run")

    def _last(self, *, guest: bool) -> Sample:
        return read(self._jobs.record(WORLD, guest=guest))[-1]

    def _spilled(self, from_s: float) -> list[Sample]:
        """Guaranteed steps since then that had memory on the host."""
        return [one for one in read(self._jobs.record(WORLD, guest=False)) if one.at_s > from_s and one.host_gb]

    def _lease(self) -> float:
        """Until when the guest may run, by the clock of this machine."""
        with Page.open(self._attempt() / "page.bin", mapped=False) as page:
            return page.share_until

    def _wait(self, true: Callable[[], object], what: str) -> None:
        def over() -> bool:
            return bool(true()) or any(
                job.state in ("failed", "cancelled") for job in map(self._service.job, (self._host, self._guest))
            )

        if not wait_for(over, PATIENCE_S) or not true():
            raise PlaitError(f"waited {PATIENCE_S:g} s for {what}; this machine is too busy or slow")


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
    need_modules(starlette="live", sqlalchemy="live", httpx="live")
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
    results = sentences(found)
    print("\n".join(results.values()))
    write_text(out / "events-antman.json", json.dumps(found.log))
    answer = replay(list(read_rows(found.log)))
    result = answer.result(trace="demo", world="live", cluster="1 CPU slot with an emulated GPU")
    title = "A guaranteed and an opportunistic training, live"
    write_html([result], out / "antman.html", title=title, settings=results)
    print(f"\nOpen {(out / 'antman.html').resolve()} in a browser: who was on the slot when.")


@dataclass(frozen=True)
class DemoFindings:
    """Observations of the cluster: both jobs while they shared, the burst, the kills, how they ended; the log."""

    shared: Pair
    burst: Burst
    killed: Killed
    host: WholeJob
    guest: WholeJob
    log: list[dict[str, Any]]


def sentences(found: DemoFindings) -> dict[str, str]:
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


def _verdict(found: DemoFindings) -> str:
    """Whether any job was stopped, or ended otherwise than by itself; the guest was killed once by the demo."""
    trouble = [
        f"{job.name} {job.state}, stopped for others {job.preemptions} times, failed {job.failures} times"
        for job, kills in ((found.host, 0), (found.guest, 1))
        if (job.state, job.preemptions, job.failures) != ("finished", 0, kills)
    ]
    if trouble:
        return f"Not as promised: {'; '.join(trouble)}."
    return "plait killed and stopped no job: both ended by themselves."


def run_cluster(jobs: Jobs) -> DemoFindings:
    """One cluster from beginning to end: the guaranteed job, its guest, a burst, two kills."""
    options = {"nodes": 1, "gpus-per-node": 1, "policy": "antman", "round": 1.0, "slot-memory": GPU_GB}
    with demo_cluster(options) as (service, layout):
        host = submit(service, "guaranteed", jobs.command(WORLD, guest=False), jobs.folder)
        _wait(service, host, lambda job: job.iterations_done * PATTERN.step_s >= BEFORE_S)
        guest = submit(service, "opportunistic", jobs.command(WORLD, guest=True), jobs.folder)
        _wait(service, guest, lambda job: job.state == "running")
        begin_s = time.monotonic()
        watch(service, host, guest, jobs, begin_s)
        shared = jobs.pair(WORLD, begin_s, begin_s + SHARED_S)
        print("A burst of memory, then the agent and the guest are killed ...", flush=True)
        trouble = Trouble(service, layout, jobs, host, guest)
        burst = trouble.burst()
        killed = Killed(*trouble.kill_agent(), *trouble.kill_guest())
        jobs.stop(guest=False).touch()
        _wait(service, host, lambda job: job.state in FINAL)
        time.sleep(AFTER_S)
        jobs.stop(guest=True).touch()
        _wait(service, guest, lambda job: job.state in FINAL)
        log = list(service.all_events())
        return DemoFindings(shared, burst, killed, service.job(host), service.job(guest), log)


def submit(service: Client, job_class: str, command: list[str], folder: Path) -> str:
    """A job of that class; its id."""
    job = {"name": job_class, "class": job_class, "command": command, "workdir": str(folder), "retries": 1}
    job |= {"checkpoint_s": CHECKPOINT_S}
    return service.submit([job])[0].id


def watch(service: Client, host: str, guest: str, jobs: Jobs, begin_s: float) -> None:
    """Print how both are doing every five seconds, while they share."""
    while (passed := time.monotonic() - begin_s) < SHARED_S:
        time.sleep(min(5.0, SHARED_S - passed))
        now_s = time.monotonic()
        pair = jobs.pair(WORLD, max(now_s - 5.0, begin_s), now_s)
        guest_job = service.job(guest)
        sharing = guest_job.sharing
        share, limit = (0.0, 0.0) if sharing is None else (sharing.share or 0.0, sharing.limit_bytes or 0.0)
        print(
            f"  {now_s - begin_s:4.0f} s   guaranteed step {1e3 * pair.step_s:5.1f} ms   opportunistic: share "
            f"{share:.2f}, {pair.slack_share:4.0%} of the slack, limit {limit / 1e9:4.1f} GB",
            flush=True,
        )
        for job in (service.job(host), guest_job):
            if job.state in ("failed", "cancelled"):
                raise PlaitError(f"{job.name} {job.state}; plait demo gives up")


def _wait(service: Client, job: str, done: Callable[[WholeJob], bool], least_s: float = 60.0) -> None:
    def over() -> bool:
        return done(found := service.job(job)) or found.state in ("failed", "cancelled")

    if not wait_for(over, least_s) or not done(found := service.job(job)):
        raise PlaitError(f"{found.name} is {found.state} after {least_s:g} s; this machine is too busy or slow")


def _row(name: str, found: Pair, alone: Pair, predicted: tuple[Mode, float] | None) -> list[str]:
    row = [name, f"{1e3 * found.step_s:.1f} ms", f"{found.step_s / alone.step_s:.3f}"]
    if predicted is None:
        return [*row, "-", "-", "-"]
    slowdown, slack = table_cell(PATTERN, QUANTUM_S, predicted[0], predicted[1], (1, 2, 3))
    return [*row, f"{found.slack_share:.2f}", f"{slowdown:.3f}", f"{slack:.2f}"]
