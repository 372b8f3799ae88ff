"""What attempts have of switches, from the grants of the controller: functions of the state, called by the fold.

A lease begins when an attempt runs where its grant was planned for, and ends with the grant or the attempt. Another
region, another switch and another attempt have another epoch, so that packets of the former one are recognised.
"""

from __future__ import annotations

from dataclasses import replace

from plait.core.aggregation.grants import NetworkGrant, by_job
from plait.core.jobs import Phase
from plait.live.scheduler.records.attempts import Attempt
from plait.live.scheduler.records.network import Leased
from plait.live.scheduler.state import State
from plait.runtime.network.grant import MOST_JOBS, MOST_WORKERS


def follow_grants(state: State) -> None:
    """Let the leases of the book be those of the grants in force."""
    book, controller = state.network, state.controller
    if controller is None or not (controller.grants or book.leases or book.epochs):
        return
    leases: dict[int, Leased] = {}
    for number, grants in by_job(controller.grants).items():
        attempt = attempt_of(state, number)
        if attempt is None or why_not(state, number, attempt) is not None:
            continue
        grant, before = grants[0], book.leases.get(number)
        if before is not None and before.attempt == attempt.epoch and _place(before.grant) == _place(grant):
            leases[number] = replace(before, grant=grant)
            continue
        epoch = book.epochs[number] = book.epochs.get(number, 0) + 1
        leases[number] = Leased(number, attempt.epoch, epoch, grant)
    book.leases = leases
    for number in [n for n in book.epochs if _is_over(state, n)]:
        del book.epochs[number]


def _is_over(state: State, number: int) -> bool:
    job = state.jobs.get(number)
    return job is None or (job.live is None and state.phase(job) > Phase.RUNNING)


def attempt_of(state: State, number: int) -> Attempt | None:
    """The attempt of a job that may have a lease: it runs where the plan has it, and has grant files."""
    job = state.jobs.get(number)
    attempt = None if job is None else job.live
    if attempt is None or not attempt.networked or attempt.stop is not None:
        return None
    return attempt if state.groups.of_job.get(number) == attempt.gpus else None


def why_not(state: State, number: int, attempt: Attempt) -> str | None:
    """Why a job cannot use what it was granted, or None: limits of the header of packets."""
    if len(attempt.ranks) > MOST_WORKERS:
        return f"has {len(attempt.ranks)} processes; a switch adds up at most {MOST_WORKERS}"
    wire = wire_number(number)
    if any(wire_number(other) == wire and other < number for other in state.network.leases):
        return "another job has its number on the wire"
    return None


def wire_number(number: int) -> int:
    """The number of a job in the header of packets, which has 16 bits."""
    return number % MOST_JOBS


def _place(grant: NetworkGrant) -> NetworkGrant:
    """The grant without what may change while its region stays."""
    return replace(grant, priority=0, epoch=0, reason="")
