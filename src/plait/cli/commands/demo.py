"""`plait demo`: the whole of plait in a few minutes, with nothing left behind but a report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

#: The simulated demo: orders without knowledge, learnt, and with perfect knowledge; and one that knows classes.
SIMULATED_POLICIES = "fifo,fifo-backfill,sjf,srtf,srsf,2d-las,tiresias-l,themis,antman"


def demo(
    simulate: Annotated[
        bool, typer.Option("--simulate", help="Simulate 2,000 jobs under nine policies instead.")
    ] = False,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the report.")] = Path("demo-out"),
    examples: Annotated[
        Path | None, typer.Option(help="Folder of the training scripts; default: examples/training of the repository.")
    ] = None,
    policy: Annotated[str, typer.Option("--policy", "-p", help="The policy that interleaves.")] = "muri-s",
) -> None:
    """Train four models apart, then interleaved, and compare.

    Starts a cluster on CPU slots for it.

    Everything is stopped at the end. Needs the extras [live,torch].
    """
    if simulate:
        simulated(out)
        return
    from plait.cli.experiments.demonstration import demonstrate

    demonstrate(out, examples, policy)


def simulated(out: Path) -> None:
    """A seeded trace like Microsoft's Philly cluster on 64 GPUs, under nine policies.

    Half of the jobs are opportunistic, which only `antman` looks at.
    """
    from plait.cli.commands.trace import generate
    from plait.cli.experiments.request import Request
    from plait.cli.experiments.simulation import answer

    out.mkdir(parents=True, exist_ok=True)
    trace = out / "philly.csv"
    generate(trace, preset="philly", jobs=2000, gpus=64, load=1.0, seed=1, models="uniform")
    answer(
        Request(
            [trace],
            SIMULATED_POLICIES,
            cluster=["8x8"],
            opportunistic_share=0.5,
            tenants=2,
            report=out / "report.html",
            json=str(out / "results.json"),
        )
    )
    typer.echo(f"Open {(out / 'report.html').resolve()} in a browser; the figures are in {out / 'results.json'}.")
