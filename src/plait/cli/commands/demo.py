"""`plait demo`: all of plait in a few minutes; leaves only a report behind."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

#: The simulated demo: orders without knowledge, learnt, and with perfect knowledge; jobs that take turns; guests.
SIMULATED_POLICIES = "fifo,fifo-backfill,srtf,srsf,2d-las,tiresias-l,themis,muri-s:guard=0.6,antman"
#: A queue from the first hours to the last: no job outlasts the submissions by more than six hours.
LOAD, MAX_DURATION_S, COLUMNS = 1.3, 6 * 3600.0, 100


def demo(
    simulate: Annotated[
        bool, typer.Option("--simulate", help="Simulate 1,000 jobs under nine policies instead of training.")
    ] = False,
    antman: Annotated[
        bool, typer.Option("--antman", help="A guaranteed and an opportunistic job on one emulated GPU instead.")
    ] = False,
    network: Annotated[
        bool, typer.Option("--network", help="Two trainings that share the memory of a software switch instead.")
    ] = False,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the report.")] = Path("demo-out"),
    examples: Annotated[
        Path | None, typer.Option(help="Folder of the training scripts. [default: examples/training of the repository]")
    ] = None,
    policy: Annotated[str, typer.Option("--policy", "-p", help="Policy that interleaves the jobs.")] = "muri-s",
) -> None:
    """Train four models apart, then interleaved, and compare.

    Starts a cluster of CPU slots on this machine and stops it at the end.

    Needs the extras [live,torch].
    """
    if simulate:
        simulated(out)
        return
    if antman:
        from plait.cli.experiments.antman_demo.demo import demonstrate_sharing

        demonstrate_sharing(out, examples)
        return
    if network:
        from plait.cli.experiments.network_demo import demonstrate_network

        demonstrate_network(out, examples)
        return
    from plait.cli.experiments.demonstration import demonstrate

    demonstrate(out, examples, policy)


def simulated(out: Path) -> None:
    """Simulate a seeded trace like Microsoft's Philly cluster on 64 GPUs under nine policies.

    Jobs last at most six hours and are submitted at 1.3 times the capacity, so that jobs wait. Half of them are
    opportunistic; only `antman` distinguishes them. Members of groups take turns under `muri-s`.
    """
    from plait.cli.commands.trace import generate
    from plait.cli.experiments.request import Request
    from plait.cli.experiments.simulation import answer

    out.mkdir(parents=True, exist_ok=True)
    trace = out / "philly.csv"
    generate(
        trace, preset="philly", jobs=1000, gpus=64, load=LOAD, seed=1, max_duration=MAX_DURATION_S, models="uniform"
    )
    answer(
        Request(
            [trace],
            SIMULATED_POLICIES,
            cluster=["8x8"],
            opportunistic_share=0.5,
            tenants=2,
            report=out / "report.html",
            json=str(out / "results.json"),
        ),
        most=COLUMNS,
    )
    typer.echo(f"Open {(out / 'report.html').resolve()} in a browser; the figures are in {out / 'results.json'}.")
