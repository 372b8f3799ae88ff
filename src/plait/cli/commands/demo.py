"""`plait demo`: all of plait in a few minutes; leaves only a report behind."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def demo(
    simulate: Annotated[
        bool,
        typer.Option("--simulate", help="Simulate what order, turns, sizes and guests are worth, without training."),
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
    from plait.cli.experiments.demonstration import demonstrate

    demonstrate(out, examples, policy)
