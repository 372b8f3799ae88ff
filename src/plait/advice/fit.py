"""Whether a past can be simulated: its own policy, simulated, compared with its record."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from plait.advice.choices import Choice, Outcome, in_rounds, planned
from plait.advice.past import Past
from plait.advice.simulations import Simulations
from plait.core.errors import SimulationError

#: Mean completion times that differ by more are no basis for advice.
TOLERANCE = 0.05
#: Common policies of cluster schedulers, among which the used one is searched.
COMMON = (
    "fifo", "fifo-backfill", "fifo-backfill:reserve_after_s=3600", "fifo-backfill:reserve_after_s=86400", "sjf",
    "drf", "knapsack",
)  # fmt: skip


class Unfaithful(SimulationError):
    """The past cannot be simulated closely enough to learn from it."""


@dataclass(frozen=True)
class Fit:
    """The policy taken as the one that was used, and its difference from the record.

    `given`: whether the user named it. Times are means over the `jobs` that count, in seconds; `others` are the errors
    of other policies, by name.
    """

    choice: Choice
    given: bool
    jobs: int
    simulated_s: float
    recorded_s: float
    simulated_queue_s: float
    recorded_queue_s: float
    others: tuple[tuple[str, float], ...] = ()

    @property
    def error(self) -> float:
        """Simulated over recorded mean completion time, minus one."""
        return self.simulated_s / self.recorded_s - 1.0

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "policy": self.choice.policy, "given": self.given, "jobs": self.jobs, "error": self.error,
            "tolerance": TOLERANCE, "simulated_mean_jct_s": self.simulated_s, "recorded_mean_jct_s": self.recorded_s,
            "simulated_mean_wait_s": self.simulated_queue_s, "recorded_mean_wait_s": self.recorded_queue_s,
            "other_policies": dict(self.others),
        }  # fmt: skip


def fitted(simulations: Simulations, policies: Sequence[str], *, given: bool, budget: int) -> Fit:
    """The one of `policies` whose simulated mean completion time is closest to the recorded one."""
    past = simulations.past
    choices = [Choice("", policy, policy, past.cluster) for policy in policies]

    def error(outcome: Outcome) -> float:
        return abs(_error(past, outcome))

    plan = planned(len(choices), 0, len(past.jobs), budget)
    found = in_rounds(plan, choices, (), error, simulations.of)
    last = max(number for number, _ in found.values())
    rivals = [choice for choice, (number, _) in found.items() if number == last]
    best = min(rivals, key=lambda choice: error(found[choice][1]))
    outcome = found[best][1]
    rows = outcome.rows
    others = tuple((one.policy, _error(past, result)) for one, (_, result) in found.items() if one != best)
    return Fit(
        best, given, len(rows), float(outcome.jct_s.mean()) if len(rows) else math.nan,
        float(past.jct_s[rows].mean()) if len(rows) else math.nan,
        float(outcome.start_s.mean()) if len(rows) else math.nan,
        float((past.start_s - past.jobs.submit_s)[rows].mean()) if len(rows) else math.nan, others,
    )  # fmt: skip


def _error(past: Past, outcome: Outcome) -> float:
    """Relative error of the mean completion time; infinite if jobs do not end."""
    if outcome.unfinished or not len(outcome.rows):
        return math.inf
    return float(outcome.jct_s.mean() / past.jct_s[outcome.rows].mean()) - 1.0


def refuse_unfaithful(past: Past, fit: Fit) -> None:
    """Raise `Unfaithful` with what may be missing, if the error is larger than `TOLERANCE`."""
    if abs(fit.error) <= TOLERANCE:
        return
    said = "as given" if fit.given else "the closest of those tried"
    lines = [
        (
            f"no advice: {fit.choice.policy} ({said}) on {past.cluster} gives a mean completion time of "
            f"{fit.simulated_s / 3600:.2f} h, and {fit.recorded_s / 3600:.2f} h happened ({fit.error:+.1%}; at most "
            f"{TOLERANCE:.0%} would do)"
        ),
        *(f"  {policy}: {error:+.1%}" for policy, error in fit.others),
        "what may be missing:",
        *(f"  {gap}" for gap in past.gaps),
    ]
    if any(remark.startswith("cluster inferred") for remark in past.remarks):
        lines.append("  the size of the cluster, which was inferred; give it with --cluster")
    elif fit.error < 0:
        lines.append("  GPUs that were down, reserved, or in use by others; a smaller --cluster stands for them")
    lines.append(
        "  the policy, which can be named with --policy" if not fit.given else "  the policy may have had other options"
    )
    raise Unfaithful("\n".join(lines))
