"""The promises that every policy must keep: small seeded runs, one check per promise.

`plait policy check MODULE:NAME` runs these on a user's policy, the tests run them on the whole catalog. A
workload is small (about a dozen jobs) and drawn from a seed, so every failure can be reproduced; its detail
names the seed, the time and the job. Start reading at `promises.CONTRACTS`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from plait.sim.contract.promises import CONTRACTS, Contract
from plait.sim.contract.runs import BrokenPromise, Make, Played, play, what_it_said
from plait.sim.contract.workloads import (
    CLUSTERS,
    COSTLY,
    IDEAL,
    Workload,
    adaptive_jobs,
    outages,
    random_jobs,
)  # fmt: skip

__all__ = [
    "CLUSTERS", "CONTRACTS", "COSTLY", "IDEAL", "BrokenPromise", "CheckResult", "Contract", "Make", "Played",
    "Workload", "adaptive_jobs", "check_policy", "outages", "play", "random_jobs",
]  # fmt: skip


class CheckResult(NamedTuple):
    """One promise: kept or not, and how to reproduce a failure; `reason` is the failure without time and place."""

    name: str
    ok: bool
    detail: str
    reason: str = ""


def check_policy(make: Make, *, seed: int = 0, only: Sequence[str] | None = None) -> Iterator[CheckResult]:
    """Check the promises in `CONTRACTS` one by one, or those named in `only`.

    `make` builds a fresh, equal policy each time; `seed` draws the workloads. Never raises for an
    error of the policy: its exceptions are broken promises.
    """
    for contract in CONTRACTS:
        if only is not None and contract.name not in only:
            continue
        try:
            contract.check(make, seed)
        except Exception as error:
            cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
            yield CheckResult(contract.name, False, f"{what_it_said(error)} (seed {seed})", what_it_said(cause))
        else:
            yield CheckResult(contract.name, True, "")
