"""`python -m plait.dashboard.foresee`: reads the answer of `GET /v1/state`, prints a forecast as JSON."""

from __future__ import annotations

import json
import math
import sys
from typing import Any

from plait.core.errors import PlaitError


def main() -> int:
    """Read, simulate, print; `missing` has the reason if the simulation is impossible."""
    print(json.dumps(foreseen(json.load(sys.stdin)), allow_nan=False))
    return 0


def foreseen(state: dict[str, Any]) -> dict[str, Any]:
    """The fields of `plait.dashboard.outlook.Outlook`."""
    from plait.outlook.queue import foresee

    try:
        found = foresee(state)
    except Exception as error:  # a policy's module may raise anything when it is imported here
        why = str(error) if isinstance(error, PlaitError) else f"{type(error).__name__}: {error}"
        return {"missing": f"the queue cannot be simulated: {why}"}
    if found is None:
        return {"missing": "no node has joined yet"}
    jobs, last = {}, [0.0, 0.0, 0.0]
    for job, eta in found.honest.etas.items():
        end = eta.end.said_json()
        jobs[str(job)] = {"start": None if eta.start is None else eta.start.said_json(), "end": end}
        last = [max(latest, math.inf if s is None else s) for latest, s in zip(last, end, strict=True)]
    return {
        "now_s": found.honest.now_s, "jobs": jobs, "assumptions": list(found.honest.assumptions),
        "empty": [round(s, 3) if math.isfinite(s) else None for s in last],
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
