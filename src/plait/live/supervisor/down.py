"""Implementation of `plait down`: the end of a home's services, agents and, if wanted, jobs on this machine."""

from __future__ import annotations

import contextlib
import hashlib
import shutil

from plait.core.errors import InputError, PlaitError
from plait.live.agent.processes.launch import LEASE_VARIABLE
from plait.live.discovery import record_file, records
from plait.live.layout import Layout, job_number
from plait.live.supervisor import daemon, services
from plait.live.supervisor.options import remember_down, remembered, remembered_backend, was_up
from plait.live.system import cgroups, modules, procs
from plait.live.system.procs import Process


def refuse_losses(layout: Layout) -> None:
    """Raise `InputError` if jobs that run would lose work by being stopped, or if no service answers what they lose."""
    from plait.live.scheduler.requests.losses import refusal

    running = _jobs_of(job_processes(layout))
    if not running and not (records(layout) or layout.service_file.exists()):
        return
    try:
        with services.own_client(layout) as service:
            found = service.losses()
    except (PlaitError, OSError) as error:
        if not running:
            return
        raise InputError(
            f"{error}; nothing was done, because it is not known what {', '.join(running)} would lose. "
            "To do it all the same: --may-lose-work"
        ) from None
    if found.losses:
        raise InputError(refusal(found.text, len(found.losses)))


def stop(layout: Layout, *, stop_jobs: bool, patience_s: float = services.STOP_S, kept: bool = False) -> list[str]:
    """End all processes of a cluster on this machine; returns what was done and what is left, for people.

    Jobs get `patience_s` for a checkpoint. The store, logs and checkpoints stay where they are. Nodes are ended where
    their keeper is; `kept`: one of this machine has just been ended. Raises `InputError` if that is another machine,
    and nothing of the home runs here.
    """
    kept = daemon.stop_all(layout) or kept
    said = _end_services(layout)
    if away := services.elsewhere(layout):
        if not (said or kept):
            services.refuse_elsewhere(layout)
        return [
            *said,
            f"nodes and jobs are kept on {', '.join(sorted(set(away.values())))}; end them there with plait down",
        ]
    others = records(layout)
    if others:
        said.append(f"other services of this home go on: {', '.join(str(r['url']) for r in others.values())}")
    else:  # agents are not to look for a service that was killed
        layout.service_file.unlink(missing_ok=True)
    before, agents = job_processes(layout), _agents(layout)
    if (layout.home / "nodes").is_dir():
        remembered_backend(layout, patience_s).stop(jobs=stop_jobs)
    if remembered(layout).get("backend", "local") == "local":  # others' agents belong to allocations, which stay
        for agent in modules.of_home(layout.home, modules.AGENT):  # whose files were removed
            services.end(agent)
            agents = [*agents, agent]
    if was_up(layout):
        remember_down(layout, remembered(layout))
    if stop_jobs:
        kill_jobs(layout)
    left = job_processes(layout)
    if not left:
        # Gates of a home without jobs are of no use; shared memory and control groups are not to be left behind
        shutil.rmtree(layout.gates, ignore_errors=True)
        cgroups.remove_home(_home_mark(layout))
        for path in layout.leases():
            path.unlink(missing_ok=True)
        if layout.gates.parent != layout.home:
            with contextlib.suppress(OSError):
                layout.gates.parent.rmdir()
    ended = len(agents) - sum(agent.alive for agent in agents)
    if ended and not said:
        said.append(f"{ended} agent{'s' * (ended != 1)} ended")
    if not said and not before:
        return [f"nothing runs in {layout.home}"]
    jobs = _jobs_of(left)
    if jobs:
        said.append(f"still running: {', '.join(jobs)}; plait up reattaches to them, plait down --stop-jobs ends them")
    elif before:
        count = len(_jobs_of(before))
        what = (
            "it, from its checkpoint if it has one"
            if count == 1
            else "them, from their checkpoints where they have any"
        )
        said.append(f"{count} job{'s' * (count != 1)} stopped; plait up starts {what}")
    return said


def _jobs_of(found: dict[int, str]) -> list[str]:
    """The jobs that have a process among these; see `job_processes`."""
    return sorted({mark.split(":")[1] for mark in found.values()})


def _agents(layout: Layout) -> list[Process]:
    records = (procs.read_json(path) or {} for path in layout.home.glob("nodes/*/agent.json"))
    return [agent for record in records if (agent := services.process_of(record)) is not None]


def _end_services(layout: Layout) -> list[str]:
    ready, process = services.processes(layout), services.any_service_process(layout)
    # Followers end first, or they would take over.
    for name in sorted(ready, key=lambda name: records(layout).get(name, {}).get("role") == "leader"):
        services.end(ready[name])
        record_file(layout, name).unlink(missing_ok=True)
    for other in {process, *services.unnamed_processes(layout)} - {None}:  # also one that is still starting
        if other is not None and other.alive:
            services.end(other)
            process = other
    if not ready and process is None:
        return []
    return ["the service is stopped" if len(ready) < 2 else f"{len(ready)} services are stopped"]


def job_processes(layout: Layout) -> dict[int, str]:
    """Processes of jobs of this home: pid -> its attempt as `HASH:JOB:EPOCH:RANK`."""
    begin = f"{procs.MARK}={_home_mark(layout)}:".encode()
    found = {}
    for pid in procs.pids():
        mark = next((word for word in procs.environment_words(pid) if word.startswith(begin)), None)
        said = "" if mark is None else mark.partition(b"=")[2].decode()
        of_job = said.count(":") == 3 and job_number(said.split(":")[1]) is not None  # not a switch of an agent
        if of_job and procs.start_time(pid) is not None:
            found[pid] = said
    return found


def _home_mark(layout: Layout) -> str:
    """The common prefix of the marks of all attempts of this home."""
    return hashlib.sha256(str(layout.home).encode()).hexdigest()[:12]


def kill_jobs(layout: Layout) -> None:
    """Kill jobs whose agent is dead, as their agent would have done.

    First descendants of runners, whatever their environment contains: orphans come back to a living runner. Processes
    in control groups of jobs end too, also without a runner.
    """
    runners = {pid for pid in job_processes(layout) if LEASE_VARIABLE in procs.environment(pid)}
    procs.kill_until_none(lambda: {p for r in runners for p in procs.descendants(r)} - runners, lambda: None)
    procs.kill_until_none(lambda: {*job_processes(layout), *cgroups.inside_home(_home_mark(layout))}, lambda: None)
