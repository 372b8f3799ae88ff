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
from dataclasses import dataclass, replace
from typing import Any

from plait.core.errors import InputError
from plait.core.options import declared, option, words
from plait.live.agent.processes.attempt import RUNNER_PATIENCE_S
from plait.live.api.cluster import NodeRow
from plait.live.backends.base import COMING, LEAVING, STOP_GRACE_S, UP, BackendNode, seconds
from plait.live.backends.fitting import PENDING, RUNNING, AllocationLimits, Fitting, Held, Moves
from plait.live.backends.slurm.commands import ENDING, OVER, Job, SlurmCli, SlurmError
from plait.live.backends.slurm.node import MARK, NodeOptions, node_name
from plait.live.client.client import Client, Refused
from plait.live.layout import Layout, make_private
from plait.live.system import procs

# ---- options of `plait up --backend slurm` ----


@dataclass(frozen=True)
class SlurmOptions:
    """Options of requests for allocations; `read` makes it of the options of `plait up`."""

    gpus: int = 1
    cuda: bool = True
    partition: str | None = option("Partition of the allocations", default=None, unset="Slurm's default")
    time_limit: str | None = option(
        "Time limit of an allocation, as for `sbatch --time`", default=None, unset="the partition's"
    )
    min_nodes: int = option("Number of allocations to keep at all times", default=0)
    max_nodes: int = option("Largest number of allocations, plus one while one is being replaced", default=4)
    idle_s: float = option("Seconds without work after which an allocation is released", default=300.0)
    notice_s: float = option(
        "Seconds before the time limit at which the agent stops its jobs; they have this long for a checkpoint",
        default=60.0,
    )
    replace_s: float = option(
        "Seconds before the time limit at which the replacement is requested, at most half of the limit", default=900.0
    )
    look_s: float = option("Seconds between two polls of Slurm's queue", default=5.0)
    sbatch: tuple[str, ...] = option(
        "More arguments for `sbatch`, e.g. account, constraint, memory", default=(), unset="none"
    )

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> SlurmOptions:
        """Options as `-o NAME=VALUE` gave them; raises `InputError` for an invalid one."""
        unknown = sorted(set(given) - OPTIONS - OTHERS)
        if unknown:
            raise InputError(f"no option {unknown[0]!r} of --backend slurm; there are: {', '.join(sorted(OPTIONS))}")
        words = given.get("sbatch") or ()
        least = _count(given, "min-nodes", cls.min_nodes, least=0)
        options = cls(
            gpus=_count(given, "gpus-per-node", 4 if given.get("fake") else 1, least=1),
            cuda=not given.get("fake"),
            partition=_words(given, "partition"),
            time_limit=_words(given, "time-limit"),
            min_nodes=least,
            max_nodes=_count(given, "max-nodes", max(cls.max_nodes, least), least=1),
            idle_s=seconds(given, "idle", cls.idle_s),
            notice_s=seconds(given, "notice", cls.notice_s),
            replace_s=seconds(given, "replace", cls.replace_s),
            look_s=seconds(given, "look", cls.look_s),
            sbatch=tuple(shlex.split(words) if isinstance(words, str) else map(str, words)),
        )
        if options.min_nodes > options.max_nodes:
            raise InputError(f"min-nodes={options.min_nodes} is more than max-nodes={options.max_nodes}")
        return options

    @property
    def limits(self) -> AllocationLimits:
        return AllocationLimits(self.gpus, self.min_nodes, self.max_nodes, self.idle_s)


def _words(given: Mapping[str, Any], name: str) -> str | None:
    value = given.get(name)
    return None if value in (None, "") else str(value)


def _count(given: Mapping[str, Any], name: str, default: int, *, least: int) -> int:
    value = given.get(name)
    try:
        number = default if value is None else int(value)
    except (TypeError, ValueError):
        number = -1
    if not least <= number <= 100_000:
        raise InputError(f"{name}={value} of --backend slurm; needs a whole number of at least {least}")
    return number


#: Options as `-o NAME=VALUE`; options of `plait up` that count here, too; and options for other backends.
OWN = tuple(one.word for one in declared(SlurmOptions))
OPTIONS = frozenset((*OWN, "gpus-per-node", "fake"))
OTHERS = frozenset(("backend", "nodes", "address"))


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
        self._fitting = Fitting(layout, lambda: self.clock(), " to Slurm")
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
        moves = self._fitting.moves(service.status().wanted, held, self.options.limits)
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

    def _held(self, job: Job, node: NodeRow | None) -> Held:
        now = self.clock()
        return replace(
            self._fitting.held(job.id, node),
            state=job.state,
            age_s=now - job.start_s if job.state == RUNNING else 0.0,
            left_s=job.end_s - now if job.state == RUNNING else math.inf,
            replace_s=min(self.options.replace_s, (job.end_s - job.start_s) / 2) if job.end_s < math.inf else 0.0,
        )

    def _report_dead_nodes(self, service: Client, jobs: Sequence[Job], nodes: Mapping[int, NodeRow]) -> list[str]:
        """Report nodes whose allocation is over; the service forgets them once nothing is left there."""
        known, said = {job.id: job for job in jobs}, []
        for number, node in nodes.items():
            job = known.get(number)
            if job is not None and job.state != OVER:
                continue
            why = f"Slurm job {number} is {job.word if job else 'not known any more'}"
            if node.state in ("lost", "left") and not node.gpus_used:
                with contextlib.suppress(Refused):  # something may still run there: retried
                    service.forget_node(node.id)
                    said.append(f"node {node.id} is gone")
                with contextlib.suppress(OSError):
                    (self.layout.node(node.id) / "enrol").unlink()
                continue
            if not node.drained:
                service.drain(
                    node.id, may_lose_work=True
                )  # it is lost in any case; its agent may still speak: Slurm ends it when it can
            with contextlib.suppress(Refused):  # forgotten meanwhile
                # On a node that failed, or that Slurm has forgotten, jobs may still run.
                service.node_gone(node.id, why, certain=job is not None and "FAIL" not in job.word)
            said += self._once(f"node {node.id}: {why}")
        return said

    def _do(self, service: Client, moves: Moves, jobs: Mapping[int, Job]) -> list[str]:
        said = list[str]()
        for number in moves.drain:
            said += self._fitting.drain(service, _name(jobs[number]))
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

    def _ours(self, nodes: Sequence[NodeRow], jobs: Sequence[Job]) -> dict[int, NodeRow]:
        """The nodes of our allocations, by allocation; not of other ones, whatever their names.

        For an allocation that Slurm still lists, the node's name decides. The mark, which nodes of an earlier version
        lack, is for allocations that Slurm has forgotten: so the backend can report dead ones, and ends nothing that
        lives.
        """
        names, ours = {_name(job): job.id for job in jobs}, {}
        for node in nodes:
            job = names.get(node.id, job_of(node.id))
            if job is not None and (node.id in names or (self.layout.node(node.id) / MARK).exists()):
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
        if left := [str(job.id) for job in jobs if job.state in (PENDING, RUNNING)]:
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
