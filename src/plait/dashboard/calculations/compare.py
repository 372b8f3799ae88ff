"""`python -m plait.dashboard.calculations.compare`: another policy compared with the current one.

Reads {state: the answer of `GET /v1/state`, policy, seconds}; the calculation uses so many seconds and finishes the
run that it has begun.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from plait.dashboard.calculations import lines

#: Pairs of runs, and open jobs up to which the queue is simulated to its end; rows that are shown.
RUNS, MOST_JOBS, ROWS = 8, 1000, 300


def compared(given: dict[str, Any]) -> dict[str, Any]:
    """The decisions of both policies and what the simulations ended with; raises `PlaitError`."""
    from plait.outlook import queue as both
    from plait.outlook.queue import controller_of

    until_s = time.monotonic() + float(given["seconds"])
    state, policy = given["state"], str(given["policy"])
    lines.note(0, RUNS + 1, "asking both policies")
    makes = controller_of(state), both.under(state, policy)
    numbers = state["job_numbers"]
    now, other = (both.decide(m, p, numbers) for m, p in zip(makes, (str(state["policy"]), policy), strict=True))
    rows = both.rows(now, other)
    found: dict[str, Any] = {
        "policies": [now.policy, other.policy], "counts": [now.counts, other.counts],
        "errors": [now.error, other.error], "rows": rows[:ROWS], "count": len(rows),
        "different": sum(not row["same"] for row in rows), "at_s": state["asked_s"], "end": None, "no_end": "",
    }  # fmt: skip
    jobs = len(now.actions)
    if now.error or other.error:
        return {**found, "no_end": "a policy that fails cannot be simulated"}
    if jobs > MOST_JOBS:
        return {**found, "no_end": f"{jobs:,} jobs are open; up to {MOST_JOBS:,} are simulated to their end"}
    pairs = []
    for pair in both.runs(state, *makes, RUNS):
        pairs.append(pair)
        lines.note(len(pairs) + 1, RUNS + 1, f"{len(pairs)} of {RUNS} pairs of runs")
        if time.monotonic() > until_s:
            break
    return {**found, "end": both.outcome(pairs)}


if __name__ == "__main__":
    sys.exit(lines.answer(compared, "the policies cannot be compared"))
