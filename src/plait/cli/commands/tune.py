"""`plait tune`: fit a policy to a workload."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from plait.cli.experiments.options import Censored, FirstJobs, Json, TraceFormat, Work
from plait.core.words import counted


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
            outputs.fill(path, lambda p: _write(p, text))
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


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
