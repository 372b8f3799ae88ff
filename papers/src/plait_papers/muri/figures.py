"""The paper's figures as data: which traces, which bars, under which settings (Muri, SIGCOMM 2022, section 6).

The published figures mix settings of the guard. Each bar has the setting behind the published one (a cell of
`published.csv` may have another one for a trace and metric) and the consistent one: guard on everywhere, continuous
order, which is the default of the released code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from plait.core.errors import InputError, suggest
from plait_papers.muri import published

METRICS: Mapping[str, str] = {"avg_jct_s": "mean JCT", "makespan_s": "makespan", "p99_jct_s": "p99 JCT"}
TRACES = ("trace1", "trace2", "trace3", "trace4")
AT_ONCE = tuple(f"{name}_pr" for name in TRACES)
LABELS: Mapping[str, str] = {
    **{name: f"trace {name[5]}" for name in TRACES},
    **{f"{name}_pr": f"trace {name[5]}'" for name in TRACES},
    **{f"job_type_{n}": f"{n} job type{'s' if n > 1 else ''}" for n in (1, 2, 3)},
    "cluster_trace": "testbed trace",
}


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar: its name, the setting behind the published one, and the consistent one (the same if empty).

    `over` names the bar its ratio is to.
    """

    name: str
    policy: str
    over: str
    consistent: str = ""


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of the paper, or one group of tables."""

    key: str
    title: str
    traces: tuple[str, ...]
    bars: tuple[Bar, ...]
    metrics: tuple[str, ...]
    note: str = ""

    def setting(self, bar: Bar, trace: str, metric: str) -> str:
        """The setting behind the published bar."""
        cell = published.cell(self.key, trace, bar.name, metric)
        return cell.policy if cell else bar.policy

    def label(self, trace: str) -> str:
        return "4 job types" if self.key == "13" and trace == "trace3" else LABELS[trace]


_L, _S = "muri-l:unpack=off", "muri-s:unpack=off"
ALL = tuple(METRICS)
FIGURES: Mapping[str, Figure] = {
    f.key: f
    for f in (
        Figure(
            "9",
            "Durations known",
            (*TRACES, *AT_ONCE),
            (Bar("SRTF", "srtf", "Muri-S"), Bar("SRSF", "srsf", "Muri-S"), Bar("Muri-S", _S, "Muri-S", "muri-s")),
            ALL,
        ),
        Figure(
            "10",
            "Durations unknown",
            (*TRACES, *AT_ONCE),
            (
                Bar("Tiresias", "tiresias", "Muri-L"),
                Bar("Themis", "themis", "Muri-L"),
                Bar("AntMan", "antman", "Muri-L"),
                Bar("Muri-L", _L, "Muri-L", "muri-l"),
            ),
            ALL,
            "Themis is not reproducible to digits: its solver chain chooses among equal optima.",
        ),
        Figure(
            "11",
            "Gain of ordering and matching",
            TRACES,
            (
                Bar("worst ordering", f"{_L},ordering=worst", "Muri-L", "muri-l:ordering=worst"),
                Bar("no Blossom", f"{_L},blossom=off", "Muri-L", "muri-l:blossom=off"),
                Bar("Muri-L", _L, "Muri-L", "muri-l"),
            ),
            ALL[:2],
            "The released variant without matching has a smaller interference factor for groups of four.",
        ),
        Figure(
            "12",
            "Jobs of a group",
            AT_ONCE,
            (
                Bar("AntMan", "antman", "4 per group"),
                Bar("2 per group", f"{_L},max_jobs=2", "4 per group", "muri-l:max_jobs=2"),
                Bar("3 per group", f"{_L},max_jobs=3", "4 per group", "muri-l:max_jobs=3"),
                Bar("4 per group", _L, "4 per group", "muri-l"),
            ),
            ALL[:2],
        ),
        Figure(
            "13",
            "Job types",
            ("job_type_1", "job_type_2", "job_type_3", "trace3"),
            (
                Bar("SRTF", "srtf", "Muri-S"),
                Bar("Muri-S", "muri-s", "Muri-S", "muri-s"),
                Bar("Tiresias", "tiresias", "Muri-L"),
                Bar("Muri-L", "muri-l", "Muri-L", "muri-l"),
            ),
            ALL[:1],
            "The published Muri-L of one job type ran on Tiresias' queues, which no flag of the artifact reaches.",
        ),
    )
}
NOISE = tuple(n / 5 for n in range(6))
NOISE_TRACE = "trace3"
KINDS = (*FIGURES, "14", "8", "tables", "testbed", "table1", "themis")


def chosen(text: str | None) -> tuple[str, ...]:
    """The requested figures, separated by commas; all if None.

    >>> chosen("13,9")
    ('9', '13')
    """
    if text is None:
        return KINDS
    asked = [part.strip() for part in text.split(",")]
    for part in asked:
        if part not in KINDS:
            raise InputError(f"unknown figure {part!r}; {suggest(part, KINDS)}")
    return tuple(kind for kind in KINDS if kind in asked)
