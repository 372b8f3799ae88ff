"""The live demo: four training scripts, first with exclusive GPUs, then interleaved."""

import contextlib
import importlib.util
import json
import math
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import plait
from plait.cli.connection import print_table
from plait.cli.render.forecast_lines import FIDELITY_HEADS, fidelity_lines, fidelity_row
from plait.control.metrics import RunResult
from plait.core.errors import InputError, MissingExtra, PlaitError
from plait.core.files import write_text
from plait.core.resources import Resource
from plait.live.api.jobs import JobRow
from plait.live.client.client import FINAL, Client
from plait.live.layout import Layout
from plait.live.protocol.job_file import read_jobs
from plait.live.supervisor.down import stop
from plait.live.supervisor.up import start
from plait.outlook.fidelity import Fidelity, fidelity
from plait.outlook.log_replay import LogReplay, read_rows, replay
from plait.outlook.sharing import GroupSharing, SharingWatch
from plait.report.html import write_html

#: The demo's list of jobs in `examples/training`.
JOBS_FILE = "demo.yaml"
#: One machine with one CPU slot: a core for the CPU's work, and one that plays the GPU.
SLOTS = 1
#: The disk and the links that the machine is declared to have; all jobs share them. The seconds of its CPU and GPU for
#: an iteration of each job are in the list of jobs: about twice the time of a core, so that two cores have room for
#: both, and for the other programs.
DISK_MB_S, LINK_MBIT_S = 64, 160
#: Seconds between decisions, and the longest that one run of the demo may take.
ROUND_S, RUN_S = 1.0, 600.0
EXCLUSIVE = "srsf"
DEVICES = f"""\
Its devices: a disk of {DISK_MB_S} MB/s, for each worker a link of {LINK_MBIT_S} Mbit/s, and a CPU and a GPU about
half as fast as a core of this machine. All are declared: files are read, gradients sent and models
computed in earnest, and where this machine is faster the jobs wait, one after the other as at a
real device. Everything printed is measured, unless it says predicted."""
CLUSTER = f"1 CPU slot, disk {DISK_MB_S} MB/s, link {LINK_MBIT_S} Mbit/s, declared CPU and GPU"


@dataclass(frozen=True)
class DemoRun:
    """One run of the demo: its policy and its results."""

    policy: str
    result: RunResult
    sharings: list[GroupSharing]
    fidelity: Fidelity
    jct_s: dict[str, float]
    makespan_s: float
    profiles: dict[str, tuple[list[float], float]]
    names: dict[str, str]

    @property
    def mean_jct_s(self) -> float:
        """Average seconds from submission to completion."""
        return sum(self.jct_s.values()) / len(self.jct_s)

    def profile(self, name: str) -> dict[str, Any]:
        """The measured profile of a job as a field of a submission; empty if it was not measured."""
        stage_s, iteration_s = self.profiles.get(name, ([], 0.0))
        if not stage_s or not sum(stage_s) > 0:
            return {}
        stages = {r.name.lower(): round(s, 6) for r, s in zip(Resource, stage_s, strict=True)}
        return {"profile": {**stages, "iteration_s": round(iteration_s, 6)}}


def demonstrate(out: Path, examples: Path | None, policy: str) -> None:
    """Run the demo twice, print measurements and predictions, and write the report; leaves nothing running.

    `out`: folder of the report; `examples`: folder of the training scripts, None: that of the repository; `policy`:
    which interleaves the jobs in the second run.
    """
    need_modules(torch="torch", starlette="live", sqlalchemy="live", httpx="live")
    folder = find_examples(examples)
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="plait-demo-") as work:
        jobs = demo_jobs(folder, Path(work))
        names = ", ".join(job["name"] for job in jobs)
        print(f"Four trainings, each named after what it needs most ({names}), on one slot of this machine.")
        print(DEVICES)
        prepare(jobs)
        first = run_once(EXCLUSIVE, jobs, "each with the slot for itself", out)
        jobs = [job | first.profile(job["name"]) for job in jobs]
        runs = [first, run_once(policy, jobs, "taking turns, by the profiles that were just measured", out)]
    show(runs)
    write(runs, out)


def need_modules(
    what: str = "the demo of a running cluster (plait demo --simulate needs nothing)", /, **extras: str
) -> None:
    """Raise `MissingExtra` for the first module that is not installed; `extras`: by module the extra that brings it."""
    for module, extra in extras.items():
        if importlib.util.find_spec(module) is None:
            raise MissingExtra(module, extra, what)


