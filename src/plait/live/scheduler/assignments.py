"""From the state to what each agent is told. Assignments are derived, never kept: a restart makes the same ones."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from plait.live.protocol.requests import command_of, limits_of, merge_key
from plait.live.protocol.wire import Assignment, GroupInfo, Mate, Run
from plait.live.scheduler.attempts import Attempt, JobRecord, NodeRecord, Rank
from plait.live.scheduler.reconcile import GRACEFUL

if TYPE_CHECKING:
    from plait.live.scheduler.engine import Engine


#: Where a job finds the bounds of its batch that were given when it was submitted: `BatchLimits` as JSON.
BATCH_VARIABLE = "PLAIT_BATCH"
#: Where its agent finds the image of its container; see `plait.live.agent.processes.container`.
CONTAINER_VARIABLE = "PLAIT_CONTAINER"


class Assigner:
    """Assignments by node, with versions that grow when what they say changes."""

    def __init__(self, engine: Engine) -> None:
        """For this engine."""
        self._engine = engine
        self._runs: dict[str, list[Run]] = {}
        self._told: dict[str, list[Run]] = {}
        self._fresh = False
        self._looks = 0
        #: By node: what it was told to stop, and since which version.
        self._stops: dict[str, dict[tuple[int, int, int], int]] = {}

    def changed(self) -> None:
        """Something was committed: look again before the next answer."""
        self._fresh = False

    def forget(self, node: str) -> None:
        """A node will not come back."""
        self._told.pop(node, None)
        self._stops.pop(node, None)
        self._fresh = False

    def looked(self) -> int:
        """A number that grows whenever a version may have."""
        self._refresh()
        return self._looks

    def versions(self) -> dict[str, int]:
        """Those of all nodes as of the last commit."""
        self._refresh()
        return {name: record.version for name, record in self._engine.state.nodes.items()}

    def version(self, node: str) -> int:
        """The version of a node's assignment as of the last commit; 0 for an unknown node."""
        self._refresh()
        record = self._engine.state.nodes.get(node)
        return 0 if record is None else record.version

    def assignment(self, node: str, agent: str | None = None) -> Assignment:
        """What should run on a node; nothing for an agent that was replaced, perhaps by one on another machine."""
        self._refresh()
        engine = self._engine
        record = engine.state.nodes.get(node)
        if record is None:  # forgotten while its agent's last question was open
            return Assignment(engine.term, 0, engine.options.lease_s)
        runs = self._runs.get(node, []) if agent in (None, record.agent) else []
        return Assignment(engine.term, record.version, engine.options.lease_s, runs)

    def stopped_at(self, node: str, reached: int) -> Iterator[tuple[int, int, int]]:
        """Processes (job, epoch, rank) that an agent which reached this version was told to stop."""
        stops = self._stops.get(node, {})
        for (number, epoch, rank), version in list(stops.items()):
            job = self._engine.state.jobs.get(number)
            attempt = job.live if job else None
            if attempt is None or attempt.epoch != epoch or attempt.ranks[rank].ended:
                del stops[number, epoch, rank]
            elif version <= reached:
                yield number, epoch, rank

    def _refresh(self) -> None:
        if self._fresh:
            return
        self._fresh = True
        self._looks += 1
        engine = self._engine
        runs: dict[str, list[Run]] = defaultdict(list)
        for number in sorted(engine.live - engine.unfenced.keys()):
            job = engine.state.jobs.get(number)
            attempt = job.live if job else None
            if job is None or attempt is None:
                continue
            for i, rank in enumerate(attempt.ranks):
                if not rank.ended:
                    runs[rank.node].append(self._run(job, attempt, i, rank))
        self._runs = dict(runs)
        for record in engine.state.nodes.values():
            self._renumber(record)

    def _renumber(self, record: NodeRecord) -> None:
        runs = self._runs.get(record.id, [])
        if runs != self._told.get(record.id, []) or not record.version:
            self._told[record.id] = runs
            record.version = max(record.version + 1, self._engine.state.seq)
        for run in runs:
            if run.stop:
                self._stops.setdefault(record.id, {}).setdefault((run.job, run.epoch, run.rank), record.version)

    def _run(self, job: JobRecord, attempt: Attempt, index: int, rank: Rank) -> Run:
        request, options = job.request, self._engine.options
        world = len(attempt.ranks)
        same_node = [i for i, r in enumerate(attempt.ranks) if r.node == rank.node]
        lead = self._engine.state.nodes[attempt.ranks[0].node]
        graceful = attempt.stop is None or attempt.stop in GRACEFUL
        return Run(
            job=job.number,
            epoch=attempt.epoch,
            rank=index,
            world=world,
            argv=command_of(request),
            gpus=[rank.gpu],
            group=self._group(job, attempt),
            workdir=request.get("workdir") or "",
            env=dict(request.get("env") or {}) | _batch_env(request) | _container_env(request),
            stop=attempt.stop is not None,
            grace_s=_grace_s(attempt, options.grace_s) if graceful else options.kill_grace_s,
            local_rank=same_node.index(index),
            local_world=len(same_node),
            master_addr=lead.address,
            master_port=attempt.port,
            checkpoint_s=float(request.get("checkpoint_s") or 60.0),
            memory_bytes=float(request.get("memory") or 0.0) / world,
            total_steps=request.get("iterations"),
            merge=merge_key(request, job.owner, job.project) if attempt.merge and world == 1 else "",
        )

    def _group(self, job: JobRecord, attempt: Attempt) -> GroupInfo:
        groups = self._engine.state.groups
        if attempt.stop is None and groups.of_job.get(job.number) == attempt.gpus:
            return groups.by_gpus[attempt.gpus]
        # It is on its way out: it waits for nobody's turn, and others wait for its GPUs.
        return GroupInfo(f"left-{job.number}-{attempt.epoch}", members=[Mate(job.number, 0, len(attempt.ranks))])


def _container_env(request: Mapping[str, Any]) -> dict[str, str]:
    """The image in which agents run the job."""
    return {CONTAINER_VARIABLE: request["container"]} if request.get("container") else {}


def _batch_env(request: Mapping[str, Any]) -> dict[str, str]:
    """The bounds of the batch for the training library, which may have been given others by the script."""
    limits = limits_of(request)
    return {} if limits is None else {BATCH_VARIABLE: json.dumps(asdict(limits))}


def _grace_s(attempt: Attempt, usual_s: float) -> float:
    """Time for the checkpoint of an attempt that is told to stop: the usual one, unless its node goes before."""
    return usual_s if attempt.grace_s is None else min(usual_s, attempt.grace_s)
