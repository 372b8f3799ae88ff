"""`plait sweep`: a grid of runs in several processes, which can be stopped and continued."""

from __future__ import annotations

from plait.cli.declared import command
from plait.cli.experiments.request import SweepRequest


def _answer(request: SweepRequest) -> None:
    from plait.cli.experiments.sweep_runner import run_sweep

    run_sweep(request)


@command(SweepRequest, _answer)
def sweep() -> None:
    """Run a grid of policies, loads, seeds and clusters.

    It can be stopped and continued at any time.

    \b
    plait sweep out --preset philly --jobs 1000 --load 0.8,1.0,1.2 --seed 0..4 -p fifo,srsf,tiresias-l
    """
