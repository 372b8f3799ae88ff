"""`plait reproduce ina`: find out which runs are needed, make them, show and write the comparison."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup
from rich.table import Table

from plait.control.compare import bootstrap
from plait.core.errors import InputError, suggest
from plait.core.version import __version__
from plait.report.charts import ChartLine, lines_svg
from plait_papers.command import InaRequest
from plait_papers.evaluation import Outcome, publish
from plait_papers.ina import reference
from plait_papers.ina.cases import EVALUATION, Case, Done
from plait_papers.ina.reference import AGGREGATORS, GOODPUT
from plait_papers.pages import PaperSection, render


def reproduce_ina(request: InaRequest) -> None:
    sections = _sections(request.section)
    asked = list(rows(sections))

    def outcome() -> InaOutcome:
        done = EVALUATION.finish((case for row in asked for case in row.cases), request)
        settings = {"version": __version__, "sections": list(sections)}
        return InaOutcome.of(done.values(), settings, rows=list(compared(asked, done)))

    publish(request, outcome, tables, page)


def _sections(text: str | None) -> tuple[str, ...]:
    if not text:
        return tuple(SECTIONS)
    found = tuple(part.strip() for part in text.split(","))
    for part in found:
        if part not in SECTIONS:
            raise InputError(f"--section: {part!r} does not exist; {suggest(part, SECTIONS)}")
    return found


# -- The comparison as one self-contained HTML page --------------------------------------------------------


def page(outcome: InaOutcome) -> str:
    """The page as text; a function of the outcome."""
    judged = [row for row in outcome.rows if row.within is not None]
    facts = [
        f"{outcome.runs} runs", f"{outcome.cpu_s:.0f} CPU seconds",
        f"{sum(bool(row.within) for row in judged)} of {len(judged)} figures within what is allowed",
    ]  # fmt: skip
    return render(
        "ina.html.j2",
        outcome,
        title="In-network aggregation: reference, papers and plait",
        facts=facts,
        sections=list(_page_sections(outcome)),
    )


def _page_sections(outcome: InaOutcome) -> Iterator[PaperSection]:
    for key, title in SECTIONS.items():
        rows = [row for row in outcome.rows if row.section == key]
        if not rows:
            continue
        charts = [Markup(_goodput_chart(rows))] if key == "goodput" else []
        shown = [cells(row) for row in rows]
        made = PaperSection(key, key, title, "", charts, HEAD, 1, across=1)
        made.rows.extend({"cells": one, "first": False} for one in shown)
        yield made


def _goodput_chart(rows: list[Compared]) -> str:
    """Goodput over memory: ours, and the reference."""
    ours = {row.what: row.ours for row in rows}
    x = [float(count) for count in AGGREGATORS]
    lines = []
    for protocol, values in GOODPUT.items():
        lines.append(ChartLine(protocol, x, [ours[f"{protocol}, {count:,} aggregators"] for count in AGGREGATORS]))
        lines.append(ChartLine(f"{protocol}, reference", x, list(values)))
    return lines_svg("Goodput of a job, 8 jobs", lines, "aggregators", "Gb/s", width=760, height=420)


# -- Rows of the comparison: which runs each takes, our figure, the one to compare with, and what is allowed ---

Figures = Sequence[Mapping[str, float]]

#: Sections of the comparison, with titles.
SECTIONS: Mapping[str, str] = {
    "goodput": "Goodput of a job, Gb/s, 8 jobs; plait: mean of seeds 1 to 5",
    "fallback": "Packets that find no aggregator, %; plait: mean of seeds 1 to 5",
    "aggregated": "Sums that the switch completes under ATP, share; plait: mean of seeds 1 to 5",
    "spread": "Goodput over seeds 1 to 5, Gb/s",
    "other": "Other figures of the reference",
    "straggler": "Two jobs of 4 workers, one worker of job 0 with a fifth of its link; reference: the released run",
    "deadlines": "Deadlines missed, of 8 jobs and four draws",
    "loss": "Goodput with losses on every hop, Gb/s, 8 jobs, 4096 aggregators",
    "headlines": "Published headlines: paper / plait, mean of draws and its 95 % bootstrap interval",
}
#: Why one seed may be far from another.
TAIL = "the reference is one seed; a job whose last packets wait for their timer takes 200 us more"
SEEDS = (1, 2, 3, 4, 5)
LOSSES = (0.0, 1e-5, 1e-4, 1e-3, 1e-2)
DEADLINE_SEEDS = (0, 1, 2, 3)
ROUTE_SEEDS = tuple(range(20))


@dataclass(frozen=True, slots=True)
class Row:
    """One figure. `low` to `high`: what is allowed for ours; None where nothing is compared.

    `reference` and `note` are words: a figure of the reference simulator, or what a paper reports and its caveat.
    `ours` returns one figure, or one a draw: then ours is their mean, with a bootstrap interval of 95 %.
    """

    section: str
    what: str
    unit: str
    cases: tuple[Case, ...]
    ours: Callable[[Figures], float | list[float]]
    reference: str = ""
    low: float | None = None
    high: float | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Compared:
    """A row with its figure; `within`: whether it is allowed, None without limits; `interval`: of the mean of draws."""

    section: str
    what: str
    unit: str
    ours: float
    reference: str
    low: float | None
    high: float | None
    within: bool | None
    note: str
    interval: tuple[float, float] | None = None


@dataclass(frozen=True, kw_only=True)
class InaOutcome(Outcome):
    """All rows."""

    rows: Sequence[Compared]


def compared(rows_: Sequence[Row], done: Mapping[Case, Done]) -> Iterator[Compared]:
    for row in rows_:
        found = row.ours([done[case].figures for case in row.cases])
        ours, *interval = bootstrap(found) if isinstance(found, list) else (found,)
        within = None if row.low is None or row.high is None else row.low <= ours <= row.high
        yield Compared(
            row.section, row.what, row.unit, ours, row.reference, row.low, row.high, within, row.note,
            (interval[0], interval[1]) if interval else None,
        )  # fmt: skip


def rows(sections: Sequence[str]) -> Iterator[Row]:
    made: Mapping[str, Callable[[], Iterator[Row]]] = {
        "goodput": _goodput, "fallback": _fallback, "aggregated": _aggregated, "spread": _spread, "other": _other,
        "straggler": _straggler, "deadlines": _deadlines, "loss": _loss, "headlines": _headlines,
    }  # fmt: skip
    for section in sections:
        yield from made[section]()


def _one(name: str) -> Callable[[Figures], float]:
    return lambda figures: figures[0][name]


def _mean(name: str) -> Callable[[Figures], float]:
    return lambda figures: statistics.fmean(one[name] for one in figures)


def _near(value: float, relative: float) -> dict[str, Any]:
    return {"reference": f"{value:g}", "low": value * (1 - relative), "high": value * (1 + relative)}


def _cases(protocol: str, aggregators: int) -> tuple[Case, ...]:
    """Runs of a table: several seeds where hashes decide."""
    seeds = SEEDS if protocol in reference.FALLBACK else SEEDS[:1]
    return tuple(Case(protocol, aggregators, seed=seed) for seed in seeds)


def _goodput() -> Iterator[Row]:
    for protocol, values in reference.GOODPUT.items():
        for aggregators, value in zip(reference.AGGREGATORS, values, strict=True):
            note = TAIL if (protocol, aggregators) == ("atp", 16384) else ""
            yield Row(
                "goodput", f"{protocol}, {aggregators:,} aggregators", "Gb/s", _cases(protocol, aggregators),
                _mean("goodput"), **_near(value, reference.TOLERANCE[protocol]), note=note,
            )  # fmt: skip


def _fallback() -> Iterator[Row]:
    for protocol, values in reference.FALLBACK.items():
        for aggregators, value in zip(reference.AGGREGATORS, values, strict=True):
            allowed = reference.FALLBACK_TOLERANCE
            yield Row(
                "fallback", f"{protocol}, {aggregators:,} aggregators", "%", _cases(protocol, aggregators),
                _mean("fallback"), f"{value:g}", value - allowed, value + allowed,
            )  # fmt: skip


def _aggregated() -> Iterator[Row]:
    for aggregators, value in zip(reference.AGGREGATORS, reference.AGGREGATED, strict=True):
        allowed = reference.AGGREGATED_TOLERANCE
        yield Row(
            "aggregated", f"{aggregators:,} aggregators", "", _cases("atp", aggregators), _mean("aggregated"),
            f"{value:g}", value - allowed, value + allowed,
        )  # fmt: skip


def _spread() -> Iterator[Row]:
    for (protocol, aggregators), (mean, deviation) in reference.SPREAD.items():
        near = _near(mean, reference.TOLERANCE[protocol]) | {"reference": f"{mean:g} +- {deviation:g}"}
        what = f"{protocol}, {aggregators:,} aggregators"
        yield Row("spread", f"{what}, mean", "Gb/s", _cases(protocol, aggregators), _mean("goodput"), **near)
        yield Row(
            "spread", f"{what}, standard deviation", "Gb/s", _cases(protocol, aggregators),
            lambda figures: statistics.stdev(one["goodput"] for one in figures), f"{deviation:g}",
        )  # fmt: skip


def _other() -> Iterator[Row]:
    case = Case("atp", 1, jobs=1)
    yield Row(
        "other", "one job, one aggregator", "Gb/s", (case,), _one("goodput"), **_near(reference.SERVER_ONLY, 0.05)
    )
    for window, value in reference.WINDOWS.items():
        case = Case("hybrid", 65536, jobs=1, mib=4.0, window=window, index="hybrid_modulo")
        what = f"one job without collisions, window {window}"
        yield Row("other", what, "Gb/s", (case,), _one("goodput"), **_near(value, 0.03))
    low, high = reference.HOLDING
    case = Case("hybrid", 65536, jobs=1, window=16, index="hybrid_modulo")
    words = f"{low} to {high}"
    yield Row("other", "holding time without load", "us", (case,), _one("holding_us"), words, low - 0.05, high + 0.05)
    for protocol, value in reference.MAKESPANS.items():
        what = f"{protocol}, all exchanges of 8 jobs, 2,048 aggregators, 4 MiB, mean of seeds 1 to 8"
        cases = tuple(Case(protocol, 2048, mib=4.0, seed=seed) for seed in range(1, 9))
        yield Row("other", what, "ms", cases, _mean("makespan_ms"), **_near(value, 0.15), note=TAIL)


def _straggler() -> Iterator[Row]:
    for protocol in ("a2tp", "atp"):
        # Lists of slots as in the released code of both, and less memory than the windows of both jobs.
        cases = (Case(protocol, 256, "straggler", jobs=2, workers=4, mib=32.0, window=200, index="shared_cycle"),)
        ours = protocol == "a2tp"
        yield Row(
            "straggler", f"{protocol}: goodput of job 1 over that alone", "", cases, _one("kept"),
            "at least 0.95" if ours else "less than 0.95", 0.95 if ours else 0.0, 1.05 if ours else 0.95,
        )  # fmt: skip
        for name, what, unit, artifact, low, high in (
            ("goodput_1", "goodput of job 1", "Gb/s", "49.9", 47.0, 55.0),
            ("goodput_0", "goodput of job 0", "Gb/s", "15.9", 14.0, 16.2),
            ("held_beside", "aggregators that job 1 holds", "share", "0.41 to 0.55", 0.41, 0.55),
            ("held_during", "aggregators that job 0 holds while job 1 runs", "share", "0.01 to 0.04", 0.0, 0.05),
            ("held_after", "aggregators that job 0 holds afterwards", "share", "0.85 to 0.97", 0.66, 0.8),
        ):
            note = "the released run has windows of all aggregators, this one of 78 %" if name == "held_after" else ""
            yield Row(
                "straggler", f"{protocol}: {what}", unit, cases, _one(name), artifact if ours else "",
                low if ours else None, high if ours else None, note if ours else "",
            )  # fmt: skip


def _deadline_cases(protocol: str, aggregators: int) -> tuple[Case, ...]:
    return tuple(Case(protocol, aggregators, "deadlines", window=300, seed=seed) for seed in DEADLINE_SEEDS)


def _deadlines() -> Iterator[Row]:
    for aggregators in (1024, 2048, 4096):
        plain, own = (_deadline_cases(protocol, aggregators) for protocol in ("atp", "inalloc"))
        count = len(plain)

        def missed(figures: Figures) -> float:
            return sum(one["missed"] for one in figures)

        def over(figures: Figures, count: int = count) -> float:
            return missed(figures[count:]) / missed(figures[:count])

        where = f"{aggregators:,} aggregators"
        yield Row("deadlines", f"first come, first served, {where}", "of 32", plain, missed)
        yield Row("deadlines", f"inalloc, {where}", "of 32", own, missed)
        scarce = aggregators < 2048
        yield Row(
            "deadlines", f"inalloc over first come, {where}", "", (*plain, *own), over,
            "" if scarce else "at most 0.5", None if scarce else 0.0, None if scarce else 0.5,
            "the memory is not enough for the deadlines; the most urgent are served" if scarce else "",
        )  # fmt: skip


def _loss() -> Iterator[Row]:
    for protocol, rto_us in (("switchml", 200.0), ("switchml", 0.0), ("atp", 0.0), ("esa", 0.0)):
        timers = (
            ", timers of 200 us" if rto_us else ", timers of 10 ms, at first 2.56 s" if protocol == "switchml" else ""
        )
        for loss in LOSSES:
            case = Case(protocol, 4096, loss=loss, rto_us=rto_us)
            what = f"{protocol}{timers}, {loss:g} of packets lost on a hop"
            yield Row("loss", what, "Gb/s", (case,), _one("goodput"))


def _gains(name: str) -> Callable[[Figures], list[float]]:
    """The first half of runs over the second, draw by draw."""

    def ratios(figures: Figures) -> list[float]:
        half = len(figures) // 2
        return [one[name] / other[name] for one, other in zip(figures[:half], figures[half:], strict=True)]

    return ratios


def _headlines() -> Iterator[Row]:
    def drawn(protocol: str, aggregators: int, seeds: Sequence[int], **more: Any) -> list[Case]:
        return [Case(protocol, aggregators, seed=seed, **more) for seed in seeds]

    servers = drawn("atp", 0, SEEDS[:3], iterations=3)
    inalloc, plain = (_deadline_cases(name, 2048) for name in ("inalloc", "atp"))
    makespans = [drawn(name, 2048, range(1, 9), mib=4.0) for name in ("atp", "esa")]
    routes = drawn("grid", 20_000, ROUTE_SEEDS, study="routes", jobs=12, workers=6)
    placed = [drawn(name, 20_000, range(1, 11), study="cluster", jobs=150) for name in ("placement=netpack", "")]
    change: list[tuple[str, Sequence[Case], Callable[[Figures], float | list[float]], str]] = [
        ("switchml", (*servers, *drawn("switchml", 8192, SEEDS[:3], iterations=3)), _gains("mean_jct_ms"), "times"),
        ("atp", (*servers, *drawn("atp", 20_000, SEEDS[:3], iterations=3)), _gains("mean_jct_ms"), "times"),
        ("esa", (*makespans[0], *makespans[1]), _gains("mean_jct_ms"), "times"),
        ("inalloc misses", (*inalloc, *plain), lambda f: [100 * (ratio - 1) for ratio in _gains("missed")(f)], "%"),
        ("inalloc jct", (*inalloc, *plain), lambda f: [100 * (ratio - 1) for ratio in _gains("mean_jct_ms")(f)], "%"),
        ("grid", routes, lambda f: [100 * (one["fullest"] / one["fixed"] - 1) for one in f], "%"),
        ("netpack", (*placed[0], *placed[1]), lambda f: [100 * (gain - 1) for gain in _gains("mean_jct_ms")(f)], "%"),
    ]
    for name, cases, ours, unit in change:
        headline = reference.HEADLINES[name]
        what = f"{headline.system}: {headline.paper}"
        yield Row("headlines", what, unit, tuple(cases), ours, note=headline.caveat)


HEAD = ("", "reference", "plait", "allowed", "within", "remark")


def tables(outcome: InaOutcome) -> Iterator[Table]:
    """One for each section that has rows."""
    for section, title in SECTIONS.items():
        found = [row for row in outcome.rows if row.section == section]
        if not found:
            continue
        shown = [cells(row) for row in found]
        used = [i for i in range(len(HEAD)) if i == 0 or any(row[i] for row in shown)]
        grid = Table(title=title, title_justify="left", header_style="bold")
        for i in used:
            grid.add_column(HEAD[i], justify="right" if 0 < i < 4 else "left")
        for row in shown:
            grid.add_row(*(row[i] for i in used))
        yield grid


def cells(row: Compared) -> tuple[str, ...]:
    """The columns `HEAD` as text."""
    allowed = "" if row.low is None or row.high is None else f"{_number(row.low)} to {_number(row.high)}"
    unit = f" {row.unit}" if row.unit in ("%", "times", "of 32") else ""
    within = "" if row.within is None else "yes" if row.within else "no"
    ours = f"{_number(row.ours)}{unit}"
    if row.interval is not None:
        ours += f" ({_number(row.interval[0])} to {_number(row.interval[1])})"
    return row.what, row.reference, ours, allowed, within, row.note


def _number(value: float) -> str:
    """Three digits, or all before the point."""
    return f"{value:.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"
