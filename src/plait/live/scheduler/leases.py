"""Leases of switches for attempts, from the grants of the controller: functions of the state, called by the fold.

A lease begins when an attempt runs where its grant was planned for, and ends with the grant or the attempt. Another
region, window, switch, system and attempt have another epoch, so that packets of the former one are recognised. The
former lease of ranks stays until all of them have left it, at the same boundary of a bucket; one move at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from plait.core.cluster import Network
from plait.core.jobs import Phase
from plait.core.network_grants import NetworkGrant, by_job
from plait.live.protocol.requests import ina_of
from plait.live.scheduler.live_policy import system_of
from plait.live.scheduler.records.attempts import Attempt
from plait.live.scheduler.records.network import Leased
from plait.live.scheduler.state import State
from plait.runtime.network.grant import MOST_JOBS, MOST_WORKERS

#: System whose rules go with an addressing mode where neither job nor policy names one.
_OF_MODE = {"dedicated": "switchml", "hybrid_region": "inalloc", "hybrid_modulo": "inalloc"}
#: Timeouts of ranks, seconds: the defaults of the systems are for hardware; a software switch may wait for a core that
#: long. With 28 processes that compute on 2 cores, 10 ms were too short 10 to 79 times in 103 buckets, 30 ms up to 12
#: times; but at 1 % loss buckets take 1.7 to 2.1 times as long with 30 ms: the last packets of one are missed by time
#: alone.
RTO_S, FIRST_RTO_S = 10e-3, 50e-3
#: Timeouts in a row after which a bucket goes by gloo: processes that wait for a core are silent for half a second.
MOST_TIMEOUTS = 60
_SYSTEMS = ("switchml", "atp", "a2tp", "esa", "inalloc")


def follow_grants(state: State) -> None:
    """Match the leases of the book to the grants in force, and keep leases that ranks may still use."""
    book, controller = state.network, state.controller
    if controller is None or not (controller.grants or book.leases or book.former or book.epochs):
        return
    network = controller.cluster.network
    before = {number: one for number, one in book.leases.items() if _stands(state, network, one)}
    book.former = {number: one for number, one in book.former.items() if _stands(state, network, one)}
    granted = {
        number: grants[0]
        for number, grants in by_job(controller.grants).items()
        if (attempt := attempt_of(state, number)) is not None
        and why_not(attempt) is None
        and network is not None
        and grants[0].switch in network.names
    }
    book.leases = {}
    for number, one in before.items():
        grant = granted.get(number)
        if grant is not None and _is_same(state, network, one, grant):
            book.leases[number] = replace(one, grant=grant)
        elif not _is_told(state, one):
            continue  # no rank can use it
        elif number in book.former:
            book.leases[number] = one  # some ranks are still on their way to it
        else:
            book.former[number] = one
    for number, grant in granted.items():
        if number not in book.leases:
            book.leases[number] = _begin(state, network, grant)
    for number in [n for n in book.epochs if _is_over(state, n)]:
        del book.epochs[number]


def attempt_of(state: State, number: int) -> Attempt | None:
    """The attempt of a job that may have a lease: it runs where the plan has it, and has grant files."""
    job = state.jobs.get(number)
    attempt = None if job is None else job.live
    if attempt is None or not attempt.networked or attempt.stop is not None:
        return None
    return attempt if state.groups.of_job.get(number) == attempt.gpus else None


def why_not(attempt: Attempt) -> str | None:
    """Why a job cannot use what it was granted, or None: limits of the header of packets."""
    if len(attempt.ranks) > MOST_WORKERS:
        return f"has {len(attempt.ranks)} processes; a switch adds up at most {MOST_WORKERS}"
    return None


def _is_over(state: State, number: int) -> bool:
    job = state.jobs.get(number)
    return job is None or (job.live is None and state.phase(job) > Phase.RUNNING)


def _stands(state: State, network: Network | None, lease: Leased) -> bool:
    attempt = attempt_of(state, lease.job)
    if attempt is None or attempt.epoch != lease.attempt or network is None:
        return False
    return lease.grant.switch in network.names and lease.grant.switch not in network.down


def _is_told(state: State, lease: Leased) -> bool:
    told = state.network.told.get(lease.job)
    return told is not None and told.granted and (told.epoch, told.lease) == (lease.attempt, lease.epoch)


def _is_same(state: State, network: Network | None, lease: Leased, grant: NetworkGrant) -> bool:
    if lease.spent or _place(lease.grant) != _place(grant):
        return False
    return lease.options == options_of(state, network, grant)


def _place(grant: NetworkGrant) -> NetworkGrant:
    """The grant without what may change while its region stays."""
    return replace(grant, priority=0, epoch=0, reason="")


def _begin(state: State, network: Network | None, grant: NetworkGrant) -> Leased:
    """A lease for a grant, with the number on the wire of the one before if the switch can move the job."""
    book, attempt = state.network, attempt_of(state, grant.job)
    assert attempt is not None
    epoch = book.epochs[grant.job] = book.epochs.get(grant.job, 0) + 1
    options = options_of(state, network, grant)
    made = Leased(grant.job, attempt.epoch, epoch, grant, 0, epoch, options, state.now_s)
    former = book.former.get(grant.job)
    # A switch keeps regions of two epochs, one after the other.
    if (
        former is not None
        and former.epoch == epoch - 1
        and not former.spent
        and (former.grant.switch, former.options) == (grant.switch, options)
    ):
        return replace(made, wire=former.wire, since=former.since)
    return replace(made, wire=_free_wire(state))


def _free_wire(state: State) -> int:
    """The next number for the header of packets, which has 16 bits for it, that no lease has."""
    book = state.network
    taken = {one.wire for one in (*book.leases.values(), *book.former.values())}
    wire = book.next_wire
    while wire in taken:
        wire = (wire + 1) % MOST_JOBS
    book.next_wire = (wire + 1) % MOST_JOBS
    return wire


def options_of(state: State, network: Network | None, grant: NetworkGrant) -> Mapping[str, Any]:
    """The options of the protocol with which a job is registered: system, addressing, payload, timeouts."""
    assert network is not None
    asked = ina_of(state.jobs[grant.job].request)
    system = asked.protocol or system_of(state.policy)
    if system not in _SYSTEMS or (system == "switchml") != (grant.mode == "dedicated"):
        system = _OF_MODE.get(grant.mode, "esa" if grant.priority else "atp")
    return {
        "protocol": system, "index": grant.mode, "payload_bytes": network.switch(grant.switch).payload_bytes,
        "rto_s": RTO_S, "first_rto_s": FIRST_RTO_S, "max_timeouts": MOST_TIMEOUTS,
    }  # fmt: skip
