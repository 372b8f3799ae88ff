"""Nodes on loan from Slurm: each is one allocation that holds an agent, and there are as many as jobs want.

An allocation is requested by sbatch, replaced before its time limit, and given back when idle. Jobs never become jobs
of Slurm: within the allocations plait places them, round by round. Nothing is remembered here: our allocations are the
ones that squeue lists under the name made of the home folder, so another keeper continues where this one stopped.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from plait.core.options import words
from plait.live.agent.processes.attempt import RUNNER_PATIENCE_S
from plait.live.backends.base import COMING, LEAVING, STOP_GRACE_S, UP, BackendNode
from plait.live.backends.slurm.commands import ENDING, OVER, PENDING, RUNNING, Job, SlurmCli, SlurmError
from plait.live.backends.slurm.node import MARK, NodeOptions, node_name
from plait.live.backends.slurm.options import SlurmOptions
from plait.live.backends.slurm.plan import Held, Moves, plan_allocations
from plait.live.client.client import Refused
from plait.live.layout import Layout, make_private
from plait.live.system import procs

if TYPE_CHECKING:
    from plait.live.client.client import Client

#: Pauses after a failed allocation before the next request: the first one, and the longest.
FIRST_PAUSE_S, MOST_PAUSE_S = 10.0, 600.0
#: Longest time that Slurm takes to end a cancelled job, seconds (KillWait is 30 s by default).
KILL_S = 60.0


class SlurmBackend:
    """Requests allocations, fits their number to the queue, and gives them back."""

    name = "slurm"

    def __init__(
        self,
        layout: Layout,
        options: Mapping[str, Any],
        stop_grace_s: float = STOP_GRACE_S,
        *,
        cli: SlurmCli | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`stop_grace_s`: maximum seconds that jobs get at `stop(jobs=True)`."""
        self.layout, self.options, self.stop_grace_s = layout, SlurmOptions.read(options), stop_grace_s
        self.cli, self.clock = cli or SlurmCli(), clock
        self.job_name = "plait-" + hashlib.sha256(str(layout.home).encode()).hexdigest()[:12]
        self._idle: dict[int, float] = {}
        self._fewer_s = math.inf
        self._looked_s = -math.inf
        self._said: set[str] = set()
        #: Of allocations that ended before their agent joined: the last one, how often, until when the next one waits.
        self._died, self._deaths, self._again_s = 0, 0, -math.inf

    # ---- what a backend does ----

    def start(self) -> list[str]:
        """Request the least number of allocations; existing ones are kept."""
        self.cli.check(self.options.partition)
        make_private(self.layout.home / "slurm")
        jobs = [job for job in self.cli.jobs(self.job_name) if job.state in (PENDING, RUNNING)]
        return [f"allocation {self._submit()}" for _ in range(self.options.min_nodes - len(jobs))]

    def expected_gpus(self) -> int:
        """Zero: Slurm determines when a node joins."""
        return 0

    def expected(self) -> int:
        """Zero: allocations come when Slurm has room, and no caller should wait for that."""
        return 0

    def most_gpus(self) -> int:
        """GPUs of the maximum number of allocations."""
        return self.options.gpus * self.options.max_nodes

    def maintain(self, service: Client) -> list[str]:
        """Every few seconds: list the allocations, report dead ones, and execute the plan."""
        if self.clock() < self._looked_s + self.options.look_s:
            return []
        self._looked_s = self.clock()
        jobs = self.cli.jobs(self.job_name)
        nodes = self._ours(service.nodes(), jobs)
        said = self._report_dead_nodes(service, jobs, nodes) + self._count_deaths(jobs, nodes)
        held = [self._held(job, nodes.get(job.id)) for job in jobs if job.state != OVER]
        found, limits = service.status(), self.options.limits
        moves = plan_allocations(held, int(found["gpus"]["wanted"]), limits, empty=self._worth_less(found, held))
        return said + self._do(service, moves, {job.id: job for job in jobs})

    def list_nodes(self) -> list[BackendNode]:
        """Our allocations, as Slurm sees them."""
        states = {PENDING: COMING, RUNNING: UP, ENDING: LEAVING}
        return [
            BackendNode(
                _name(job), self.options.gpus, states[job.state], f"Slurm job {job.id} is {job.word} {job.reason}"
            )
            for job in self.cli.jobs(self.job_name)
            if job.state != OVER
        ]

    def stop(self, jobs: bool) -> None:
        """Give all allocations back, with a checkpoint of what runs there; without `jobs` they are left as they are."""
        there = self.cli.jobs(self.job_name)
        if not jobs:
            self._leave(there)
            return
        self.cli.cancel([job.id for job in there if job.state == PENDING])
        running = [job.id for job in there if job.state == RUNNING]
        for job in there:
            if job.id in running:
                with contextlib.suppress(OSError):  # a full disk: the grace the agent was started with
                    procs.write_json(self.layout.node(_name(job)) / "stop.json", {"grace_s": self.stop_grace_s})
        self._notify(running)
        if not self._ended(self.stop_grace_s + RUNNER_PATIENCE_S + 5.0):
            self.cli.cancel([job.id for job in self.cli.jobs(self.job_name) if job.state in (PENDING, RUNNING)])
            if not self._ended(KILL_S):
                left = ", ".join(str(job.id) for job in self.cli.jobs(self.job_name) if job.state != OVER)
                raise SlurmError(f"Slurm has not ended {left} in {KILL_S:g} s; look at: squeue --name={self.job_name}")

    # ---- one look ----

    def _held(self, job: Job, node: Mapping[str, Any] | None) -> Held:
        now, used = self.clock(), int(node["gpus_used"]) if node else 0
        joined = node is not None and node["state"] in ("ready", "suspect")
        if used or not joined:
            self._idle.pop(job.id, None)
        elif job.id not in self._idle:
            self._idle[job.id] = now
        return Held(
            job=job.id,
            state=job.state,
            joined=joined,
            drained=node is not None and (bool(node["drained"]) or node["state"] in ("leaving", "left")),
            used=used,
            idle_s=now - self._idle.get(job.id, now),
            silent_s=float(node["silent_s"]) if node else math.inf,
            age_s=now - job.start_s if job.state == RUNNING else 0.0,
            left_s=job.end_s - now if job.state == RUNNING else math.inf,
            replace_s=min(self.options.replace_s, (job.end_s - job.start_s) / 2) if job.end_s < math.inf else 0.0,
        )

    def _worth_less(self, found: Mapping[str, Any], held: Sequence[Held]) -> bool:
        """Whether the policy has valued jobs at fewer nodes than present for long enough."""
        staying = sum(not one.drained for one in held)
        wanted = found.get("wanted") or {}  # older services do not report it
        fewer = wanted.get("by") == "policy" and int(wanted["gpus"]) <= (staying - 1) * self.options.gpus
        self._fewer_s = min(self._fewer_s, self.clock()) if fewer else math.inf
        return fewer and self.clock() - self._fewer_s >= self.options.idle_s

    def _report_dead_nodes(
        self, service: Client, jobs: Sequence[Job], nodes: Mapping[int, Mapping[str, Any]]
    ) -> list[str]:
        """Report nodes whose allocation is over; the service forgets them once nothing is left there."""
        known, said = {job.id: job for job in jobs}, []
        for number, node in nodes.items():
            job = known.get(number)
            if job is not None and job.state != OVER:
                continue
            self._idle.pop(number, None)
            why = f"Slurm job {number} is {job.word if job else 'not known any more'}"
            if node["state"] in ("lost", "left") and not node["gpus_used"]:
                with contextlib.suppress(Refused):  # something may still run there: retried
                    service.forget_node(node["id"])
                    said.append(f"node {node['id']} is gone")
                with contextlib.suppress(OSError):
                    (self.layout.node(node["id"]) / "enrol").unlink()
                continue
            if not node["drained"]:
                service.drain(
                    node["id"], may_lose_work=True
                )  # it is lost in any case; its agent may still speak: Slurm ends it when it can
            with contextlib.suppress(Refused):  # older services do not know this: the lease expires instead
                # On a node that failed, or that Slurm has forgotten, jobs may still run.
                service.node_gone(node["id"], why, certain=job is not None and "FAIL" not in job.word)
            said += self._once(f"node {node['id']}: {why}")
        return said

    def _do(self, service: Client, moves: Moves, jobs: Mapping[int, Job]) -> list[str]:
        said = []
        for number in moves.drain:
            name = _name(jobs[number])
            try:
                service.drain(name)
                said.append(f"node {name} is drained, to be given back to Slurm")
            except Refused as error:  # a job there would lose its work: the node is kept until it has ended
                said += self._once(f"node {name} is not given back yet: {error}")
        if moves.release:
            self._notify(moves.release)
            said += [line for number in moves.release for line in self._once(f"allocation {number} is given back")]
        if moves.cancel or moves.end:
            self.cli.cancel([*moves.cancel, *moves.end])
            said += [f"the request for allocation {number} was withdrawn" for number in moves.cancel]
            said += [f"allocation {number} was ended: its agent is silent" for number in moves.end]
        if self.clock() < self._again_s:
            return said
        return said + [f"requested allocation {self._submit()}" for _ in range(moves.submit)]

    def _count_deaths(self, jobs: Sequence[Job], nodes: Mapping[int, object]) -> list[str]:
        """Allocations that ended before their agent joined put off the next one, longer each time, until one joins."""
        died = [job for job in jobs if job.id > self._died and job.id not in nodes and self._died_early(job)]
        if not died:
            if any(number > self._died for number in nodes):
                self._deaths, self._again_s = 0, -math.inf
            return []
        last, pause_s = died[-1], min(FIRST_PAUSE_S * 2.0**self._deaths, MOST_PAUSE_S)
        self._died, self._deaths = last.id, min(self._deaths + 1, 30)
        self._again_s = min(last.end_s, self.clock()) + pause_s
        where = f"{self.layout.home / 'slurm'} (if it is empty, nodes of Slurm may not have this folder)"
        why = f"allocation {last.id} ended before its agent joined, as {last.word}"
        return [f"{why}; the next is requested after {pause_s:.0f} s: look at {where}"]

    def _died_early(self, job: Job) -> bool:
        """Whether an allocation ended before its agent reached the service; not one that never had a node."""
        if job.state != OVER or (job.word == "CANCELLED" and not job.node):
            return False
        try:  # the first thing an agent writes there is who answered it
            return (self.layout.node(_name(job)) / "journal.jsonl").stat().st_size == 0
        except OSError:
            return True

    def _ours(self, nodes: Sequence[Mapping[str, Any]], jobs: Sequence[Job]) -> dict[int, Mapping[str, Any]]:
        """The nodes of our allocations, by allocation; not of other ones, whatever their names.

        For an allocation that Slurm still lists, the node's name decides. The mark, which nodes of an earlier version
        lack, is for allocations that Slurm has forgotten: so the backend can report dead ones, and ends nothing that
        lives.
        """
        names, ours = {_name(job): job.id for job in jobs}, {}
        for node in nodes:
            job = names.get(node["id"], job_of(node["id"]))
            if job is not None and (node["id"] in names or (self.layout.node(node["id"]) / MARK).exists()):
                ours[job] = node
        return ours

    def _once(self, line: str) -> list[str]:
        if line in self._said:
            return []
        self._said.add(line)
        return [line]

    # ---- allocations ----

    def _submit(self) -> int:
        options, home = self.options, self.layout.home
        given = {"home": home, "stop-grace": f"{options.notice_s:g}"}
        given |= {"cuda": True} if options.cuda else {"slots": options.gpus}
        node = [sys.executable, "-m", "plait.live.backends.slurm.node", *words(NodeOptions, given)]
        asked = [
            f"--job-name={self.job_name}", f"--comment=plait {home}", "--nodes=1", "--ntasks=1", "--exclusive",
            "--no-requeue", f"--signal=B:TERM@{math.ceil(options.notice_s)}", f"--chdir={home}", "--open-mode=append",
            f"--output={home / 'slurm' / '%j.log'}",
        ]  # fmt: skip
        asked += [f"--gpus-per-node={options.gpus}"] if options.cuda else []
        asked += [f"--partition={options.partition}"] if options.partition else []
        asked += [f"--time={options.time_limit}"] if options.time_limit else []
        return self.cli.submit(f"#!/bin/sh\nexec {shlex.join(node)}\n", [*asked, *options.sbatch])

    def _notify(self, jobs: Sequence[int]) -> None:
        """Signal agents to leave; agents that have already left are skipped."""
        for number in jobs:
            try:
                self.cli.notify([number])
            except SlurmError:
                if any(job.id == number and job.state == RUNNING for job in self.cli.jobs(self.job_name)):
                    raise

    def _ended(self, patience_s: float) -> bool:
        """Wait until Slurm holds nothing of ours; whether it came to that."""
        until = time.monotonic() + patience_s
        while any(job.state != OVER for job in self.cli.jobs(self.job_name)):
            if time.monotonic() > until:
                return False
            time.sleep(0.2)
        return True

    def _leave(self, jobs: Sequence[Job]) -> None:
        left = [str(job.id) for job in jobs if job.state in (PENDING, RUNNING)]
        if left:
            print(
                f"allocations of Slurm stay: {', '.join(left)}; plait up goes on with them, "
                "plait down --stop-jobs gives them back",
                file=sys.stderr,
            )


def job_of(node: str) -> int | None:
    """The number at the end of a node's name, which is the allocation's if it is one of ours.

    >>> job_of("gpu-7-42"), job_of("n0")
    (42, None)
    """
    host, dash, number = node.rpartition("-")
    return int(number) if host and dash and number.isascii() and number.isdigit() else None


def _name(job: Job) -> str:
    return node_name(job.node or "node", job.id)
