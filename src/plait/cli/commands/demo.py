"""`plait demo`: all of plait in a few minutes; leaves only a report behind."""

from pathlib import Path
from typing import Annotated

import typer


def demo(
    simulate: Annotated[
        bool,
        typer.Option("--simulate", help="Simulate what order, turns, sizes and guests are worth, without training."),
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
        from plait.cli.experiments.simulated_demo import demonstrate_simulated

        demonstrate_simulated(out)
        return
    if antman:
        from plait.cli.experiments.antman_demo import demonstrate_sharing

        demonstrate_sharing(out, examples)
        return
    if network:
        from plait.cli.experiments.network_demo import demonstrate_network

        demonstrate_network(out, examples)
        return
    from plait.cli.experiments.demonstration import demonstrate

    demonstrate(out, examples, policy)
