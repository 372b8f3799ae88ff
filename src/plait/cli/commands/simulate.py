"""`plait simulate`: traces under policies, side by side; `sweep`: a grid of runs; `compare`; `tune`: fit a policy."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from plait.cli.experiments.options import Censored, FirstJobs, Json, Page, Request, SweepRequest, TraceFormat, Work
from plait.cli.lazy import command
from plait.core.words import counted

JOBS_FILE = "Jobs of a run, of `plait simulate --jobs-csv`."


@command(Request, "plait.cli.experiments.simulation:answer")
def simulate() -> None:
    """Simulate traces under one or more policies and compare them.

    \b
    plait simulate trace.csv --policy fifo,srsf --cluster 8x8
    plait simulate trace.csv -p tiresias-l:thresholds=3250/7200 --seed 0..4 --report out.html
    plait simulate trace.csv --policy srsf --cluster 8x8 --cluster 16x4
    """


@command(SweepRequest, "plait.cli.experiments.simulation:run_sweep")
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


# `plait tune`: fit a policy to a workload.


def tune(
    policy: Annotated[
        str,
        typer.Argument(metavar="POLICY", help="Policy whose options have a range; options that are given stay fixed."),
    ],
    trace: Annotated[Path, typer.Argument(metavar="TRACE", help="Trace of at least 200 jobs.")],
    cluster: Annotated[str, typer.Option("--cluster", "-c", help="NODESxGPUS, e.g. 8x8.")] = "8x8",
    max_queues: Annotated[int, typer.Option(help="Largest number of queues to try, if the policy has queues.")] = 4,
    only: Annotated[str | None, typer.Option(metavar="OPTION,...", help="Fit only these options.")] = None,
    trace_format: TraceFormat = "auto",
    work: Work = None,
    censored: Censored = "as_is",
    jobs: FirstJobs = None,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    json: Json = None,
) -> None:
    """Fit a policy to half of a trace, and judge it on the rest.

    Prints the policy with the fitted options, as --policy takes it, or the message that fitting gains nothing.
    """
    from plait.cli.experiments.cases import read_workload
    from plait.cli.experiments.options import Request
    from plait.cli.experiments.outputs import Outputs
    from plait.cli.render.console import Bar
    from plait.core.cluster import Cluster
    from plait.core.files import write_text
    from plait.sim.studies.tune import fit_policy

    request = Request(
        [trace], policy, trace_format=trace_format, work=work, censored=censored, jobs=jobs, seed=str(seed)
    )
    hardware = Cluster.parse(cluster)
    with Outputs() as outputs:
        path = None if json is None or json == "-" else outputs.path(json)
        batch = read_workload(trace, request, seed, hardware)
        with Bar("replaying", None) as bar:
            fit = fit_policy(
                batch, hardware, policy, max_queues=max_queues, only=None if only is None else only.split(","),
                seed=seed, tried=bar.advance,
            )  # fmt: skip
        if json is not None:
            import json as codec

            text = codec.dumps({"trace": str(trace), "cluster": cluster, **fit.to_json()}, indent=1) + "\n"
            if path is None:
                typer.echo(text, nl=False)
                return
            outputs.fill(path, partial(write_text, text=text))
        outputs.commit()
    from rich.table import Table

    from plait.cli.render.console import console

    title = "Average completion time (s), no overheads, GPU counting"
    grid = Table("", "policy", title=title, title_justify="left")
    for name, count in (("first half", fit.jobs_first), ("second half", fit.jobs_second)):
        grid.add_column(f"{name} ({counted(count, 'job')})", justify="right")
    policies = {"fitted": fit.policy, "default": fit.default, "fifo": "fifo", "srsf": "srsf"}
    for name, policy in policies.items():
        label = {"default": "as given", "srsf": "knows the future"}.get(name, "" if name == policy else name)
        grid.add_row(label, policy, f"{fit.first[name]:,.1f}", f"{fit.second[name]:,.1f}")
    out = console()
    out.print(grid)
    queues = f"{fit.queues} queue{'s' if fit.queues > 1 else ''}, {len(fit.tried)} replays"
    left = f"; {counted(fit.left_out, 'job')} wider than the cluster left out" if fit.left_out else ""
    typer.echo(f"{queues}{left}; {fit.verdict}.")
    typer.echo(f"--policy {fit.policy if fit.worth_it else fit.default}")
