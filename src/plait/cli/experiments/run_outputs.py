"""Output of the runs of `plait simulate`: the comparison, warnings, and the requested files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from plait.cli.experiments.outputs import STDOUT, Outputs, names_of_runs
from plait.cli.experiments.request import Request
from plait.cli.render.console import Printer
from plait.control.metrics import RunResult
from plait.core.errors import InputError
from plait.live.notes import note


def reserve(request: Request, names: list[tuple[str, ...]], outputs: Outputs) -> list[tuple[str, int, Path | None]]:
    """Reserve every requested output: (kind, run or -1 for all, path; None for standard output).

    `names`: of the runs, for files of which there is one per run; `outputs`: where the files are reserved.
    """
    files: list[tuple[str, int, Path | None]] = []
    for kind, target in (("json", request.json), ("csv", request.csv), ("report", request.report)):
        if target is not None:
            out = str(target) == STDOUT
            if out and kind == "report":
                raise InputError("a report cannot go to standard output; give a file name")
            files.append((kind, -1, None if out else outputs.path(target)))
    for kind, path in (("jobs_csv", request.jobs_csv), ("chrome_trace", request.chrome_trace)):
        if path is not None:
            files += [(kind, i, outputs.path(p)) for i, p in enumerate(names_of_runs(path, names))]
    return files


def write_all(results: Sequence[RunResult], files: Sequence[tuple[str, int, Path | None]], outputs: Outputs) -> None:
    """Fill the files that `reserve` gave; what goes to standard output is printed by `outputs.commit`."""
    from plait.report import tables
    from plait.report.timeline import write_chrome_trace

    for kind, run, path in files:
        if kind == "report" and path is not None:
            from plait.report.html import write_html

            outputs.fill(path, lambda p: write_html(results, p, settings=stated(results)))
        elif kind == "jobs_csv" and path is not None:
            outputs.fill(path, partial(tables.write_jobs_csv, results[run]))
        elif kind == "chrome_trace" and path is not None:
            outputs.fill(path, partial(write_chrome_trace, results[run]))
        else:
            writer = partial(tables.write_json if kind == "json" else tables.write_csv, results)
            if path is None:
                outputs.print_later(writer)
            else:
                outputs.fill(path, writer)


def stated(results: Sequence[RunResult]) -> dict[str, str]:
    """The settings that the report shows, where they are not empty."""
    names = {
        "load": "Offered load, by requested GPUs", "placement": "Placement", "round_s": "Round (s)",
        "overheads": "Overheads",
        "network": "Network", "phases": "Phases of exchanges", "overlap": "Overlap with computation",
        "spread_slowdown": "Spread slow-down", "profile_noise": "Profile noise", "models": "Models",
        "censored": "Censored jobs", "node_failures": "Node failures",
    }  # fmt: skip
    out = {}
    for name, label in names.items():
        values = list(dict.fromkeys(str(r.summary.get(name, "")) for r in results))
        if any(values):
            out[label] = ", ".join(v or "-" for v in values)
    return out


def show(results: Sequence[RunResult], printer: Printer) -> None:
    """The comparison table, then what a reader must know to trust it."""
    from plait.cli.render.comparison import print_comparison

    if print_comparison(results, printer):
        note("a wider terminal shows more figures; --json, --csv and --report have all of them")
    if any(result.costs is not None for result in results):
        from plait.control.compare import compare, is_of
        from plait.report.tables import cost_tables, labels

        groups = compare(results)
        first = [next(r for r in results if is_of(r, group)) for group in groups]
        for table in cost_tables(first, labels(groups)):
            printer.print(table)
    warn_about_jobs(results)


def warn_about_jobs(results: Sequence[RunResult]) -> None:
    """Name jobs that were refused or failed; averages leave them out."""
    said: Counter[tuple[str, tuple[str, ...]]] = Counter()
    for result in results:
        jobs, summary = result.jobs, result.summary
        for state in ("refused", "failed"):
            count = int(summary[state])
            if not count:
                continue
            hit = [i for i, s in enumerate(jobs["state"].tolist()) if s == state]
            lines = tuple(f"  {jobs['id'][i]}: {jobs['reason'][i]}" for i in hit[:5])
            if len(hit) > 5:
                lines += (f"  and {len(hit) - 5} more",)
            head = f"{count} of {summary['jobs']} jobs {state}"
            if not said[(head, lines)]:
                finished = f"averages are over the {summary['finished']} that finished"
                note("\n".join([f"warning: {summary['trace']}, {summary['policy']}: {head}; {finished}", *lines]))
            said[(head, lines)] += 1
