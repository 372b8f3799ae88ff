"""The turns of jobs that share GPUs in lock step, and formula (3) of Muri (section 4): how long an iteration takes.

In slot s the job of turn t is on resource (s + t) mod k, and a slot is as long as its longest stage. These are the
plain forms, on the standard library alone, which agents and reports call too. The forms for many groups at once are
`group_times` of `grouping/times.py` and `lock_step_s` of `sim/physics.py`; tests compare them with these.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import permutations, product


@lru_cache(maxsize=256)
def turn_vectors(
    resources: int, jobs: int, idle_slots: bool = True, shared: bool = False
) -> tuple[tuple[int, ...], ...]:
    """All turns of `jobs` jobs that are worth trying, the first job's 0, in lexicographic order.

    Distinct unless `shared`. Without `idle_slots` the occupied turns are neighbours, as formula (3) is printed.

    >>> turn_vectors(4, 2), turn_vectors(4, 2, idle_slots=False)
    (((0, 1), (0, 2), (0, 3)), ((0, 1), (0, 3)))
    >>> len(turn_vectors(4, 3)), len(turn_vectors(4, 4)), len(turn_vectors(4, 5))
    (6, 6, 0)
    """
    rest = product(range(resources), repeat=jobs - 1) if shared else permutations(range(1, resources), jobs - 1)
    vectors = ((0, *others) for others in rest)
    return tuple(v for v in vectors if idle_slots or _neighbours(v, resources))


def _neighbours(turns: tuple[int, ...], resources: int) -> bool:
    used = set(turns)
    return any(all((start + i) % resources in used for i in range(len(used))) for start in used)


def slots_s(stage_s: Sequence[Sequence[float]], turns: Sequence[int]) -> list[float]:
    """Seconds of each slot of one iteration of a group.

    `stage_s` has a row of seconds on each of k resources for every job, `turns` the turn of each job. Returns k values.

    >>> slots_s([(1, 2, 0, 0), (0, 3, 1, 0)], (0, 1))
    [3, 2, 0, 0]
    """
    k = len(stage_s[0])
    members = list(zip(stage_s, turns, strict=True))
    return [max([row[(slot + turn) % k] for row, turn in members]) for slot in range(k)]


def lock_step_s(stage_s: Sequence[Sequence[float]], turns: Sequence[int]) -> float:
    """Formula (3): seconds of one iteration of a group, the sum of `slots_s`.

    >>> pair = [(2, 0.5, 1, 0.5), (0.5, 1, 2, 0.5)]
    >>> lock_step_s(pair, (0, 1)), lock_step_s(pair, (0, 2))
    (5.5, 4.5)
    """
    total = 0.0  # not sum(): CPython 3.12 compensates it, and the kernels do not
    for slot in slots_s(stage_s, turns):
        total += slot
    return total
