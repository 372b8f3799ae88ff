"""The record of a rehearsed run."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from plait.training.rehearsal.order import trace_of

Step = dict[str, Any]


@dataclass
class Trace:
    """The records of one rank over all attempts of one run.

    `steps` by their position from 1, the newest where a step was repeated; `resumed`: the position at which each later
    attempt continued; `ends`: how each attempt ended, "" for a killed one; `repeated`: steps taken twice.
    """

    steps: dict[int, Step] = field(default_factory=dict)
    resumed: list[int] = field(default_factory=list)
    ends: list[str] = field(default_factory=list)
    last: Step = field(default_factory=dict)
    repeated: int = 0

    @property
    def length(self) -> int:
        """The number of the last step."""
        return max(self.steps, default=0)

    @property
    def finished(self) -> bool:
        """True if the script came to its own end."""
        return bool(self.ends) and self.ends[-1] == "finished"

    @property
    def batched(self) -> bool:
        """True if some step took a batch of a wrapped loader."""
        return any("batches" in step for step in self.steps.values())


def read_trace(folder: Path, rank: int) -> Trace:
    """The records of a rank below `folder`; an empty trace if the process recorded nothing."""
    trace, path = Trace(), trace_of(folder, rank)
    for text in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            line = json.loads(text)
        except ValueError:  # the process was killed while it wrote
            continue
        if "begin" in line:
            trace.ends.append("")
        elif "resumed" in line:
            if len(trace.ends) > 1:
                trace.resumed.append(line["resumed"])
        elif "end" in line:
            trace.ends[-1], trace.last = line["end"], line
        else:
            trace.repeated += line["n"] in trace.steps
            trace.steps[line["n"]] = line
    return trace