def find_examples(given: Path | None) -> Path:
    """The folder of the training scripts; `InputError` naming the searched folders."""
    places = (
        [given] if given else [Path(plait.__file__).parents[2] / "examples" / "training", Path("examples/training")]
    )
    for place in places:
        if (place / JOBS_FILE).is_file():
            return place.resolve()
    looked = " and ".join(str(place) for place in places)
    raise InputError(
        f"no {JOBS_FILE} in {looked}; give the repository's folder with --examples, or see plait demo --simulate"
    )


def demo_jobs(folder: Path, work: Path) -> list[dict[str, Any]]:
    """The jobs of the demo: scripts of `folder`, run by this Python in the folder `work`."""
    jobs = read_jobs(folder / JOBS_FILE)
    for job in jobs:
        program, *rest = job["command"]
        words = [str(folder / word) if word.endswith(".py") else word for word in rest]
        job["command"] = [sys.executable if program in ("python", "python3") else program, *words]
        job["workdir"] = str(work)
        job["env"] = job.get("env", {}) | {
            "PLAIT_DEMO_DISK_MB_S": str(DISK_MB_S),
            "PLAIT_DEMO_LINK_MBIT_S": str(LINK_MBIT_S),
            "PLAIT_DEMO_DEVICES": str(work),
        }
    return jobs


def prepare(jobs: list[dict[str, Any]]) -> None:
    """Create the files of the storage job now, so that the first run does not include it."""
    job = next((job for job in jobs if job["name"] == "storage"), None)
    if job is not None:
        print("Making the image files that one of them reads ...", flush=True)
        command = [*job["command"], "--steps", "1", "--epochs", "1"]
        done = subprocess.run(command, cwd=job["workdir"], capture_output=True, text=True, timeout=120, check=False)
        if done.returncode:
            raise PlaitError(f"{job['name']} does not run here:\n{done.stderr[-1500:]}")


@contextlib.contextmanager
def demo_cluster(options: dict[str, Any]) -> Iterator[tuple[Client, Layout]]:
    """A cluster in a temporary folder, with options of `plait up`; it is stopped and removed at the end."""
    home = Path(tempfile.mkdtemp(prefix="plait-demo-"))
    layout = Layout(home.resolve())
    try:
        with start(layout, options) as service:
            yield service, layout
    finally:
        stop(layout, stop_jobs=True, patience_s=5.0)
        shutil.rmtree(home, ignore_errors=True)


def run_once(policy: str, jobs: list[dict[str, Any]], how: str, out: Path) -> DemoRun:
    """Start a cluster in a temporary folder, run `jobs` under `policy`, and stop it.

    `how`: printed after the policy's name; `out`: folder that gets the event log.
    """
    print(f"\n{policy}: {how}")
    options = {"nodes": 1, "gpus-per-node": SLOTS, "policy": policy, "round": ROUND_S}
    with demo_cluster(options) as (service, _):
        began = time.monotonic()
        ids = [answer.id for answer in service.submit(jobs)]
        names = dict(zip(ids, (job["name"] for job in jobs), strict=True))
        ended = watch_jobs(service, names, began)
        bad = [job for job in ended if job.state != "finished"]
        if bad:
            failed = bad[0]
            text = service.logs(failed.id, offset=0, limit=65_536).text
            words = "\n".join(text.splitlines()[-12:])
            raise PlaitError(f"{names[bad[0].id]} {bad[0].state}; it wrote:\n{words}")
        log = list(service.all_events())
    write_text(out / f"events-{policy.split(':')[0]}.json", json.dumps(log))
    rows, watch = list(read_rows(log)), SharingWatch()
    answer = replay(rows, observe=watch)
    if answer.difference is not None:
        raise PlaitError(f"the replay of the demo makes another decision: {answer.difference}")
    jct_s = {names[job.id]: job.jct_s or 0.0 for job in ended}
    return DemoRun(
        policy,
        answer.result(trace="demo", world="live", cluster=CLUSTER),
        watch.sharings(answer.state),
        fidelity(rows, round_s=ROUND_S),
        jct_s,
        max(job.ended_s or 0.0 for job in ended) - min(job.created_s for job in ended),
        _profiles(answer, names),
        names,
    )


def _profiles(answer: LogReplay, names: dict[str, str]) -> dict[str, tuple[list[float], float]]:
    assert answer.state.controller is not None
    job_store = answer.state.controller.job_store
    out = {}
    for job in range(job_store.count):
        stage_s, iteration_s = job_store.columns["stage_s"][job].tolist(), float(job_store.columns["iteration_s"][job])
        if all(map(math.isfinite, stage_s)) and math.isfinite(iteration_s):
            out[names[job_store.spec(job).id]] = (stage_s, iteration_s)
    return out


