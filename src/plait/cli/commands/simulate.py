"""`plait simulate`: traces under policies, side by side; `plait sweep`: a grid of runs that can be continued."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from plait.cli.declared import command
from plait.cli.experiments.options import Json, Page, Request, SweepRequest

JOBS_FILE = "Jobs of a run, of `plait simulate --jobs-csv`."


@command(Request, "plait.cli.experiments.simulation:answer")
def simulate() -> None:
    """Simulate traces under one or more policies and compare them.

    \b
    plait simulate trace.csv --policy fifo,srsf --cluster 8x8
    plait simulate trace.csv -p tiresias-l:thresholds=3250/7200 --seed 0..4 --report out.html
    plait simulate trace.csv --policy srsf --cluster 8x8 --cluster 16x4
    """


@command(SweepRequest, "plait.cli.experiments.sweep_runner:run_sweep")
def sweep() -> None:
    """Run a grid of policies, loads, seeds and clusters.

    It can be stopped and continued at any time.

    \b
    plait sweep out --preset philly --jobs 1000 --load 0.8,1.0,1.2 --seed 0..4 -p fifo,srsf,tiresias-l
    """


def compare(
    before: Annotated[Path, typer.Argument(metavar="A", help=JOBS_FILE)],
    after: Annotated[Path, typer.Argument(metavar="B", help=JOBS_FILE)],
    json: Json = None,
    report: Page = None,
) -> None:
    """Compare two runs of the same jobs: who gained, who lost.

    \b
    plait simulate trace.csv -p fifo,srsf --jobs-csv jobs.csv
    plait compare jobs-fifo.csv jobs-srsf.csv --report gains.html
    """
    from functools import partial
    from json import dumps

    from plait.cli.experiments.outputs import STDOUT, Outputs
    from plait.cli.render.console import console
    from plait.core.files import write_text
    from plait.live.notes import note
    from plait.outlook.page import compare_files, pair_page

    with Outputs() as outputs:
        files = {
            kind: outputs.path(path)
            for kind, path in (("json", json), ("page", report))
            if path and str(path) != STDOUT
        }
        pair = compare_files(before, after)
        text = dumps(pair.to_json(), indent=1) + "\n"
        if "json" in files:
            outputs.fill(files["json"], partial(write_text, text=text))
        elif json is not None:
            outputs.print_later(partial(write_text, text=text))
        if "page" in files:
            outputs.fill(files["page"], partial(write_text, text=pair_page(pair)))
        printer = console(error=json is not None and "json" not in files)
        from rich.table import Table
        from rich.text import Text

        from plait.outlook.page import NAMED, best, changed, worst

        printer.print(Text(pair.sentence))
        for title, rows in (
            ("completion time", tuple(pair.figures.values())),
            ("project", changed(pair.projects)),
            ("user", changed(pair.users)),
            ("loses most", worst(pair)),
            ("gains most", best(pair)),
        ):
            if not rows:
                continue
            table = Table(header_style="bold")
            table.add_column(title)
            for head in ("jobs", f"{pair.names[0]} (h)", f"{pair.names[1]} (h)", "change"):
                table.add_column(head, justify="right")
            few = rows if len(rows) <= 2 * NAMED else (*rows[:NAMED], *rows[-NAMED:])
            for row in few:
                hours = (f"{row.before_s / 3600:.2f}", f"{row.after_s / 3600:.2f}")
                table.add_row(Text(row.name or "-"), f"{row.jobs:,}", *hours, f"{row.ratio:+.1%}")
            if len(rows) > len(few):
                table.caption = f"{len(rows) - len(few)} between them are left out; --json has all"
            printer.print(table)
        for path in outputs.commit():
            note(f"wrote {path}")
