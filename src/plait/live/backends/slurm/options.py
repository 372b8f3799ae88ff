"""How allocations of Slurm are asked for: the options of `plait up --backend slurm`, read and checked."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from plait.core.errors import InputError
from plait.live.backends.slurm.plan import Limits

#: Options of ours; and those of `plait up` for other backends, which it may remember.
OPTIONS = frozenset(
    ("gpus-per-node", "fake", "partition", "time-limit", "min-nodes", "max-nodes", "idle", "notice", "replace", "look",
     "sbatch")
)  # fmt: skip
OTHERS = frozenset(("backend", "nodes", "address"))


@dataclass(frozen=True)
class SlurmOptions:
    """How allocations are asked for; `read` makes it of the options of `plait up`."""

    gpus: int = 1
    cuda: bool = True
    partition: str | None = None
    time_limit: str | None = None
    min_nodes: int = 0
    max_nodes: int = 4
    idle_s: float = 300.0
    notice_s: float = 60.0
    replace_s: float = 900.0
    look_s: float = 5.0
    sbatch: tuple[str, ...] = ()

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> SlurmOptions:
        """Options as `-o NAME=VALUE` gave them; raises InputError for one that cannot be."""
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
        """What the plan needs of it."""
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
