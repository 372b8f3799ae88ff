"""`plait advise`: what other policies, cluster sizes and quotas would have changed."""

from __future__ import annotations

from plait.cli.declared import command
from plait.cli.experiments.advising import AdviseRequest


def _answer(request: AdviseRequest) -> None:
    from plait.cli.experiments.advising import answer

    answer(request)


@command(AdviseRequest, _answer)
def advise() -> None:
    """Show what other choices would have changed in a history.

    The default HISTORY is the running service's. Choices are policies, cluster sizes and quotas. First the policy that
    was used is simulated; if its mean completion time is more than 5 % off what happened, it exits with 4 and lists
    possible causes.

    \b
    sacct -a -X -P -S 2024-03-01 -E 2024-04-01 -o JobID,User,Account,Submit,Start,End,State,AllocTRES,NNodes > march.txt
    plait advise march.txt --cluster 16x8 --price 2.5 --report advice.html
    """
