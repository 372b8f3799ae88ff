"""Muri as released: candidates, rounds of matching, guard, speeds and placement.

Two names for two things: a *node* is what the matching pairs, one job at first and a group later; a *bucket*
holds the candidates of one GPU count, for only jobs of equal size share GPUs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from plait.core.arrays import FloatArray, IntArray
from plait.core.jit import kernel
from plait.grouping.matching import maximum_weight_matching
from plait_papers.muri.artifact.matching import tied_matching
from plait_papers.muri.artifact.queues import Queues
from plait_papers.muri.artifact.speeds import INTERFERENCE, SLOTS, UNMATCHED_INTERFERENCE, Profiles, kinds_of
from plait_papers.muri.artifact.state import Rule, State
from plait_papers.muri.artifact.trace import ArtifactTrace
from plait_papers.muri.artifact.yarn import GPUS, candidates, fits, lay_out
from plait_papers.muri.noise_model import NoisyProfiles

# Lists of groups while the artifact's Muri makes them, and what its steps do to such a list.


class Nodes(NamedTuple):
    """Groups in order: jobs (groups, 4), of which the first `size` of a row count."""

    members: IntArray
    size: IntArray

    @classmethod
    def singles(cls, jobs: IntArray) -> Nodes:
        """One node a job."""
        members = np.zeros((len(jobs), SLOTS), dtype=np.int64)
        members[:, 0] = jobs
        return cls(members, np.ones(len(jobs), dtype=np.int64))

    @classmethod
    def joined(cls, parts: list[Nodes]) -> Nodes:
        if len(parts) == 1:
            return parts[0]
        return cls(np.concatenate([p.members for p in parts]), np.concatenate([p.size for p in parts]))


@kernel
def merge(
    members: IntArray, size: IntArray, mate: IntArray, need: int, gpus: int, capacity: int
) -> tuple[IntArray, IntArray, int]:
    """Merge matched nodes while more than `capacity` GPUs are needed.

    The nodes of the next round, in order, and the GPUs needed now. A pair comes where its later node was.
    """
    n = len(size)
    new_members, new_size = np.zeros_like(members), np.zeros_like(size)
    count = 0
    for u in range(n):
        v = mate[u]
        if v > u:
            continue
        if v >= 0 and need > capacity:
            new_members[count] = members[v]
            for i in range(size[u]):
                new_members[count, size[v] + i] = members[u, i]
            new_size[count] = size[v] + size[u]
            need -= gpus
            count += 1
            continue
        if v >= 0:
            new_members[count], new_size[count] = members[v], size[v]
            count += 1
        new_members[count], new_size[count] = members[u], size[u]
        count += 1
    return new_members[:count], new_size[:count], need


@kernel
def split_slow(
    members: IntArray, size: IntArray, times_s: FloatArray, iteration_s: FloatArray
) -> tuple[IntArray, IntArray]:
    """The groups `members` (groups, 4) of `size` jobs, in order; a group slower than its jobs in sequence is split.

    `times_s` (groups,) are seconds of an iteration, `iteration_s` (jobs,) seconds alone.
    """
    total = 0
    for u in range(len(size)):
        total += size[u]
    new_members, new_size = np.zeros((total, members.shape[1]), dtype=np.int64), np.zeros(total, dtype=np.int64)
    count = 0
    for u in range(len(size)):
        alone_s = 0.0
        for i in range(size[u]):
            alone_s += iteration_s[members[u, i]]
        if size[u] > 1 and times_s[u] / alone_s > 1.0:
            for i in range(size[u]):
                new_members[count, 0], new_size[count] = members[u, i], 1
                count += 1
        else:
            new_members[count], new_size[count] = members[u], size[u]
            count += 1
    return new_members[:count], new_size[:count]


@kernel
def share(
    members: IntArray,
    size: IntArray,
    times_s: FloatArray,
    iteration_s: FloatArray,
    overhead_s: FloatArray,
    group: IntArray,
    current_s: FloatArray,
    charge_s: FloatArray,
    mates: IntArray,
) -> None:
    """Write `group`, `current_s`, `charge_s` and `mates` of every member of every group, columns by job.

    `members` (groups, 4) with `size` jobs each; `times_s` (groups,) and `iteration_s`, `overhead_s` (jobs,) in seconds.
    """
    for u in range(len(size)):
        charge = 0.0
        for i in range(size[u]):
            charge += overhead_s[members[u, i]]
        together = np.sort(members[u, : size[u]])
        for i in range(size[u]):
            job = members[u, i]
            group[job], charge_s[job] = u, charge
            current_s[job] = times_s[u] if size[u] > 1 else iteration_s[job]
            for k in range(mates.shape[1]):
                mates[job, k] = together[k] if k < size[u] else -1


Matching = Callable[[FloatArray], IntArray]
MATCHINGS: dict[str, Matching] = {"artifact": tied_matching, "exact": maximum_weight_matching}

REMEMBERED = 20_000
"""Matchings kept; candidates often stay the same from one event to the next."""


@dataclass(frozen=True)
class MuriOptions:
    """Options of the artifact's Muri; the defaults are the released commit's.

    unpack: split groups that run slower than their members one after another (the flag `autopack`). max_jobs: maximum
    jobs in a group. ordering: the best or the worst arrangement of a group's jobs. blossom: group by matching; off
    takes jobs in priority order. order: muri-l by attained service, continuous or in Tiresias' three queues. matching:
    with the artifact's tie rules, or plait's own exact one, which has the same weight. interference: groups run slower
    than their stages predict.
    """

    unpack: bool = True
    max_jobs: int = 4
    ordering: str = "best"
    blossom: bool = True
    order: str = "continuous"
    matching: str = "artifact"
    interference: bool = True


class Muri(Rule):
    """Jobs of equal GPU count take turns on the same GPUs, by matching."""

    joint = 1e-9
    joint_s = 1e-4

    def __init__(
        self, trace: ArtifactTrace, options: MuriOptions, *, duration_known: bool, seen: ArtifactTrace | None = None
    ) -> None:
        """For one run of `trace`; `duration_known` makes it Muri-S, else Muri-L. `seen`: what it believes."""
        self.options, self.duration_known = options, duration_known
        self.profiles = Profiles.from_trace(trace if seen is None else seen)
        self.truth = self.profiles if seen is None else NoisyProfiles(trace, seen)
        factor = (INTERFERENCE if options.blossom else UNMATCHED_INTERFERENCE) if options.interference else (1.0,) * 5
        self.factor = np.array(factor)
        self.worst = options.ordering == "worst"
        self.match = MATCHINGS[options.matching]
        self.matched: dict[bytes, IntArray] = {}
        self.overhead_s = trace.overhead_s
        n = len(trace)
        self.queues = Queues(np.zeros(n, dtype=np.int64)) if options.order == "discretised" else None
        self.key = np.zeros(n)
        self.group = np.full(n, -1, dtype=np.int64)

    # -- the queues of the variant on Tiresias' order ------------------------------------------------------------

    def due_s(self, state: State) -> float:
        """The next demotion, if there are queues."""
        return self.queues.due_s(state) if self.queues else math.inf

    def arrive(self, state: State, jobs: IntArray) -> None:
        """To the end of the first queue."""
        if self.queues:
            self.queues.arrive(jobs)

    def leave(self, state: State, jobs: IntArray) -> None:
        """Out of their queues."""
        if self.queues:
            self.queues.leave(jobs)

    def advanced(self, state: State) -> None:
        """Demote the jobs that have used up the time of their queue."""
        if self.queues:
            self.queues.demote(state)

    # -- the decision --------------------------------------------------------------------------------------------

    def decide(self, state: State) -> None:
        """Candidates, rounds of matching, guard, and placement, in the order of the artifact."""
        gpus = state.trace.gpus
        ordered = self._ordered(state)
        jobs, bucket = candidates(ordered, gpus, self.options.max_jobs)
        bounds = [0, *(np.flatnonzero(np.diff(bucket)) + 1).tolist(), len(jobs)]
        buckets = [Nodes.singles(jobs[a:b]) for a, b in pairwise(bounds) if b > a]
        need = int(gpus[jobs].sum())
        grouped = self._rounds if self.options.blossom else self._in_order
        groups = Nodes.joined(grouped(buckets, gpus, need)) if buckets else Nodes.singles(jobs)
        if self.options.unpack:
            # Step 4: split what runs slower than its members in turn; then in order of key, what fits.
            times_s = self.profiles.times(groups.members, groups.size, self.factor)
            members, size = split_slow(groups.members, groups.size, times_s, state.trace.iteration_s)
            key = np.where(np.arange(SLOTS) < size[:, None], self.key[members], np.inf).min(axis=1)
            order = np.argsort(key, kind="stable")
            order = order[fits(state.trace.gpus[members[order, 0]])]
            groups = Nodes(members[order], size[order])
        self._start(groups, state)
        if self.queues:
            self.queues.running_first(state.running)

    def _ordered(self, state: State) -> IntArray:
        """Step 1: the list in priority order; `key` is what it is sorted by."""
        trace, jobs = state.trace, state.listed
        if self.queues:
            ranked = self.queues.ranked
            self.key[ranked] = np.arange(len(ranked), dtype=np.float64)
            return ranked
        if self.duration_known:
            left_s = np.where(
                state.has_run[jobs], state.remaining[jobs] * trace.iteration_s[jobs], trace.duration_s[jobs]
            )
            key: FloatArray = left_s * trace.gpus[jobs]
        else:
            key = state.attained_s[jobs] * trace.gpus[jobs]
        self.key[jobs] = key
        state.listed = jobs[np.argsort(key, kind="stable")]
        return state.listed

    def _rounds(self, buckets: list[Nodes], gpus: IntArray, need: int) -> list[Nodes]:
        """Step 3: match and merge, until what is left fits or groups can grow no more."""
        for _ in range(self.options.max_jobs):
            merged = []
            for nodes in buckets:
                mate = self._mates(nodes)
                members, size, need = merge(nodes.members, nodes.size, mate, need, int(gpus[nodes.members[0, 0]]), GPUS)
                merged.append(Nodes(members, size))
            buckets = merged
            if need <= GPUS:
                break
        return buckets

    def _mates(self, nodes: Nodes) -> IntArray:
        """The matching of one bucket; it depends on the profiles of the nodes in order and on nothing else."""
        if len(nodes.size) < 2:
            return np.full(len(nodes.size), -1, dtype=np.int64)
        kinds = kinds_of(nodes.members, nodes.size, self.profiles.of).tobytes()
        mate = self.matched.get(kinds)
        if mate is None:
            if len(self.matched) >= REMEMBERED:
                self.matched.clear()
            weights = self.profiles.weights(
                nodes.members, nodes.size, self.options.max_jobs, self.factor, worst=self.worst
            )
            mate = self.matched[kinds] = self.match(weights)
        return mate

    def _in_order(self, buckets: list[Nodes], gpus: IntArray, need: int) -> list[Nodes]:
        """Without matching: slots of `max_jobs` jobs in priority order, filled while GPUs are short."""
        out = []
        for nodes in buckets:
            size = int(gpus[nodes.members[0, 0]])
            for slot in _slices(nodes.members[:, 0], self.options.max_jobs):
                taken = 0
                while taken < len(slot) and need > GPUS:
                    need -= size if taken else 0
                    taken += 1
                out.append(Nodes.singles(slot[taken:]))
                if taken:
                    row = np.zeros((1, SLOTS), dtype=np.int64)
                    row[0, :taken] = slot[:taken]
                    out.append(Nodes(row, np.array([taken])))
        return out

    def _start(self, groups: Nodes, state: State) -> None:
        """Steps 5 and 6: speeds and overheads of each group, and who is placed, large jobs first."""
        trace = state.trace
        times_s = self.truth.times(groups.members, groups.size, self.factor, worst=self.worst)
        self.group[:] = -1
        share(
            groups.members,
            groups.size,
            times_s,
            trace.iteration_s,
            self.overhead_s,
            self.group,
            state.current_s,
            state.charge_s,
            state.mates,
        )
        listed = state.listed
        state.listed = listed[np.argsort(-trace.gpus[listed], kind="stable")]
        lay_out(state.listed, self.group, trace.gpus, state.running, state.where)


def _slices(jobs: IntArray, length: int) -> Iterator[IntArray]:
    return (jobs[i : i + length] for i in range(0, len(jobs), length))
