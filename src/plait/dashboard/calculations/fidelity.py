"""`python -m plait.dashboard.calculations.fidelity`: the jobs of a log simulated, compared with measurements.

Reads {rows: entries of `GET /v1/events` from the first one on, round_s}.
"""

from __future__ import annotations

import sys
from typing import Any

from plait.dashboard.calculations import lines

#: Jobs that are shown, largest errors first; reports of progress.
ROWS, STEPS = 200, 20
#: Points of the picture.
POINTS = 2000


def judged(given: dict[str, Any]) -> dict[str, Any]:
    """Errors of all jobs in a few figures, and the jobs that are furthest off; raises `PlaitError`."""
    import numpy as np

    from plait.outlook.fidelity import fidelity
    from plait.outlook.log_replay import read_rows

    rows, entries = given["rows"], []
    for i, row in enumerate(read_rows(rows)):
        entries.append(row)
        if i % max(len(rows) // STEPS, 1) == 0:
            lines.note(i, 2 * len(rows), f"reading entry {i:,} of {len(rows):,}")
    lines.note(len(rows), 2 * len(rows), "simulating the jobs that have finished")
    found = fidelity(entries, round_s=float(given["round_s"]))
    plain = found.to_json()
    errors = np.array([job.error for job in found.jobs])
    off = sorted(plain["jobs"], key=lambda job: -abs(job["error"]))
    predicted, measured = (float(np.mean([job[name] for job in off])) for name in ("predicted_s", "measured_s"))
    return {
        **plain, "jobs": off[:ROWS], "count": len(off),
        "points": [[job["measured_s"], job["predicted_s"]] for job in off[:POINTS]],
        "mean_s": [predicted, measured],
        "mean_error": predicted / measured - 1, "median_error": float(np.median(np.abs(errors))),
        "p90_error": float(np.quantile(np.abs(errors), 0.9)),
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(lines.answer(judged, "the log cannot be simulated"))
