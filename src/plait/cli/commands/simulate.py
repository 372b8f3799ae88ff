"""`plait simulate`: traces under policies, side by side."""

from __future__ import annotations

from plait.cli.declared import command
from plait.cli.experiments.request import Request


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
