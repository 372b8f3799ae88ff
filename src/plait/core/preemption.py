"""When a policy may stop or move a running job: one rule, the same for every policy, simulated and live.

A running job that cannot resume from a checkpoint stays on its GPUs. Any other running job stays on its GPUs while its
known remaining time is at most what stopping it would lose, and while it has run since its start for less than
`runs_for` times that loss: so stops cost a job at most 1 / (1 + `runs_for`) of the time it holds GPUs. The loss is the
work since its last checkpoint and a restart (`JobTable.stop_loss_s`). Cancelling, a lost or drained node, and time
limits are not policies; they stop jobs regardless of this rule.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from plait.core.arrays import BoolArray, FloatArray
from plait.core.codec.values import Codec
from plait.core.errors import InputError, suggest
from plait.core.preemption_kernels import keep

if TYPE_CHECKING:
    from plait.core.jobs import JobTable

#: How many times what a stop loses a job runs before a policy may stop it; `docs/explanation/preemption.md` has the
#: measurements that chose it.
RUNS_FOR = 2.0
_CODEC = Codec(closed=True)


class KeptJobs(NamedTuple):
    """Which jobs stay where they run, one value per row of the job table.

    `rows`: whether a policy may neither stop nor move the job now. `until_s`: when that ends by itself, seconds; inf if
    only the job's end, a checkpoint or an operator can change it. `lasting`: kept because it cannot resume from
    a checkpoint, so probably until it ends. `losses`: whether the cost of stops counts at all.
    """

    rows: BoolArray
    until_s: FloatArray
    lasting: BoolArray
    losses: bool = False

    @property
    def any(self) -> bool:
        """True if at least one job is kept."""
        return bool(self.rows.any())


@dataclass(frozen=True, slots=True)
class PreemptionRule:
    """The jobs that a policy may stop. See the module for the rule in words.

    may_lose_work  jobs that cannot resume from a checkpoint are stopped like others, and lose their work
    runs_for       a job is kept until it has run this many times what a stop loses; 0: no minimum
    finishes       a job is kept if it is known to end within the time that a stop loses; once it has run that long
                   past its expected end, the end counts as unknown

    Raises `InputError` unless `runs_for` is a number >= 0.
    """

    may_lose_work: bool = False
    runs_for: float = RUNS_FOR
    finishes: bool = True

    def __post_init__(self) -> None:
        if not (math.isfinite(self.runs_for) and self.runs_for >= 0):
            raise InputError(f"preemption: runs_for is {self.runs_for!r}; it takes a number >= 0, e.g. {RUNS_FOR:g}")

    @property
    def free(self) -> bool:
        """True if the rule keeps no job except the ones held for a limited time (`keep_until_s`)."""
        return self.may_lose_work and self.runs_for == 0 and not self.finishes

    def kept(self, jobs: JobTable) -> KeptJobs:
        """Which jobs stay where they run now."""
        n, c = len(jobs), jobs.columns
        rows, lasting = np.zeros(n, dtype=np.bool_), np.zeros(n, dtype=np.bool_)
        until_s = np.full(n, -math.inf)
        said = c.get("has_losses")
        losses = said is not None and bool(said[0])
        if losses:
            keep(
                jobs.number, jobs.now_s, self.may_lose_work, float(self.runs_for), self.finishes, c["running_group"],
                c["checkpoints"], c["run_s"], c["saved_run_s"], c["restart_s"], c["last_start_s"], c["keep_until_s"],
                c["iterations"], c["iterations_done"], c["iteration_s"], rows, until_s, lasting,
            )  # fmt: skip
        return KeptJobs(rows, until_s, lasting, losses and not self.free)

    def to_json(self) -> dict[str, Any]:
        """The fields by name."""
        fields: dict[str, Any] = _CODEC.encode(self)
        return fields

    @classmethod
    def from_json(cls, data: Mapping[str, Any] | None) -> PreemptionRule:
        """The rule that `to_json` wrote; the default for None."""
        return _CODEC.decode(cls, data) if data else cls()


#: The rule unless another one is given.
DEFAULT_RULE = PreemptionRule()

#: As published: policies stop and move any job, whatever that loses.
FREELY = PreemptionRule(may_lose_work=True, runs_for=0.0, finishes=False)


#: The rules by name, as the command line has them.
RULES = {"weighed": DEFAULT_RULE, "may-lose-work": PreemptionRule(may_lose_work=True), "freely": FREELY}


def rule_named(name: str) -> PreemptionRule:
    """A rule of `RULES`; `InputError` with the nearest name for any other."""
    if name not in RULES:
        raise InputError(f"unknown preemption rule {name!r}; {suggest(name, RULES)}")
    return RULES[name]
