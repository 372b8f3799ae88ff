"""Options of Slurm allocations: the options of `plait up --backend slurm`, read and checked."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from plait.core.errors import InputError
from plait.core.options import declared, option
from plait.live.backends.slurm.plan import Limits


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
            idle_s=_seconds(given, "idle", cls.idle_s),
            notice_s=_seconds(given, "notice", cls.notice_s),
            replace_s=_seconds(given, "replace", cls.replace_s),
            look_s=_seconds(given, "look", cls.look_s),
            sbatch=tuple(shlex.split(words) if isinstance(words, str) else map(str, words)),
        )
        if options.min_nodes > options.max_nodes:
            raise InputError(f"min-nodes={options.min_nodes} is more than max-nodes={options.max_nodes}")
        return options

    @property
    def limits(self) -> Limits:
        """The limits for the plan."""
        return Limits(self.gpus, self.min_nodes, self.max_nodes, self.idle_s)


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


def _seconds(given: Mapping[str, Any], name: str, default: float) -> float:
    value = given.get(name)
    try:
        number = default if value is None else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not 0 <= number < math.inf:
        raise InputError(f"{name}={value} of --backend slurm; needs seconds, at least 0")
    return number


#: Options as `-o NAME=VALUE`; options of `plait up` that count here, too; and options for other backends.
OWN = tuple(one.word for one in declared(SlurmOptions))
OPTIONS = frozenset((*OWN, "gpus-per-node", "fake"))
OTHERS = frozenset(("backend", "nodes", "address"))
