"""Possible choices, the outcomes of the jobs, and how many choices compete in rounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from plait.core.arrays import FloatArray, IntArray
from plait.core.cluster import Cluster
from plait.policies.catalog import rows

#: Of the policies of a round a third continues (Jamieson and Talwalkar, AISTATS 2016: successive halving).
KEEP = 3
#: Knowledge that a policy may have without the users' help.
KNOWN_ANYWAY = ("nothing", "GPU count", "demands", "distribution of past sizes")


@dataclass(frozen=True)
class Choice:
    """A policy on a cluster. `kind` is what was changed: `policy`, `size` or `quota`, or "" for what was used."""

    kind: str
    label: str
    policy: str
    cluster: Cluster

    @property
    def oracle(self) -> bool:
        """Whether the policy needs knowledge from users, such as the work of their jobs."""
        row = rows().get(self.policy.partition(":")[0])
        return row is not None and row.knows not in KNOWN_ANYWAY


@dataclass(frozen=True, eq=False)
class Outcome:
    """Jobs that count, by row of the past, with seconds from submission to end and to the first start (jobs,).

    `gpu_h` is what the cluster had and `busy_gpu_h` what jobs had, from the first submission to the last end.
    `hours` are between these. `preemptions` and `lost_gpu_h` (work thrown away) are of all jobs. `unfinished` jobs
    count, and did not end.
    """

    rows: IntArray
    jct_s: FloatArray
    start_s: FloatArray
    queue_s: FloatArray
    hours: float
    gpu_h: float
    busy_gpu_h: float
    preemptions: int
    lost_gpu_h: float
    unfinished: int = 0


@dataclass(frozen=True)
class Plan:
    """How many choices each round has, and on how many jobs."""

    rounds: tuple[tuple[int, int], ...]

    @property
    def simulated(self) -> int:
        """Jobs simulated in all."""
        return sum(choices * jobs for choices, jobs in self.rounds)


def planned(choices: int, always: int, jobs: int, budget: int) -> Plan:
    """Rounds in which a third of the `choices` continues, in addition to `always` that are in the last one in any case.

    Every round has an equal part of the `budget` of simulated jobs, of a past of so many `jobs`.

    >>> planned(20, 0, 100_000, 90_000).rounds
    ((20, 1500), (7, 4285), (3, 10000))
    >>> planned(20, 0, 1000, 90_000).rounds
    ((20, 1000),)
    """
    if (choices + always) * jobs <= budget:
        return Plan(((choices + always, jobs),))
    counts = [choices]
    while counts[-1] > KEEP:
        counts.append(max(KEEP, math.ceil(counts[-1] / KEEP)))
    share = budget // len(counts)
    sizes = [count + (always if i == len(counts) - 1 else 0) for i, count in enumerate(counts)]
    return Plan(tuple((size, max(1, min(jobs, share // size))) for size in sizes))


def in_rounds(
    plan: Plan,
    choices: Sequence[Choice],
    always: Sequence[Choice],
    score: Callable[[Outcome], float],
    simulated: Callable[[Sequence[Choice], int], list[Outcome]],
) -> dict[Choice, tuple[int, Outcome]]:
    """The last outcome of each choice and the round it is of, from 1; the lowest `score`s are in the last round.

    `always` are simulated in the last round only, and do not compete. `simulated(choices, jobs)` gives the outcome of
    each on so many jobs.
    """
    found: dict[Choice, tuple[int, Outcome]] = {}
    left = list(choices)
    for number, (_, jobs) in enumerate(plan.rounds, start=1):
        last = number == len(plan.rounds)
        if number > 1:
            left = sorted(left, key=lambda one: score(found[one][1]))[: plan.rounds[number - 1][0] - last * len(always)]
        group = [*left, *(always if last else ())]
        for choice, outcome in zip(group, simulated(group, jobs), strict=True):
            found[choice] = number, outcome
    return found


def mean_jct_s(outcome: Outcome) -> float:
    """Mean seconds from submission to end; infinite if a job that counts did not end."""
    return math.inf if outcome.unfinished or not len(outcome.rows) else float(outcome.jct_s.mean())