def watch_jobs(service: Client, names: dict[str, str], began: float) -> list[JobRow]:
    """Print the progress of the jobs until all have ended.

    `names`: by id of the job; `began`: monotonic time of the submission. Raises `PlaitError` after `RUN_S` seconds.
    """
    said = -10.0
    while True:
        found = sorted((j for j in service.jobs() if j.id in names), key=lambda job: job.number)
        passed = time.monotonic() - began
        over = all(job.state in FINAL for job in found)
        if passed - said >= 5 or over:
            said = passed
            print(f"  {passed:5.0f} s  " + "   ".join(f"{names[job.id]} {_progress(job)}" for job in found), flush=True)
        if over or any(job.state in ("failed", "cancelled") for job in found):
            return found
        if passed > RUN_S:
            late = ", ".join(names[job.id] for job in found if job.state not in FINAL)
            raise PlaitError(f"the demo gives up after {RUN_S:g} s: {late} not done; try again when less runs here")
        time.sleep(0.25)


def _progress(job: JobRow) -> str:
    if job.state != "running":
        return job.state
    total = job.iterations or job.total_steps
    steps = job.iterations_done
    return f"{min(steps / total, 1.0):.0%}" if total else f"{steps:.0f} steps"


def show(runs: list[DemoRun]) -> None:
    """Print stages alone, completion times, groups next to their model, and the simulator next to the measurement."""
    print("\nMilliseconds of an iteration alone, measured")
    heads = ("", *(f">{r.name.lower()}" for r in Resource), ">iteration")
    known = runs[0].profiles
    print_table(heads, [[n, *(f"{1e3 * s:.1f}" for s in (*known[n][0], known[n][1]))] for n in known], "nothing")
    print("\nSeconds from submission to completion, measured")
    names = list(runs[0].jct_s)
    rows: list[list[object]] = [[name, *(f"{run.jct_s[name]:.1f}" for run in runs)] for name in names]
    rows.append(["average", *(f"{sum(h.jct_s.values()) / len(names):.1f}" for h in runs)])
    rows.append(["all done after", *(f"{h.makespan_s:.1f}" for h in runs)])
    print_table(("", *(f">{run.policy}" for run in runs)), rows, "")
    first, last = runs[0], runs[-1]
    print(
        f"\nTaking turns: all done in {last.makespan_s / first.makespan_s:.2f} of the time, "
        f"{last.mean_jct_s / first.mean_jct_s:.2f} of the average completion time."
    )
    shared = [(h, s) for h in runs for s in h.sharings]
    if shared:
        print("\nJobs that took turns: milliseconds in which each makes an iteration, by the model and measured")
        table = [_sharing_row(h, s) for h, s in shared]
        heads = ("group", "gate", ">together for", ">predicted", ">measured", ">error", ">throughput")
        print_table(heads, table, "")
        print("Throughput: 1 is what the slot gives to one job after the other.")
    else:
        print(f"\n{last.policy} let no jobs take turns: it saw no gain in it.")
    print("\nThe event log of each run simulated again, next to the record (plait fidelity)")
    rows = [[run.policy, *fidelity_row(job, run.names[job.id])] for run in runs for job in run.fidelity.jobs]
    print_table(("policy", *FIDELITY_HEADS), rows, "")
    for line in fidelity_lines(last.fidelity)[1:]:
        print(line)
    print(f"The largest error is {max(run.fidelity.worst for run in runs):.1%}.")


def _sharing_row(run: DemoRun, sharing: GroupSharing) -> list[str]:
    names = " + ".join(run.names[m.id] for m in sharing.members)
    error = f"{sharing.predicted_s / sharing.measured_s - 1:+.0%}" if sharing.measured_s > 0 else "-"
    speed = f"{sharing.speed:.2f}" if sharing.speed == sharing.speed else "-"
    predicted, measured = _ms(sharing.predicted_s), _ms(sharing.measured_s)
    return [names, sharing.gate, f"{sharing.to_s - sharing.from_s:.1f} s", predicted, measured, error, speed]


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.1f} ms" if seconds == seconds else "-"


def write(runs: list[DemoRun], out: Path) -> None:
    """Write the report of both runs."""
    write_html([run.result for run in runs], out / "live.html", title="Four trainings, live")
    print(f"\nOpen {(out / 'live.html').resolve()} in a browser: who held which slot.")
