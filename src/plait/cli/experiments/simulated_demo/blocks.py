"""The comparisons of the simulated demo: what order, turns, sizes by goodput, and guests are worth.

A sentence compares policies that know the same about jobs, or names what the better one knows more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from plait.control.metrics import RunResult
from plait.core.arrays import BoolArray
from plait.policies.catalog import rows

#: Files of jobs; and the jobs of the first without something, by what the table then adds to the policy.
JOBS, ADAPTIVE = "jobs.csv", "adaptive.csv"
NO_PROFILES, NO_GUESTS = "no stage profiles", "no guests"

Run = tuple[str, str]
"""A policy, and its jobs: one of the names above."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of one run: seconds, and the share of GPU time that is held."""

    mean_s: float
    p99_s: float
    last_s: float
    held: float
    guaranteed_s: float
    opportunistic_s: float

    @classmethod
    def of(cls, result: RunResult, opportunistic: BoolArray | None) -> Figures:
        """Figures of `result`; `opportunistic`: which of its jobs are (n,), None for jobs without classes."""
        one = {
            name: float(result.summary[name]) for name in ("avg_jct_s", "p99_jct_s", "makespan_s", "gpu_utilisation")
        }
        jct_s = np.asarray(result.jobs["jct_s"], dtype=np.float64)
        low = np.zeros(len(jct_s), dtype=bool) if opportunistic is None else opportunistic
        means = [float(jct_s[which].mean()) if which.any() else float("nan") for which in (~low, low)]
        return cls(*one.values(), *means)


Column = Callable[[Figures], str]
COLUMNS: Mapping[str, Column] = {
    "mean JCT": lambda f: f"{f.mean_s / 60:,.0f}",
    "p99 JCT": lambda f: f"{f.p99_s / 60:,.0f}",
    "all done": lambda f: f"{f.last_s / 60:,.0f}",
    "GPUs held": lambda f: f"{f.held:.0%}",
    "guaranteed": lambda f: f"{f.guaranteed_s / 60:,.0f}",
    "opportunistic": lambda f: f"{f.opportunistic_s / 60:,.0f}",
}
USUAL = ("mean JCT", "p99 JCT", "all done", "GPUs held")


@dataclass(frozen=True, slots=True)
class Block:
    """A comparison: its heading, its runs as the table lists them, columns, and the sentences below the table."""

    heading: str
    runs: tuple[Run, ...]
    sentences: Callable[[Mapping[Run, Figures]], str]
    columns: tuple[str, ...] = USUAL

    def table(self, figures: Mapping[Run, Figures]) -> tuple[tuple[str, ...], list[list[str]]]:
        """Headings and rows of the table."""
        lines = [
            [label(run), knowledge(run), *(COLUMNS[name](figures[run]) for name in self.columns)] for run in self.runs
        ]
        return ("policy", "knows", *(f">{name}" for name in self.columns)), lines


def label(run: Run) -> str:
    """The policy, and what its jobs lack.

    >>> label(("muri-l", NO_PROFILES)), label(("srtf", JOBS))
    ('muri-l, no stage profiles', 'srtf')
    """
    policy, jobs = run
    return f"{policy}, {jobs}" if jobs in (NO_PROFILES, NO_GUESTS) else policy


def knowledge(run: Run) -> str:
    """The policy's knowledge about these jobs.

    >>> knowledge(("muri-s", JOBS)), knowledge(("muri-s", NO_PROFILES)), knowledge(("muri-l", NO_PROFILES))
    ('remaining time, stage profiles', 'remaining time', 'nothing')
    """
    policy, jobs = run
    known = rows()[policy.partition(":")[0]].knows.split(", ")
    return ", ".join(each for each in known if jobs != NO_PROFILES or each != "stage profiles") or "nothing"


def _order(f: Mapping[Run, Figures]) -> str:
    fifo, learnt, known = (f[policy, JOBS].mean_s for policy in ("fifo", "tiresias-l", "srtf"))
    return (
        f"Order: the mean job takes {learnt / fifo:.2f} of fifo's time under tiresias-l, which knows "
        f"nothing either, and {known / fifo:.2f} under srtf, which knows how long each job takes."
    )


def _turns(f: Mapping[Run, Figures]) -> str:
    ratios = []
    for policy in ("muri-l", "muri-s"):
        new, old = f[policy, JOBS], f[policy, NO_PROFILES]
        mean, p99, last = new.mean_s / old.mean_s, new.p99_s / old.p99_s, new.last_s / old.last_s
        ratios.append(
            f"under {policy} the mean is {mean:.2f} of that without profiles, p99 {p99:.2f}, all done {last:.2f}"
        )
    return (
        "Interleaving: jobs with stage profiles that need different resources share GPUs and take turns; "
        f"{', and '.join(ratios)}."
    )


def _goodput(f: Mapping[Run, Figures]) -> str:
    fixed, adapted = f["tiresias-l", ADAPTIVE], f["pollux", ADAPTIVE]
    return (
        "Goodput: pollux gives each job the GPUs and the batch with which it learns fastest, by what it "
        f"measures of itself; the mean job takes {adapted.mean_s / fixed.mean_s:.2f} of its time at the size that its "
        "user requested."
    )


def _guests(f: Mapping[Run, Figures]) -> str:
    guests, none, alone = f["antman", JOBS], f["antman", NO_GUESTS], f["fifo-backfill", JOBS]
    return (
        "Guests: opportunistic jobs run on what guaranteed ones leave of their GPUs; the mean job takes "
        f"{guests.mean_s / alone.mean_s:.2f} of its time under fifo-backfill (guaranteed jobs "
        f"{guests.guaranteed_s / alone.guaranteed_s:.2f}, opportunistic ones "
        f"{guests.opportunistic_s / alone.opportunistic_s:.2f}), and {guests.mean_s / none.mean_s:.2f} of "
        "its time under antman without guests."
    )


BLOCKS = (
    Block(
        "1. One queue, each GPU for one job",
        tuple((policy, JOBS) for policy in ("fifo", "fifo-backfill", "tiresias-l", "srtf")),
        _order,
    ),
    Block(
        "2. The same jobs, taking turns on storage, CPU, GPU and network",
        (
            ("tiresias-l", JOBS), ("muri-l", NO_PROFILES), ("muri-l", JOBS),
            ("srtf", JOBS), ("muri-s", NO_PROFILES), ("muri-s", JOBS),
        ),
        _turns,
    ),
    Block(
        "3. Jobs that adapt their batch to the number of GPUs",
        (("tiresias-l", ADAPTIVE), ("pollux", ADAPTIVE)),
        _goodput,
    ),
    Block(
        "4. The jobs of 1; half of them are opportunistic and may be guests on GPUs of the others",
        (("fifo-backfill", JOBS), ("antman", NO_GUESTS), ("antman", JOBS)),
        _guests,
        ("mean JCT", "guaranteed", "opportunistic", "all done", "GPUs held"),
    ),
)  # fmt: skip
