"""`plait simulate`: traces under policies, side by side; `plait sweep`: a grid of runs that can be continued."""

from __future__ import annotations

from plait.cli.declared import command
from plait.cli.experiments.request import Request, SweepRequest


def _answer(request: Request) -> None:
    from plait.cli.experiments.simulation import answer

    answer(request)


@command(Request, _answer)
def simulate() -> None:
    """Simulate traces under one or more policies and compare them.

    \b
    plait simulate trace.csv --policy fifo,srsf --cluster 8x8
    plait simulate trace.csv -p tiresias-l:thresholds=3250/7200 --seed 0..4 --report out.html
    plait simulate trace.csv --policy srsf --cluster 8x8 --cluster 16x4
    """


def _answer_sweep(request: SweepRequest) -> None:
    from plait.cli.experiments.sweep_runner import run_sweep

    run_sweep(request)


@command(SweepRequest, _answer_sweep)
def sweep() -> None:
    """Run a grid of policies, loads, seeds and clusters.

    It can be stopped and continued at any time.

    \b
    plait sweep out --preset philly --jobs 1000 --load 0.8,1.0,1.2 --seed 0..4 -p fifo,srsf,tiresias-l
    """
